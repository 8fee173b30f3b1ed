"""The VMI controller: a launcher pod for each VMI, phases that follow the pod, and a reason while it waits.

The node agent reports that the VM runs or has ended; this controller reports everything before and after."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from datetime import timedelta

from outfitter.api import conditions, kinds, rejection_conditions
from outfitter.api.conditions import Condition
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import failed_launches, migration, pod_end, vm, vm_actions, vmi_actions
from outfitter.api.launcher.launcher_container import LauncherSettings
from outfitter.controllers import launcher_networks, launcher_pod
from outfitter.controllers.flavor_claims import FlavorClaims
from outfitter.controllers.manager import ControllerContext, enqueue_on_change
from outfitter.controllers.pod_renderer import PodRenderer
from outfitter.errors import AlreadyExists, Forbidden, Invalid, NotFound, NotReady, Terminating
from outfitter.scheduling.nova.flavor_claim import AliasSet
from outfitter.store.informer import Informer, key_of
from outfitter.store.workqueue import WorkQueue

STARTED = ("Scheduled", "Running")  # its pod was on a host: without that pod the VM has ended
LOOK_AGAIN = 30.0  # seconds after which a pod that was refused is tried again: no watch update says that it would be admitted
NETWORK_AGAIN = 5.0  # seconds, for a network that does not exist yet: these are not watched
ORPHAN_AGAIN = 5.0  # seconds, for a pod that lost its owner (`--cascade=orphan`): its updates do not reach us


def instance_of(pod: Object) -> list[str]:
    """The key of the instance that a launcher pod belongs to."""
    reference = vm.owner(pod, kinds.VMI.kind)
    return [f"{pod['metadata']['namespace']}/{reference['name']}"] if reference else []


def _vmi_uid(pod: Object) -> list[str]:
    """The VMI's uid with the pod's namespace: a pod in another namespace may refer to it, and is not its pod."""
    reference = vm.owner(pod, kinds.VMI.kind)
    return [f"{pod['metadata']['namespace']}/{reference['uid']}"] if reference and vm.launches(pod) else []


class LauncherPods:
    """The launcher pods of each VMI, and which of them it is in."""

    def __init__(self, pods: Informer[Object]) -> None:
        self._pods = pods
        pods.add_index("vmi", _vmi_uid)

    def all(self, instance: Object) -> list[Object]:
        """Unreadable: its pod exists, and is not known to be gone."""
        if self._pods.unreadable:
            self._pods.get(f"{instance['metadata']['namespace']}/{launcher_pod.pod_name(instance)}")
        return self.readable(instance)

    def readable(self, instance: Object) -> list[Object]:
        return self._pods.by("vmi", f"{instance['metadata']['namespace']}/{instance['metadata']['uid']}")

    def current(self, instance: Object) -> Object | None:
        return vm.current_pod(self.all(instance), instance)


class VmiController:
    name = "vmi"
    kind = kinds.VMI  # of its keys

    def __init__(
        self, context: ControllerContext, aliases: AliasSet | None = None, *, exact: bool = True,
        launcher: LauncherSettings | None = None,
    ) -> None:
        """`launcher`: how kubelets run launcher pods; None: no kubelet does."""
        self._context, self._store, self._launcher = context, context.store, launcher
        self._instances = context.informer(kinds.VMI)
        self.queue = WorkQueue(context.clock, age=self._instances.age)
        self._flavors = FlavorClaims(context, aliases or AliasSet(), self.queue, exact=exact)
        self._pods = LauncherPods(context.informer(kinds.POD))
        enqueue_on_change(self._instances, self.queue)
        self._renderer = PodRenderer(context, launcher)
        enqueue_on_change(context.informer(kinds.POD), self.queue, instance_of)
        enqueue_on_change(context.informer(kinds.KUBEVIRT), self.queue, self._without_pod)

    def _without_pod(self, _: Object) -> list[str]:
        """VMIs whose devices may be permitted now."""
        return [key_of(instance) for instance in self._instances.items() if not self._pods.readable(instance)]

    async def reconcile(self, key: str) -> float | None:
        known = self._instances.get(key)
        if known is None:
            return None
        instance = {**known, "metadata": dict(known["metadata"])}
        if instance["metadata"].get("deletionTimestamp"):
            return await self._end(instance, self._pods.all(instance))
        pod = self._pods.current(instance)
        phase = (instance.get("status") or {}).get("phase")
        if phase in vm.FINAL:
            await self._delete(instance, [pod for pod in self._pods.all(instance) if _unfinished(pod)])
            return None
        if vm.FINALIZER not in (instance["metadata"].get("finalizers") or ()):
            finalizers = [*(instance["metadata"].get("finalizers") or ()), vm.FINALIZER]
            await self._set_finalizers(instance, finalizers)
        if pod is not None and failed_launches.is_failed_launch(instance, pod):
            await self._relaunch(instance, pod)
            return None
        patience = failed_launches.host_patience(instance, pod, self._context.clock.now()) if pod is not None else None
        if patience is not None and patience <= timedelta():
            await self._give_up(instance)
            return None
        record: Object | None = None
        if self._flavors.unsettled(instance, pod):
            settled = await self._flavors.settle(instance)
            if isinstance(settled, Condition):
                await self._tell(instance, settled)
                return None
            record = settled
            known = instance
            instance = {**known, "status": {**(known.get("status") or {}), "flavor": record}}
        if pod is None and phase in (None, "", "Pending", "Scheduling"):
            pod = await self._make_pod(instance)
        await self._follow(instance, pod, record)
        if pod is not None and self._launcher is not None:
            await self._follow_pause(instance, pod)
        if patience is not None:
            return patience.total_seconds()
        return None if pod is not None else NETWORK_AGAIN if launcher_networks.asked_for(instance) else LOOK_AGAIN

    async def _relaunch(self, instance: Object, failed: Object) -> None:
        """Record the failed launch, then delete its pod; the next pod is created when that is gone. After a crash the
        record is found, and the rest is done."""
        launches = failed_launches.with_failure(instance, failed, self._context.now())
        if launches != failed_launches.of(instance):
            change = failed_launches.next_status(instance, launches, self._context.now())
            await self._patch_status(instance, change)
            if change["phase"] in vm.FINAL:
                await self._report_no_launch_left(instance, launches)
                return
        await self._delete(instance, [failed])

    async def _give_up(self, instance: Object) -> None:
        """No other host can take a VMI whose last start failed."""
        launches = failed_launches.of(instance)
        await self._patch_status(instance, failed_launches.failed_status(instance, launches, self._context.now()))
        await self._report_no_launch_left(instance, launches)

    async def _report_no_launch_left(self, instance: Object, launches: Sequence[failed_launches.FailedLaunch]) -> None:
        most = failed_launches.MAX_LAUNCHES
        why = f"{most} launches failed" if len(launches) >= most else "the launch failed and no other host can take it"
        await self._context.events.warning(instance, "NoValidHost", f"{why}: {failed_launches.summary(launches)}")

    async def _make_pod(self, instance: Object) -> Object | None:
        try:
            pod = await self._store.create(kinds.POD, launcher_pod.keep_away(
                await self._renderer.render(instance), failed_launches.of(instance)))
        except AlreadyExists:  # made before a crash, or the informer is behind: its event comes
            return None
        except Terminating:
            raise
        except (Invalid, Forbidden, NotReady) as error:
            await self._tell(instance, Condition("Synchronized", False, "FailedCreate", f"Error creating pod: {error.message}"))
            return None
        name = pod["metadata"]["name"]
        await self._context.events.normal(instance, "SuccessfulCreate", f"Created virtual machine pod {name}")
        return pod

    async def _follow(self, instance: Object, pod: Object | None, record: Object | None = None) -> None:
        """The phase that the pod's state means, and the reason while it waits. `record`: what is new of its flavor."""
        new = dict(instance.get("status") or {})
        status = {key: value for key, value in new.items() if key != "flavor"} if record is not None else dict(new)
        phase = status.get("phase")
        if pod is not None and phase in STARTED and not vm.is_its(pod, status):
            pod = None
        if record is not None:
            new["conditions"] = conditions.without_condition(new.get("conditions") or [], "Synchronized")
        new["phase"] = phase or "Pending"
        if pod is not None:
            new["phase"] = self._phase(new["phase"], pod)
            node = pod["spec"].get("nodeName")
            if node and new["phase"] in STARTED:
                new["nodeName"] = node
            new["activePods"] = migration.active_pods(instance, pod, self._pods.readable(instance))
            new["conditions"] = self._conditions(new, pod)
        elif phase in STARTED:
            if await self._has_pod(instance):
                return  # its watch update is on the way
            new["phase"] = "Failed"
            was = conditions.find(instance, "Ready") or {}
            why = str(was.get("message")) if was.get("reason") == "PodTerminating" else "its pod is gone"
            new["conditions"] = conditions.with_condition(
                status.get("conditions"), Condition("Ready", False, "PodTerminating", why), self._context.now())
        if new["phase"] != phase:
            began = vm.entered(
                new.get("phaseTransitionTimestamps"), "Pending", instance["metadata"]["creationTimestamp"]
            )
            new["phaseTransitionTimestamps"] = vm.entered(began, new["phase"], self._context.now())
        if not _trifling(changes := _changes(status, new), status):
            await self._patch_status(instance, changes)

    async def _follow_pause(self, instance: Object, pod: Object) -> None:
        """The readiness gate of a pod that a kubelet runs: it is not ready while its VMI is paused, and the kubelet computes
        that from this condition. Node agents may not write pods."""
        if (instance.get("status") or {}).get("phase") != "Running" or not vmi_actions.gated(pod):
            return
        wanted = vmi_actions.unpaused_condition(paused=conditions.is_true(instance, vmi_actions.PAUSED))
        have = conditions.find(pod, wanted.type) or {}
        if have.get("status") != str(wanted.status):
            changed = conditions.with_condition((pod.get("status") or {}).get("conditions"), wanted, self._context.now())
            await self._context.patch_status(kinds.POD, pod, {"conditions": changed})

    async def _tell(self, instance: Object, why: Condition) -> None:
        """Reports why a VMI has no pod, once."""
        have = conditions.find(instance, why.type)
        if have is None or have.get("message") != why.message:
            await self._set(instance, why)
            await self._context.events.warning(instance, why.reason, why.message)

    async def _has_pod(self, instance: Object) -> bool:
        """Asks the store: a pod that the informer has not seen yet is not a pod that is gone."""
        pod = await self._stored_pod(instance)
        return pod is not None and not pod["metadata"].get("deletionTimestamp") and vm.is_its(pod, instance["status"])

    async def _stored_pod(self, instance: Object) -> Object | None:
        """A pod of a VMI, by the names that it can have."""
        for name in (*migration.pod_names(instance), launcher_pod.pod_name(instance)):
            with contextlib.suppress(NotFound):
                return await self._store.get(kinds.POD, name, instance["metadata"]["namespace"])
        return None

    def _phase(self, phase: str, pod: Object) -> str:
        state = (pod.get("status") or {}).get("phase")
        if state in vm.FINAL:
            return str(state)
        if phase in ("Pending", "Scheduling"):
            return "Scheduled" if state == "Running" and pod["spec"].get("nodeName") else "Scheduling"
        return phase

    def _conditions(self, status: Object, pod: Object) -> list[Object]:
        """A pod that waits for a host shows its reason on the instance too."""
        have = conditions.without_condition(status.get("conditions") or [], "Synchronized")  # why there was no pod
        scheduled = conditions.find(pod, "PodScheduled")
        if scheduled is not None and scheduled.get("status") == "False":
            wanted = Condition("PodScheduled", False, scheduled.get("reason", ""), scheduled.get("message", ""))
            have = conditions.with_condition(have, wanted, self._context.now())
        else:
            have = conditions.without_condition(have, "PodScheduled")
        have = rejection_conditions.copied(have, pod)
        if status["phase"] in vm.BEFORE:
            have = conditions.with_condition(have, _not_ready(pod, "Guest VM is not reported as running"), self._context.now())
        elif status["phase"] in vm.FINAL:
            have = conditions.with_condition(have, _not_ready(pod, "the VM has ended"), self._context.now())
        elif pod["metadata"].get("deletionTimestamp") and conditions.is_true(pod, "DisruptionTarget"):
            why = (conditions.find(pod, "DisruptionTarget") or {}).get("message", "")  # it is lost once the pod is gone
            have = conditions.with_condition(have, Condition("Ready", False, "PodTerminating", why), self._context.now())
        return have

    async def _delete(self, instance: Object, pods: list[Object]) -> None:
        for pod in pods:
            fresh, grace = not pod["metadata"].get("deletionTimestamp"), _other_grace(instance, pod)
            if fresh or grace is not None:
                await self._store.delete(kinds.POD, pod["metadata"]["name"], pod["metadata"]["namespace"],
                                         uid=pod["metadata"]["uid"], grace=grace)
            if fresh:
                await self._context.events.normal(instance, "SuccessfulDelete",
                                                  f"Deleted virtual machine pod {pod['metadata']['name']}")

    async def _end(self, instance: Object, pods: list[Object]) -> float | None:
        meta = instance["metadata"]
        await self._delete(instance, pods)
        if pods:
            if all(map(_is_kept, pods)):
                await self._off(instance, f"its pod {pods[0]['metadata']['name']}", pods[0]["metadata"]["finalizers"])
            return None
        pod = await self._stored_pod(instance)  # the informer may be behind: ask before the finalizer is removed
        if pod is None:
            left = [name for name in meta.get("finalizers") or () if name not in (vm.FINALIZER, vm.CONTROLLER_FINALIZER)]
            if left:
                await self._off(instance, "the object", left)
            if left != list(meta.get("finalizers") or ()):
                await self._set_finalizers(instance, left)
            return None
        if _lost_owner(instance, pod):
            await self._delete(instance, [pod])
        return ORPHAN_AGAIN

    async def _off(self, instance: Object, kept: str, finalizers: Sequence[str]) -> None:
        """It was deleted and is off, and a finalizer keeps the object or its pod: the phase must not be Running."""
        status, now = instance.get("status") or {}, self._context.now()
        if status.get("phase") in vm.FINAL:
            return
        phase = "Succeeded" if status.get("phase") in STARTED else "Failed"
        why = f"it was deleted and is off; {kept} stays until its finalizers are taken off: {', '.join(finalizers)}"
        have = conditions.with_condition(status.get("conditions"), Condition("Ready", False, "Deleted", why), now)
        await self._patch_status(instance, {
            "phase": phase, "conditions": have,
            "phaseTransitionTimestamps": vm.entered(status.get("phaseTransitionTimestamps"), phase, now)})

    async def _set(self, instance: Object, condition: Condition) -> None:
        have = (instance.get("status") or {}).get("conditions")
        await self._patch_status(instance, {"conditions": conditions.with_condition(have, condition, self._context.now())})

    async def _patch_status(self, instance: Object, status: Object) -> None:
        """The instance keeps the new revision, for the next patch of the same reconcile."""
        fresh = await self._context.patch_status(kinds.VMI, instance, status)
        instance["metadata"]["resourceVersion"] = fresh["metadata"]["resourceVersion"]

    async def _set_finalizers(self, instance: Object, finalizers: list[str]) -> None:
        fresh = await self._context.patch_metadata(kinds.VMI, instance, {"finalizers": finalizers or None})
        instance["metadata"]["resourceVersion"] = fresh["metadata"]["resourceVersion"]


