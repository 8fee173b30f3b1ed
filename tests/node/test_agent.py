"""The node: what it runs, what it refuses, and that it releases what is no longer used."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest

from outfitter import app
from outfitter.api import conditions, kinds, rejection_conditions
from outfitter.api.device import DeviceId
from outfitter.api.hypervisor import Abilities, Domain
from outfitter.api.kubevirt import vm
from outfitter.api.ledger_page.page import Booking, Holder
from outfitter.errors import HypervisorAway, HypervisorError, NotFound
from outfitter.launcher.simulated import Simulated
from outfitter.ledger import book
from outfitter.node.agent_host import AgentHost
from outfitter.store.clock import ManualClock
from outfitter.store.id_generator import IdGenerator
from tests.controllers import scenario as scenes
from tests.controllers.scenario import Scene, device, hosts_of
from tests.ledger.unchecked_pages import unchecked
from tests.rejected import Code


@contextlib.asynccontextmanager
async def running(hosts: list[AgentHost]) -> AsyncIterator[Scene]:
    clock = ManualClock()
    async with app.embedded(hosts=hosts, clock=clock, names=IdGenerator(random.Random(1))) as product:
        await product.store.create(kinds.NAMESPACE, {"metadata": {"name": "here"}})
        scene = Scene(product, "here", clock)
        await scene.classes()
        await scene.template()
        yield scene


async def plain_pod(scene: Scene, name: str = "web", claim: str = "") -> None:
    claims = [{"name": "net", "resourceClaimName": claim}] if claim else []
    await scene.create(kinds.POD, name, {"containers": [{"name": "main"}], "resourceClaims": claims})


def pod_is(scene: Scene, name: str, phase: str) -> Callable[[], Awaitable[bool]]:
    async def check() -> bool:
        found = await scene.find(kinds.POD, name)
        return found is not None and found["status"]["phase"] == phase

    return check


async def test_a_simulated_host_plays_any_pod() -> None:
    async with running(hosts_of("node", 1)) as scene:
        await plain_pod(scene)
        await scene.reach(pod_is(scene, "web", "Running"), "web runs")
        assert not await scene.domains()
        await scene.delete(kinds.POD, "web")
        await scene.empty()


async def test_a_real_host_fails_pods_that_are_not_launchers() -> None:
    async with running([replace(host, simulated=False) for host in hosts_of("node", 1)]) as scene:
        await plain_pod(scene)
        await scene.reach(pod_is(scene, "web", "Failed"), "web failed")
        found = await scene.find(kinds.POD, "web")
        assert found is not None
        assert found["status"]["message"] == "outfitter runs launcher pods of VMs only: other pods need a kubelet on node-0"
        await scene.machine("blue")
        await scene.running("blue")


class Fussy(Simulated):
    before: Callable[[], Awaitable[None]] | None = None  # done before the hypervisor answers

    async def start(self, domain: Domain) -> None:
        if self.before is not None:
            await self.before()
        raise HypervisorError("the hypervisor has no room")


async def test_a_vm_that_the_hypervisor_rejects_fails_with_the_reason() -> None:
    async with running([replace(host, hypervisor=Fussy()) for host in hosts_of("node", 1)]) as scene:
        await scene.machine("blue")
        await scene.phase("blue", "Failed")
        found = await scene.condition("blue", "Ready")
        assert found is not None
        assert (found["reason"], found["message"]) == ("FailedStart", "the hypervisor has no room")
        assert "the hypervisor has no room" in await scene.events("FailedStart")

        async def free() -> bool:
            return not await scene.bookings()

        await scene.reach(free, "its device is free again")


async def test_the_status_of_a_pod_is_not_written_to_another_of_its_name() -> None:
    fussy = Fussy()
    async with running([replace(host, hypervisor=fussy) for host in hosts_of("node", 1)]) as scene:
        news = scenes.logged(scene.product, kinds.POD, scene.namespace)

        async def replaced() -> None:
            fussy.before = None
            pod = await scene.pod("blue")
            await scene.delete(kinds.POD, pod["metadata"]["name"], grace=0)
            again = {key: pod["metadata"][key] for key in ("name", "namespace", "labels", "ownerReferences")}
            spec = {key: value for key, value in pod["spec"].items() if key != "nodeName"}
            await scene.store.create(kinds.POD, {"metadata": again, "spec": spec})

        fussy.before = replaced
        await scene.machine("blue")
        await scene.phase("blue", "Failed")
        await scene.reach(lambda: _no_pods(scene), "the second pod is gone")
        assert len({new["metadata"]["uid"] for _, new in news if new}) == 2
        assert not [new for _, new in news if new and new["status"].get("reason") == "FailedStart"]


async def _no_pods(scene: Scene) -> bool:
    return not await scene.all(kinds.POD)


class Real(Simulated):
    """Says of itself what a hypervisor with KVM does."""

    async def abilities(self) -> Abilities:
        return Abilities(kvm=True)


async def test_a_vm_on_a_real_hypervisor_is_complete_or_fails() -> None:
    image = {"volumes": [{"name": "root", "containerDisk": {"image": "x"}}], "domain": {
        "memory": {"guest": "1Gi"}, "devices": {"disks": [{"name": "root", "disk": {}}]}}}
    async with running(hosts_of("node", 1)) as scene:
        await scene.create(kinds.VMI, "blue", image)
        await scene.running("blue")
        (played,) = await scene.domains()
        assert ET.fromstring(played.xml).get("type") == "qemu"
    async with running([replace(host, hypervisor=Real()) for host in hosts_of("node", 1)]) as scene:
        await scene.create(kinds.VMI, "blue", image)
        await scene.phase("blue", "Failed")
        assert "spec.volumes[0]: containerDisk cannot be attached" in (await scene.events("SyncFailed"))[0]
        await scene.machine("green")
        await scene.running("green")
        (real,) = await scene.domains()
        assert ET.fromstring(real.xml).get("type") == "kvm"


async def test_a_domain_that_ended_is_noticed_at_the_next_reconcile() -> None:
    async with running(hosts_of("node", 1)) as scene:
        made = await scene.machine("blue")
        await scene.running("blue")
        await scene.host.hypervisor.stop(made["metadata"]["uid"])
        await scene.store.patch(kinds.VMI, "blue", {"metadata": {"labels": {"look": "again"}}}, "here")
        blue = await scene.phase("blue", "Failed")
        found = conditions.find(blue, "Ready")
        assert found is not None
        assert (found["status"], found["message"]) == ("False", "the VM no longer runs on node-0")


@pytest.mark.parametrize(("failed", "phase", "reason"), [(True, "Failed", "DomainFailed"), (False, "Succeeded", "Stopped")])
async def test_a_domain_that_ends_is_reported_at_once(failed: bool, phase: str, reason: str) -> None:
    async with running(hosts_of("node", 1)) as scene:
        made = await scene.machine("blue")
        await scene.running("blue")
        hypervisor = scene.host.hypervisor
        assert isinstance(hypervisor, Simulated)
        hypervisor.simulate_end(made["metadata"]["uid"], "it was a warm day", failed=failed)
        found = conditions.find(await scene.phase("blue", phase), "Ready")
        assert found is not None
        assert (found["status"], found["reason"], found["message"]) == ("False", reason, "node-0: it was a warm day")

        async def free() -> bool:
            return not await scene.bookings() and not await hypervisor.ended()

        await scene.reach(free, "its device is free and nothing is left of it")


@pytest.mark.parametrize("propagation", ["Background", "Foreground", "Orphan"])
async def test_a_guest_has_its_grace_period(propagation: str) -> None:
    clock = ManualClock()
    hypervisor = Simulated(monotonic=clock.monotonic)
    hosts = [replace(host, hypervisor=hypervisor) for host in hosts_of("node", 1)]
    async with app.embedded(hosts=hosts, clock=clock, names=IdGenerator(random.Random(1))) as product:
        await product.store.create(kinds.NAMESPACE, {"metadata": {"name": "here"}})
        scene = Scene(product, "here", clock)
        await scene.classes()
        await scene.template()
        made = await scene.machine("blue")
        await scene.running("blue")
        hypervisor.ignoring_shutdown.add(made["metadata"]["uid"])
        await scene.delete(kinds.VMI, "blue", propagation=propagation)
        await product.settle()
        clock.advance(29)
        await product.settle()
        assert [domain.name for domain in await scene.domains()] == ["here_blue"]
        assert [booking.state for booking in await scene.bookings()] == ["prepared"], "not free while it runs"
        clock.advance(1)
        await product.settle()
        clock.advance(4)  # who waits for a pod that lost its owner looks again every five
        await scene.empty()


@pytest.mark.parametrize("simulated", [True, False])
@pytest.mark.parametrize("namespace", ["here", "elsewhere"])
@pytest.mark.parametrize("labels", [{}, {vm.LAUNCHER_LABEL: vm.LAUNCHER}], ids=["bare", "labelled"])
async def test_a_pod_with_a_forged_owner_reference_stops_nothing(
    simulated: bool, namespace: str, labels: dict[str, str],
) -> None:
    async with running([replace(host, simulated=simulated) for host in hosts_of("node", 1)]) as scene:
        await scene.machine("blue")
        blue = await scene.running("blue")
        if namespace != "here":
            await scene.store.create(kinds.NAMESPACE, {"metadata": {"name": namespace}})
        news = scenes.logged(scene.product, kinds.POD, namespace)
        owner = {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "name": "blue", "controller": True,
                 "uid": blue["metadata"]["uid"]}
        await scene.store.create(kinds.POD, {
            "metadata": {"name": "forged", "namespace": namespace, "labels": labels, "ownerReferences": [owner]},
            "spec": {"containers": [{"name": "main"}], "nodeName": "node-0"}})
        await scene.settle()
        with contextlib.suppress(NotFound):  # it has no owner in another namespace: it is collected
            await scene.store.delete(kinds.POD, "forged", namespace)

        async def gone() -> bool:
            return any(old and new is None and old["metadata"]["name"] == "forged" for old, new in news)

        await scene.reach(gone, "the pod is gone")
        await scene.settle()
        assert [domain.name for domain in await scene.domains()] == ["here_blue"]
        assert (await scene.running("blue"))["status"]["activePods"] == blue["status"]["activePods"]
        await scene.nothing_missed()
        await scene.delete(kinds.VMI, "blue")
        await scene.empty()


async def test_a_pod_in_another_namespace_is_not_the_launcher_of_a_waiting_vmi() -> None:
    async with running(hosts_of("node", 1)) as scene:
        await scene.store.create(kinds.NAMESPACE, {"metadata": {"name": "elsewhere"}})
        blue = await scene.machine("blue", template="later")  # its own pod waits for the claim
        await scene.waits("blue", "PodScheduled", "later")
        owner = {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "name": "blue", "controller": True,
                 "uid": blue["metadata"]["uid"]}
        assert scene.clock is not None
        scene.clock.advance(1)
        await scene.store.create(kinds.POD, {
            "metadata": {"name": "forged", "namespace": "elsewhere", "ownerReferences": [owner],
                         "finalizers": ["example.com/stay"]},
            "spec": {"containers": [{"name": "main"}], "nodeName": "node-0"}})
        await scene.settle()
        await scene.template("later")
        await scene.running("blue")
        pod = await scene.pod("blue")
        assert (await scene.running("blue"))["status"]["activePods"] == {pod["metadata"]["uid"]: "node-0"}


class Away(Simulated):
    """A hypervisor whose daemon can be gone."""

    away = False

    async def domains(self) -> Mapping[str, Domain]:
        if self.away:
            raise HypervisorAway("libvirt does not answer: it naps", retry_after=5)
        return await super().domains()

    async def start(self, domain: Domain) -> None:
        await self.domains()
        await super().start(domain)


async def test_pods_report_that_the_hypervisor_is_away() -> None:
    hypervisor = Away()
    async with running([replace(host, hypervisor=hypervisor) for host in hosts_of("node", 1)]) as scene:
        hypervisor.away = True
        await scene.machine("blue")
        await scene.waits("blue", "Ready", "node-0: libvirt does not answer: it naps")
        hypervisor.away = False
        assert scene.clock is not None
        scene.clock.advance(5)
        await scene.running("blue")
        assert "message" not in (await scene.pod("blue"))["status"]
        before = (await scene.pod("blue"))["status"]["startTime"]
        hypervisor.away = True
        scene.clock.advance(5)
        for callback in hypervisor._callbacks:
            callback("")

        async def reported() -> bool:
            return "it naps" in (await scene.pod("blue"))["status"].get("message", "")

        await scene.reach(reported, "the pod says it")
        assert (await scene.pod("blue"))["status"]["phase"] == "Running", "it is unknown that it ended"
        hypervisor.away = False
        scene.clock.advance(5)

        async def silent() -> bool:
            return "message" not in (await scene.pod("blue"))["status"]

        await scene.reach(silent, "the pod no longer says it")
        assert (await scene.pod("blue"))["status"]["startTime"] == before


async def test_exclusive_check_at_prepare() -> None:
    """A page on which two stand for one card, one of them prepared: the other does not start, and says who has it."""
    async with running(hosts_of("node", 1)) as scene:
        claim = await scene.claim("mine")
        device = DeviceId(scene.driver, "node-0", "pci-0000-3b-00-0-vf0")
        rival = Holder("Migration", "there", "move", "uid-of-move", "vmi/red")
        mine = Holder("ResourceClaim", "here", "mine", claim["metadata"]["uid"], "vmi/blue")
        bookings = [Booking(device, mine, "nic", "booked", "2026-01-01T00:00:00Z"),
                    Booking(device, rival, "nic", "prepared", "2026-01-01T00:00:00Z")]
        with unchecked(scene.store):
            await scene.store.create(kinds.LEDGER_PAGE, {"metadata": {"name": "node-0"}, "spec": {
                "host": "node-0", "bookings": [booking.to_object() for booking in bookings]}})
        await plain_pod(scene, claim="mine")
        pod = await scene.find(kinds.POD, "web")
        assert pod is not None
        await scene.store.patch(kinds.RESOURCE_CLAIM, "mine", {"status": {
            "allocation": {"devices": {"results": [{"request": "nic", "driver": device.driver, "pool": "node-0",
                                                    "device": device.device}]}},
            "reservedFor": [{"resource": "pods", "name": "web", "uid": pod["metadata"]["uid"]}]}}, "here", subresource="status")

        async def reported() -> bool:
            found = await scene.find(kinds.POD, "web")
            return found is not None and "pci-0000-3b-00-0-vf0: held by vmi/red" in found["status"].get("message", "")

        await scene.reach(reported, "the pod says who has the card")
        assert [booking.state for booking in await scene.bookings()] == ["booked", "prepared"]
        before = len(await scene.events("FailedPrepareDevices"))
        for _ in range(5):
            await scene.reach(reported, "it still does")
            assert scene.clock is not None
            scene.clock.advance(1)
        assert len(await scene.events("FailedPrepareDevices")) == before, "the same again is not said again"
        await book.release(scene.store, "node-0", "uid-of-move")
        await scene.reach(pod_is(scene, "web", "Running"), "web runs")
        found = await scene.find(kinds.POD, "web")
        assert found is not None
        assert "message" not in found["status"]


async def test_leftovers_are_swept_at_the_start() -> None:
    """What a host still runs or has prepared for a pod that was deleted while no agent was running."""
    hosts = hosts_of("node", 2)
    await hosts[0].hypervisor.start(Domain("uid-of-ghost", "here_ghost", "<domain/>"))
    clock = ManualClock()
    async with app.embedded(clock=clock, names=IdGenerator(random.Random(1))) as first:
        ghost = Booking(DeviceId(hosts[0].driver, "node-0", "vf"), Holder("ResourceClaim", "here", "ghost", "uid"), "nic",
                        "prepared", "2026-01-01T00:00:00Z")
        kept = Booking(DeviceId(hosts[0].driver, "node-0", "vf2"), Holder("Consumer", "", "c", "uid2"), "nic", "prepared",
                       "2026-01-01T00:00:00Z")
        await book.book(first.store, "node-0", [ghost, kept])
        second = app.Embedded(first.store, hosts, clock=clock)
        await second.start()
        await second.settle()
        assert await hosts[0].hypervisor.domains() == {}
        assert (await book.read(first.store, "node-0")).bookings == (kept,), "what no claim holds is not ours to release"
        await second.runner.stop()


class Gate(Simulated):
    """A start that takes its time."""

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.go = asyncio.Event(), asyncio.Event()

    async def start(self, domain: Domain) -> None:
        self.entered.set()
        await self.go.wait()
        await super().start(domain)


async def test_a_pod_that_is_deleted_while_its_vmi_starts_leaves_nothing() -> None:
    gate = Gate()
    async with running([replace(host, hypervisor=gate) for host in hosts_of("node", 1)]) as scene:
        await scene.machine("blue")
        await gate.entered.wait()
        await scene.delete(kinds.POD, (await scene.pod("blue"))["metadata"]["name"], grace=0)
        for _ in range(50):
            await asyncio.sleep(0)
        assert [booking.state for booking in await scene.bookings()] == ["prepared"], "not free while a VM may still start"
        gate.go.set()

        async def nothing() -> bool:
            return not await scene.domains() and not await scene.bookings()

        await scene.reach(nothing, "no domain and no booking")


async def test_shared_claim_is_prepared_until_the_last_pod_is_gone() -> None:
    async with scenes.embedded(1) as scene:
        await scene.classes()
        await scene.claim("mine")
        await plain_pod(scene, "one", claim="mine")
        await scene.reach(pod_is(scene, "one", "Running"), "one runs")
        one = await scene.find(kinds.POD, "one")
        assert one is not None
        await plain_pod(scene, "two", claim="mine")
        two = await scene.find(kinds.POD, "two")
        assert two is not None
        users = [{"resource": "pods", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]} for pod in (one, two)]
        await scene.store.patch(kinds.RESOURCE_CLAIM, "mine", {"status": {"reservedFor": users}}, "here", subresource="status")
        await scene.store.patch(kinds.POD, "two", {"spec": {"nodeName": "node-0"}}, "here")
        await scene.reach(pod_is(scene, "two", "Running"), "two runs")
        await scene.delete(kinds.POD, "one")
        await scene.reach(pod_is(scene, "two", "Running"), "two still runs")
        assert await scene.find(kinds.POD, "one") is None
        assert [booking.state for booking in await scene.bookings()] == ["prepared"]
        await scene.delete(kinds.POD, "two")
        await scene.empty()


async def test_a_claim_that_two_vmis_name_serves_the_first_alone() -> None:
    """A scheduler that lets two pods use one claim: for VMs the node does not."""
    async with running(hosts_of("node", 1)) as scene:
        await scene.claim("mine")
        await scene.machine("blue", claim="mine")
        await scene.running("blue")
        await scene.machine("green", claim="mine")
        await scene.rejected("green", Code.CLAIM_IN_USE, claim="mine")
        blue, green = await scene.pod("blue"), await scene.pod("green")
        users = [{"resource": "pods", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]} for pod in (blue, green)]
        await scene.store.patch(kinds.RESOURCE_CLAIM, "mine", {"status": {"reservedFor": users}}, "here", subresource="status")
        await scene.store.patch(kinds.POD, green["metadata"]["name"], {"spec": {"nodeName": "node-0"}}, "here")
        await scene.waits("green", "Ready", "mine", blue["metadata"]["name"])
        assert rejection_conditions.of(await scene.pod("green")) == [Code.CLAIM_IN_USE]
        assert [domain.name for domain in await scene.domains()] == ["here_blue"]
        await scene.delete(kinds.VMI, "blue")
        await scene.running("green")
        assert [domain.name for domain in await scene.domains()] == ["here_green"]


async def test_a_vmi_that_names_a_request_its_claim_does_not_have_fails_and_releases_the_devices() -> None:
    """As where kube-scheduler, which does not know VMIs, has allocated the claim and bound the pod."""
    async with running(hosts_of("node", 1)) as scene:
        claim = await scene.claim("mine")
        await scene.machine("blue", device(request="that"), claim="mine")
        await scene.rejected("blue", Code.REQUEST_MISSING, claim="mine", request="that", requests=("nic",))
        name, pod = DeviceId(scene.driver, "node-0", "pci-0000-3b-00-0-vf0"), await scene.pod("blue")
        holder = Holder("ResourceClaim", "here", "mine", claim["metadata"]["uid"], "vmi/blue")
        await book.book(scene.store, "node-0", [Booking(name, holder, "nic", "booked", "2026-01-01T00:00:00Z")])
        await scene.store.patch(kinds.RESOURCE_CLAIM, "mine", {"status": {
            "allocation": {"devices": {"results": [{"request": "nic", "driver": name.driver, "pool": "node-0",
                                                    "device": name.device}]}},
            "reservedFor": [{"resource": "pods", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}]}}, "here",
            subresource="status")
        await scene.store.patch(kinds.POD, pod["metadata"]["name"], {"spec": {"nodeName": "node-0"}}, "here")
        found = await scene.phase("blue", "Failed")
        assert rejection_conditions.of(found) == [Code.REQUEST_MISSING]
        assert (conditions.find(found, "Ready") or {})["reason"] == "SyncFailed"

        async def free() -> bool:
            return not await scene.bookings()

        await scene.reach(free, "its device is free again")


async def test_a_claim_that_lost_its_status_gets_it_again_from_the_page() -> None:
    async with running(hosts_of("node", 1)) as scene:
        await scene.claim("mine")
        await scene.machine("blue", claim="mine")
        await scene.running("blue")
        before = await scene.find(kinds.RESOURCE_CLAIM, "mine")
        assert before is not None
        await scene.store.patch(kinds.RESOURCE_CLAIM, "mine", {"status": None}, "here", subresource="status")

        async def whole() -> bool:
            found = await scene.find(kinds.RESOURCE_CLAIM, "mine")
            return found is not None and found.get("status") == before["status"]

        await scene.reach(whole, "the status is what it was")
        await scene.running("blue")
        await scene.check_books()


async def test_host_that_is_no_longer_served_gets_no_new_pods() -> None:
    clock = ManualClock()
    async with app.embedded(hosts=hosts_of("old", 1), clock=clock, names=IdGenerator(random.Random(1))) as first:
        await first.runner.stop()
        second = app.Embedded(first.store, hosts_of("new", 1), clock=clock)
        await second.start()
        old = await first.store.get(kinds.NODE, "old-0")
        assert not conditions.is_true(old, "Ready")
        assert conditions.is_true(await first.store.get(kinds.NODE, "new-0"), "Ready")
        await second.runner.stop()


@pytest.mark.parametrize("count", [1, 2])
async def test_one_process_is_the_node_of_every_simulated_host(count: int) -> None:
    async with running(hosts_of("node", 1, count)) as scene:
        for number in range(count):
            await scene.machine(f"vm{number}")
        where = {(await scene.running(f"vm{number}"))["status"]["nodeName"] for number in range(count)}
        assert where == {f"node-{number}" for number in range(count)}


async def test_a_vmi_waits_for_the_secrets_of_its_cloud_init() -> None:
    async with running(hosts_of("node", 1)) as scene:
        await scene.machine("blue", volumes=[{"name": "seed", "cloudInitConfigDrive": {"secretRef": {"name": "user"}}}])
        field = "spec.volumes[0].cloudInitConfigDrive.secretRef"
        said: dict[str, Callable[[], Awaitable[object]]] = {
            f"{field}: there is no Secret user yet": lambda: scene.store.create(kinds.SECRET, {
                "metadata": {"name": "user", "namespace": "here"}, "data": {"other": "eA=="}}),
            f"{field}: Secret user has no key userdata or userData yet": lambda: scene.store.patch(
                kinds.SECRET, "user", {"data": {"userdata": "I2Nsb3Vk/w=="}}, "here"),
        }
        for words, act in said.items():
            await scene.reach(lambda words=words: reports(scene, "blue", "SecretMissing", words), words)  # type: ignore[misc]
            assert not await scene.domains()
            await act()
        await scene.running("blue")
        [domain] = await scene.domains()
        assert domain.drive is not None
        assert dict(domain.drive.files)["openstack/latest/user_data"] == b"#cloud\xff"
        await scene.reach(lambda: reports_nothing(scene, "blue"), "the pod no longer says that it waits")


async def reports(scene: Scene, name: str, reason: str, words: str) -> bool:
    found = await scene.condition(name, "Ready")
    return found is not None and found.get("reason") == reason and words in str(found.get("message"))


async def reports_nothing(scene: Scene, name: str) -> bool:
    return "message" not in (await scene.pod(name))["status"]
