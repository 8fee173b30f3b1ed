"""Network interfaces of running VMIs come and go in place, on simulated hosts and with all controllers."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from outfitter import app
from outfitter.api import conditions, kinds
from outfitter.api.hypervisor import Domain, DomainNic
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import network_info
from outfitter.inventory.config import Config, HostSettings
from outfitter.inventory.simulation import hosts_file
from outfitter.launcher.migration.simulated_copy import SimulatedCopy
from outfitter.launcher.simulated import Simulated
from outfitter.node import nic_plan
from outfitter.store.clock import ManualClock
from outfitter.store.id_generator import IdGenerator

HOSTS = """
hosts:
- name: rack
  numa: [{id: 0, cpus: 0-15, memory: 64Gi}]
  pci:
  - {address: 0000:3b:00.0, vendor: 8086, product: 1572, class: 020000, driver: i40e, interface: ens1f0, numa: 0,
     vfs: {count: 2, product: 154c}}
  bridges: [{name: br0}, {name: br1}]
"""
TWO = HOSTS.replace("- name: rack", "- name: rack\n  count: 2")
DRIVER = "pci.outfitter.dev"
LAN = {"lan": {"type": "bridge", "bridge": "br0"}, "lan2": {"type": "bridge", "bridge": "br1"},
       "away": {"type": "bridge", "bridge": "br9"}}


class Story:
    """A VMI on a host, and what is done to it."""

    def __init__(self, product: app.Embedded, clock: ManualClock, folder: Path) -> None:
        self.folder, self.product, self.store, self.clock = folder, product, product.store, clock

    @property
    def hypervisor(self) -> Simulated:
        made = self.product.hosts[0].hypervisor
        assert isinstance(made, Simulated)
        return made

    async def definitions(self) -> None:
        for name, config in LAN.items():
            await self._definition(name, config)
        await self._definition("fast", {"type": "sriov", "vlan": 100}, "x.com/vf")
        await self.store.create(kinds.DEVICE_CLASS, {"metadata": {"name": "vf"}, "spec": {
            "extendedResourceName": "x.com/vf", "selectors": [{"cel": {
                "expression": f'device.attributes["{DRIVER}"].?kind.orValue("") == "VF"'}}]}})

    async def _definition(self, name: str, config: Object, resource: str = "") -> None:
        meta: Object = {"name": name, "namespace": "default"}
        if resource:
            meta["annotations"] = {network_info.RESOURCE: resource}
        await self.store.create(kinds.NETWORK_ATTACHMENT, {"metadata": meta, "spec": {"config": json.dumps(
            {"cniVersion": "0.3.1", "name": name, **config})}})

    async def vmi(self, *nics: tuple[str, str, Object], name: str = "blue") -> None:
        await self.store.create(kinds.VMI, {"metadata": {"name": name, "namespace": "default"}, "spec": spec(*nics)})
        await self.settle()
        assert (await self.get(name))["status"]["phase"] == "Running"

    async def change(self, *nics: tuple[str, str, Object], name: str = "blue") -> None:
        """As the VM controller copies it from the VM."""
        wanted = spec(*nics)
        await self.store.patch(kinds.VMI, name, {"spec": {
            "networks": wanted["networks"], "domain": {"devices": {"interfaces": wanted["domain"]["devices"]["interfaces"]}},
        }}, "default")
        await self.settle()

    async def settle(self, seconds: float = 0) -> None:
        await self.product.settle()
        for _ in range(int(seconds)):
            self.clock.advance(1)
            await self.product.settle()

    async def get(self, name: str = "blue") -> Object:
        return await self.store.get(kinds.VMI, name, "default")

    async def domain(self, name: str = "blue") -> Domain:
        vmi = await self.get(name)
        [host] = [host for host in self.product.hosts if host.name == vmi["status"]["nodeName"]]
        return (await host.hypervisor.domains())[vmi["metadata"]["uid"]]

    async def nics(self, name: str = "blue") -> dict[str, DomainNic]:
        return nic_plan.named((await self.domain(name)).nics, [])

    async def reported(self, name: str = "blue") -> dict[str, str]:
        entries = (await self.get(name))["status"].get("interfaces") or ()
        return {entry["name"]: entry.get("infoSource", "") for entry in entries}

    def taps(self) -> list[str]:
        return [path.name for path in self.folder.rglob("*.tap")]

    async def events(self, reason: str) -> list[str]:
        listed = (await self.store.list(kinds.EVENT, "default")).items
        return [event["message"] for event in listed if event["reason"] == reason]

    async def pods(self) -> list[Object]:
        return (await self.store.list(kinds.POD, "default")).items

    async def network_status(self) -> dict[str, str]:
        [pod] = [pod for pod in await self.pods() if pod["metadata"]["labels"].get("kubevirt.io") == "virt-launcher"]
        text = pod["metadata"]["annotations"].get(network_info.STATUS) or "[]"
        return {entry["interface"]: entry["name"] for entry in json.loads(text)}

    async def bookings(self) -> list[str]:
        page = await self.store.get(kinds.LEDGER_PAGE, "rack")
        return sorted(booking["device"]["device"] for booking in page["spec"].get("bookings") or ())


def spec(*nics: tuple[str, str, Object]) -> Object:
    interfaces = [{"name": "default", "masquerade": {}}, *({"name": name, **how} for name, _, how in nics)]
    networks = [{"name": "default", "pod": {}},
                *({"name": name, "multus": {"networkName": definition}} for name, definition, _ in nics)]
    return {"domain": {"memory": {"guest": "1Gi"}, "devices": {"interfaces": interfaces}}, "networks": networks}


def nic(name: str, definition: str = "lan", **how: Any) -> tuple[str, str, Object]:
    return name, definition, how if "sriov" in how else {"bridge": {}, **how}


@pytest.fixture
async def story(tmp_path: Path) -> AsyncIterator[Story]:
    async with running(tmp_path) as made:
        yield made


def running(folder: Path, config: Config | None = None, text: str = HOSTS) -> Any:
    @contextlib.asynccontextmanager
    async def run() -> AsyncIterator[Story]:
        clock, config_ = ManualClock(), config or Config()
        hosts = app.simulated_hosts(hosts_file.parse(text, "hosts").hosts, folder, config_)
        async with app.embedded(hosts=hosts, clock=clock, names=IdGenerator(), config=config_) as product:
            made = Story(product, clock, folder)
            await made.definitions()
            yield made

    return run()


async def test_bridge_nic_is_plugged_and_unplugged_in_place(story: Story) -> None:
    await story.vmi()
    before = await story.domain()
    await story.change(nic("red"))
    red = (await story.nics())["red"]
    assert (red.bridge, red.alias) == ("br0", "ua-red")
    assert await story.reported() == {"default": "domain", "red": "domain, multus-status"}
    [entry] = [one for one in (await story.get())["status"]["interfaces"] if one["name"] == "red"]
    assert (entry["mac"], entry["linkState"], entry["podInterfaceName"]) == (
        red.mac, "up", network_info.interface_name("red"))
    assert await story.network_status() == {network_info.interface_name("red"): "default/lan"}
    assert await story.events("NetworkInterfacePlugged") == ['NIC "red" is plugged on rack']
    assert conditions.find(await story.get(), "MigrationRequired") is None

    await story.change(nic("red", state="absent"))
    assert list(await story.nics()) == ["default"]
    assert await story.reported() == {"default": "domain"}
    assert await story.network_status() == {}
    assert await story.events("NetworkInterfaceUnplugged") == ['NIC "red" is unplugged on rack']
    assert (await story.domain()).name == before.name
    assert not story.taps()
    assert len(await story.pods()) == 1, "no migration happened"


async def test_link_state_and_network_are_changed_in_place(story: Story) -> None:
    await story.vmi(nic("red"))
    await story.change(nic("red", state="down"))
    assert (await story.nics())["red"].link_up is False
    assert [entry["linkState"] for entry in (await story.get())["status"]["interfaces"]] == ["up", "down"]
    await story.change(nic("red", "lan2", state="up"))
    red = (await story.nics())["red"]
    assert (red.link_up, red.bridge) == (True, "br1")
    assert await story.network_status() == {network_info.interface_name("red"): "default/lan2"}


async def test_network_that_could_not_be_changed_is_not_recorded(story: Story) -> None:
    """The pod's annotations are written for another NIC meanwhile: they keep the network that the first one is on."""
    await story.vmi(nic("red"))
    story.hypervisor.refusing["br1"] = "it has too many ports"
    await story.change(nic("red", "lan2"), nic("green"))
    on_bridges = {name: found.bridge for name, found in (await story.nics()).items() if found.bridge}
    assert on_bridges == {"red": "br0", "green": "br0"}
    names = {nic: network_info.interface_name(nic) for nic in ("red", "green")}
    assert await story.network_status() == {names["red"]: "default/lan", names["green"]: "default/lan"}
    story.hypervisor.refusing.clear()
    await story.settle(6)
    assert (await story.nics())["red"].bridge == "br1"
    assert await story.network_status() == {names["red"]: "default/lan2", names["green"]: "default/lan"}
    assert len(await story.pods()) == 1, "no migration happened"