def _not_ready(pod: Object, otherwise: str) -> Condition:
    """The node's reason, where it gave one."""
    reason, message = pod_end.reason_of(pod)
    return Condition("Ready", False, reason or "GuestNotRunning", message or otherwise)


def _lost_owner(instance: Object, pod: Object) -> bool:
    """Whether it was made for an instance that is not its owner any more."""
    labels = pod["metadata"].get("labels") or {}
    return (
        vm.owner(pod, kinds.VMI.kind) is None
        and labels.get(vm.CREATED_BY) == instance["metadata"]["uid"]
    )


def _is_kept(pod: Object) -> bool:
    """Nothing of it runs any more, and a finalizer keeps the object."""
    return (pod.get("status") or {}).get("phase") in vm.FINAL and bool(pod["metadata"].get("finalizers"))


def _unfinished(pod: Object) -> bool:
    """Of no use once its VMI has ended: it would take a host and devices, and start nothing."""
    return (pod.get("status") or {}).get("phase") not in vm.FINAL and not pod["metadata"].get("deletionTimestamp")


def _other_grace(instance: Object, pod: Object) -> int | None:
    """The seconds that a VM has to shut down, where they differ from its pod's. Never 0: the pod would go
    at once, and the node agent would not know that there is a domain to stop."""
    meta, wanted = pod["metadata"], vm_actions.grace_period(instance)
    has = meta.get("deletionGracePeriodSeconds") if meta.get("deletionTimestamp") else pod["spec"].get(
        "terminationGracePeriodSeconds")
    if has is None or wanted == has or (meta.get("deletionTimestamp") and max(1, wanted) >= has):
        return None
    return max(1, wanted)


def _trifling(changes: Object, status: Object) -> bool:
    """Nothing is new, or only where its pod will run: that is written with the next change, when the pod runs or has a reason
    why not."""
    same_pod = _present(changes.get("activePods")) == _present(status.get("activePods"))
    return not changes or (changes.keys() == {"activePods"} and same_pod)


def _present(pods: Object | None) -> set[str]:
    """Those that are not taken out."""
    return {uid for uid, node in (pods or {}).items() if node is not None}


def _changes(old: Object, new: Object) -> Object:
    """What to write, by merging: pods of before are taken out by name."""
    changes = {key: value for key, value in new.items() if old.get(key) != value}
    if gone := (old.get("activePods") or {}).keys() - (changes.get("activePods") or old.get("activePods") or {}).keys():
        changes["activePods"] = {**dict.fromkeys(sorted(gone)), **changes["activePods"]}
    return changes
