"""The life of VMs with devices, as scenarios that run twice: on the embedded product and on a real control plane with
kube-scheduler and kube-controller-manager. There the scheduler has words of its own; only what is ours is compared."""

from __future__ import annotations

import functools
import json
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from xml.etree import ElementTree as ET

import pytest

from outfitter.api import conditions, kinds, rejection_conditions
from outfitter.api.device import DeviceId
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import device_status, vmi_actions
from outfitter.api.ledger_page.page import Booking, Holder
from outfitter.controllers import launcher_pod
from outfitter.controllers.embedded.pod_claims import FINALIZER
from outfitter.ledger import book
from tests.cluster_roles import ClusterRoles
from tests.controllers import scenario as scenes
from tests.controllers.scenario import Scene, addresses, device, logged
from tests.rejected import Code


@dataclass(frozen=True)
class VmiScenario:
    tell: Callable[[Scene], Awaitable[None]]
    vfs: int


SCENARIOS: dict[str, VmiScenario] = {}


def scenario(name: str, vfs: int = 1) -> Callable[[Callable[[Scene], Awaitable[None]]], None]:
    def add(tell: Callable[[Scene], Awaitable[None]]) -> None:
        SCENARIOS[name] = VmiScenario(tell, vfs)

    return add


async def claim_of(scene: Scene, machine: str) -> Object:
    pod = await scene.pod(machine)
    claim = await scene.find(kinds.RESOURCE_CLAIM, pod["status"]["resourceClaimStatuses"][0]["resourceClaimName"])
    assert claim is not None
    return claim


@scenario("a VM runs with its device", vfs=2)
async def _(scene: Scene) -> None:
    await scene.template()
    made = await scene.machine("blue")
    blue = await scene.running("blue")
    pod, claim = await scene.pod("blue"), await claim_of(scene, "blue")
    [booking], [domain] = await scene.bookings(), await scene.domains()
    [address] = addresses(blue)

    # what the status says
    assert blue["status"]["deviceStatus"] == {"hostDeviceStatuses": [{"name": "nic0", "deviceResourceClaimStatus": {
        "name": booking.device.device, "resourceClaimName": claim["metadata"]["name"], "driver": scene.driver,
        "pool": scene.host.name, "product": "1889", "attributes": {"pciAddress": address}}}]}
    assert address.startswith("0000:3b:")
    assert blue["status"]["nodeName"] == scene.host.name
    assert blue["status"]["activePods"] == {pod["metadata"]["uid"]: scene.host.name}
    assert conditions.is_true(blue, "Ready")
    assert conditions.is_true(blue, "DevicesReady")
    assert conditions.find(blue, "PodScheduled") is None

    # the pod as it was rendered
    assert pod["metadata"]["name"] == launcher_pod.pod_name(made)
    assert pod["spec"]["resourceClaims"] == [{"name": "network", "resourceClaimTemplateName": "one-vf"}]
    assert pod["spec"]["containers"][0]["resources"]["claims"] == [{"name": "network", "request": "nic"}]
    assert pod["metadata"]["ownerReferences"][0]["uid"] == made["metadata"]["uid"]
    assert pod["status"]["phase"] == "Running"
    assert conditions.is_true(pod, "Ready")
    assert "message" not in pod["status"]

    # the claim, the page and the domain tell the same
    assert claim["status"]["allocation"]["devices"]["results"][0]["device"] == booking.device.device
    assert [(user["name"], user["uid"]) for user in claim["status"]["reservedFor"]] == [
        (pod["metadata"]["name"], pod["metadata"]["uid"])]
    assert FINALIZER in claim["metadata"]["finalizers"]
    assert booking.state == "prepared"
    assert booking.request == "nic"
    assert (booking.holder.uid, booking.holder.purpose) == (claim["metadata"]["uid"], "vmi/blue")
    assert domain.uid == made["metadata"]["uid"]
    assert domain.name == f"{scene.namespace}_blue"
    source = ET.fromstring(domain.xml).find("./devices/hostdev/source/address")
    assert source is not None
    number = "{domain}:{bus}:{slot}.{function}".format(**{key: text.removeprefix("0x") for key, text in source.attrib.items()})
    assert number == address
    await scene.check_books()