async def test_network_status_that_is_wrong_is_mended(story: Story) -> None:
    """It names another definition than the NIC is on: written by a process that was killed, or by hand."""
    await story.vmi(nic("red", "lan2"))
    [pod] = await story.pods()
    wrong = pod["metadata"]["annotations"][network_info.STATUS].replace("default/lan2", "default/lan")
    await story.store.patch(kinds.POD, pod["metadata"]["name"], {"metadata": {"annotations": {network_info.STATUS: wrong}}},
                            "default")
    await story.settle(15)
    assert await story.network_status() == {network_info.interface_name("red"): "default/lan2"}
    assert conditions.find(await story.get(), "MigrationRequired") is None


async def test_what_cannot_be_swapped_is_reported(story: Story) -> None:
    await story.vmi(nic("red"))
    await story.change(nic("red", "away"))
    [event] = await story.events("FailedChangeInterface")
    assert "names bridge br9, which rack does not have" in event
    assert [await story.events(f"Failed{what}Interface") for what in ("Plug", "Unplug")] == [[], []]


async def test_what_cannot_be_plugged_is_reported_and_tried_again(story: Story) -> None:
    await story.vmi()
    await story.change(nic("red", "away"), nic("green", "nowhere"), nic("blue"))
    assert sorted(await story.nics()) == ["blue", "default"], "the others are plugged all the same"
    condition = conditions.find(await story.get(), "InterfacesReady") or {}
    assert (condition["status"], condition["reason"]) == ("False", "NetworkNotReady")
    assert "names bridge br9, which rack does not have; it has br0, br1" in condition["message"]
    assert "there is no NetworkAttachmentDefinition default/nowhere" in condition["message"]
    assert len(await story.events("FailedPlugInterface")) == 2
    await story.settle(20)
    assert len(await story.events("FailedPlugInterface")) == 2, "the same is reported once"
    await story._definition("nowhere", {"type": "bridge", "bridge": "br1"})
    await story.settle(6)
    assert sorted(await story.nics()) == ["blue", "default", "green"]
    await story.change(nic("blue"), nic("green", "nowhere"))  # the pending one is cancelled
    assert conditions.find(await story.get(), "InterfacesReady") is None


