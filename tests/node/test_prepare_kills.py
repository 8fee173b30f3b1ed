"""The product is killed between any two writes, be they to the store, to the host's attributes or to files beside it, and is
started again on what it left. Afterwards page, checkpoint, files, host and machines agree; and nobody ever touched a device
that a running machine had."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from outfitter import app
from outfitter.api import kinds
from outfitter.api.page import Page
from outfitter.errors import NotFound
from outfitter.inventory import config, simulate
from outfitter.launcher.simulated import Simulated
from outfitter.ledger import book
from outfitter.node import vfio
from outfitter.node.checkpoint import Checkpoint
from outfitter.node.files import MemoryFiles
from outfitter.node.host import Host
from outfitter.node.kernel import Kernel
from outfitter.node.station import Station
from outfitter.store.clock import ManualClock
from tests.controllers.test_restart import Mortal, When, World

# A card of two functions in one group, a disk, a disk without a driver, and a card that the operator bound to vfio-pci.
HOSTS = """
publisher: node.example.com
hosts:
- name: node
  count: 1
  pci:
  - {address: 0000:65:00.0, vendor: 10de, product: 2204, class: 030000, driver: nouveau, iommuGroup: 7}
  - {address: 0000:65:00.1, vendor: 10de, product: 1aef, class: 040300, driver: snd_hda_intel, iommuGroup: 7}
  - {address: 0000:66:00.0, vendor: 144d, product: a80a, class: 010802, driver: nvme}
  - {address: 0000:67:00.0, vendor: 144d, product: a80a, class: 010802, driver: none}
  - {address: 0000:68:00.0, vendor: 10de, product: 20b0, class: 030200}
"""
SPEC = "device_spec: [{vendor_id: 10de}, {vendor_id: 144d}]"


class Dead(BaseException):
    """The process is gone: nobody gets to handle it."""


class Fatal:
    """Any write that is not the store's own: counted with those, and as deadly."""

    home: FatalMortal

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        home = self.home
        if home.ours:
            yield
            return
        if home.dead.is_set():
            raise Dead
        home.writes += 1
        number, when = home.fatal or (0, "before")
        mine = home.writes == number
        if mine and when == "before":
            home.dead.set()
            raise Dead
        yield
        if mine:
            home.dead.set()
            raise Dead


class FatalKernel(Kernel, Fatal):
    def write(self, path: str, text: str) -> None:
        with self.writing():
            for domain in self.home.machines():
                for address in (other for source in domain for other in self.together(source)):
                    if address in path or address == text.strip():
                        self.home.broken.append(f"{path} was written while a machine has {address}")
            super().write(path, text)

    def together(self, address: str) -> list[str]:
        number = vfio.group(self, f"{vfio.DEVICES}/{address}")
        return [address, *self.names(f"/sys/kernel/iommu_groups/{number}/devices")]


class FatalFiles(MemoryFiles, Fatal):
    def write(self, name: str, text: str) -> None:
        with self.writing():
            super().write(name, text)

    def remove(self, name: str) -> None:
        with self.writing():
            super().remove(name)


class FatalMortal(Mortal):
    """A home that knows the machines of its hosts, and to which drivers their devices belong."""

    first: Mapping[str, str | None]

    def machines(self) -> list[tuple[str, ...]]:
        found = []
        for host in self.hosts:
            assert isinstance(host.hypervisor, Simulated)
            found += [domain.devices for domain in host.hypervisor._domains.values()]
        return found

    async def check(self) -> None:
        await super().check()
        for host in self.hosts:
            assert host.station is not None
            for devices in self.machines():
                self.broken += [f"write {self.writes}: a machine has {address}, which is with {name}" for address in devices
                                if not vfio.hands_over(name := vfio.driver(host.station.root, address))]
            page = self.peek(kinds.LEDGER_PAGE, host.name)
            ready = {booking.device.device for booking in Page(page.object()).bookings
                     if booking.state == "prepared"} if page is not None else set()
            for address, name in self.first.items():
                group = self.called[host.name][address.partition(".")[0] + ".0"]  # named after its first function
                if vfio.driver(host.station.root, address) != name and group not in ready:
                    self.broken.append(f"write {self.writes}: {address} is not with {name}, and nobody has it prepared")


