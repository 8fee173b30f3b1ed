"""The migration controller: a target pod for each VirtualMachineInstanceMigration, the hand-over to the agents of both hosts,
and the end. The rules are in `migration_phase`; the agents of source and target do the rest (`node/migrations.py`).

What the target has is booked through its pod alone: the scheduler books it as for every pod, and deleting the pod releases it,
with its claims (`target_devices`). So a migration that fails at any point leaves the VMI in its pod, and nothing for ever."""

from __future__ import annotations

from dataclasses import replace

from outfitter.api import conditions, kinds, rejection_conditions
from outfitter.api.conditions import Condition
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import attachment_pods, migration, pod_claims, vm
from outfitter.api.launcher.launcher_container import LauncherSettings
from outfitter.controllers import launcher_pod
from outfitter.controllers.manager import ControllerContext, enqueue_on_change
from outfitter.controllers.migrations import migration_phase
from outfitter.controllers.migrations.migration_phase import MigrationStep, MigrationView
from outfitter.controllers.migrations.target_devices import TargetDevices
from outfitter.controllers.pod_renderer import PodRenderer
from outfitter.controllers.vmi import LauncherPods, instance_of
from outfitter.errors import AlreadyExists, Forbidden, Invalid, NotFound, NotReady, Terminating
from outfitter.scheduling import device_migration
from outfitter.store.informer import key_of
from outfitter.store.workqueue import WorkQueue

PASSING = ("PreparingTarget", "TargetReady")  # phases from the hand-over to the start of the copy
STARTS_WITHIN = 0.5  # seconds after which these are written, and Scheduling of one that was Pending
KEPT = 5  # finished migrations of a VMI
RENDER_AGAIN = 5.0  # seconds after which a target pod that could not be created is tried again
QUOTA = "exceeded quota"  # in the message of a pod that a ResourceQuota refused