async def test_guest_that_keeps_a_nic(story: Story) -> None:
    await story.vmi(nic("red"))
    uid = (await story.get())["metadata"]["uid"]
    story.hypervisor.keeping_nics.add(uid)
    await story.change(nic("red", state="absent"))
    assert "red" in await story.nics()
    await story.settle(20)
    assert conditions.find(await story.get(), "InterfacesReady") is None, "a guest has its time"
    await story.settle(20)
    condition = conditions.find(await story.get(), "InterfacesReady") or {}
    assert condition["reason"] == "NicKeptByGuest"
    assert len(await story.events("FailedUnplugInterface")) == 1
    story.hypervisor.keeping_nics.clear()
    await story.settle(6)
    assert (list(await story.nics()), conditions.find(await story.get(), "InterfacesReady")) == (["default"], None)


async def test_no_port_is_left(story: Story) -> None:
    await story.vmi()
    many = [nic(f"n{number:02}") for number in range(13)]
    await story.change(*many)
    condition = conditions.find(await story.get(), "InterfacesReady") or {}
    assert condition["reason"] == "NoPciPort"
    plugged = await story.nics()
    assert len(plugged) == 13, "every port of the guest is used"
    await story.change(*(nic(name, state="absent") if name == "n00" else (name, net, how) for name, net, how in many))
    await story.settle(6)
    assert len(await story.nics()) == 13, "and what waited has the one that became free"
    assert conditions.find(await story.get(), "InterfacesReady") is None


