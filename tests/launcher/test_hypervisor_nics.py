"""Network interfaces of a running VM are plugged and unplugged, by every hypervisor."""

from __future__ import annotations

import pytest

from outfitter.api.hypervisor import DomainNic, Hypervisor
from outfitter.api.kinds import Object
from outfitter.api.kubevirt.network_info import Wire
from outfitter.api.rejection import RejectionCode
from outfitter.errors import HypervisorError
from outfitter.launcher.nics import nic_hotplug
from tests.launcher.hypervisor_hosts import UID, Lab, News, instance

MAC = "02:00:00:00:00:{:02x}"


def with_nics(*names: str, **more: str) -> Object:
    vmi = instance()
    vmi["spec"]["domain"]["devices"]["interfaces"] = [{"name": name, "bridge": {}, **more} for name in names]
    vmi["spec"]["networks"] = [{"name": name, "multus": {"networkName": name}} for name in names]
    return vmi


async def plug(hypervisor: Hypervisor, vmi: Object, name: str, bridge: str, number: int = 1) -> None:
    running = (await hypervisor.domains())[UID].xml
    await hypervisor.attach_device(UID, nic_hotplug.element(
        running, vmi, name, Wire(name, "bridge", MAC.format(number), bridge=bridge)))


async def nics(hypervisor: Hypervisor) -> dict[str, DomainNic]:
    return {nic.name: nic for nic in (await hypervisor.domains())[UID].nics}


async def unplug(hypervisor: Hypervisor, alias: str) -> None:
    news = News(hypervisor)
    while await hypervisor.detach_device(UID, alias) is not None:
        await news.of(UID)


async def test_nic_comes_and_goes(lab: Lab) -> None:
    hypervisor, (bridge, _) = lab.hypervisor(), lab.bridges()
    await lab.up(hypervisor, lab.machine())
    news = News(hypervisor)
    element = nic_hotplug.element((await hypervisor.domains())[UID].xml, with_nics("red"), "red",
                                  Wire("red", "bridge", MAC.format(1), bridge=bridge))
    for _ in range(2):  # a second time is no harm
        await hypervisor.attach_device(UID, element)
        red = (await nics(hypervisor))["red"]
        assert (red.alias, red.mac, red.bridge, red.link_up) == ("ua-red", MAC.format(1), bridge, True)
        assert lab.taps(bridge) == 1
    await news.of(UID)
    await hypervisor.close()
    again = lab.hypervisor()
    assert list(await nics(again)) == ["red"], "another process finds it"
    await unplug(again, "ua-red")
    assert (await nics(again), lab.taps(bridge)) == ({}, 0)
    assert await again.detach_device(UID, "ua-red") is None, "a second time is no harm"
    await again.close()


async def test_ports_for_four_and_no_more(lab: Lab) -> None:
    """A VM without interfaces has 13 ports. Each NIC has the port of its place in the list, so long as there is one."""
    hypervisor, (bridge, _) = lab.hypervisor(), lab.bridges()
    await lab.up(hypervisor, lab.machine())
    names = [f"n{number}" for number in range(20)]
    vmi = with_nics(*names)
    plugged: list[str] = []

    async def plug_all() -> None:
        for number, name in enumerate(names):
            await plug(hypervisor, vmi, name, bridge, number)
            plugged.append(name)

    with pytest.raises(HypervisorError, match="no unused PCI port") as error:
        await plug_all()
    assert error.value.rejection is not None
    assert error.value.rejection.code is RejectionCode.NO_PCI_PORT
    assert 4 <= len(plugged) <= 13
    assert (list(await nics(hypervisor)), lab.taps(bridge)) == (plugged, len(plugged))
    await unplug(hypervisor, "ua-n2")
    await plug(hypervisor, vmi, "n19", bridge, 19)  # the port is free again
    assert lab.taps(bridge) == len(plugged)
    await hypervisor.stop(UID)
    assert lab.taps(bridge) == 0, "taps go with their VM"
    await hypervisor.close()


async def test_link_and_bridge_of_a_plugged_nic(lab: Lab) -> None:
    hypervisor, (first, second) = lab.hypervisor(), lab.bridges()
    await lab.up(hypervisor, lab.machine())
    await plug(hypervisor, with_nics("red"), "red", first)
    for up in (False, False, True):
        await hypervisor.set_link(UID, "ua-red", up=up)
        assert (await nics(hypervisor))["red"].link_up is up
    for bridge, other in ((second, first), (second, first), (first, second)):
        await hypervisor.set_bridge(UID, "ua-red", bridge)
        assert ((await nics(hypervisor))["red"].bridge, lab.taps(bridge), lab.taps(other)) == (bridge, 1, 0)
    with pytest.raises(HypervisorError):
        await hypervisor.set_link(UID, "ua-blue", up=True)
    with pytest.raises(HypervisorError):
        await hypervisor.set_bridge(UID, "ua-blue", first)
    await hypervisor.close()


async def test_guest_that_does_not_release_a_nic(lab: Lab) -> None:
    hypervisor, (bridge, _) = lab.hypervisor(), lab.bridges()
    await lab.up(hypervisor, lab.machine())
    await plug(hypervisor, with_nics("red"), "red", bridge)
    await hypervisor.pause(UID)
    for _ in range(2):
        assert await hypervisor.detach_device(UID, "ua-red") is not None, "a paused guest releases nothing"
        assert (list(await nics(hypervisor)), lab.taps(bridge)) == (["red"], 1)
    await hypervisor.unpause(UID)
    await unplug(hypervisor, "ua-red")
    assert (await nics(hypervisor), lab.taps(bridge)) == ({}, 0)
    await hypervisor.close()


async def test_nothing_is_left_of_a_nic_that_was_refused(lab: Lab) -> None:
    hypervisor, (bridge, _) = lab.hypervisor(), lab.bridges()
    await lab.up(hypervisor, lab.machine())
    getattr(hypervisor, "refusing", {})["nowhere"] = "there is no such bridge"
    with pytest.raises(HypervisorError, match="cannot plug a network interface"):
        await plug(hypervisor, with_nics("red"), "red", "nowhere")
    assert await nics(hypervisor) == {}
    await plug(hypervisor, with_nics("red"), "red", bridge)
    assert list(await nics(hypervisor)) == ["red"], "the next attempt is as good as the first"
    with pytest.raises(HypervisorError, match=f"the VM of VMI {UID[:-1]}0 does not run"):
        await hypervisor.attach_device(UID[:-1] + "0", "<interface type='user'><alias name='ua-x'/></interface>")
    await hypervisor.close()


async def test_a_wanted_address_is_a_free_port(lab: Lab) -> None:
    hypervisor, (bridge, _) = lab.hypervisor(), lab.bridges()
    await lab.up(hypervisor, lab.machine())
    with pytest.raises(HypervisorError, match=r"interfaces\[0\].pciAddress: the guest has no unused PCI port at 0000:30:00.0"):
        await plug(hypervisor, with_nics("red", pciAddress="0000:30:00.0"), "red", bridge)
    await plug(hypervisor, with_nics("red", pciAddress="0000:09:00.0"), "red", bridge)
    assert 'bus="0x09"' in (await hypervisor.domains())[UID].xml.replace("'", '"')
    await hypervisor.close()
