"""A device prepared and unprepared on a simulated kernel: what is written, what is refused and why, what is left."""

from __future__ import annotations

import errno
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from outfitter.api import rejection
from outfitter.api.kinds import Object
from outfitter.errors import NotReady
from outfitter.node.devices.prepare import AllocatedDevice, prepare
from outfitter.node.devices.unprepare import unprepare
from outfitter.node.simulation.kernel import SimulatedKernel
from tests.node.prepare_host import BARE, BOUND, EVERYTHING, GPU, NIC, NVME, Hand, captured, claim, kernel
from tests.rejected import Code

SSD, SPARE, CARD, GFX, SOUND, PF = ("0000:66:00.0", "0000:67:00.0", "0000:68:00.0", "0000:65:00.0", "0000:65:00.1",
                                    "0000:3b:00.0")
PCI = "/sys/bus/pci"


def drivers(played: SimulatedKernel, *addresses: str) -> list[str | None]:
    return [played.driver(address) for address in addresses]


def test_what_is_written_and_in_which_order() -> None:
    played = kernel(NVME)
    hand = Hand(played)
    hand.give(SSD)
    there = [(f"{PCI}/devices/{SSD}/driver_override", "vfio-pci"), (f"{PCI}/drivers/nvme/unbind", SSD),
             (f"{PCI}/drivers_probe", SSD)]
    assert played.writes == there
    assert drivers(played, SSD) == ["vfio-pci"]
    hand.give(SSD)
    hand.host_env = hand.fresh()
    hand.give(SSD)
    assert played.writes == there  # what is done is found done
    assert hand.take() == {}
    assert played.writes[3:] == [(f"{PCI}/devices/{SSD}/driver_override", ""), (f"{PCI}/drivers/vfio-pci/unbind", SSD),
                                 (f"{PCI}/devices/{SSD}/reset", "1"), (f"{PCI}/drivers_probe", SSD)]
    assert drivers(played, SSD) == ["nvme"]
    assert not played.changes()
    assert hand.take() == {}
    assert len(played.writes) == 7


@dataclass(frozen=True)
class Way:
    pci: str
    address: str
    before: dict[str, str | None]
    resets: tuple[str, ...]


WAYS = {
    "a disk goes to vfio-pci and back": Way(NVME, SSD, {SSD: "nvme"}, (SSD,)),
    "one without a driver has none again": Way(BARE, SPARE, {SPARE: None}, (SPARE,)),
    "one that the operator bound stays bound": Way(BOUND, CARD, {CARD: "vfio-pci"}, (CARD,)),
    "a whole group goes and comes": Way(GPU, GFX, {GFX: "nouveau", SOUND: "snd_hda_intel"}, (GFX, SOUND)),
    "of a group only what is not bound is bound": Way(GPU.replace("snd_hda_intel", "vfio-pci"), GFX,
                                                      {GFX: "nouveau", SOUND: "vfio-pci"}, (GFX, SOUND)),
    "a virtual function of a card that stays": Way(NIC % 2, "0000:3b:01.0", {"0000:3b:01.0": "iavf", PF: "ice"},
                                                   ("0000:3b:01.0",)),
    "a vendor's own vfio driver hands it over": Way(NVME.replace("nvme", "mlx5_vfio_pci"), SSD, {SSD: "mlx5_vfio_pci"}, (SSD,)),
}


@pytest.mark.parametrize("name", WAYS)
def test_prepare_and_unprepare(name: str) -> None:
    way = WAYS[name]
    played = kernel(way.pci)
    assert {address: played.driver(address) for address in way.before} == way.before
    hand = Hand(played)
    hand.give(way.address)
    for address in hand.target(way.address).functions:
        assert str(played.driver(address)).endswith(("vfio-pci", "vfio_pci"))
    assert hand.take() == {}
    assert {address: played.driver(address) for address in way.before} == way.before
    assert tuple(played.resets) == way.resets
    assert not played.changes()