class MigrationController:
    name = "migration"
    kind = kinds.MIGRATION  # of its keys

    def __init__(self, context: ControllerContext, launcher: LauncherSettings | None = None) -> None:
        self._context, self._store = context, context.store
        self.queue = WorkQueue(context.clock)
        self._jobs = context.informer(kinds.MIGRATION)
        self._vmis = context.informer(kinds.VMI)
        self._pods = context.informer(kinds.POD)
        self._launchers = LauncherPods(self._pods)
        self._created: dict[str, float] = {}  # migrations whose target's pod this process created -> when, monotonic
        self._handed_over: dict[str, float] = {}  # migrations -> since when, monotonic
        self._renderer = PodRenderer(context, launcher)
        self._devices = TargetDevices(context, lambda: self._renderer.config().gates)
        self._jobs.add_index("vmi", lambda job: [migration.vmi_key(job)])
        self._jobs.add_index("unfinished", lambda job: [] if migration.is_finished(job) else ["yes"])
        self._pods.add_index("launcher", lambda pod: [attachment_pods.launcher_uid(pod) or ""])
        self._pods.add_index("migration", lambda pod: [job] if (job := _job_key(pod)) else [])
        self._jobs.on_change(self._job_changed)
        enqueue_on_change(self._vmis, self.queue, self._of_vmi)
        enqueue_on_change(self._pods, self.queue, self._of_pod)
        enqueue_on_change(context.informer(kinds.KUBEVIRT), self.queue, lambda _: self._waiting())
        self._pods.add_index("claim", pod_claims.claim_keys)
        enqueue_on_change(self._devices.claims, self.queue, self._of_claim)
        enqueue_on_change(self._devices.lookup.slices, self.queue, lambda _: self._in_phase("Scheduling"))

    # -- which change wakes which migration

    def _job_changed(self, old: Object | None, new: Object | None) -> None:
        job = new or old
        assert job is not None
        self.queue.add(key_of(job))
        if new is None or migration.is_finished(new):  # another may begin
            for key in self._waiting():
                self.queue.add(key)

    def _waiting(self) -> list[str]:
        return self._in_phase("", "Pending")

    def _in_phase(self, *phases: str) -> list[str]:
        return [key_of(job) for job in self._jobs.by("unfinished", "yes") if migration.phase_of(job) in phases]

    def _of_claim(self, claim: Object) -> list[str]:
        return [key for pod in self._pods.by("claim", key_of(claim)) for key in self._of_pod(pod)]

    def _of_vmi(self, vmi: Object) -> list[str]:
        return [key_of(job) for job in self._jobs.by("vmi", key_of(vmi)) if not migration.is_finished(job)]

    def _of_pod(self, pod: Object) -> list[str]:
        """By the annotation, which names the migration."""
        name = (pod["metadata"].get("annotations") or {}).get(migration.JOB_NAME)
        own = [f"{pod['metadata']['namespace']}/{name}"] if name and migration.job_uid(pod) else []
        ended = (pod.get("status") or {}).get("phase") in vm.FINAL
        return [*own, *(key for key in self._next(pod) if key not in own)] if ended else own

    def _next(self, pod: Object) -> list[str]:
        """Migrations of its VMI that may wait for the end of a pod that the VMI has left."""
        return [key_of(job) for vmi in instance_of(pod) for job in self._jobs.by("vmi", vmi) if not migration.is_finished(job)]

    # -- one migration

    async def reconcile(self, key: str) -> float | None:
        known = self._jobs.get(key)
        if known is None:
            return None
        job = {**known, "metadata": dict(known["metadata"])}
        if migration.is_finished(job):
            self._handed_over.pop(job["metadata"]["uid"], None)
            self._created.pop(job["metadata"]["uid"], None)
            return await self._clean_up(job)
        have = job["metadata"].get("finalizers") or ()
        if migration.FINALIZER not in have and not job["metadata"].get("deletionTimestamp"):
            finalizers = [*have, migration.FINALIZER]
            job = {**await self._context.patch_metadata(kinds.MIGRATION, job, {"finalizers": finalizers})}
        vmi = self._vmis.get(migration.vmi_key(job))
        pod = await self._target(job, vmi)
        others = [other for other in self._jobs.by("unfinished", "yes") if other["metadata"]["uid"] != job["metadata"]["uid"]]
        theirs = {other["metadata"]["uid"]: found for other in others
                  if (found := self._vmis.readable(migration.vmi_key(other))) is not None}
        sources = {key_of(found): str((found.get("status") or {}).get("nodeName") or "") for found in theirs.values()}
        stuck = frozenset(uid for uid, found in theirs.items() if self._left(found) is not None)
        begun = frozenset(other["metadata"]["uid"] for other in others if self._pods.by("migration", _place(other)))
        settings = self._renderer.config().migrations
        view = MigrationView(job, vmi, pod, self._context.clock.now(), settings, others, sources, begun,
                             left=self._left(vmi), stuck=stuck)
        if vmi is not None and not migration.state_of(vmi, job):
            view = await self._with_devices(view, vmi)
        return await self._do(view, migration_phase.decide(view))

    def _left(self, vmi: Object | None) -> Object | None:
        """The pod that a VMI left by its last migration, while that pod has not ended. The next migration would overwrite the
        record by which its agent knows that it has to end."""
        record = migration.state(vmi or {})
        if vmi is None or not record.get("completed") or record.get("failed"):
            return None
        pod = self._pods.get(f"{vmi['metadata']['namespace']}/{record.get('sourcePod')}")
        if pod is None or (pod.get("status") or {}).get("phase") in vm.FINAL or (
                pod["metadata"]["uid"] in (vmi["status"].get("activePods") or ())):
            return None
        return pod

    async def _with_devices(self, view: MigrationView, vmi: Object) -> MigrationView:
        """Before the hand-over: what becomes of its devices, and which of the target's are known."""
        source, pod = self._with_plugged_claims(self._launchers.current(vmi)), view.pod
        if pod is None:
            return replace(view, devices=self._devices.plan(vmi, source))
        if not pod["spec"].get("nodeName") and not view.job["metadata"].get("deletionTimestamp"):
            await self._devices.provide(vmi, view.job, pod, source)
        devices = self._devices.plan(vmi, source)
        if devices and migration_phase.is_unschedulable(pod):
            devices = self._devices.with_twins(devices, vmi, source)
        return replace(view, devices=devices, target=self._devices.status(vmi, pod))

    async def _target(self, job: Object, vmi: Object | None) -> Object | None:
        """The target's pod. Where a pod was created and the cache does not have it, the store is asked: it may be behind."""
        for pod in self._pods.by("migration", _place(job)):
            if vmi is None or (vm.owner(pod, kinds.VMI.kind) or {}).get("uid") == vmi["metadata"]["uid"]:
                return pod
        if vmi is None or migration.phase_of(job) in ("", "Pending"):
            return None
        try:
            return await self._store.get(kinds.POD, launcher_pod.target_pod_name(vmi, job), vmi["metadata"]["namespace"])
        except NotFound:
            return None

    async def _do(self, view: MigrationView, step: MigrationStep) -> float | None:
        job, vmi, pod = view.job, view.vmi, view.pod
        if step.act == "delete":
            await self._store.delete(kinds.MIGRATION, job["metadata"]["name"], job["metadata"]["namespace"],
                                     uid=job["metadata"]["uid"])
            return None
        if step.act == "create-pod" and vmi is not None:
            step = await self._create_pod(job, vmi, step)
        elif step.act == "hand-over" and vmi is not None and pod is not None:
            await self._hand_over(view, vmi, pod)
        elif step.act == "fail-record" and vmi is not None:
            await self._patch_record(vmi, {"failed": True, "completed": True, "endTimestamp": self._context.now(),
                                           "failureReason": step.message, "failureCode": step.code})
            return None  # its watch update ends the migration
        elif step.act == "request-abort" and vmi is not None:
            await self._patch_record(vmi, {"abortRequested": True})
            await self._context.events.normal(vmi, "MigrationAbortRequested", f"migration {job['metadata']['name']}: "
                                                                              f"{step.message}")
        elif step.act == "succeed" and vmi is not None:
            vmi = await self._arrived(vmi, pod)
        if step.phase in PASSING and self._is_soon(self._handed_over, job) and not _devices_differ(view):
            return STARTS_WITHIN
        if step.phase == "Scheduling" and not step.code and migration.phase_of(job) == "Pending" and (
                self._is_soon(self._created, job)):  # one that waited for its turn
            return STARTS_WITHIN
        await self._report(replace(view, vmi=vmi), step)
        return step.again.total_seconds() if step.again is not None else None

    async def _arrived(self, vmi: Object, pod: Object | None) -> Object:
        if pod is not None:
            await self._devices.arrived(vmi, pod)
        if conditions.find(vmi, migration.MIGRATION_REQUIRED) is None:
            return vmi
        have = conditions.without_condition(vmi["status"].get("conditions"), migration.MIGRATION_REQUIRED)
        return await self._context.patch_status(kinds.VMI, vmi, {"conditions": have})

    def _with_plugged_claims(self, source: Object | None) -> Object | None:
        """The source's pod with the claims of devices that were plugged, which attachment pods hold."""
        return attachment_pods.with_claims(source, self._pods.by("launcher", source["metadata"]["uid"])) if source else None

    def _is_soon(self, since: dict[str, float], job: Object) -> bool:
        """Where both agents run, the target gets ready and the copy begins at once: the phases before are not written for that
        moment. They are known from the target's pod and from the record in the VMI's status."""
        now, uid = self._context.clock.monotonic(), job["metadata"]["uid"]
        return now - since.setdefault(uid, now) < STARTS_WITHIN

    async def _create_pod(self, job: Object, vmi: Object, step: MigrationStep) -> MigrationStep:
        """The step, or why it cannot be done yet."""
        host, source = str(vmi["status"].get("nodeName") or ""), self._launchers.current(vmi)
        try:
            rendered = launcher_pod.target_pod(await self._renderer.render(vmi, source=source), vmi, job, host)
            held = self._with_plugged_claims(source)
            pod = await self._context.create(kinds.POD, self._devices.rendered(vmi, job, rendered, held))
            await self._devices.provide(vmi, job, pod, held)
        except AlreadyExists:  # created before a crash, or the cache is behind
            return step
        except Terminating:
            raise
        except (Invalid, Forbidden, NotReady) as error:
            code = migration_phase.QUOTA_EXCEEDED if QUOTA in error.message else migration_phase.TARGET_REFUSED
            return migration_phase.refused(code, f"Error creating the target's pod: {error.message}", RENDER_AGAIN)
        await self._context.events.normal(job, "SuccessfulCreate", f"Created migration target pod {pod['metadata']['name']}")
        return step

    async def _hand_over(self, view: MigrationView, vmi: Object, target: Object) -> None:
        """From here on the agents act: of the target first, then of the source."""
        job, source = view.job, self._launchers.current(vmi)
        if source is None:
            raise NotFound(f"the pod that VMI {key_of(vmi)} runs in is not known yet")
        record = {"migrationUid": job["metadata"]["uid"], "sourceNode": vmi["status"].get("nodeName"),
                  "sourcePod": source["metadata"]["name"], "targetNode": target["spec"]["nodeName"],
                  "targetPod": target["metadata"]["name"], "mode": "PreCopy"}
        devices = {"targetDeviceStatus": view.target.status, "targetFlavor": view.target.flavor}
        record |= {field: value for field, value in devices.items() if value is not None}
        old = dict.fromkeys(migration.state(vmi))
        active = {source["metadata"]["uid"]: source["spec"].get("nodeName") or "",
                  target["metadata"]["uid"]: target["spec"]["nodeName"]}
        gone = dict.fromkeys((vmi["status"].get("activePods") or {}).keys() - active.keys())
        await self._context.patch_status(kinds.VMI, vmi, {
            "migrationState": {**old, **record}, "activePods": {**gone, **active}})
        await self._context.events.normal(vmi, "PreparingTarget", f"Migration Target is {record['targetNode']}: migration "
                                                                  f"{job['metadata']['name']} from {record['sourceNode']}")

    async def _patch_record(self, vmi: Object, change: Object) -> None:
        await self._context.patch_status(kinds.VMI, vmi, {"migrationState": change})

    # -- what the migration's status shows

    async def _report(self, view: MigrationView, step: MigrationStep) -> None:
        job, vmi = view.job, view.vmi
        status, now = job.get("status") or {}, self._context.now()
        phase = step.phase or status.get("phase") or "Pending"
        new: Object = {"phase": phase, "conditions": self._conditions(view, step, now)}
        if phase != status.get("phase"):
            new["phaseTransitionTimestamps"] = migration_phase.passed(job, phase, now)
        if phase in vm.FINAL and vmi is not None and (record := migration.state_of(vmi, job)):
            new["migrationState"] = dict(record)
        changes = {key: value for key, value in new.items() if (status.get(key) or None) != (value or None)}
        if not changes:
            return
        if phase == "Succeeded":  # nothing is left to release
            await self._context.finish(kinds.MIGRATION, job, changes, migration.FINALIZER)
        else:
            await self._context.patch_status(kinds.MIGRATION, job, changes)
        if phase == status.get("phase"):
            return
        if phase == "Failed":
            await self._context.events.warning(job, "FailedMigration", f"{step.code}: {step.message}")
            if vmi is not None:
                host = (vmi.get("status") or {}).get("nodeName")
                await self._context.events.warning(vmi, "FailedMigration", f"migration {job['metadata']['name']} failed, the "
                                                                           f"VM stays on {host}: {step.message}")
        elif phase == "Succeeded":
            await self._context.events.normal(job, "SuccessfulMigration", "Source node reported migration succeeded")

    def _conditions(self, view: MigrationView, step: MigrationStep, now: str) -> list[Object]:
        job, pod = view.job, view.pod
        have: list[Object] = [dict(entry) for entry in (job.get("status") or {}).get("conditions") or ()]
        failed = step.phase == "Failed"
        for type_, holds in ((migration.WAITING, bool(step.code) and not failed and step.act == "nothing"),
                             (migration.FAILED, failed),
                             (migration.REJECTED_BY_QUOTA, step.code == migration_phase.QUOTA_EXCEEDED)):
            have = conditions.with_condition(have, Condition(type_, True, step.code, step.message), now) if holds else (
                conditions.without_condition(have, type_))
        if view.devices:
            stay = [one for one in view.devices if one.rejection is not None]
            have = conditions.with_condition(have, Condition(
                migration.DEVICES, not stay, stay[0].code if stay else "", device_migration.text(view.devices)), now)
        if job["metadata"].get("deletionTimestamp"):
            have = conditions.with_condition(have, Condition(migration.ABORT_REQUESTED, True, "Deleted",
                                                             "the migration was deleted, which cancels it"), now)
        waits = pod is not None and step.act == "nothing" and step.phase == "Scheduling"
        return rejection_conditions.copied(have, pod if waits and pod is not None else {})

    # -- afterwards

    async def _clean_up(self, job: Object) -> float | None:
        """Release what the target of a failed migration had, then remove the finalizer; and old migrations of the VMI."""
        vmi = self._vmis.get(migration.vmi_key(job))
        pod = await self._target(job, vmi)
        if migration.phase_of(job) == "Failed" and pod is not None and not self._runs_in(vmi, pod):
            if not pod["metadata"].get("deletionTimestamp"):
                await self._store.delete(kinds.POD, pod["metadata"]["name"], pod["metadata"]["namespace"],
                                         uid=pod["metadata"]["uid"])
            return None  # the watch update of its end
        meta = job["metadata"]
        if migration.FINALIZER in (meta.get("finalizers") or ()):
            left = [name for name in meta["finalizers"] if name != migration.FINALIZER]
            await self._context.patch_metadata(kinds.MIGRATION, job, {"finalizers": left or None})
        if not meta.get("deletionTimestamp"):
            await self._delete_old(job)
        return None

    def _runs_in(self, vmi: Object | None, pod: Object) -> bool:
        """Whether a VMI runs in its migration's target: the agent that reported the failure did not know."""
        status = (vmi or {}).get("status") or {}
        return bool(pod["spec"].get("nodeName")) and status.get("nodeName") == pod["spec"]["nodeName"] and (
            pod["metadata"]["uid"] in (status.get("activePods") or ()))

    async def _delete_old(self, job: Object) -> None:
        finished = [other for other in self._jobs.by("vmi", migration.vmi_key(job))
                    if migration.is_finished(other) and not other["metadata"].get("deletionTimestamp")]
        finished.sort(key=lambda other: (str(other["metadata"].get("creationTimestamp")), other["metadata"]["name"]))
        for other in finished[:-KEPT]:
            await self._store.delete(kinds.MIGRATION, other["metadata"]["name"], other["metadata"]["namespace"],
                                     uid=other["metadata"]["uid"])


def _job_key(pod: Object) -> str:
    """Namespace and uid of the migration whose target a pod is."""
    uid = migration.job_uid(pod)
    return f"{pod['metadata']['namespace']}/{uid}" if uid else ""


def _devices_differ(view: MigrationView) -> bool:
    """Whether the migration shows devices that waited and no longer do."""
    shown = conditions.find(view.job, migration.DEVICES)
    return bool(view.devices) and shown is not None and shown.get("message") != device_migration.text(view.devices)


def _place(job: Object) -> str:
    return f"{job['metadata']['namespace']}/{job['metadata']['uid']}"
