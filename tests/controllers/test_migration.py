"""Live migrations on simulated hosts, through the API: phases, hand-over, cancellation and failures at every stage."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from outfitter.api import conditions, kinds
from outfitter.api.hypervisor import Domain, MigrationTarget
from outfitter.api.kinds import Object
from outfitter.errors import HypervisorAway, Invalid
from outfitter.launcher.migration.simulated_copy import SimulatedCopy
from outfitter.launcher.simulated import Simulated
from tests.controllers import scenario
from tests.controllers.scenario import Scene

SLOW = SimulatedCopy(bandwidth=1 << 28)  # four seconds for a guest of 1 GiB
PHASES = ["Pending", "Scheduling", "Scheduled", "PreparingTarget", "TargetReady", "Running", "Succeeded"]


@pytest.fixture
async def hosts() -> AsyncIterator[Scene]:
    """Three hosts."""
    async with scenario.embedded(vfs=2, count=3) as scene:
        assert scene.clock is not None
        for host in scene.product.hosts:
            simulated(scene, host.name)._monotonic = scene.clock.monotonic
        yield scene


def simulated(scene: Scene, host: str) -> Simulated:
    found = next(each.hypervisor for each in scene.product.hosts if each.name == host)
    assert isinstance(found, Simulated)
    return found


async def started(scene: Scene, name: str = "blue", **spec: Any) -> Object:
    await scene.create(kinds.VMI, name, {
        "domain": {"memory": {"guest": "1Gi"}, "devices": {"interfaces": [{"name": "default", "masquerade": {}}]}},
        "networks": [{"name": "default", "pod": {}}], **spec})
    return await scene.running(name)


async def migrate(scene: Scene, name: str = "move", vmi: str = "blue", **spec: Any) -> Object:
    return await scene.create(kinds.MIGRATION, name, {"vmiName": vmi, **spec})


async def reached(scene: Scene, *phases: str, name: str = "move") -> Object:
    async def check() -> Object | None:
        found = await scene.find(kinds.MIGRATION, name)
        return found if found and (found.get("status") or {}).get("phase") in phases else None

    return await scene.reach(check, f"{name} is {' or '.join(phases)}")


async def host_of(scene: Scene, name: str = "blue") -> str:
    found = await scene.find(kinds.VMI, name)
    assert found is not None
    assert found["status"]["phase"] == "Running"
    return str(found["status"]["nodeName"])


async def untouched(scene: Scene, source: str, *, code: str, name: str = "move") -> Object:
    """The migration has failed with this code; the VM runs where it was, and nothing of the target is left."""
    job = await reached(scene, "Failed", name=name)
    failed = conditions.find(job, "migrationFailed")
    assert (failed or {}).get("reason") == code, job
    await only_in(scene, source)
    return job


async def only_in(scene: Scene, host: str, vmi: str = "blue") -> None:
    """The VM runs on this host alone, in one pod, and its status says so."""
    async def check() -> bool:
        pods = [pod for pod in await scene.all(kinds.POD) if pod["status"]["phase"] not in ("Succeeded", "Failed")]
        found = await scene.find(kinds.VMI, vmi)
        return found is not None and len(pods) == 1 and list(found["status"]["activePods"]) == [pods[0]["metadata"]["uid"]]

    await scene.reach(check, f"one pod of {vmi} is left")
    uid = (await scene.find(kinds.VMI, vmi) or {})["metadata"]["uid"]
    assert await host_of(scene, vmi) == host
    for each in scene.product.hosts:
        assert (uid in await each.hypervisor.domains()) == (each.name == host)
        assert uid not in await each.hypervisor.incoming()


async def test_a_vmi_moves_to_another_host_and_back(hosts: Scene) -> None:
    source = (await started(hosts))["status"]["nodeName"]
    await migrate(hosts)
    job = await reached(hosts, "Succeeded")
    assert [entry["phase"] for entry in job["status"]["phaseTransitionTimestamps"]] == PHASES
    target = await host_of(hosts)
    assert target != source
    await only_in(hosts, target)
    assert job["status"]["migrationState"]["sourceNode"] == source
    left = [pod for pod in await hosts.all(kinds.POD) if pod["spec"]["nodeName"] == source]
    assert [(pod["status"]["phase"], pod["status"]["reason"]) for pod in left] == [("Succeeded", "Migrated")]
    await migrate(hosts, "back", addedNodeSelector={"kubernetes.io/hostname": source})
    await reached(hosts, "Succeeded", name="back")
    await only_in(hosts, source)
    await hosts.delete(kinds.VMI, "blue")
    await hosts.gone("blue")
    await hosts.empty()


@pytest.mark.parametrize("set_back", [0, 3600], ids=["within one second", "with a clock that is set back"])
async def test_a_vmi_leaves_a_host_to_which_it_came_back(
    hosts: Scene, monkeypatch: pytest.MonkeyPatch, set_back: float
) -> None:
    """Its first pod there has ended, and is as old as the one that it runs in, or younger."""
    vmi, clock = await started(hosts), hosts.clock
    assert clock is not None
    source, now = vmi["status"]["nodeName"], clock.now().replace(microsecond=0)
    monkeypatch.setattr(clock, "now", lambda: now)
    await migrate(hosts, "there")
    await reached(hosts, "Succeeded", name="there")
    monkeypatch.setattr(clock, "now", lambda: now - timedelta(seconds=set_back))
    await migrate(hosts, "back", addedNodeSelector={"kubernetes.io/hostname": source})
    await reached(hosts, "Succeeded", name="back")
    await only_in(hosts, source)
    current = await hosts.find(kinds.VMI, "blue") or {}
    await migrate(hosts, "again")
    job = await reached(hosts, "Succeeded", "Failed", name="again")
    pods = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in await hosts.all(kinds.POD)}
    assert [pods[job["status"]["migrationState"]["sourcePod"]]] == list(current["status"]["activePods"])
    target = await host_of(hosts)
    assert target != source
    await only_in(hosts, target)
    assert (await hosts.find(kinds.VMI, "blue") or {})["metadata"]["uid"] == vmi["metadata"]["uid"]


async def test_migration_required_is_removed_when_it_is_done(hosts: Scene) -> None:
    vmi = await started(hosts)
    required = {"type": "MigrationRequired", "status": "True", "reason": "AutoMigrationDueToLiveUpdate"}
    await hosts.store.patch(kinds.VMI, "blue", {"status": {"conditions": [*vmi["status"]["conditions"], required]}},
                            hosts.namespace, subresource="status")
    await migrate(hosts)
    await reached(hosts, "Succeeded")
    assert await hosts.condition("blue", "MigrationRequired") is None


async def test_cancelled_while_it_waits_for_a_host(hosts: Scene) -> None:
    source = (await started(hosts))["status"]["nodeName"]
    await migrate(hosts, addedNodeSelector={"example.com/rack": "none"})
    job = await reached(hosts, "Scheduling")
    await hosts.settle()
    waiting = conditions.find(await hosts.find(kinds.MIGRATION, "move") or job, "migrationWaiting")
    assert waiting is not None
    assert waiting["reason"] == "TargetUnschedulable"
    await hosts.delete(kinds.MIGRATION, "move")
    await hosts.reach(lambda: gone(hosts, "move"), "the migration is gone")
    await only_in(hosts, source)


async def gone(scene: Scene, name: str) -> bool:
    return await scene.find(kinds.MIGRATION, name) is None


async def test_cancelled_while_it_is_copied(hosts: Scene) -> None:
    source = (await started(hosts))["status"]["nodeName"]
    simulated(hosts, source).copy = SLOW
    await migrate(hosts)
    await reached(hosts, "Running")
    await hosts.delete(kinds.MIGRATION, "move")
    await hosts.reach(lambda: gone(hosts, "move"), "the migration is gone")
    state = (await hosts.find(kinds.VMI, "blue") or {})["status"]["migrationState"]
    assert (state["failed"], state["abortStatus"], state["failureCode"]) == (True, "Succeeded", "Cancelled")
    await only_in(hosts, source)
    simulated(hosts, source).copy = SimulatedCopy()
    await migrate(hosts, "again")
    await reached(hosts, "Succeeded", name="again")


async def ends_not(scene: Scene) -> bool:
    job = await scene.find(kinds.MIGRATION, "move") or {}
    return (conditions.find(job, "migrationWaiting") or {}).get("reason") == "CopyNotEnded"


@pytest.mark.parametrize("asked", ["by a user", "by a time limit"])
async def test_a_copy_that_the_hypervisor_does_not_end_says_so(hosts: Scene, asked: str) -> None:
    source = (await started(hosts))["status"]["nodeName"]
    simulated(hosts, source).copy = SimulatedCopy(dirty_rate=4 << 30, ignores_abort=True)  # it never converges
    limits = {} if asked == "by a user" else {"completionTimeoutPerGiB": 20}
    await hosts.store.create(kinds.KUBEVIRT, {"metadata": {"name": "kubevirt", "namespace": hosts.namespace}, "spec": {
        "configuration": {"migrations": limits}}})
    await migrate(hosts)
    await reached(hosts, "Running")
    if asked == "by a user":
        await hosts.delete(kinds.MIGRATION, "move")

    await hosts.reach(lambda: ends_not(hosts), "the reason is known")
    simulated(hosts, source).copy = SimulatedCopy(dirty_rate=4 << 30)
    await hosts.reach(lambda: gone(hosts, "move") if asked == "by a user" else failed(hosts), "it has ended")
    state = (await hosts.find(kinds.VMI, "blue") or {})["status"]["migrationState"]
    code = "Cancelled" if asked == "by a user" else "CompletionTimeout"
    assert (state["failed"], state["abortStatus"], state["failureCode"]) == (True, "Succeeded", code)
    await only_in(hosts, source)


@pytest.mark.parametrize("asked", ["by a user", "by a time limit"])
async def test_a_copy_whose_hypervisor_does_not_answer_says_so(
    hosts: Scene, asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """libvirt does not answer about a domain while another call about it hangs."""
    source = (await started(hosts))["status"]["nodeName"]
    hypervisor = simulated(hosts, source)
    hypervisor.copy = SimulatedCopy(dirty_rate=4 << 30)
    limits = {} if asked == "by a user" else {"completionTimeoutPerGiB": 20}
    await hosts.store.create(kinds.KUBEVIRT, {"metadata": {"name": "kubevirt", "namespace": hosts.namespace}, "spec": {
        "configuration": {"migrations": limits}}})
    await migrate(hosts)
    await reached(hosts, "Running")

    async def busy(uid: str) -> None:
        raise HypervisorAway("libvirt is busy", retry_after=5.0)

    with monkeypatch.context() as patched:
        if asked == "by a user":
            patched.setattr(hypervisor, "migration", busy)
            await hosts.delete(kinds.MIGRATION, "move")
        else:
            async def hangs(uid: str) -> None:
                patched.setattr(hypervisor, "migration", busy)
            patched.setattr(hypervisor, "abort_migration", hangs)
        await hosts.reach(lambda: ends_not(hosts), "the reason is known")
        pod = (await hosts.find(kinds.VMI, "blue") or {})["status"]["migrationState"]["sourcePod"]
        assert "is busy" in (await hosts.find(kinds.POD, pod) or {})["status"]["message"]
    await hosts.reach(lambda: gone(hosts, "move") if asked == "by a user" else failed(hosts), "it has ended")
    state = (await hosts.find(kinds.VMI, "blue") or {})["status"]["migrationState"]
    code = "Cancelled" if asked == "by a user" else "CompletionTimeout"
    assert (state["failed"], state["abortStatus"], state["failureCode"]) == (True, "Succeeded", code)
    await only_in(hosts, source)


async def failed(scene: Scene) -> bool:
    return ((await scene.find(kinds.MIGRATION, "move") or {}).get("status") or {}).get("phase") == "Failed"


async def test_a_copy_that_fails_leaves_the_vm_where_it_was(hosts: Scene) -> None:
    source = (await started(hosts))["status"]["nodeName"]
    simulated(hosts, source).copy = SimulatedCopy(fails="the network is gone")
    await migrate(hosts)
    job = await untouched(hosts, source, code="CopyFailed")
    assert job["status"]["migrationState"]["failureReason"] == "the network is gone"


async def test_a_vm_that_the_target_runs_is_not_ended_by_a_failed_copy(hosts: Scene) -> None:
    """The target's hypervisor was killed after it had resumed the VM and before it confirmed that."""
    vmi = await started(hosts)
    source = vmi["status"]["nodeName"]
    simulated(hosts, source).copy = SLOW
    await migrate(hosts)
    await reached(hosts, "Running")
    simulated(hosts, source).break_switchover(vmi["metadata"]["uid"], "the connection broke", arrived=True)
    await reached(hosts, "Succeeded", "Failed")
    moved = await hosts.find(kinds.VMI, "blue") or {}
    assert moved["metadata"]["uid"] == vmi["metadata"]["uid"]
    assert moved["status"]["nodeName"] == moved["status"]["migrationState"]["targetNode"]
    await only_in(hosts, moved["status"]["nodeName"])