@scenario("the second VM waits and the reason names the holder")
async def _(scene: Scene) -> None:
    await scene.template()
    await scene.machine("blue")
    await scene.running("blue")
    await scene.machine("green")
    await scene.waits("green", "PodScheduled", *(["vmi/blue"] if scene.embedded else ["0/"]))  # of others hosts may be going
    if scene.embedded:
        await scene.rejected("green", Code.TOO_FEW_FREE, wanted=1, match=1, free=0)
    green = await scene.phase("green", "Scheduling")
    assert device_status.missing_devices(green) == ["nic0"], "it names which claim it waits for, and nothing more"
    assert [domain.name for domain in await scene.domains()] == [f"{scene.namespace}_blue"]


@scenario("it runs when the first is deleted, with the device that became free")
async def _(scene: Scene) -> None:
    await scene.template()
    await scene.machine("blue")
    was = addresses(await scene.running("blue"))
    await scene.machine("green")
    await scene.waits("green", "PodScheduled")
    await scene.delete(kinds.VMI, "blue")
    green = await scene.running("green")
    assert addresses(green) == was
    assert conditions.find(green, "PodScheduled") is None
    await scene.gone("blue")
    assert [domain.name for domain in await scene.domains()] == [f"{scene.namespace}_green"]
    await scene.check_books()


@scenario("a deleted VM leaves nothing", vfs=2)
async def _(scene: Scene) -> None:
    await scene.template()
    await scene.machine("blue")
    await scene.running("blue")
    await scene.delete(kinds.VMI, "blue")
    await scene.gone("blue")
    await scene.empty()


@scenario("a VM is paused and goes on")
async def _(scene: Scene) -> None:
    await scene.template()
    await scene.machine("blue")
    await scene.running("blue")

    async def asked(action: vmi_actions.Action) -> None:
        found = await scene.running("blue")
        change = {"status": {vmi_actions.FIELD: vmi_actions.with_action_request(action, found, "2026-01-01T00:00:00Z")}}
        await scene.store.patch(kinds.VMI, "blue", change, scene.namespace, subresource="status")

    async def told(still: bool) -> bool:
        found = await scene.running("blue")
        paused, ready = conditions.is_true(found, "Paused"), conditions.is_true(found, "Ready")
        return (paused, ready, vmi_actions.action_requests(found)) == (still, not still, [])

    actions: tuple[vmi_actions.Action, ...] = ("pause", "unpause", "pause")
    for action in actions:
        await asked(action)
        await scene.reach(functools.partial(told, action == "pause"), f"{action} is told")
        assert [domain.paused is not None for domain in await scene.domains()] == [action == "pause"]
    await scene.check_books()
    await scene.delete(kinds.VMI, "blue")
    await scene.empty()


@scenario("a named claim is kept after the VM, and is free")
async def _(scene: Scene) -> None:
    await scene.claim("mine")
    await scene.machine("blue", claim="mine")
    await scene.running("blue")
    await scene.delete(kinds.VMI, "blue")
    await scene.gone("blue")
    await scene.empty()
    claim = await scene.find(kinds.RESOURCE_CLAIM, "mine")
    assert claim is not None
    assert not (claim.get("status") or {}).get("reservedFor")
    assert FINALIZER not in (claim["metadata"].get("finalizers") or ())


@scenario("a template that comes late")
async def _(scene: Scene) -> None:
    await scene.machine("blue")
    if scene.embedded:
        await scene.rejected("blue", Code.CLAIM_NOT_CREATED, entry="network", template="one-vf")
        assert await scene.events("FailedResourceClaimCreation") == ["ResourceClaimTemplate one-vf does not exist in here"]
    else:
        await scene.waits("blue", "DevicesReady", "nic0: claim network has not been made yet")
    await scene.template()
    await scene.running("blue")