async def test_refused_by_the_hypervisor(story: Story) -> None:
    await story.vmi()
    story.hypervisor.refusing["br0"] = "the kernel has no memory for a tap"
    await story.change(nic("red"))
    condition = conditions.find(await story.get(), "InterfacesReady") or {}
    assert (condition["reason"], "no memory for a tap" in condition["message"]) == ("NicNotPlugged", True)
    assert (list(await story.nics()), await story.network_status(), story.taps()) == (["default"], {}, [])
    story.hypervisor.refusing.clear()
    await story.settle(6)
    assert "red" in await story.nics()


async def test_vf_is_booked_plugged_unplugged_and_released(story: Story) -> None:
    await story.vmi()
    await story.change(nic("fast", "fast", sriov={}, macAddress="02:00:00:00:00:0a"))
    fast = (await story.nics())["fast"]
    assert (fast.type, fast.mac, fast.vlan, fast.alias) == ("function", "02:00:00:00:00:0a", 100, "ua-sriov-fast")
    assert fast.address.startswith("0000:3b:")
    assert await story.reported() == {"default": "domain", "fast": "domain, multus-status"}
    assert len(await story.bookings()) == 1
    page = await story.store.get(kinds.LEDGER_PAGE, "rack")
    [booking] = page["spec"]["bookings"]
    assert (booking["state"], booking["holder"]["purpose"]) == ("prepared", "vmi/blue")
    assert len(await story.pods()) == 2, "the pod that holds the VF"
    assert await story.events("FailedPlugInterface") == [], "nothing failed"
    assert conditions.find(await story.get(), "MigrationRequired") is None

    await story.change(nic("fast", "fast", sriov={}, macAddress="02:00:00:00:00:0a", state="absent"))
    assert list(await story.nics()) == ["default"]
    await story.settle(3)
    assert (len(await story.pods()), await story.bookings()) == (1, [])


async def test_vf_that_is_not_free_is_waited_for(story: Story) -> None:
    await story.vmi(nic("a", "fast", sriov={}), nic("b", "fast", sriov={}), name="red")
    await story.vmi()
    await story.change(nic("fast", "fast", sriov={}))
    assert conditions.find(await story.get(), "InterfacesReady") is None, "the scheduler has its time"
    await story.settle(2)
    condition = conditions.find(await story.get(), "InterfacesReady") or {}
    assert condition["reason"] == "VfNotBooked"
    assert "no VF of x.com/vf on rack is booked for interface fast yet" in condition["message"]
    await story.settle(6)
    condition = conditions.find(await story.get(), "InterfacesReady") or {}
    assert "2 match, 0 free" in condition["message"], "with the reason of the scheduler"
    await story.store.delete(kinds.VMI, "red", "default")
    await story.settle(10)
    assert "fast" in await story.nics()
    assert conditions.find(await story.get(), "InterfacesReady") is None


