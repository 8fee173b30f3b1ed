"""A domain that libvirt lists as starting up, without a QEMU, and cannot end: its daemon was killed between the fork of QEMU
and its own record of the process. libvirt 9.0 neither reconnects to it nor removes it at its next start, and its job is never
ended (`qemuProcessReconnectHelper` skips a domain without a process)."""

from __future__ import annotations

import os
import re
import signal

import pytest

from outfitter.errors import HypervisorError
from outfitter.launcher.libvirt import Libvirt
from tests.launcher.hypervisor_hosts import OTHER, UID, Real, needs_libvirt

pytestmark = [pytest.mark.libvirt, needs_libvirt]
STARTING = "<domstatus state='paused' reason='starting up' pid='0'>"
JOB = "<job type='none' async='migration in' phase='prepare' flags='0x900' asyncFlags='0x43'/>"


async def unended(real: Real) -> Libvirt:
    """A host with such a domain; as its daemon writes it before it has the process."""
    hypervisor = real.hypervisor()
    await real.up(hypervisor, real.machine())
    await hypervisor.close()
    qemu = real.daemon.qemu("here_blue")
    real.daemon.kill()
    os.kill(qemu, signal.SIGKILL)
    status = real.root / "run" / "qemu" / "here_blue.xml"
    text, count = re.subn(r"<domstatus [^>]*>", STARTING + JOB, status.read_text())
    assert count == 1
    status.write_text(text)
    real.daemon.start()
    return real.hypervisor()


async def test_it_is_no_vm_and_stops_nothing_else(real: Real) -> None:
    hypervisor = await unended(real)
    assert await hypervisor.domains() == {}
    with pytest.raises(HypervisorError, match=r"here_blue\.xml"):
        await hypervisor.prepare_incoming(real.machine())
    with pytest.raises(HypervisorError, match=r"here_blue\.xml"):
        await hypervisor.start(real.machine())
    await hypervisor.cancel_incoming(UID)
    await hypervisor.stop(UID)
    await real.up(hypervisor, real.machine("green", OTHER))
    assert list(await hypervisor.domains()) == [OTHER]
    await hypervisor.stop(OTHER)
    await hypervisor.close()
    real.daemon.kill()  # as the message advises
    (real.root / "run" / "qemu" / "here_blue.xml").unlink()
    real.daemon.start()
    again = real.hypervisor()
    await real.up(again, real.machine())
    await again.stop(UID)
    await again.close()