@scenario("a claim that comes late")
async def _(scene: Scene) -> None:
    await scene.machine("blue", claim="mine")
    await scene.waits("blue", "PodScheduled" if scene.embedded else "DevicesReady", "mine")
    if scene.embedded:
        assert rejection_conditions.of(await scene.pod("blue")) == [Code.CLAIM_MISSING]
    await scene.claim("mine")
    await scene.running("blue")


@scenario("a class that comes late")
async def _(scene: Scene) -> None:
    await scene.delete(kinds.DEVICE_CLASS, scene.namespace)
    await scene.template()
    await scene.machine("blue")
    await scene.waits("blue", "PodScheduled")
    if scene.embedded:
        await scene.rejected("blue", Code.CLASS_MISSING, **{"class": scene.namespace})
    await scene.classes()
    await scene.running("blue")


@scenario("a claim that is deleted while in use waits for the VM")
async def _(scene: Scene) -> None:
    await scene.claim("mine")
    await scene.machine("blue", claim="mine")
    await scene.running("blue")
    await scene.delete(kinds.RESOURCE_CLAIM, "mine")
    claim = await scene.find(kinds.RESOURCE_CLAIM, "mine")
    assert claim is not None
    assert claim["metadata"]["deletionTimestamp"]
    assert claim["status"]["allocation"]
    await scene.check_books()
    await scene.machine("green", claim="mine")
    await scene.waits("green", "PodScheduled" if scene.embedded else "DevicesReady", "mine")
    if scene.embedded:
        assert rejection_conditions.of(await scene.pod("green")) == [Code.CLAIM_DELETING]
    await scene.delete(kinds.VMI, "blue")
    await scene.gone("blue")

    async def gone() -> bool:
        return await scene.find(kinds.RESOURCE_CLAIM, "mine") is None and not await scene.bookings()

    await scene.reach(gone, "the claim is gone")
    await scene.delete(kinds.VMI, "green")
    await scene.empty()


@scenario("two requests of one claim are two devices", vfs=3)
async def _(scene: Scene) -> None:
    await scene.template("two", "left", "right")
    await scene.machine("blue", device("a", "left"), device("b", "right"), template="two")
    blue = await scene.running("blue")
    assert [entry["name"] for entry in blue["status"]["deviceStatus"]["hostDeviceStatuses"]] == ["a", "b"]
    assert len(set(addresses(blue))) == 2
    assert sorted(booking.request for booking in await scene.bookings()) == ["left", "right"]
    [domain] = await scene.domains()
    assert domain.xml.count("<hostdev ") == 2
    await scene.check_books()


@scenario("a request for two is one name with two devices", vfs=3)
async def _(scene: Scene) -> None:
    await scene.template("pair", count=2)
    await scene.machine("blue", template="pair")
    blue = await scene.running("blue")
    assert [entry["name"] for entry in blue["status"]["deviceStatus"]["hostDeviceStatuses"]] == ["nic0", "nic0"]
    assert len(set(addresses(blue))) == 2
    [domain] = await scene.domains()
    assert domain.xml.count("<hostdev ") == 2


@scenario("more than the host has is never given in part", vfs=2)
async def _(scene: Scene) -> None:
    await scene.template("three", count=3)
    await scene.machine("blue", template="three")
    await scene.waits("blue", "PodScheduled")
    if scene.embedded:
        await scene.rejected("blue", Code.TOO_FEW_FREE, wanted=3, match=2, free=2)
    assert not await scene.bookings()
    assert not await scene.domains()


