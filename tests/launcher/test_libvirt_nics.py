"""What libvirt forgets of NICs when its daemon is killed: a NIC that was unplugged must not end the VM at the next start of the
daemon, and one whose plug was interrupted must not stay in QEMU."""

from __future__ import annotations

import asyncio
import importlib
import json
import time
from pathlib import Path
from typing import Any

import pytest

from outfitter.errors import HypervisorError
from outfitter.launcher import connection
from outfitter.launcher.nics import plug_remains
from tests.launcher.hypervisor_hosts import UID, Real, needs_libvirt
from tests.launcher.test_hypervisor_nics import nics, plug, with_nics

pytestmark = [pytest.mark.libvirt, needs_libvirt]
ROUNDS = 6  # an unplug is not recorded in about every second one, if nothing is done about it
PORT = "pci.9"  # one that is free
NIC = "virtio-net-pci-non-transitional"
ELEMENT = "<interface type='bridge'><source bridge='{}'/><alias name='{}'/></interface>"
PATIENCE = 60.0  # seconds


def recorded(real: Real) -> str:
    """The state of the VM that the daemon would read at its next start."""
    return (real.root / "run" / "qemu" / "here_blue.xml").read_text()


async def test_unplugged_nic_is_recorded(real: Real) -> None:
    hypervisor, (bridge, _) = real.hypervisor(), real.bridges()
    await real.up(hypervisor, real.machine())
    for number in range(ROUNDS):
        name = f"red{number}"  # libvirt may read QEMU's event of a removed device late, and remove another of the same name
        await plug(hypervisor, with_nics(name), name, bridge, number)
        assert f"<alias name='ua-{name}'/>" in recorded(real)
        while await hypervisor.detach_device(UID, f"ua-{name}") is not None:
            pass  # asked again at once: also while QEMU has removed it and libvirt has not
        assert f"<alias name='ua-{name}'/>" not in recorded(real)
    await hypervisor.close()
    qemu = real.daemon.qemu("here_blue")
    real.daemon.kill()
    real.daemon.start()
    again = real.hypervisor()
    assert await nics(again) == {}
    assert real.daemon.qemu("here_blue") == qemu, "it was not ended"
    await again.close()
    real.remove_bridges()


def monitor(real: Real, command: str, **arguments: object) -> None:
    """As libvirt has QEMU do it, in a part of a plug."""
    conn: Any = connection.library().open(real.uri)
    answer = json.loads(importlib.import_module("libvirt_qemu").qemuMonitorCommand(
        conn.lookupByName("here_blue"), json.dumps({"execute": command, "arguments": arguments}), 0))
    conn.close()
    assert "error" not in answer, answer


def interrupt(real: Real, *, device: bool) -> Path:
    """A plug of which libvirt knows nothing: QEMU has its tap, and the NIC as well (`device`)."""
    tap = f"{real.bridges()[0]}t"
    monitor(real, "netdev_add", type="tap", id="hostua-red", ifname=tap, script="no", downscript="no")
    if device:
        monitor(real, "device_add", driver=NIC, id="ua-red", netdev="hostua-red", bus=PORT, addr="0x0")
    place = Path("/sys/class/net") / tap
    assert place.exists()
    return place


async def until_forgotten(real: Real) -> None:
    end = time.monotonic() + PATIENCE
    while plug_remains.NAMESPACE in recorded(real):
        assert time.monotonic() < end, "the plug is still recorded"
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("device", [False, True])
async def test_interrupted_plug_is_done_again(real: Real, device: bool) -> None:
    hypervisor, (bridge, _) = real.hypervisor(), real.bridges()
    await real.up(hypervisor, real.machine())
    tap = interrupt(real, device=device)
    await plug(hypervisor, with_nics("red"), "red", bridge)
    assert (list(await nics(hypervisor)), real.taps(bridge), tap.exists()) == (["red"], 1, False)
    await hypervisor.close()
    real.remove_bridges()


@pytest.mark.parametrize("device", [False, True])
async def test_nothing_is_left_of_an_interrupted_plug_that_is_not_wanted_any_more(real: Real, device: bool) -> None:
    """The daemon is killed in the midst of it, the node agent as well, and the NIC is not plugged again."""
    hypervisor = real.hypervisor()
    await real.up(hypervisor, real.machine())
    await hypervisor.close()
    conn: Any = connection.library().open(real.uri)
    plug_remains.begin(connection.library(), conn.lookupByName("here_blue"), "ua-red")
    conn.close()
    tap = interrupt(real, device=device)
    real.daemon.kill()
    real.daemon.start()
    again = real.hypervisor()
    assert await nics(again) == {}
    await until_forgotten(real)
    assert not tap.exists()
    await again.close()
    real.remove_bridges()


async def test_a_plug_is_not_recorded_longer_than_it_lasts(real: Real) -> None:
    hypervisor, (bridge, _) = real.hypervisor(), real.bridges()
    await real.up(hypervisor, real.machine())
    await plug(hypervisor, with_nics("red"), "red", bridge)
    with pytest.raises(HypervisorError):
        await hypervisor.attach_device(UID, ELEMENT.format("no-such-bridge", "ua-pink"))
    assert plug_remains.NAMESPACE not in recorded(real)
    await hypervisor.close()
    real.remove_bridges()
