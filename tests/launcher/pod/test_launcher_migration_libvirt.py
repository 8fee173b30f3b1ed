"""Live migration between two launcher pods with libvirt and QEMU, each a container with PID, mount and host name of its own,
on two nodes: what libvirt and QEMU send goes through the migration proxies of both node agents."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from outfitter.api.hypervisor import MigrationLimits, MigrationTarget
from outfitter.api.kinds import Object
from outfitter.api.launcher import launcher_paths
from outfitter.api.launcher.launcher_protocol import StartVmi
from outfitter.node.launchers import Launchers
from tests.hardware import embed, guest
from tests.hardware.daemon import FOLDERS
from tests.launcher.hypervisor_hosts import needs_libvirt
from tests.launcher.pod.launcher_process import PATIENCE, UID, LauncherProcess, PodFolder, vmi

pytestmark = [pytest.mark.libvirt, needs_libvirt]
MIB = 1 << 20
JOB = "5e0c0f7e-7c1d-4a8b-9d7f-0b8c3c2f8a10"


@dataclass
class Node:
    """A node with one launcher pod."""

    pod: PodFolder
    process: LauncherProcess
    agent: Launchers


def container(pod: PodFolder, name: str) -> tuple[str, ...]:
    """What starts a command as the first process of a container that has the sockets where a pod has them."""
    folder = pod.container / "libvirt"
    for here in FOLDERS:
        (folder / here).mkdir(parents=True)
    (folder / "etc" / "qemu.conf").write_text(embed.SETTINGS)
    mounts = {**{folder / here: there for here, there in FOLDERS.items()}, pod.sockets: launcher_paths.FOLDER}
    binds = " && ".join(f"mkdir -p {there} && mount --bind {here} {there}" for here, there in mounts.items())
    return ("unshare", "--mount", "--uts", "--propagation", "private", "--pid", "--fork", "--kill-child", "--mount-proc",
            "sh", "-c", f'hostname {name} && mount -t tmpfs run /run && {binds} && exec "$0" "$@"')


@asynccontextmanager
async def nodes(*, busy: bool = False) -> AsyncIterator[tuple[Node, Node, Object]]:
    """The VM runs on the first one; the copy of a busy one does not end at a bandwidth of some MiB/s."""
    with tempfile.TemporaryDirectory(prefix="of-") as folder:
        obj = vmi(devices={"disks": [{"name": "boot", "disk": {"bus": "virtio"}}]})
        disk = guest.image(Path(folder), busy=busy)
        obj["spec"]["volumes"] = [{"name": "boot", "hostDisk": {"path": str(disk), "type": "Disk", "shared": True}}]
        found = []
        try:
            for name in ("a", "b"):
                (Path(folder) / name).mkdir()
                pod = PodFolder(Path(folder) / name)
                agent = Launchers(pod.kubelet, migration_address=("127.0.0.1", 0))
                process = LauncherProcess(pod, "--socket", f"{launcher_paths.FOLDER}/{launcher_paths.SOCKET}",
                                          before=container(pod, name))
                agent.assign(UID, pod.uid)
                found.append(Node(pod, process, agent))
            for node in found:
                await asyncio.to_thread(node.process.listens)
            assert await found[0].agent.start_vmi(StartVmi(obj)) is not None
            if busy:
                await until(lambda: asyncio.to_thread(guest.is_busy, disk))
            yield found[0], found[1], obj
        except BaseException:
            print(*(node.pod.log.read_text() for node in found), sep="\n")
            raise
        finally:
            for node in found:
                node.process.kill()
                await node.agent.close()


async def ready(source: Node, target: Node, obj: Object) -> MigrationTarget:
    """As the record of the migration brings it from one agent to the other."""
    expected = await target.agent.expect_vmi(StartVmi(obj), JOB)
    target.agent.proxy.expect(JOB, target.pod.uid, source.agent.proxy.certificate)
    return expected


async def until(check: Callable[[], Awaitable[object]]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await check():  # noqa: ASYNC110  # another process does it
            await asyncio.sleep(0.05)


async def test_a_vm_migrates_from_pod_to_pod() -> None:
    async with nodes() as (source, target, obj):
        address = await ready(source, target, obj)
        await source.agent.migrate(UID, address, MigrationLimits())

        async def arrived() -> bool:
            job = await source.agent.migration(UID)
            assert job is None or not job.failed, job
            domain = (await target.agent.domains()).get(UID)
            return domain is not None and not domain.migrating

        await until(arrived)
        await until(lambda: _gone(source))
        await until(lambda: _source_ended(source))
        assert await asyncio.to_thread(source.process.ended) == (0, "Migrated: the VM runs in another pod")
        assert await target.agent.stop(UID, 120.0) is not None
        assert await asyncio.to_thread(target.process.ended) == (0, "Stopped: the guest was shut down on request")


async def test_a_target_that_dies_leaves_the_vm_in_its_pod() -> None:
    """Whenever it does; and the agent can begin again with another target."""
    async with nodes() as (source, target, obj):
        await source.agent.migrate(UID, await ready(source, target, obj), MigrationLimits())
        target.process.kill()

        async def failed() -> bool:
            job = await source.agent.migration(UID)
            return job is not None and bool(job.failed)

        await until(failed)
        await source.agent.abort_migration(UID)
        assert await source.agent.migration(UID) is None
        await until(lambda: _runs(source))
        await source.agent.pause(UID)
        await source.agent.unpause(UID)
        assert source.process.poll() is None
        assert sorted(path.name for path in source.pod.sockets.iterdir()) == [launcher_paths.SOCKET]


async def test_a_migration_that_is_cancelled_leaves_the_vm_in_its_pod() -> None:
    async with nodes(busy=True) as (source, target, obj):
        await source.agent.migrate(UID, await ready(source, target, obj), MigrationLimits(bandwidth=MIB))

        async def copies() -> bool:
            job = await source.agent.migration(UID)
            assert job is not None
            assert not job.failed
            return job.processed > 0

        await until(copies)
        await source.agent.abort_migration(UID)

        async def aborted() -> bool:
            job = await source.agent.migration(UID)
            return job is None or bool(job.failed)

        await until(aborted)
        await source.agent.abort_migration(UID)  # the failure is read
        assert await source.agent.migration(UID) is None
        await until(lambda: _runs(source))
        await until(lambda: _gone(target))
        assert (source.process.poll(), target.process.poll()) == (None, None)
        await source.agent.pause(UID)
        await source.agent.unpause(UID)


async def _runs(node: Node) -> bool:
    domain = (await node.agent.domains()).get(UID)
    return domain is not None and not domain.migrating and domain.paused is None


async def _source_ended(node: Node) -> bool:
    return await node.agent.end_source(node.pod.uid, UID) is None


async def _gone(node: Node) -> bool:
    return UID not in await node.agent.domains()