def test_a_real_host_that_was_captured() -> None:
    """Its tree has what its scan asked for and no more, as a host may have less than the kernel of this year."""
    played = captured("qemu-host.json")
    hand = Hand(played, "device_spec: [{vendor_id: 1b36}, {vendor_id: '8086', product_id: 10ca}]")
    addresses = ("0000:42:00.0", "0000:21:10.2", "0000:21:10.0")
    assert drivers(played, *addresses) == ["nvme", None, "vfio-pci"]
    given = hand.give(*addresses)
    assert drivers(played, *addresses) == ["vfio-pci"] * 3
    assert given.env == {"PCI_RESOURCE_GOLD_GPU": ",".join(addresses)}
    assert hand.take() == {}
    assert drivers(played, *addresses) == ["nvme", None, "vfio-pci"]


# -- what is refused

@dataclass(frozen=True)
class Trouble:
    pci: str
    address: str
    make: Callable[[SimulatedKernel], None]
    says: str
    spec: str = EVERYTHING


def nothing(played: SimulatedKernel) -> None:
    pass


def unloaded(played: SimulatedKernel) -> None:
    played._remove("/sys/bus/pci/drivers/vfio-pci")


REFUSALS = {
    "the host uses another of the group": Trouble(
        GPU, GFX, nothing, f"{GFX} is in IOMMU group 7 with {SOUND}, which the host uses through snd_hda_intel: only a whole",
        "device_spec: [{product_id: '2204'}, {product_id: 1aef}]"),
    "virtual functions would go": Trouble(  # that were enabled since the host was looked at
        NIC % 0, PF, lambda k: k.write(f"{PCI}/devices/{PF}/sriov_numvfs", "2"),
        f"{PF} has 2 VFs, which would go"),
    "vfio-pci is not loaded": Trouble(NVME, SSD, unloaded, "the module is not loaded (modprobe vfio-pci)"),
    "its driver does not release it": Trouble(NVME, SSD, lambda k: k.fail("nvme/unbind", errno.EBUSY),
                                          f"{SSD} could not be unbound from nvme: writing '{SSD}' to {PCI}/drivers/nvme/unbind"
                                          ": Device or resource busy"),
    "a process has it open": Trouble(NVME, SSD, lambda k: k.hold(SSD, 4711, "fio", "/dev/nvme0"),
                                     f"writing '{SSD}' to {PCI}/drivers/nvme/unbind: Device or resource busy; "
                                     "process 4711 (fio) has /dev/nvme0 open"),
    "vfio-pci does not take it": Trouble(NVME, SSD, lambda k: k.rejects.add(("vfio-pci", SSD)),
                                         f"{SSD} is bound to no driver after it was bound to vfio-pci"),
    "the override cannot be written": Trouble(NVME, SSD, lambda k: k.fail("driver_override", errno.EACCES),
                                              "Permission denied"),
    "it is gone": Trouble(NVME, SSD, lambda k: k.vanish(SSD), f"{SSD} is no longer on the bus"),
    "the operator binds it and did not": Trouble(
        NVME, SSD, nothing, f"device_spec says managed: no, and {SSD} (nvme) is not bound to vfio-pci; bind it",
        "device_spec: [{vendor_id: 144d, managed: 'no'}]"),
}


CODES = {"the host uses another of the group": Code.IOMMU_GROUP_SHARED, "virtual functions would go": Code.VFS_PRESENT,
         "it is gone": Code.DEVICE_MISSING}  # of the others the driver is not bound, as the agent takes any BindFailed


@pytest.mark.parametrize("name", REFUSALS)
def test_refused(name: str) -> None:
    case = REFUSALS[name]
    played = kernel(case.pci)
    hand = Hand(played, case.spec)
    target = hand.target(case.address)
    if "another of the group" in name:  # the group grew since the host was looked at
        target = replace(target, functions=(case.address,))
    case.make(played)
    with pytest.raises(NotReady, match=re.escape(case.says)) as caught:
        prepare(hand.host_env, claim(), [AllocatedDevice(target, "gpu")])
    assert rejection.of_error(caught.value, Code.DRIVER_NOT_BOUND).code is CODES.get(name, Code.DRIVER_NOT_BOUND)
    # Trying again once the trouble has ended finishes it, and nothing is left in either case.
    played.faults.clear()
    played.rejects.clear()
    assert unprepare(hand.host_env, "uid-1") == {}
    assert played.driver(case.address) == played.default_drivers.get(case.address) or "gone" in name
    assert hand.cdi.names() == hand.metadata.names() == []


