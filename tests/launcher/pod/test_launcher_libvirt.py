"""`outfit launcher` with a libvirtd of its own, as the first process of a container: a PID namespace and libvirt's folders of
its own. It dies with everything in it."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from outfitter.api.kinds import Object
from outfitter.api.launcher.launcher_protocol import StartVmi
from outfitter.node.launchers import Launchers
from tests.hardware import embed, guest
from tests.hardware.daemon import FOLDERS
from tests.launcher.hypervisor_hosts import needs_libvirt
from tests.launcher.pod.launcher_process import PATIENCE, UID, LauncherProcess, PodFolder, vmi

pytestmark = [pytest.mark.libvirt, needs_libvirt]


@pytest.fixture
def pod() -> Iterator[PodFolder]:
    with tempfile.TemporaryDirectory(prefix="of-") as folder:
        yield PodFolder(Path(folder))


def container(pod: PodFolder) -> tuple[str, ...]:
    """What starts a command as the first process of a container."""
    for name in FOLDERS:
        (pod.container / "libvirt" / name).mkdir(parents=True)
    (pod.container / "libvirt" / "etc" / "qemu.conf").write_text(embed.SETTINGS)
    folder = pod.container / "libvirt"
    binds = " && ".join(f"mkdir -p {there} && mount --bind {folder / here} {there}" for here, there in FOLDERS.items())
    return ("unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c",
            f'{binds} && exec "$0" "$@"')


@asynccontextmanager
async def started(pod: PodFolder) -> AsyncIterator[tuple[LauncherProcess, Launchers]]:
    process, agent = LauncherProcess(pod, before=container(pod)), Launchers(pod.kubelet)
    agent.assign(UID, pod.uid)
    try:
        await asyncio.to_thread(process.listens)
        domain = await agent.start_vmi(StartVmi(machine(pod)))
        assert domain is not None
        assert domain.name == "here_blue"
        yield process, agent
    finally:
        process.kill()
        await agent.close()


def machine(pod: PodFolder) -> Object:
    obj = vmi(devices={"disks": [{"name": "boot", "disk": {"bus": "virtio"}}]})
    disk = guest.image(pod.container)
    obj["spec"]["volumes"] = [{"name": "boot", "hostDisk": {"path": str(disk), "type": "Disk"}}]
    return obj


def processes(root: int) -> dict[str, int]:
    """The processes of a container by their program."""
    found: dict[str, int] = {}
    for child in Path(f"/proc/{root}/task/{root}/children").read_text().split():
        found[Path(f"/proc/{child}/comm").read_text().strip()] = int(child)
        found |= processes(int(child))
    return found


async def until(check: Callable[[], object], what: str) -> None:
    async with asyncio.timeout(PATIENCE):
        while not check():  # noqa: ASYNC110  # another process does it
            await asyncio.sleep(0.05)


async def test_a_guest_that_is_asked_to_shut_down_ends_the_launcher(pod: PodFolder) -> None:
    async with started(pod) as (process, agent):
        await agent.pause(UID)
        assert (await agent.domains())[UID].paused is not None
        await agent.unpause(UID)
        before = processes(process.pid)
        os.kill(before["libvirtd"], signal.SIGKILL)
        await until(lambda: processes(process.pid).get("libvirtd", before["libvirtd"]) != before["libvirtd"], "started again")
        assert await agent.stop(UID, 120.0) is not None
        assert await asyncio.to_thread(process.ended) == (0, "Stopped: the guest was shut down on request")


async def test_a_qemu_that_dies_ends_the_launcher_as_failed(pod: PodFolder) -> None:
    async with started(pod) as (process, _):
        qemu = next(pid for name, pid in processes(process.pid).items() if name.startswith("qemu-system"))
        os.kill(qemu, signal.SIGKILL)
        status, why = await asyncio.to_thread(process.ended)
        assert status == 3
        assert why.startswith("DomainFailed: ")