@scenario("a VM that is deleted while it waits")
async def _(scene: Scene) -> None:
    await scene.template()
    await scene.machine("blue")
    await scene.running("blue")
    await scene.machine("green")
    await scene.waits("green", "PodScheduled")
    await scene.delete(kinds.VMI, "green")
    await scene.gone("green")
    await scene.running("blue")
    await scene.check_books()
    await scene.delete(kinds.VMI, "blue")
    await scene.empty()


@scenario("a launcher pod that is deleted by force stops its VM and frees the device")
async def _(scene: Scene) -> None:
    await scene.template()
    await scene.machine("blue")
    await scene.running("blue")
    await scene.machine("green")
    await scene.waits("green", "PodScheduled")
    await scene.delete(kinds.POD, (await scene.pod("blue"))["metadata"]["name"], grace=0)
    blue = await scene.phase("blue", "Failed")
    assert (await scene.condition("blue", "Ready")) is not None
    assert not conditions.is_true(blue, "Ready")
    await scene.running("green")
    assert [domain.name for domain in await scene.domains()] == [f"{scene.namespace}_green"]
    assert [booking.holder.purpose for booking in await scene.bookings()] == ["vmi/green"]


@scenario("a second launcher pod, made by who did not know that the VM had started, does not bring it back")
async def _(scene: Scene) -> None:
    await scene.template()
    await scene.machine("blue")
    await scene.running("blue")
    pod = await scene.pod("blue")
    meta = {key: pod["metadata"][key] for key in ("name", "namespace", "labels", "annotations", "ownerReferences")
            if key in pod["metadata"]}
    spec = {key: value for key, value in pod["spec"].items() if key != "nodeName"}
    await scene.delete(kinds.POD, pod["metadata"]["name"], grace=0)
    await scene.store.create(kinds.POD, {"metadata": meta, "spec": spec})
    blue = await scene.phase("blue", "Failed")
    assert list(blue["status"]["activePods"]) == [pod["metadata"]["uid"]]

    async def over() -> bool:
        pods = (await scene.store.list(kinds.POD, scene.namespace)).items
        return not [*pods, *await scene.domains(), *await scene.bookings()]

    await scene.reach(over, "the second pod is gone, and holds nothing")


@scenario("a VM that is to go alone takes its pod along all the same")
async def _(scene: Scene) -> None:
    """The pod has lost its owner before any process looked, and its events do not reach the instance any more."""
    await scene.machine("blue")
    await scene.phase("blue", "Scheduling")
    pod = (await scene.pod("blue"))["metadata"]["name"]
    await scene.store.patch(kinds.POD, pod, {"metadata": {"ownerReferences": None}}, scene.namespace)
    await scene.delete(kinds.VMI, "blue", propagation="Orphan")
    await scene.gone("blue")
    assert await scene.find(kinds.POD, pod) is None


@scenario("a pod that is off releases its devices, though a finalizer keeps its object")
async def _(scene: Scene) -> None:
    await scene.claim("mine")
    await scene.machine("blue", claim="mine")
    await scene.running("blue")
    pod = (await scene.pod("blue"))["metadata"]["name"]
    await scene.store.patch(kinds.POD, pod, {"metadata": {"finalizers": ["example.com/looks"]}}, scene.namespace)
    await scene.delete(kinds.VMI, "blue")
    await scene.machine("green", claim="mine")
    await scene.running("green")
    kept = await scene.find(kinds.POD, pod)
    assert kept is not None
    assert (kept["status"]["phase"], kept["status"]["reason"]) == ("Failed", "Deleted")
    assert "until its finalizers are removed: example.com/looks" in kept["status"]["message"]
    assert [domain.name for domain in await scene.domains()] == [f"{scene.namespace}_green"]
    await scene.phase("blue", "Succeeded")
    await scene.waits("blue", "Ready", f"it was deleted and is off; its pod {pod} stays", "taken off: example.com/looks")
    await scene.store.patch(kinds.POD, pod, {"metadata": {"finalizers": None}}, scene.namespace)
    await scene.gone("blue")