class Bound(World):
    """A world whose devices must be taken from the host's drivers."""

    home: FatalMortal
    parts: tuple[FatalKernel, FatalFiles, FatalFiles, FatalFiles]

    @classmethod
    async def begin(cls, vfs: int = 0, count: int = 1, *, fatal: tuple[int, When] | None = None, seed: int = 1) -> Bound:
        clock = ManualClock()
        [played] = simulate.parse(HOSTS).hosts
        parts = FatalKernel(played.tree()), FatalFiles(), FatalFiles(), FatalFiles()
        host = replace(app.simulated_hosts([played], config=config.parse(SPEC))[0], tree=lambda: parts[0])
        home = FatalMortal(clock, [host], seed)
        home.first = {address: parts[0].driver(address) for address in parts[0].names(vfio.DEVICES)}
        for part in parts:
            part.home = home
        home.hosts = [cls.refreshed(host, parts)]
        home.fatal = fatal
        world = cls(app.Embedded(home, home.hosts, clock=clock), "here", clock)
        world.home, world.parts = home, parts
        async with world.as_user():
            await home.create(kinds.NAMESPACE, {"metadata": {"name": "here"}})
            await world.create(kinds.DEVICE_CLASS, "here", {"selectors": [{"cel": {
                "expression": 'device.driver == "node.example.com"'}}]})
            await world.template()
        await world.live(world.product.start())
        return world

    @staticmethod
    def refreshed(host: Host, parts: Sequence[Any]) -> Host:
        """As a new process finds it: what it kept in memory is gone."""
        root, state, cdi, metadata = parts
        return replace(host, station=Station(host.name, host.driver, root, state=state, cdi=cdi, metadata=metadata))

    async def revive(self) -> None:
        self.home.hosts = [self.refreshed(host, self.parts) for host in self.home.hosts]
        await super().revive()

    async def agree(self) -> None:
        """Page, checkpoint, files, host and machines tell the same."""
        kernel, state, cdi, metadata = self.parts
        [host] = self.home.hosts
        page = await book.read(self.store, host.name)
        prepared = {booking.holder.uid: booking.device.device for booking in page.bookings if booking.state == "prepared"}
        taken = {one.uid: one for one in Checkpoint(state, host.name).taken}
        picture = await self.picture()
        assert {uid: one.device for uid, one in taken.items()} == prepared, picture
        assert cdi.names() == sorted(f"node.example.com-claim_{uid}.json" for uid in taken), picture
        assert {name.partition("/")[0] for name in metadata.names()} == set(taken), picture
        assert not page.quarantined, picture
        now = {address: kernel.driver(address) for address in self.home.first}
        handed = {before.address for one in taken.values() for before in one.functions}
        assert now == {address: "vfio-pci" if address in handed else name for address, name in self.home.first.items()}, picture
        running = {address for devices in self.home.machines() for address in devices}
        assert running <= handed, picture
        await self.check_books()


async def life(fatal: tuple[int, When] | None) -> Bound:
    """Two machines from their making to their end."""
    world = await Bound.begin(fatal=fatal)
    async with world.as_user():
        await world.machine("blue")
        await world.machine("green")
    await world.rest()
    for name in ("blue", "green"):
        found = await world.find(kinds.INSTANCE, name)
        assert found is not None
        assert found["status"]["phase"] == "Running", await world.picture()
    await world.agree()
    async with world.as_user():
        await world.delete(kinds.INSTANCE, "blue")
    await world.rest()
    await world.agree()
    assert len(world.home.machines()) == 1
    async with world.as_user():
        await world.delete(kinds.INSTANCE, "green")
    await world.rest()
    await world.empty()
    await world.agree()
    assert not world.parts[0].changes()
    await world.end()
    return world


@pytest.mark.parametrize("when", ["before", "after"])
async def test_death_at_every_write(when: When) -> None:
    writes = (await life(None)).home.writes
    assert writes > 50
    for number in range(1, writes + 1):
        try:
            world = await life((number, when))
        except AssertionError as error:
            raise AssertionError(f"killed {when} write {number} of {writes}: {error}") from error
        assert world.deaths == 1, f"write {number} of {writes} was never made"


async def chaos(seed: int) -> Bound:
    """Machines come and go, and the product dies again and again."""
    chance = random.Random(seed)
    world = await Bound.begin(seed=seed)
    names = [f"vm{number}" for number in range(6)]
    for _ in range(12):
        name = chance.choice(names)
        match chance.choice(["create", "create", "delete", "force", "die", "die", "work", "work"]):
            case "create":
                async with world.as_user():
                    if await world.find(kinds.INSTANCE, name) is None:
                        await world.machine(name)
            case "delete":
                async with world.as_user():
                    with contextlib.suppress(NotFound):
                        await world.delete(kinds.INSTANCE, name)
            case "force":
                async with world.as_user():
                    for pod in await world.all(kinds.POD):
                        if pod["metadata"]["labels"]["vm.kubevirt.io/name"] == name:
                            await world.delete(kinds.POD, pod["metadata"]["name"], grace=0)
            case "die":
                world.home.fatal = (world.home.writes + chance.randint(1, 30), chance.choice(["before", "after"]))
            case "work":
                await world.rest(chance.randint(1, 3))
    world.home.fatal = None
    await world.rest(30)
    await world.agree()
    async with world.as_user():
        for obj in await world.all(kinds.INSTANCE):
            with contextlib.suppress(NotFound):
                await world.delete(kinds.INSTANCE, obj["metadata"]["name"])
    await world.rest(15)
    await world.empty()
    await world.agree()
    assert not world.parts[0].changes()
    await world.end()
    return world


async def many(seeds: range, play: Callable[[int], Any] = chaos) -> None:
    deaths = 0
    for seed in seeds:
        try:
            deaths += (await play(seed)).deaths
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
    assert deaths > len(seeds) // 4, "hardly anybody died"


@pytest.mark.parametrize("part", range(5))
async def test_machines_come_and_go(part: int) -> None:
    await many(range(part * 8, part * 8 + 8))


@pytest.mark.long
@pytest.mark.parametrize("part", range(8))
async def test_machines_come_and_go_longer(part: int) -> None:
    await many(range(100 + part * 25, 125 + part * 25))
