"""The driver killed before and after every write, to the store, to the host and to a file, of prepare and unprepare: the next
process completes what the kubelet asks for again, and nothing is held twice or left over."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import pytest

from outfitter.node.atomic_files import FolderFiles
from outfitter.node.kubelet.claim_reference import ClaimReference
from outfitter.node.simulation.root import SimulatedRoot
from outfitter.store.memory import Memory
from tests.node.kubelet import driver_host, kubelet_client
from tests.node.kubelet.driver_host import VF0, DriverHost
from tests.node.kubelet.kubelet_client import KubeletClient


class Dead(BaseException):
    """The process is gone: no handler runs."""


class Countdown:
    """Dies at one of the writes, counted from 1; 0: at none."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left, self.after, self.dead, self.points = 0, False, False, 0
        write, files, remove, root = Memory.write, FolderFiles.write, FolderFiles.remove, SimulatedRoot.write

        async def to_store(store: Memory, *arguments: Any, **more: Any) -> Any:
            with self.point():
                return await write(store, *arguments, **more)

        def guarded(call: Any) -> Any:
            def to_host(*arguments: Any, **more: Any) -> Any:
                with self.point():
                    return call(*arguments, **more)

            return to_host

        monkeypatch.setattr(Memory, "write", to_store)
        monkeypatch.setattr(FolderFiles, "write", guarded(files))
        monkeypatch.setattr(FolderFiles, "remove", guarded(remove))
        monkeypatch.setattr(SimulatedRoot, "write", guarded(root))

    @contextlib.contextmanager
    def point(self) -> Iterator[None]:
        if self.dead:
            raise Dead
        self.points += 1
        self.left -= 1
        die = self.left == 0
        if die and not self.after:
            self.die()
        yield
        if die:
            self.die()

    def die(self) -> None:
        self.dead = True
        raise Dead


async def killed_at(node: DriverHost, countdown: Countdown, call: Any, number: int, after: bool) -> bool:
    """Whether the call died; then a new process runs."""
    countdown.left, countdown.after = number, after
    try:
        await call()
    except Dead:
        pass
    finally:
        died, countdown.dead, countdown.left = countdown.dead, False, 0
    if died:
        await node.kill()
        await node.start()
    return died


@pytest.mark.parametrize("after", [pytest.param(False, id="before"), pytest.param(True, id="after", marks=pytest.mark.long)])
async def test_prepare_and_unprepare_are_completed_after_a_kill_at_every_write(
    monkeypatch: pytest.MonkeyPatch, after: bool,
) -> None:
    countdown = Countdown(monkeypatch)
    async with driver_host.running(KubeletClient(kubelet_client.our_definitions())) as node:
        survived = number = 0
        while survived < 2:
            number, survived = number + 1, 0
            claim = ClaimReference(**await node.allocate(f"gold-{number}", VF0))
            for step in ("prepare", "unprepare"):
                call = functools.partial(getattr(node.driver, step), claim)
                survived += not await killed_at(node, countdown, call, number, after)
                if step == "prepare":
                    devices = await node.driver.prepare(claim)
                    assert [device.device for device in devices] == [VF0]
                    assert node.drivers() == ["vfio-pci", "iavf"]
                    assert len(node.cdi_files()) == 1
                    await node.delete(claim.name)
                else:
                    await node.driver.unprepare(claim)
                    assert node.drivers() == ["iavf", "iavf"]
                    assert node.cdi_files() == []
            await node.settle()
            assert await node.bookings() == {}
            assert await node.taints() == {}
        assert number > 8  # there were so many writes
