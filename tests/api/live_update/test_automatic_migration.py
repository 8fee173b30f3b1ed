"""Whether a VM whose change needs a migration gets one, and the code for which it waits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from outfitter.api.kinds import Object
from outfitter.api.kubevirt import migration
from outfitter.api.kubevirt.kubevirt_config import KubeVirtConfig
from outfitter.api.live_update import automatic_migration as automatic
from outfitter.api.live_update.automatic_migration import UpdateView
from outfitter.store.clock import rfc3339

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def ago(seconds: float) -> str:
    return rfc3339(NOW - timedelta(seconds=seconds))


def vmi(*, required: bool = True, migratable: str = "True", state: Object | None = None) -> Object:
    conditions = [{"type": "LiveMigratable", "status": migratable, "reason": "DisksNotLiveMigratable", "message": "a disk"}]
    conditions += [{"type": "MigrationRequired", "status": "True"}] if required else []
    return {"metadata": {"name": "vm1", "namespace": "lab"}, "status": {
        "phase": "Running", "nodeName": "node-a", "conditions": conditions, "migrationState": state}}


def job(phase: str, *, ended: float = 0, automatic: bool = True, name: str = "job") -> Object:
    return {"metadata": {"name": name, "uid": f"uid-{name}", "namespace": "lab", "creationTimestamp": ago(900),
                         "annotations": {migration.WORKLOAD_UPDATE: ""} if automatic else {}},
            "spec": {"vmiName": "vm1"}, "status": {"phase": phase, "phaseTransitionTimestamps": [
                {"phase": phase, "phaseTransitionTimestamp": ago(ended)}]}}


def unplaced(message: str) -> Object:
    return {"metadata": {"name": "target"}, "spec": {}, "status": {"conditions": [
        {"type": "PodScheduled", "status": "False", "message": message}]}}


VIEW = UpdateView(vmi(), KubeVirtConfig(), NOW, hosts=["node-a", "node-b"])


@dataclass(frozen=True)
class Case:
    view: UpdateView
    act: str = "nothing"
    code: str = ""
    wait: float | None = None


def view(**changes: Any) -> UpdateView:
    return replace(VIEW, **changes)


CASES = {
    "one is required": Case(VIEW, "create"),
    "none is required": Case(view(vmi=vmi(required=False))),
    "hosts are not known": Case(view(hosts=None), "create"),
    "no other host": Case(view(hosts=["node-a"]), code=automatic.NO_OTHER_HOST, wait=automatic.LOOK_AGAIN),
    "methods without LiveMigrate": Case(view(config=KubeVirtConfig(update_methods=("Evict",))), code=automatic.NO_METHOD),
    "no methods": Case(view(config=KubeVirtConfig(update_methods=())), code=automatic.NO_METHOD),
    "LiveMigrate is listed": Case(view(config=KubeVirtConfig(update_methods=("LiveMigrate",))), "create"),
    "it cannot migrate": Case(view(vmi=vmi(migratable="False")), code=automatic.NOT_MIGRATABLE),
    "one is under way": Case(view(jobs=[job("Running")]), code=automatic.MIGRATING),
    "a user's is under way": Case(view(jobs=[job("Pending", automatic=False)]), code=automatic.MIGRATING),
    "the guest is copied by another": Case(
        view(vmi=vmi(state={"migrationUid": "x", "startTimestamp": ago(5)})), code=automatic.MIGRATING),
    "all slots are taken": Case(view(unfinished=5), code=automatic.CLUSTER_LIMIT),
    "a slot is free": Case(view(unfinished=4), "create"),
    "one failed just now": Case(view(jobs=[job("Failed", ended=5)]), code=automatic.BACKING_OFF, wait=15),
    "one failed, and nothing is free elsewhere": Case(view(jobs=[job("Failed", ended=90)], lacking="acme.test/vf"),
                                                      code=automatic.NO_CAPACITY, wait=automatic.LOOK_AGAIN),
    "the first is left to the scheduler": Case(view(lacking="acme.test/vf"), "create"),
    "one failed a while ago": Case(view(jobs=[job("Failed", ended=20)]), "create"),
    "two failed": Case(view(jobs=[job("Failed", ended=50), job("Failed", ended=30, name="next")]),
                       code=automatic.BACKING_OFF, wait=10),
    "failures before the last success do not count": Case(
        view(jobs=[job("Failed", ended=90), job("Failed", ended=80, name="b"), job("Succeeded", ended=70, name="c"),
                   job("Failed", ended=25, name="d")]), "create"),
    "one was cancelled just now": Case(view(vmi=vmi(state={
        "migrationUid": "x", "completed": True, "failed": True, "startTimestamp": ago(9), "endTimestamp": ago(5)})),
        code=automatic.BACKING_OFF, wait=15),
    "an automatic one is not required any more": Case(view(vmi=vmi(required=False), jobs=[job("Scheduling")]), "abort"),
    "a user's stays": Case(view(vmi=vmi(required=False), jobs=[job("Scheduling", automatic=False)])),
    "one that has arrived stays": Case(view(vmi=vmi(required=False, state={
        "migrationUid": "uid-job", "targetNodeDomainReadyTimestamp": ago(1)}), jobs=[job("Running")])),
    "finished ones stay": Case(view(vmi=vmi(required=False), jobs=[job("Failed", ended=1)])),
}


@pytest.mark.parametrize("name", CASES)
def test_a_required_migration(name: str) -> None:
    case = CASES[name]
    found = automatic.decide(case.view)
    assert (found.act, found.code, found.wait) == (case.act, case.code, case.wait)


def test_the_reason_of_a_target_that_has_no_place_is_passed_on() -> None:
    found = automatic.decide(view(jobs=[job("Scheduling")], target=unplaced("0/2 nodes: Insufficient acme.test/vf")))
    assert found.code == automatic.MIGRATING
    assert "Insufficient acme.test/vf" in found.message


def test_the_resources_of_a_target_that_has_no_place_are_named() -> None:
    target = unplaced("cannot allocate all claims")
    target["spec"] = {"containers": [{"name": "compute", "resources": {"requests": {"cpu": "1", "acme.test/vf": "1"}}}]}
    found = automatic.decide(view(jobs=[job("Scheduling")], target=target))
    assert found.message == "migration job waits for a host with acme.test/vf: cannot allocate all claims"


def test_a_vm_is_told_why_it_cannot_migrate() -> None:
    assert "DisksNotLiveMigratable: a disk" in automatic.decide(view(vmi=vmi(migratable="False"))).message


def node(name: str, vfs: str | None, **more: Any) -> Object:
    allocatable = {"acme.test/vf": vfs} if vfs is not None else {}
    return {"metadata": {"name": name}, "spec": more, "status": {"allocatable": allocatable}}


def holder(host: str, phase: str = "Running") -> Object:
    return {"metadata": {"name": "p"}, "status": {"phase": phase}, "spec": {"nodeName": host, "containers": [
        {"name": "compute", "resources": {"requests": {"acme.test/vf": "1"}}}]}}


LACKING: dict[str, tuple[list[Object], list[Object], bool]] = {
    "free elsewhere": ([node("node-a", "1"), node("node-b", "1")], [], False),
    "free here alone": ([node("node-a", "1"), node("node-b", "0")], [], True),
    "held elsewhere": ([node("node-a", "1"), node("node-b", "1")], [holder("node-b")], True),
    "freed elsewhere": ([node("node-a", "1"), node("node-b", "1")], [holder("node-b", "Succeeded")], False),
    "the other host takes no VMs": ([node("node-a", "1"), node("node-b", "1", unschedulable=True)], [], True),
    "not counted by hosts": ([node("node-a", None), node("node-b", None)], [], False),
}


@pytest.mark.parametrize("name", LACKING)
def test_a_resource_that_no_other_host_has(name: str) -> None:
    nodes, pods, lacking = LACKING[name]
    assert automatic.resource_is_lacking("acme.test/vf", 1, nodes, pods, without="node-a") is lacking