async def test_vf_of_the_start_is_unplugged_and_plugged_again(story: Story) -> None:
    """Its VF stays booked for the pod, and is that of the NIC when it comes again."""
    await story.vmi(nic("a", "fast", sriov={}), nic("b", "fast", sriov={}))
    addresses = {name: one.address for name, one in (await story.nics()).items()}
    await story.change(nic("b", "fast", sriov={}))
    assert sorted(await story.nics()) == ["b", "default"]
    assert len(await story.bookings()) == 2
    await story.change(nic("b", "fast", sriov={}), nic("a", "fast", sriov={}))
    await story.settle(6)
    assert {name: one.address for name, one in (await story.nics()).items()} == addresses, "b keeps what it has"
    assert len(await story.pods()) == 1


async def test_end_of_the_vm_releases_what_was_plugged(story: Story) -> None:
    await story.vmi()
    await story.change(nic("fast", "fast", sriov={}), nic("red"))
    assert len(await story.bookings()) == 1
    await story.store.delete(kinds.VMI, "blue", "default")
    await story.settle(40)
    assert (await story.pods(), await story.bookings(), story.taps()) == ([], [], [])


async def test_deleted_attachment_pod_takes_the_nic_with_it(story: Story) -> None:
    """Also at once (--force): the VF is not released while the VM has it."""
    await story.vmi()
    await story.change(nic("fast", "fast", sriov={}))
    uid = (await story.get())["metadata"]["uid"]
    for grace in (None, 0):
        [held] = [pod for pod in await story.pods() if pod["metadata"]["labels"].get("kubevirt.io") == "hotplug-interface"]
        story.hypervisor.keeping_nics.add(uid)
        await story.store.delete(kinds.POD, held["metadata"]["name"], "default", grace=grace)
        await story.settle(2)
        assert "fast" in await story.nics()
        assert "prepared" in [booking["state"] for booking in (
            await story.store.get(kinds.LEDGER_PAGE, "rack"))["spec"]["bookings"]], "the guest has it still"
        story.hypervisor.keeping_nics.clear()
        await story.settle(15)
        assert "fast" in await story.nics(), "it is in the spec, and is booked and plugged again"
        assert len(await story.bookings()) == 1


async def test_without_plumbing_in_place_nothing_is_plugged(tmp_path: Path) -> None:
    config = Config(default=HostSettings(plug_in_place=False))
    async with running(tmp_path, config) as story:
        await story.vmi(nic("red"))
        await story.change(nic("red"), nic("green"), nic("fast", "fast", sriov={}))
        await story.settle(3)
        assert conditions.is_true(await story.get(), "MigrationRequired")
        assert sorted(await story.nics()) == ["default", "red"]
        assert await story.reported() == {"default": "domain", "red": "domain, multus-status"}
        assert len(await story.pods()) == 1
        await story.change(nic("red", state="absent"))
        assert list(await story.nics()) == ["default"], "the guest gives it back all the same"
        assert await story.reported() == {"default": "domain", "red": "multus-status"}, "and the pod has it until it is left"


async def test_nothing_is_plugged_while_the_vm_migrates(story: Story) -> None:
    await story.vmi()
    await story.store.patch(kinds.VMI, "blue", {"status": {"migrationState": {"migrationUid": "m", "targetNode": "other"}}},
                            "default", subresource="status")
    await story.change(nic("red"), nic("fast", "fast", sriov={}))
    assert list(await story.nics()) == ["default"]
    await story.store.patch(kinds.VMI, "blue", {"status": {"migrationState": {"failed": True, "completed": True}}}, "default",
                            subresource="status")
    await story.settle(3)
    assert sorted(await story.nics()) == ["default", "fast", "red"]