@scenario("a VM that is off does not say that it runs, though a finalizer keeps its object")
async def _(scene: Scene) -> None:
    await scene.template()
    await scene.machine("blue")
    blue = await scene.running("blue")
    kept = [*blue["metadata"]["finalizers"], "example.com/looks"]
    await scene.store.patch(kinds.VMI, "blue", {"metadata": {"finalizers": kept}}, scene.namespace)
    await scene.delete(kinds.VMI, "blue")
    await scene.phase("blue", "Succeeded")
    await scene.waits("blue", "Ready", "it was deleted and is off", "taken off: example.com/looks")

    async def nothing() -> bool:
        return not [*await scene.all(kinds.POD), *await scene.bookings(), *await scene.domains()]

    await scene.reach(nothing, "it has nothing any more")
    await scene.store.patch(kinds.VMI, "blue", {"metadata": {"finalizers": None}}, scene.namespace)
    await scene.gone("blue")


@scenario("a launcher pod that goes before the VM has started is followed by another")
async def _(scene: Scene) -> None:
    await scene.machine("blue")
    await scene.phase("blue", "Scheduling")
    await scene.delete(kinds.POD, (await scene.pod("blue"))["metadata"]["name"], grace=0)
    await scene.template()
    blue = await scene.running("blue")
    assert blue["status"]["activePods"] == {(await scene.pod("blue"))["metadata"]["uid"]: scene.host.name}


@scenario("a VM whose device a rival has prepared does not start and gives the reason")
async def _(scene: Scene) -> None:
    [part] = (await scene.store.list(kinds.RESOURCE_SLICE, fields=f"spec.driver={scene.driver}")).items
    [name] = [entry["name"] for entry in part["spec"]["devices"]]
    rival = Holder("Migration", "elsewhere", "theirs", str(uuid.uuid4()), "vmi/rival")
    held = Booking(DeviceId(scene.driver, scene.host.name, name), rival, "nic", "prepared", "2026-01-01T00:00:00Z")
    await book.book(scene.store, scene.host.name, [held])
    await scene.template()
    await scene.machine("blue")
    await scene.waits("blue", "PodScheduled" if scene.embedded else "Ready", "vmi/rival", "theirs", "elsewhere",
                      "2026-01-01T00:00:00Z")
    assert not await scene.domains()
    assert [booking.holder.purpose for booking in await scene.bookings()] == ["vmi/rival"]
    await book.release(scene.store, scene.host.name, rival.uid)
    await scene.running("blue")
    await scene.check_books()


@scenario("two VMs that name one claim: a VM's devices are not shared")
async def _(scene: Scene) -> None:
    await scene.claim("mine")
    await scene.machine("blue", claim="mine")
    await scene.running("blue")
    await scene.machine("green", claim="mine")
    await scene.waits("green", "PodScheduled" if scene.embedded else "Ready", "mine", "virt-launcher-blue-")
    assert rejection_conditions.of(await scene.pod("green")) == [Code.CLAIM_IN_USE]
    assert [domain.name for domain in await scene.domains()] == [f"{scene.namespace}_blue"]
    await scene.delete(kinds.VMI, "blue")
    await scene.running("green")
    assert [domain.name for domain in await scene.domains()] == [f"{scene.namespace}_green"]
    await scene.check_books()


@scenario("three spellings of a device mean the same", vfs=3)
async def _(scene: Scene) -> None:
    await scene.template()
    spellings: dict[str, Object] = {
        "shipped": {"claimName": "network", "requestName": "nic"},
        "longer": {"claimName": "network", "deviceRequestName": "nic"},
        "nested": {"claim": {"name": "network", "request": "nic"}},
    }
    for name, words in spellings.items():
        await scene.machine(name, {"name": "nic0", **words})
    given = [address for name in spellings for address in addresses(await scene.running(name))]
    assert len(set(given)) == 3
    await scene.check_books()


