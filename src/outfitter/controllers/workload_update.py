"""The workload updater: creates a migration for each VMI whose condition MigrationRequired is True, one per VMI and as many at
a time as `parallelMigrationsPerCluster` allows, and gives up those that are not required any more. It never evicts a VM.

While none can be created, or its target cannot be placed, the condition's message says why. The rules are in
`api/live_update/automatic_migration`."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from outfitter.api import conditions, kinds
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import kubevirt_config, migration, network_info
from outfitter.api.live_update import automatic_migration, evaluator
from outfitter.api.live_update.automatic_migration import (
    CLUSTER_LIMIT,
    CREATE_REFUSED,
    LOOK_AGAIN,
    MIGRATING,
    UpdateDecision,
    UpdateView,
    decide,
    resource_is_lacking,
    takes_pods,
    unschedulable,
)
from outfitter.api.live_update.contribution import Contributor
from outfitter.controllers.manager import ControllerContext, enqueue_on_change
from outfitter.controllers.vmi import LauncherPods, instance_of
from outfitter.errors import Forbidden, Invalid, NotFound
from outfitter.store.informer import key_of
from outfitter.store.workqueue import WorkQueue

PREFIX = "kubevirt-workload-update-"  # of the names of migrations
PRIORITY = "user-triggered"
CREATED, REFUSED, ABORTED = "SuccessfulCreate", "FailedCreate", "SuccessfulChangeAbortion"  # reasons of events

def migration_for(vmi: Object, name: str) -> Object:
    meta = vmi["metadata"]
    return {"apiVersion": kinds.MIGRATION.api_version, "kind": kinds.MIGRATION.kind, "metadata": {
        "name": name, "namespace": meta["namespace"], "labels": {migration.VMI_NAME: meta["name"][:63].rstrip("-.")},
        "annotations": {migration.WORKLOAD_UPDATE: ""}}, "spec": {"vmiName": meta["name"], "priority": PRIORITY}}


def _offer(node: Object | None) -> Object | None:
    """What a host that takes pods has for them; None: it takes none."""
    return (node.get("status") or {}).get("allocatable") or {} if node is not None and takes_pods(node) else None


def _required(vmi: Object) -> list[str]:
    return ["yes"] if conditions.is_true(vmi, automatic_migration.REQUIRED) else []


class WorkloadUpdate:
    name = "workload_update"
    kind = kinds.VMI  # of its keys

    def __init__(self, context: ControllerContext, contributors: Sequence[Contributor] = evaluator.CONTRIBUTORS) -> None:
        self._context, self._store, self._contributors = context, context.store, contributors
        self.queue = WorkQueue(context.clock)
        self._vmis, self._jobs = context.informer(kinds.VMI), context.informer(kinds.MIGRATION)
        self._pods, self._nodes = context.informer(kinds.POD), context.informer(kinds.NODE)
        self._launchers = LauncherPods(self._pods)
        self._kubevirts = context.informer(kinds.KUBEVIRT)
        self._vmis.add_index("migration required", _required)
        self._jobs.add_index("vmi", lambda job: [migration.vmi_key(job)])
        self._jobs.add_index("unfinished", lambda job: [] if migration.is_finished(job) else ["yes"])
        self._pods.add_index("target of", lambda pod: [uid] if (uid := migration.job_uid(pod)) else [])
        self._one_at_a_time = asyncio.Lock()  # the slots are counted and taken in one step
        self._waiters: set[str] = set()  # keys of VMIs that wait for a slot
        enqueue_on_change(self._vmis, self.queue, self._may_migrate)
        self._jobs.on_change(self._job_changed)
        enqueue_on_change(self._pods, self.queue, lambda pod: instance_of(pod) if migration.job_uid(pod) else [])
        enqueue_on_change(self._kubevirts, self.queue, lambda _: self._required())
        self._nodes.on_change(self._host_changed)

    def _may_migrate(self, vmi: Object) -> list[str]:
        """A VMI that is to migrate, or that has migrations. Of others there is nothing to decide."""
        key = key_of(vmi)
        return [key] if conditions.is_true(vmi, automatic_migration.REQUIRED) or self._jobs.by("vmi", key) else []

    def _required(self) -> list[str]:
        return [key_of(vmi) for vmi in self._vmis.by("migration required", "yes")]

    def _host_changed(self, old: Object | None, new: Object | None) -> None:
        """A host comes, goes, or has other resources: one that VMIs wait for may be there. Its other updates do not matter."""
        if _offer(old) != _offer(new):
            for key in self._required():
                self.queue.add(key)

    def _job_changed(self, old: Object | None, new: Object | None) -> None:
        job = new or old
        if job is None:
            return
        self.queue.add(migration.vmi_key(job))
        if new is None or migration.is_finished(new):  # a slot is free
            for key in sorted(self._waiters):
                self.queue.add(key)
            self._waiters.clear()

    async def reconcile(self, key: str) -> float | None:
        vmi = self._vmis.get(key)
        if vmi is None or vmi["metadata"].get("deletionTimestamp") or (vmi.get("status") or {}).get("phase") != "Running":
            return None
        if not conditions.is_true(vmi, automatic_migration.REQUIRED) and not self._jobs.by("vmi", key):
            return None
        lacking = await self._lacking(vmi, key)
        async with self._one_at_a_time:
            decision = decide(replace(self._view(vmi, key), lacking=lacking))
            if decision.code == CLUSTER_LIMIT:
                self._waiters.add(key)
            if decision.act == "create":
                decision = await self._create(vmi)
        for job in decision.jobs:
            await self._abort(vmi, job)
        if decision.code:
            await self._tell(vmi, decision)
        return decision.wait

    def _view(self, vmi: Object, key: str) -> UpdateView:
        config = kubevirt_config.read_config(kubevirt_config.active_kubevirt(self._kubevirts.items()))
        jobs = self._jobs.by("vmi", key)
        target = next((pod for job in jobs if not migration.is_finished(job)
                       for pod in self._pods.by("target of", job["metadata"]["uid"])), None)
        nodes = self._nodes.items()
        hosts = [node["metadata"]["name"] for node in nodes if takes_pods(node)] if nodes else None
        return UpdateView(vmi, config, self._context.clock.now(), jobs, self._slots_taken(), target, hosts)

    async def _lacking(self, vmi: Object, key: str) -> str:
        """After a failure: a resource of the VMI's VFs that hosts count and no other host has enough of. The first migration is
        left to the scheduler, which knows more."""
        if not any(migration.phase_of(job) == "Failed" for job in self._jobs.by("vmi", key)):
            return ""
        networks = {network["name"]: network for network in network_info.networks(vmi) if network.get("multus")}
        wanted: Counter[str] = Counter()
        for card in network_info.interfaces(vmi):
            if card.get("sriov") is None or card.get("state") == "absent" or card["name"] not in networks:
                continue
            namespace, name = network_info.attachment(vmi, networks[card["name"]])
            with contextlib.suppress(NotFound):
                wanted[network_info.resource_of(await self._store.get(kinds.NETWORK_ATTACHMENT, name, namespace))] += 1
        here = str((vmi.get("status") or {}).get("nodeName"))
        nodes, pods = list(self._nodes.items()), list(self._pods.items())
        return next((resource for resource, count in wanted.items()
                     if resource and resource_is_lacking(resource, count, nodes, pods, without=here)), "")

    def _slots_taken(self) -> int:
        """Unfinished migrations, but for those whose target no host can take: these would block the others."""
        return sum(not any(unschedulable(pod) for pod in self._pods.by("target of", job["metadata"]["uid"]))
                   for job in self._jobs.by("unfinished", "yes"))

    async def _create(self, vmi: Object) -> UpdateDecision:
        wanted = migration_for(vmi, PREFIX + self._context.names.suffix())
        try:
            made = await self._context.create(kinds.MIGRATION, wanted)
        except (Invalid, Forbidden) as error:
            await self._context.events.warning(vmi, REFUSED, f"the migration was refused: {error.message}")
            return UpdateDecision(code=CREATE_REFUSED, message=error.message, wait=LOOK_AGAIN)
        name = made["metadata"]["name"]
        await self._context.events.normal(vmi, CREATED, f"Created Migration {name} for automated workload update")
        return UpdateDecision(code=MIGRATING, message=f"migration {name} is under way")

    async def _abort(self, vmi: Object, job: Object) -> None:
        meta = job["metadata"]
        try:
            await self._store.delete(kinds.MIGRATION, meta["name"], meta["namespace"], uid=meta["uid"])
        except NotFound:
            return
        await self._context.events.normal(
            vmi, ABORTED, f"Aborted migration {meta['name']}: nothing of the VM needs it any more")

    async def _tell(self, vmi: Object, decision: UpdateDecision) -> None:
        """Why a required migration is not done yet, behind what it is required for now."""
        have, pod = conditions.find(vmi, automatic_migration.REQUIRED), self._launchers.current(vmi)
        if have is None or pod is None:
            return
        waiting = evaluator.migration_need(vmi, pod, self._contributors).waiting
        message = automatic_migration.message(waiting, f"{decision.code}: {decision.message}")
        if waiting and have.get("message") != message:
            changed = [{**each, "message": message} if each.get("type") == automatic_migration.REQUIRED else dict(each)
                       for each in vmi["status"]["conditions"]]
            await self._context.patch_status(kinds.VMI, vmi, {"conditions": changed})