def test_a_refusal_before_anything_is_touched_writes_nothing() -> None:
    for name in ("virtual functions would go", "the operator binds it and did not", "vfio-pci is not loaded"):
        case = REFUSALS[name]
        played = kernel(case.pci)
        hand = Hand(played, case.spec)
        target = hand.target(case.address)
        case.make(played)
        played.writes.clear()
        with pytest.raises(NotReady):
            prepare(hand.host_env, claim(), [AllocatedDevice(target, "gpu")])
        assert played.writes == []


def test_a_group_is_looked_at_though_everything_of_the_device_is_bound() -> None:
    """A driver came for its neighbour since; the VM would not start. One that runs with it is left to itself."""
    played = kernel(GPU.replace("nouveau", "vfio-pci"))
    hand = Hand(played)
    wanted = [AllocatedDevice(replace(hand.target(GFX), functions=(GFX,)), "gpu")]
    with pytest.raises(NotReady, match=f"{GFX} is in IOMMU group 7 with {SOUND}, which the host uses through snd_hda_intel"):
        prepare(hand.host_env, claim(), wanted)
    prepare(hand.host_env, claim(), wanted, running=(GFX,))
    assert played.writes == []


def test_a_second_try_goes_on_where_the_first_stopped() -> None:
    played = kernel(NVME)
    played.rejects.add(("vfio-pci", SSD))
    hand = Hand(played)
    with pytest.raises(NotReady):
        hand.give(SSD)
    assert drivers(played, SSD) == [None]
    played.rejects.clear()
    hand.host_env = hand.fresh()
    hand.give(SSD)
    assert drivers(played, SSD) == ["vfio-pci"]
    assert hand.take() == {}
    assert drivers(played, SSD) == ["nvme"]  # and not none, as the second try found it


BRIDGE = "{address: 0000:60:00.0, vendor: 8086, product: '2030', class: %s, driver: %s, iommuGroup: 9}"
BRIDGED = f"{BRIDGE}, {NVME.replace('driver: nvme', 'driver: nvme, iommuGroup: 9')}"


@pytest.mark.parametrize(("class_code", "driver"), [
    ("'060400'", "pcieport"), ("'060700'", "yenta_cardbus"), ("'060940'", "other"),
    ("'060100'", "none"), ("'060100'", "pci-stub"), ("'060100'", "vfio-pci")])
def test_bridges_of_a_group_are_no_obstacle(class_code: str, driver: str) -> None:
    played = kernel(BRIDGED % (class_code, driver))
    Hand(played).give(SSD)
    assert drivers(played, "0000:60:00.0", SSD) == [None if driver == "none" else driver, "vfio-pci"]


@pytest.mark.parametrize("class_code", ["060100", "068000", "060000"])
def test_but_those_that_the_host_uses_for_more_than_a_bus_are(class_code: str) -> None:
    played = kernel(BRIDGED % (f"'{class_code}'", "none"))
    hand = Hand(played)
    target = hand.target(SSD)
    played._put(f"{PCI}/drivers/lpc_ich", None)  # the driver came since the host was looked at
    played._take("0000:60:00.0", "lpc_ich")
    with pytest.raises(NotReady, match=f"{SSD} is in IOMMU group 9 with 0000:60:00.0, which the host uses through lpc_ich"):
        prepare(hand.host_env, claim(), [AllocatedDevice(target, "gpu")])
    assert played.writes == []


def test_what_an_operator_binds_is_left_to_him() -> None:
    played = kernel(BOUND)
    hand = Hand(played, "device_spec: [{vendor_id: 10de, managed: 'no'}]")
    hand.give(CARD)
    assert hand.take() == {}
    assert played.writes == [(f"{PCI}/devices/{CARD}/reset", "1")]


# -- what does not come back

def stolen(played: SimulatedKernel) -> None:
    played.default_drivers[SSD] = "stealer"
    played._put(f"{PCI}/drivers/stealer", None)