async def test_a_vm_that_neither_side_runs_is_resumed_on_the_source(hosts: Scene) -> None:
    vmi = await started(hosts)
    source, uid = vmi["status"]["nodeName"], vmi["metadata"]["uid"]
    simulated(hosts, source).copy = SLOW
    await migrate(hosts)
    await reached(hosts, "Running")
    simulated(hosts, source).break_switchover(uid, "the connection broke", arrived=False)
    await untouched(hosts, source, code="NotArrived")

    async def resumed() -> bool:
        return not (await simulated(hosts, source).domains())[uid].migrating

    await hosts.reach(resumed, "it is resumed")


@pytest.mark.parametrize("answers", [False, True])
async def test_a_target_that_stays_away_is_waited_for_until_its_pod_is_gone(
    hosts: Scene, monkeypatch: pytest.MonkeyPatch, *, answers: bool
) -> None:
    """The VM is stopped on the source, and only the target knows whether it runs there."""
    vmi = await started(hosts)
    source, uid = vmi["status"]["nodeName"], vmi["metadata"]["uid"]
    simulated(hosts, source).copy = SLOW
    await migrate(hosts)
    await reached(hosts, "Running")
    record = (await hosts.find(kinds.VMI, "blue") or {})["status"]["migrationState"]

    async def away() -> Mapping[str, Domain]:
        raise HypervisorAway("libvirt does not answer")

    with monkeypatch.context() as patched:
        patched.setattr(simulated(hosts, record["targetNode"]), "domains", away)
        simulated(hosts, source).break_switchover(uid, "the connection broke", arrived=False)

        async def waits() -> bool:
            job = await hosts.find(kinds.MIGRATION, "move")
            return (conditions.find(job or {}, "migrationWaiting") or {}).get("reason") == "TargetSilent"

        await hosts.reach(waits, "the reason is known")
        assert (await simulated(hosts, source).domains())[uid].migrating
        if not answers:
            await hosts.store.delete(kinds.POD, record["targetPod"], vmi["metadata"]["namespace"], grace=0)
            await hosts.reach(lambda: resumed(hosts, source, uid), "it is resumed")
            job = await reached(hosts, "Failed")
            assert (conditions.find(job, "migrationFailed") or {}).get("reason") == "NotArrived"
    if answers:
        await untouched(hosts, source, code="NotArrived")

    async def swept() -> bool:
        return not await simulated(hosts, record["targetNode"]).incoming()

    await hosts.reach(swept, "the target expects it no more")
    await only_in(hosts, source)
    assert conditions.find(await reached(hosts, "Failed"), "migrationWaiting") is None