@scenario("a GPU and a host device of one machine stand in lists of their own", vfs=2)
async def _(scene: Scene) -> None:
    await scene.template("two", "card", "nic")
    await scene.create(kinds.VMI, "blue", {
        "resourceClaims": [{"name": "all", "resourceClaimTemplateName": "two"}],
        "domain": {"devices": {"gpus": [device("gpu0", "card", "all")], "hostDevices": [device("nic0", "nic", "all")]}}})
    status = (await scene.running("blue"))["status"]["deviceStatus"]
    assert {field: [entry["name"] for entry in entries] for field, entries in status.items()} == {
        "gpuStatuses": ["gpu0"], "hostDeviceStatuses": ["nic0"]}


def _words_of_the_scheduler(old: Object | None, new: Object | None) -> bool:
    """Whether a change did nothing but repeat them; it says as much as it likes, of hosts that others take away too."""
    def rest(obj: Object) -> object:
        status = obj.get("status") or {}
        said = [one for one in status.get("conditions") or () if one["type"] != "PodScheduled"]
        meta = {key: value for key, value in obj["metadata"].items() if key not in ("resourceVersion", "managedFields")}
        return meta, obj["spec"], {**status, "conditions": said}

    def told(obj: Object) -> object:
        return conditions.find(obj, "PodScheduled")

    return bool(old and new and told(old) and told(new) and rest(old) == rest(new))


def _of_devices(scene: Scene, seen: Sequence[tuple[Object | None, Object | None]]) -> list[Object | None]:
    """The changes of a VMI's device status. That a claim is not there after two seconds costs one more; how long
    kube-controller-manager takes to make it, and its events to come, is not ours to promise."""
    def told(obj: Object | None) -> tuple[object, object]:
        known = conditions.find(obj or {}, "DevicesReady") or {}
        return ((obj or {}).get("status") or {}).get("deviceStatus"), (known.get("status"), known.get("message"))

    def late(obj: Object | None) -> bool:
        words = str((conditions.find(obj or {}, "DevicesReady") or {}).get("message"))
        return not scene.embedded and ("has not been made yet" in words or "does not exist" in words)

    return [new for old, new in seen if told(old) != told(new) and not late(new)]


@scenario("the device status costs at most two patches")
async def _(scene: Scene) -> None:
    await scene.template()
    seen = logged(scene.product, kinds.VMI, scene.namespace)
    await scene.machine("blue")
    await scene.running("blue")

    assert 1 <= len(_of_devices(scene, seen)) <= 2
    # All of a VM's start: made, finalizer, waiting (in one or two sentences), scheduled, devices, running.
    ours = seen if scene.embedded else [change for change in seen if not _words_of_the_scheduler(*change)]
    assert len(ours) <= (7 if scene.embedded else 9), [(new or {}).get("status") for _, new in seen]


@scenario("devices by resource name stand in the status, and cost no more patches", vfs=3)
async def _(scene: Scene) -> None:
    """Of one resource in both lists the host devices come first, as in the domain."""
    resource = f"{scene.namespace}.example/vf"
    await scene.store.patch(kinds.DEVICE_CLASS, scene.namespace, {"spec": {"extendedResourceName": resource}})
    seen = logged(scene.product, kinds.VMI, scene.namespace)
    await scene.create(kinds.VMI, "blue", {"domain": {"memory": {"guest": "1Gi"}, "devices": {
        "gpus": [{"name": "g", "deviceName": resource}],
        "hostDevices": [{"name": "a", "deviceName": resource}, {"name": "b", "deviceName": resource}]}}})
    blue = await scene.running("blue")
    made = (await scene.pod("blue"))["status"]["extendedResourceClaimStatus"]["resourceClaimName"]
    claim = await scene.find(kinds.RESOURCE_CLAIM, made)
    assert claim is not None
    [domain] = await scene.domains()
    status = blue["status"]["deviceStatus"]
    entries = [*status["hostDeviceStatuses"], *status["gpuStatuses"]]
    given = [entry["deviceResourceClaimStatus"] for entry in entries]
    assert [entry["name"] for entry in entries] == ["a", "b", "g"]
    assert [one["name"] for one in given] == [
        one["device"] for one in claim["status"]["allocation"]["devices"]["results"]], "the order of the claim"
    assert [one["attributes"]["pciAddress"] for one in given] == list(domain.devices), "the order of the domain"
    assert {(one["resourceClaimName"], one["driver"], one["pool"], one["product"]) for one in given} == {
        (made, scene.driver, scene.host.name, "1889")}
    assert conditions.is_true(blue, "DevicesReady")
    assert 1 <= len(_of_devices(scene, seen)) <= 2
    await scene.delete(kinds.VMI, "blue")
    await scene.empty()