STUCK = {
    "a function that is busy": Trouble(NVME, SSD, lambda k: k.busy.add(SSD),
                                              f"{SSD} could not be returned to nvme: writing '{SSD}' to "
                                              f"{PCI}/drivers/vfio-pci/unbind: Device or resource busy"),
    "a process that has its VFIO group open": Trouble(
        NVME, SSD, lambda k: k.hold(SSD, 812, "qemu-system-x86"),
        f"{PCI}/drivers/vfio-pci/unbind: Device or resource busy; process 812 (qemu-system-x86) has /dev/vfio/1 open"),
    "a reset that fails": Trouble(NVME, SSD, lambda k: k.fail("reset", errno.EIO), f"{SSD} could not be reset: "),
    "a driver that rejects it": Trouble(NVME, SSD, lambda k: k.rejects.add(("nvme", SSD)),
                                                   f"{SSD} is bound to no driver, and was bound to nvme before it was"),
    "another driver that was faster": Trouble(NVME, SSD, stolen, f"{SSD} is bound to stealer, and was bound to nvme"),
    "an operator's device that he took back": Trouble(BOUND, CARD, lambda k: k._release(CARD),
                                                      f"{CARD} was bound to vfio-pci and is bound to no driver now"),
    "one of a group": Trouble(GPU, GFX, lambda k: k.rejects.add(("snd_hda_intel", SOUND)), f"{SOUND} is bound to no driver"),
}


@pytest.mark.parametrize("name", STUCK)
def test_why_a_function_could_not_be_restored(name: str) -> None:
    case = STUCK[name]
    played = kernel(case.pci)
    hand = Hand(played)
    device = hand.target(case.address).name
    hand.give(case.address)
    case.make(played)
    [(who, why)] = hand.take().items()
    assert who == device
    assert case.says in why


OVERRIDES = {
    "for vfio-pci, though its driver has it": (NVME, SSD, "vfio-pci"),
    "for the driver that has it": (NVME, SSD, "nvme"),
    "for vfio-pci, and none has it": (BARE, SPARE, "vfio-pci"),
}


@pytest.mark.parametrize("name", OVERRIDES)
def test_an_override_that_was_there_is_there_again(name: str) -> None:
    pci, address, said = OVERRIDES[name]
    played = kernel(pci)
    path = f"{PCI}/devices/{address}/driver_override"
    played.write(path, said)
    hand, before = Hand(played), played.changes()
    hand.give(address)
    assert drivers(played, address) == ["vfio-pci"]
    assert hand.take() == {}
    assert (drivers(played, address), played.read(path)) == ([played.default_drivers.get(address)], f"{said}\n")
    assert (played.changes(), played.resets) == (before, [address])


def test_an_override_is_written_again_after_a_crash_before_it_was() -> None:
    played = kernel(NVME)
    path = f"{PCI}/devices/{SSD}/driver_override"
    played.write(path, "vfio-pci")
    hand = Hand(played)
    hand.give(SSD)
    assert unprepare(hand.host_env, "uid-1") == {}
    played.write(path, "nvme")  # as it is while its driver takes it
    hand.host_env = hand.fresh()
    assert hand.take() == {}
    assert (drivers(played, SSD), played.read(path), played.resets) == (["nvme"], "vfio-pci\n", [SSD])


def test_what_cannot_be_reset_is_not() -> None:
    played = kernel(NVME)
    played.no_reset.add(SSD)
    hand = Hand(played)
    hand.give(SSD)
    assert hand.take() == {}
    assert (played.resets, drivers(played, SSD)) == ([], ["nvme"])


def test_unprepare_of_a_removed_device() -> None:
    played = kernel(f"{NVME}, {BARE}")
    hand = Hand(played)
    hand.give(SSD, SPARE)
    played.vanish(SSD)
    assert hand.take() == {}
    assert drivers(played, SPARE) == [None]


def test_another_card_at_the_address_is_left_alone() -> None:
    """As after a start with another card in the slot: the checkpoint mentions one that is no longer there."""
    old, new = kernel(NVME), kernel(NVME.replace("a80a", "a80b").replace("driver: nvme", "driver: none"))
    hand = Hand(old)
    hand.give(SSD)
    hand.kernel = new
    hand.host_env = hand.fresh()
    assert hand.take() == {}
    assert (new.writes, drivers(new, SSD)) == ([], [None])


def test_after_a_start_of_the_host_nothing_of_it_is_reset() -> None:
    """Its drivers have everything again, and the checkpoint is older than that."""
    hand = Hand(kernel(f"{NVME}, {GPU}"))
    hand.give(SSD, GFX)
    hand.kernel = fresh = kernel(f"{NVME}, {GPU}")
    hand.host_env = hand.fresh()
    assert hand.take() == {}
    assert (fresh.writes, fresh.resets) == ([], [])


# -- what a running VM has