async def test_nic_without_a_port_needs_no_migration(tmp_path: Path) -> None:
    """A guest that migrates keeps its ports."""
    async with running(tmp_path, text=TWO) as story:
        await story.vmi()
        source = (await story.get())["status"]["nodeName"]
        many = [nic(f"n{number:02}") for number in range(12)]
        await story.change(*many, nic("fast", "fast", sriov={}))
        await story.settle(60)
        vmi = await story.get()
        assert (conditions.find(vmi, "InterfacesReady") or {})["reason"] == "NoPciPort"
        assert conditions.find(vmi, "MigrationRequired") is None
        assert (await story.reported())["fast"] == "multus-status", "the pod has the network, and the guest not the NIC"
        assert (vmi["status"]["nodeName"], (await story.store.list(kinds.MIGRATION, "default")).items) == (source, [])
        await story.change(*many[1:], nic("n00", state="absent"), nic("fast", "fast", sriov={}))
        await story.settle(6)
        assert "fast" in await story.nics(), "it has the port that became free"
        assert conditions.find(await story.get(), "InterfacesReady") is None


async def test_nic_that_no_host_can_plug_migrates_its_vm_once(tmp_path: Path) -> None:
    async with running(tmp_path, text=TWO) as story:
        for host in story.product.hosts:
            assert isinstance(host.hypervisor, Simulated)
            host.hypervisor.copy = SimulatedCopy(bandwidth=1 << 50)
            host.hypervisor.refusing["br1"] = "it is refused"
        await story.vmi()
        await story.change(nic("red", "lan2"))
        await story.settle(120)
        vmi = await story.get()
        assert len((await story.store.list(kinds.MIGRATION, "default")).items) == 1
        assert (conditions.find(vmi, "InterfacesReady") or {})["reason"] == "NicNotPlugged"
        assert (conditions.find(vmi, "MigrationRequired"), (await story.reported())["red"]) == (None, "multus-status")
        await story.change(nic("red", "lan2", state="absent"))
        await story.settle(2)
        assert "red" not in await story.reported(), "the plug can be cancelled"
        assert conditions.find(await story.get(), "InterfacesReady") is None


async def test_nics_are_plugged_after_a_migration(tmp_path: Path) -> None:
    """Without plumbing in place: the target's pod has the networks, and its agent plugs what the domain lacks."""
    async with running(tmp_path, Config(default=HostSettings(plug_in_place=False)), TWO) as story:
        for host in story.product.hosts:
            host.hypervisor.copy = SimulatedCopy(bandwidth=1 << 50)
        await story.vmi(nic("old", "fast", sriov={}))
        source = (await story.get())["status"]["nodeName"]
        await story.change(nic("old", "fast", sriov={}), nic("red"), nic("fast", "fast", sriov={}))
        await story.settle(60)
        vmi = await story.get()
        assert vmi["status"]["nodeName"] != source, vmi["status"]
        assert sorted(await story.nics()) == ["default", "fast", "old", "red"]
        both = "domain, multus-status"
        assert {name: sorted(text.split(", ")) for name, text in (await story.reported()).items()} == {
            "default": ["domain"], "old": both.split(", "), "red": both.split(", "), "fast": both.split(", ")}
        target, plugged = vmi["status"]["nodeName"], sorted(await story.events("NetworkInterfacePlugged"))
        assert plugged == [f'NIC "{name}" is plugged on {target}' for name in ("fast", "old", "red")], "old again: a VF stays"
        assert len(story.taps()) == 1


async def test_vf_is_plugged_in_place_though_another_host_has_some(tmp_path: Path) -> None:
    async with running(tmp_path, text=TWO) as story:
        await story.vmi()
        await story.change(nic("fast", "fast", sriov={}))
        await story.settle(30)
        assert "fast" in await story.nics()
        assert (await story.store.list(kinds.MIGRATION, "default")).items == []