async def test_the_next_migration_waits_until_the_pod_that_was_left_has_ended(
    hosts: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The source's hypervisor is away when the VM has left: only the record of that migration tells its agent to end the pod.
    The VM comes back to that host in another pod."""
    source = (await started(hosts))["status"]["nodeName"]
    back: dict[str, Any] = {"addedNodeSelector": {"kubernetes.io/hostname": source}}

    async def away(uid: str, grace: float = 0.0) -> float | None:
        raise HypervisorAway("libvirt does not answer")

    simulated(hosts, source).copy = SLOW
    await migrate(hosts)
    await reached(hosts, "Running")
    with monkeypatch.context() as patched:
        patched.setattr(simulated(hosts, source), "stop", away)
        await reached(hosts, "Succeeded")
        await migrate(hosts, "back", **back)

        async def waits() -> bool:
            job = await hosts.find(kinds.MIGRATION, "back")
            return (conditions.find(job or {}, "migrationWaiting") or {}).get("reason") == "SourcePodNotEnded"

        await hosts.reach(waits, "the reason is known")
    await reached(hosts, "Succeeded", name="back")
    await only_in(hosts, source)


async def resumed(scene: Scene, host: str, uid: str) -> bool:
    return not (await simulated(scene, host).domains())[uid].migrating


async def test_the_pod_of_an_earlier_failed_migration_does_not_end_a_stopped_vm(hosts: Scene) -> None:
    """The VM was to come to a host, came there later, and is stopped there for the last part of a migration that fails."""
    vmi = await started(hosts)
    first, uid = vmi["status"]["nodeName"], vmi["metadata"]["uid"]
    second = next(host.name for host in hosts.product.hosts if host.name != first)
    there: dict[str, Any] = {"addedNodeSelector": {"kubernetes.io/hostname": second}}
    simulated(hosts, first).copy = SimulatedCopy(fails="the network is gone")
    await migrate(hosts, "fails", **there)
    await reached(hosts, "Failed", name="fails")
    simulated(hosts, first).copy = SimulatedCopy()
    await migrate(hosts, "moves", **there)
    await reached(hosts, "Succeeded", name="moves")
    simulated(hosts, second).copy = SLOW
    await migrate(hosts)
    await reached(hosts, "Running")
    simulated(hosts, second).break_switchover(uid, "the connection broke", arrived=False)
    await untouched(hosts, second, code="NotArrived")


async def test_a_target_that_refuses_leaves_the_vm_where_it_was(hosts: Scene) -> None:
    source = (await started(hosts))["status"]["nodeName"]
    for host in hosts.product.hosts:
        simulated(hosts, host.name).refuses_incoming = "no memory"
    await migrate(hosts)
    await untouched(hosts, source, code="TargetRefused")


@pytest.mark.parametrize(("annotations", "seconds"), [
    ({}, 150), ({"outfitter.dev/migration-prepare-timeout-seconds": "20"}, 20),
    ({"outfitter.dev/migration-prepare-timeout-seconds": "600"}, 600)])
async def test_a_target_that_does_not_get_ready(
    hosts: Scene, monkeypatch: pytest.MonkeyPatch, annotations: dict[str, str], seconds: int
) -> None:
    source = (await started(hosts))["status"]["nodeName"]
    await hosts.store.create(kinds.KUBEVIRT, {"metadata": {
        "name": "kubevirt", "namespace": hosts.namespace, "annotations": annotations}, "spec": {}})

    async def away(domain: Domain) -> MigrationTarget:
        raise HypervisorAway("libvirt does not answer")

    for host in hosts.product.hosts:
        monkeypatch.setattr(simulated(hosts, host.name), "prepare_incoming", away)
    await migrate(hosts)
    await reached(hosts, "PreparingTarget")
    assert hosts.clock is not None
    hosts.clock.advance(seconds - 10)
    await hosts.settle()
    assert (await reached(hosts, "PreparingTarget"))["status"]["phase"] == "PreparingTarget"
    hosts.clock.advance(10)
    await untouched(hosts, source, code="PrepareTimeout")


async def test_a_guest_that_changes_its_memory_too_fast(hosts: Scene) -> None:
    source = (await started(hosts))["status"]["nodeName"]
    await hosts.store.create(kinds.KUBEVIRT, {"metadata": {"name": "kubevirt", "namespace": hosts.namespace}, "spec": {
        "configuration": {"migrations": {"progressTimeout": 20, "completionTimeoutPerGiB": 0}}}})
    simulated(hosts, source).copy = replace(SLOW, dirty_rate=1 << 28)
    await migrate(hosts)
    await untouched(hosts, source, code="NoProgress")
    state = (await hosts.find(kinds.VMI, "blue") or {})["status"]["migrationState"]
    assert state["progress"]["totalBytes"] == 1 << 30
    assert state["progress"]["iteration"] > 0


async def test_a_target_pod_that_is_deleted(hosts: Scene) -> None:
    source = (await started(hosts))["status"]["nodeName"]
    simulated(hosts, source).copy = SLOW
    await migrate(hosts)
    await reached(hosts, "Running")
    target = next(pod for pod in await hosts.all(kinds.POD) if pod["spec"]["nodeName"] != source)
    await hosts.delete(kinds.POD, target["metadata"]["name"], grace=0)
    await reached(hosts, "Failed")
    await only_in(hosts, source)


async def test_a_vmi_that_is_deleted_meanwhile(hosts: Scene) -> None:
    source = (await started(hosts))["status"]["nodeName"]
    simulated(hosts, source).copy = SLOW
    await migrate(hosts)
    await reached(hosts, "Running")
    await hosts.delete(kinds.VMI, "blue")
    await hosts.gone("blue")
    await hosts.empty()

    async def over() -> bool:
        job = await hosts.find(kinds.MIGRATION, "move")
        return job is None or job["status"]["phase"] == "Failed"

    await hosts.reach(over, "the migration has ended")


async def test_limits_per_cluster_and_host(hosts: Scene) -> None:
    await hosts.store.create(kinds.KUBEVIRT, {"metadata": {"name": "kubevirt", "namespace": hosts.namespace}, "spec": {
        "configuration": {"migrations": {"parallelMigrationsPerCluster": 2, "parallelOutboundMigrationsPerNode": 1}}}})
    host = hosts.product.hosts[0].name
    for name in ("a", "b", "c"):
        await started(hosts, name, nodeSelector={} if name == "c" else {"kubernetes.io/hostname": host})
    for each in hosts.product.hosts:
        simulated(hosts, each.name).copy = SLOW
    for name in ("a", "b", "c"):
        if name != "c":  # or it could go nowhere
            found = await hosts.find(kinds.VMI, name)
            assert found is not None
        await migrate(hosts, f"move-{name}", name)
    await hosts.settle()
    phases = {job["metadata"]["name"]: (job["status"]["phase"], conditions.find(job, "migrationWaiting"))
              for job in await hosts.all(kinds.MIGRATION)}
    phase, waiting = phases["move-b"]
    assert (phase, (waiting or {}).get("reason")) == ("Pending", "NodeLimit"), phases


BAD: dict[str, tuple[Object, str, str]] = {
    "of no VMI": ({"vmiName": "nobody"}, "spec.vmiName", "there is no VMI"),
    "twice": ({"vmiName": "busy"}, "spec.vmiName", "in-flight migration"),
    "of one that waits": ({"vmiName": "waits"}, "spec.vmiName", "not running"),
    "of one with a card": ({"vmiName": "card"}, "spec.vmiName", "HostDeviceNotLiveMigratable"),
    "to an unknown host": ({"vmiName": "blue", "addedNodeSelector": {"kubernetes.io/hostname": "moon"}},
                           "spec.addedNodeSelector[kubernetes.io/hostname]", "no such host"),
    "between clusters": ({"vmiName": "blue", "sendTo": {}}, "spec.sendTo", "not supported"),
}


async def test_bad_migrations_are_refused(hosts: Scene) -> None:
    await hosts.classes()
    await hosts.template()
    source = (await started(hosts))["status"]["nodeName"]
    await started(hosts, "busy")
    await hosts.machine("card")
    await hosts.running("card")
    await hosts.create(kinds.VMI, "waits", {"nodeSelector": {"example.com/rack": "none"}, "domain": {"devices": {}}})
    await migrate(hosts, "first", "busy", addedNodeSelector={"example.com/rack": "none"})
    await hosts.settle()
    pods = {pod["metadata"]["uid"] for pod in await hosts.all(kinds.POD)}
    here = {"vmiName": "blue", "addedNodeSelector": {"kubernetes.io/hostname": source}}
    for spec, field, text in (*BAD.values(), (here, "spec.addedNodeSelector[kubernetes.io/hostname]", "already")):
        with pytest.raises(Invalid) as refused:
            await migrate(hosts, **spec)
        assert [(cause.field, text in cause.message) for cause in refused.value.causes] == [(field, True)], refused.value
    assert {pod["metadata"]["uid"] for pod in await hosts.all(kinds.POD)} == pods
    with pytest.raises(Invalid, match="immutable"):
        await hosts.store.patch(kinds.MIGRATION, "first", {"spec": {"vmiName": "blue"}}, hosts.namespace)