@scenario("a VM that names a request which its claim lacks does not keep the only device")
async def _(scene: Scene) -> None:
    await scene.template()
    await scene.machine("odd", device(request="that"))

    async def rejected() -> bool:
        return Code.REQUEST_MISSING in rejection_conditions.of(await scene.find(kinds.VMI, "odd") or {})

    await scene.reach(rejected, "odd carries the reason")
    await scene.machine("blue")
    await scene.running("blue")
    assert Code.REQUEST_MISSING in rejection_conditions.of(await scene.find(kinds.VMI, "odd") or {})
    for name in ("odd", "blue"):
        await scene.delete(kinds.VMI, name)
    await scene.empty()


@scenario("a spec is never rewritten", vfs=2)
async def _(scene: Scene) -> None:
    await scene.template()
    made = await scene.machine("blue", {**device(), "tag": "uplink"}, terminationGracePeriodSeconds=5)
    await scene.running("blue")
    seen = logged(scene.product, kinds.VMI, scene.namespace)
    await scene.delete(kinds.VMI, "blue")

    async def end() -> Object | None:
        return next((old for old, new in seen if new is None), None)

    last = await scene.reach(end, "it is known to be gone")
    assert json.dumps(last["spec"]).encode() == json.dumps(made["spec"]).encode()
    assert last["metadata"]["generation"] <= made["metadata"]["generation"] + 1  # the deletion counts as one


@pytest.mark.parametrize("name", SCENARIOS)
async def test_embedded(name: str) -> None:
    async with scenes.embedded(SCENARIOS[name].vfs) as scene:
        await scene.classes()
        await SCENARIOS[name].tell(scene)


@pytest.mark.cluster
@pytest.mark.parametrize("name", SCENARIOS)
async def test_on_a_cluster(name: str, controller: ClusterRoles) -> None:
    word = f"s{uuid.uuid4().hex[:8]}"
    async with scenes.on_roles(controller, word, scenes.hosts_text(word, SCENARIOS[name].vfs)) as scene:
        await scene.classes()
        await SCENARIOS[name].tell(scene)


async def test_claim_deleted_while_its_vmi_waits_is_recreated() -> None:
    """In a cluster it is Kubernetes that makes claims for pods."""
    async with scenes.embedded(1) as scene:
        await scene.classes()
        await scene.template()
        await scene.machine("blue")
        await scene.running("blue")
        await scene.machine("green")
        await scene.waits("green", "PodScheduled")
        lost = await claim_of(scene, "green")
        await scene.delete(kinds.RESOURCE_CLAIM, lost["metadata"]["name"])

        async def again() -> bool:
            names = [status["resourceClaimName"] for status in (await scene.pod("green"))["status"]["resourceClaimStatuses"]]
            found = await scene.find(kinds.RESOURCE_CLAIM, names[0])
            return found is not None and found["metadata"]["uid"] != lost["metadata"]["uid"]

        await scene.reach(again, "another claim is there")
        await scene.delete(kinds.VMI, "blue")
        await scene.running("green")
        await scene.check_books()
