"""The product is killed between any two of its writes, and started again on what it left: no device is ever held twice, and
what was wanted still comes about."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Literal, TypeVar

import pytest

from outfitter import app
from outfitter.api import admit, kinds
from outfitter.api.page import Page
from outfitter.errors import NotFound
from outfitter.inventory import scan
from outfitter.node.host import Host
from outfitter.store import base
from outfitter.store.clock import ManualClock
from outfitter.store.memory import Draft, Memory
from outfitter.store.names import Names
from tests.controllers.scene import Scene, hosts_of

T = TypeVar("T")
When = Literal["before", "after"]


def _names(host: Host) -> dict[str, str]:
    """Under which name each function is offered: that of the first of those that travel together."""
    first: dict[int | str, str] = {}
    return {device.address: first.setdefault(device.address if device.iommu_group is None else device.iommu_group, device.name)
            for device in sorted(scan.scan(host.tree()).devices, key=lambda device: device.address)}


class Mortal(Memory):
    """A home that holds its writer still at a chosen write, for ever: whoever waits for it is as good as dead. After each write
    the books are looked at."""

    def __init__(self, clock: ManualClock, hosts: Sequence[Host], seed: int = 1) -> None:
        super().__init__(clock=clock, names=Names(random.Random(seed)), rules=admit.Rules())
        self.hosts = hosts
        self.writes = 0  # of the product, not of those who use it
        self.fatal: tuple[int, When] | None = None
        self.dead = asyncio.Event()
        self.ours = False  # the test writes, not the product
        self.broken: list[str] = []  # promises that were not kept, as they were found
        self.called = {host.name: _names(host) for host in hosts}

    async def write(self, work: Callable[[Draft], T], *, dry_run: bool = False, by: base.By = base.OURSELVES) -> T:
        if self.ours:
            return await super().write(work, dry_run=dry_run, by=by)
        if self.dead.is_set():
            await asyncio.Event().wait()
        self.writes += 1
        number, when = self.fatal or (0, "before")
        if self.writes == number and when == "before":
            await self._die()
        mine = self.writes
        try:
            return await super().write(work, dry_run=dry_run, by=by)
        finally:  # one that was refused counts as well
            await self.check()
            if mine == number and when == "after":
                await self._die()

    async def _die(self) -> None:
        self.dead.set()
        await asyncio.Event().wait()

    async def check(self) -> None:
        """True at every moment: a device is booked once, is in one domain at most, and is prepared while it is in one."""
        for record in self.shelf(kinds.LEDGER_PAGE).records.values():
            self._once([str(booking.device) for booking in Page(record.object()).bookings], "booked twice")
        for host in self.hosts:
            used = [address for domain in (await host.hypervisor.domains()).values() for address in domain.devices]
            self._once(used, "in two domains")
            page = self.peek(kinds.LEDGER_PAGE, host.name)
            bookings = Page(page.object()).bookings if page is not None else ()
            ready = {booking.device.device for booking in bookings if booking.state == "prepared"}
            self.broken += [f"write {self.writes}: {name} is used and not prepared"
                            for name in {self.called[host.name][address] for address in used} - ready]

    def _once(self, devices: Sequence[str], what: str) -> None:
        """Noted, not raised: the controllers would take an error for their own and try again."""
        self.broken += [f"write {self.writes}: {device} is {what}" for device in devices if devices.count(device) > 1]


class World(Scene):
    """A scene that survives the death of its product."""

    home: Mortal
    clock: ManualClock
    deaths = 0

    @classmethod
    async def begin(cls, vfs: int, count: int, *, fatal: tuple[int, When] | None = None, seed: int = 1) -> World:
        clock, hosts = ManualClock(), hosts_of("node", vfs, count)
        home = Mortal(clock, hosts, seed)
        home.fatal = fatal
        world = cls(app.Embedded(home, hosts, clock=clock), "here", clock)
        world.home = home
        async with world.as_user():
            await home.create(kinds.NAMESPACE, {"metadata": {"name": "here"}})
            await world.classes()
            await world.template()
        await world.live(world.product.start())
        return world

    @contextlib.asynccontextmanager
    async def as_user(self) -> AsyncIterator[None]:
        """Nothing in here waits, so nobody else writes meanwhile."""
        self.home.ours = True
        try:
            yield
        finally:
            self.home.ours = False

    async def live(self, work: Awaitable[None]) -> None:
        """Until the work is done or the product dies; then it is started again."""
        doing, dying = asyncio.ensure_future(work), asyncio.ensure_future(self.home.dead.wait())
        await asyncio.wait({doing, dying}, return_when=asyncio.FIRST_COMPLETED)
        dead = self.home.dead.is_set()
        for task in (doing, dying):
            task.cancel()
        await asyncio.gather(dying, return_exceptions=True)
        [outcome] = await asyncio.gather(doing, return_exceptions=True)
        if dead:
            await self.revive()
        elif isinstance(outcome, BaseException):
            raise outcome

    async def revive(self) -> None:
        await self.product.runner.stop()  # cancels what hangs; writes nothing
        self.deaths += 1
        self.home.fatal = None
        self.home.dead = asyncio.Event()
        await self.home.check()
        self.product = app.Embedded(self.home, self.home.hosts, clock=self.clock)
        await self.live(self.product.start())

    async def rest(self, seconds: int = 12) -> None:
        """Let everything that is due within some seconds happen."""
        for _ in range(seconds):
            assert isinstance(self.product, app.Embedded)
            await self.live(self.product.settle())
            self.clock.advance(1)

    async def end(self) -> None:
        assert not self.home.broken
        await self.product.stop()


async def life(fatal: tuple[int, When] | None) -> World:
    """One machine from its making to its end."""
    world = await World.begin(1, 1, fatal=fatal)
    await world.rest()
    async with world.as_user():
        await world.machine("blue")
    await world.rest()
    await world.check_books()
    blue = await world.find(kinds.INSTANCE, "blue")
    assert blue is not None
    assert blue["status"]["phase"] == "Running", await world.picture()
    assert [domain.uid for domain in await world.domains()] == [blue["metadata"]["uid"]]
    assert [booking.state for booking in await world.bookings()] == ["prepared"]
    async with world.as_user():
        await world.delete(kinds.INSTANCE, "blue")
    await world.rest()
    await world.empty()
    assert await world.find(kinds.INSTANCE, "blue") is None
    await world.end()
    return world


async def test_a_life_without_death() -> None:
    world = await life(None)
    assert world.deaths == 0
    assert world.home.writes > 20


@pytest.mark.parametrize("when", ["before", "after"])
async def test_death_at_every_write(when: When) -> None:
    writes = (await life(None)).home.writes
    for number in range(1, writes + 1):
        try:
            world = await life((number, when))
        except AssertionError as error:
            raise AssertionError(f"killed {when} write {number} of {writes}: {error}") from error
        assert world.deaths == 1, f"write {number} of {writes} was never made"


async def chaos(seed: int) -> None:
    """Many machines, few devices, users without mercy, and a product that is killed again and again."""
    chance = random.Random(seed)
    world = await World.begin(2, 2, seed=seed)
    names = [f"vm{number}" for number in range(7)]
    for _ in range(30):
        name = chance.choice(names)
        match chance.choice(["create", "create", "delete", "force", "die", "work", "work", "time"]):
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
                world.home.fatal = (world.home.writes + chance.randint(1, 12), chance.choice(["before", "after"]))
            case "work":
                await world.live(_steps(chance.randint(1, 60)))
            case "time":
                world.clock.advance(chance.choice([0.01, 1, 40]))
    world.home.fatal = None
    await world.rest(60)
    await world.check_books()
    machines = await world.all(kinds.INSTANCE)
    alive = [obj for obj in machines if obj["status"]["phase"] != "Failed"]
    running = [obj for obj in alive if obj["status"]["phase"] == "Running"]
    assert len(running) == min(len(alive), 4), await world.picture()
    assert {domain.uid for domain in await world.domains()} == {obj["metadata"]["uid"] for obj in running}
    async with world.as_user():
        for obj in machines:
            with contextlib.suppress(NotFound):
                await world.delete(kinds.INSTANCE, obj["metadata"]["name"])
    await world.rest(20)
    await world.empty()
    await world.end()


async def _steps(number: int) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


@pytest.mark.parametrize("seed", range(30))
async def test_many_machines_few_devices(seed: int) -> None:
    await chaos(seed)


@pytest.mark.long
@pytest.mark.parametrize("part", range(20))
async def test_many_more(part: int) -> None:
    for seed in range(1000 + part * 50, 1050 + part * 50):
        try:
            await chaos(seed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