def test_a_function_of_a_running_vm_is_not_touched() -> None:
    played = kernel(NVME)
    hand = Hand(played)
    hand.give(SSD)
    before = list(played.writes)
    with pytest.raises(NotReady, match=f"is not unprepared: a VM still has {SSD}"):
        hand.take(running=(SSD,))
    assert hand.cdi.names()  # not even the files
    hand.host_env = hand.fresh()
    hand.give(SSD, running=(SSD,))
    assert played.writes == before


def test_a_vm_whose_device_disappeared_from_the_bus_goes_on() -> None:
    """It is the VM's own affair until it ends; a start in between does not complain."""
    played = kernel(NVME)
    hand = Hand(played)
    target = hand.target(SSD)
    hand.give(SSD)
    played.vanish(SSD)
    hand.host_env = hand.fresh()
    prepare(hand.host_env, claim(), [AllocatedDevice(target, "gpu")], running=(SSD,))
    with pytest.raises(NotReady, match=f"{SSD} is no longer the function 144d:a80a that it was"):
        prepare(hand.host_env, claim(), [AllocatedDevice(target, "gpu")])


def test_a_lost_checkpoint_and_a_running_vm() -> None:
    """How the device was before is not known any more, so it is left with vfio-pci."""
    played = kernel(NVME)
    hand = Hand(played)
    hand.give(SSD)
    hand.state.remove("checkpoint.json")
    hand.host_env = hand.fresh()
    before = list(played.writes)
    hand.give(SSD, running=(SSD,))
    assert played.writes == before
    assert hand.take() == {}
    assert drivers(played, SSD) == ["vfio-pci"]


def test_admin_access_binds_nothing_and_the_last_sharer_restores() -> None:
    played = kernel(NVME)
    hand = Hand(played)
    target = hand.target(SSD)
    hand.give(SSD)
    before = list(played.writes)
    prepare(hand.host_env, claim("watch", uid="uid-2"), [AllocatedDevice(target, "all", admin_access=True)])
    assert hand.take("uid-2") == {}
    assert played.writes == before
    prepare(hand.host_env, claim("part", uid="uid-3"), [AllocatedDevice(target, "part")])
    assert hand.take() == {}
    assert drivers(played, SSD) == ["vfio-pci"]  # the other one still has it
    assert hand.take("uid-3") == {}
    assert (drivers(played, SSD), played.resets) == (["nvme"], [SSD])  # as it was before the first of them


def test_admin_access_does_not_keep_a_function_from_being_restored() -> None:
    played = kernel(NVME)
    hand = Hand(played)
    target = hand.target(SSD)
    hand.give(SSD)
    prepare(hand.host_env, claim("watch", uid="uid-2"), [AllocatedDevice(target, "all", admin_access=True)])
    with pytest.raises(NotReady, match=f"is not unprepared: a VM still has {SSD}"):
        hand.take(running=(SSD,))
    hand.host_env = hand.fresh()
    hand.give(SSD, running=(SSD,))  # after a start, too, it is its own
    assert hand.take() == {}
    assert (drivers(played, SSD), played.resets) == (["nvme"], [SSD])
    assert hand.take("uid-2") == {}
    assert not played.changes()


def test_a_card_that_came_later_is_remembered_as_it_is() -> None:
    """The checkpoint still mentions the one that stood there."""
    hand = Hand(kernel(NVME))
    hand.give(SSD)
    hand.kernel = new = kernel(NVME.replace("a80a", "a80b").replace("driver: nvme", "driver: none"))
    hand.host_env = hand.fresh()
    hand.give(SSD, to=claim("next", uid="uid-2"))
    assert hand.take() == hand.take("uid-2") == {}
    assert drivers(new, SSD) == [None]


# -- what others read

