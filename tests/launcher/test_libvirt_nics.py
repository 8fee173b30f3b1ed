"""What libvirt forgets of NICs when its daemon is killed: a NIC that was unplugged must not end the VM at the next start of the
daemon, and one whose plug was interrupted must not stay in QEMU."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from outfitter.errors import HypervisorAway
from outfitter.launcher import connection
from outfitter.launcher.libvirt import BACKOFF
from tests.launcher.hypervisor_hosts import UID, Real, needs_libvirt
from tests.launcher.test_hypervisor_nics import nics, plug, with_nics

pytestmark = [pytest.mark.libvirt, needs_libvirt]
ROUNDS = 6  # an unplug is not recorded in about every second one, if nothing is done about it
PORT = "pci.9"  # one that is free
NIC = "virtio-net-pci-non-transitional"
ELEMENT = "<interface type='bridge'><source bridge='{}'/><alias name='ua-red'/></interface>"


def recorded(real: Real) -> str:
    """The state of the VM that the daemon would read at its next start."""
    return (real.root / "run" / "qemu" / "here_blue.xml").read_text()


async def test_unplugged_nic_is_recorded(real: Real) -> None:
    hypervisor, (bridge, _) = real.hypervisor(), real.bridges()
    await real.up(hypervisor, real.machine())
    for number in range(ROUNDS):
        await plug(hypervisor, with_nics("red"), "red", bridge, number)
        assert "<alias name='ua-red'/>" in recorded(real)
        while await hypervisor.detach_interface(UID, "ua-red") is not None:
            pass  # asked again at once: also while QEMU has removed it and libvirt has not
        assert "<alias name='ua-red'/>" not in recorded(real)
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


@pytest.mark.parametrize("device", [False, True])
async def test_interrupted_plug_is_done_again(real: Real, device: bool) -> None:
    hypervisor, (bridge, _) = real.hypervisor(), real.bridges()
    await real.up(hypervisor, real.machine())
    tap = interrupt(real, device=device)
    await plug(hypervisor, with_nics("red"), "red", bridge)
    assert (list(await nics(hypervisor)), real.taps(bridge), tap.exists()) == (["red"], 1, False)
    await hypervisor.close()
    real.remove_bridges()


async def test_nothing_is_left_of_an_interrupted_plug_that_is_not_wanted_any_more(real: Real) -> None:
    """The daemon is killed in the midst of it, and the NIC is not plugged again."""
    hypervisor, (bridge, _) = real.hypervisor(), real.bridges()
    await real.up(hypervisor, real.machine())
    assert await nics(hypervisor) == {}
    real.daemon.kill()
    with pytest.raises(HypervisorAway):
        await hypervisor.attach_interface(UID, ELEMENT.format(bridge))
    real.daemon.start()
    tap = interrupt(real, device=False)
    real.clock.advance(BACKOFF[1])
    assert await nics(hypervisor) == {}
    assert not tap.exists()
    await hypervisor.close()
    real.remove_bridges()