def test_the_file_for_container_runtimes() -> None:
    hand = Hand(kernel(f"{GPU}, {NVME}"))
    given = hand.give(GFX, SSD)
    [name] = hand.cdi.names()
    assert name == "pci.outfitter.dev-claim_uid-1.json"
    said = json.loads(hand.cdi.read(name) or "")
    assert said == {
        "cdiVersion": "0.6.0", "kind": "pci.outfitter.dev/device",
        "devices": [
            {"name": "uid-1-pci-0000-65-00-0",
             "containerEdits": {"deviceNodes": [{"path": "/dev/vfio/7", "permissions": "rw"}]}},
            {"name": "uid-1-pci-0000-66-00-0",
             "containerEdits": {"deviceNodes": [{"path": "/dev/vfio/1", "permissions": "rw"}]}}],
        "containerEdits": {
            "env": [f"PCI_RESOURCE_GOLD_GPU={GFX},{SSD}"],
            "deviceNodes": [{"path": "/dev/vfio/vfio", "permissions": "rw"}],
            "mounts": [{"hostPath": "/uid-1/resourceclaims/gold", "options": ["ro", "bind"],
                        "containerPath": "/var/run/kubernetes.io/dra-device-attributes/resourceclaims/gold"}]}}
    assert given.cdi == ("pci.outfitter.dev/device=uid-1-pci-0000-65-00-0", "pci.outfitter.dev/device=uid-1-pci-0000-66-00-0")
    hand.take()
    assert hand.cdi.names() == hand.metadata.names() == []


def described(hand: Hand, folder: str) -> Object:
    """What a request's metadata file says, the same in each version."""
    newest, oldest = map(json.loads, (hand.metadata.read(f"{folder}/pci.outfitter.dev-metadata.json") or "").splitlines())
    assert [newest.pop("apiVersion"), oldest.pop("apiVersion")] == [
        "metadata.resource.k8s.io/v1beta1", "metadata.resource.k8s.io/v1alpha1"]
    assert newest == oldest
    return dict(newest)


def test_metadata_for_launchers() -> None:
    """Where KubeVirt looks, in the words that it reads: by the name of a claim, or by its name in the pod if it was made from a
    template; one file for each request, with one object for each version, newest first."""
    hand = Hand(kernel(f"{GPU}, {NVME}, {BOUND}"))
    wanted = [
        AllocatedDevice(hand.target(GFX), "gpu/large"),
        AllocatedDevice(hand.target(SSD), "disk"),
        AllocatedDevice(hand.target(CARD), "disk"),
    ]
    made = claim("vm-x7", annotations={"resource.kubernetes.io/pod-claim-name": "hardware"})
    prepare(hand.host_env, made, wanted)
    base = "uid-1/resourceclaimtemplates/hardware"
    assert hand.metadata.names() == [f"{base}/{request}/pci.outfitter.dev-metadata.json" for request in ("disk", "gpu")]
    gpu, disk = (described(hand, f"{base}/{request}") for request in ("gpu", "disk"))
    assert gpu == {
        "kind": "DeviceMetadata", "podClaimName": "hardware",
        "metadata": {"name": "vm-x7", "namespace": "here", "uid": "uid-1", "generation": 1},
        "requests": [{"name": "gpu/large", "devices": [{
            "driver": "pci.outfitter.dev", "pool": "a", "name": "pci-0000-65-00-0",
            "attributes": {"resource.kubernetes.io/pciBusID": {"string": GFX},
                           "resource.kubernetes.io/pcieRoot": {"string": "pci0000:65"}}}]}]}
    assert [device["name"] for device in disk["requests"][0]["devices"]] == ["pci-0000-66-00-0", "pci-0000-68-00-0"]


def test_a_mediated_device_is_described_and_not_bound() -> None:
    played = captured("qemu-host.json")
    hand = Hand(played, "{}")
    uuid = "83b8f4f2-509f-382f-3c1e-e6bfe0fa1001"
    given = hand.give(uuid, to=claim("my.gold"), request="vgpu")
    assert given.env == {"MDEV_PCI_RESOURCE_MY_GOLD_VGPU": uuid}
    said = described(hand, "uid-1/resourceclaims/my.gold/vgpu")
    assert said["requests"][0]["devices"][0]["attributes"] == {"mdevUUID": {"string": uuid}}
    spec = json.loads(hand.cdi.read("pci.outfitter.dev-claim_uid-1.json") or "")
    assert spec["devices"][0]["containerEdits"]["deviceNodes"][0]["path"] == "/dev/vfio/22"
    target = hand.target(uuid)
    assert hand.take() == {}
    assert played.writes == []
    played.write(f"/sys/bus/mdev/devices/{uuid}/remove", "1")
    with pytest.raises(NotReady, match=f"the mediated device {uuid} is no longer there"):
        prepare(hand.host_env, claim(), [AllocatedDevice(target, "vgpu")])
