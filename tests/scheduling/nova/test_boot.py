"""A machine's way onto a host, on a real store whose every step lets others go first."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import pytest

from outfitter.api import kinds, page
from outfitter.api.device import DRIVER, PCI_BUS_ID
from outfitter.api.kinds import Kind as Noun
from outfitter.api.kinds import Object
from outfitter.api.page import Page
from outfitter.api.providers import Inventory, Provider
from outfitter.errors import AlreadyHeld, Unavailable
from outfitter.ledger import book
from outfitter.scheduling.dra.slices import PublishedDevice
from outfitter.scheduling.nova import boot
from outfitter.scheduling.nova.boot import Order, PageChange, Placed
from outfitter.scheduling.nova.extra_specs import FlavorRequest
from outfitter.scheduling.nova.host_state import NoValidHost, PublishedHost
from outfitter.scheduling.nova.numa_topology import NumaCell
from outfitter.store.memory import Memory
from tests.scheduling.flavor_requests import CLASS, ask

NOW = "2026-01-01T00:00:00Z"


class Jumpy(Memory):
    """A home where anybody may come between any two steps."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._chance = random.Random(seed)

    async def _wait(self) -> None:
        for _ in range(self._chance.randrange(4)):
            await asyncio.sleep(0)

    async def get(self, kind: Noun, name: str, namespace: str = "") -> Object:
        await self._wait()
        return await super().get(kind, name, namespace)

    async def replace(self, kind: Noun, obj: Object, **more: Any) -> Object:
        await self._wait()
        return await super().replace(kind, obj, **more)


class Farm:
    """Hosts with so many devices each, one provider for each device."""

    def __init__(self, seed: int = 0, *, cpus: int | None = None, **devices: int) -> None:
        self.store, self.running = Jumpy(seed), dict[str, str]()
        self.fails: dict[str, str] = {}  # host -> "prepare" or "start"
        cells = [NumaCell(0, cpus, ids=tuple(range(8, 8 + cpus)))] if cpus is not None else []
        self.offers = [PublishedHost(name, [self._provider(name, bus) for bus in range(count)],
                                 [PublishedDevice(DRIVER, name, self._device(bus), []) for bus in range(count)],
                                 cells=cells) for name, count in devices.items()]

    @staticmethod
    def _device(bus: int) -> dict[str, Any]:
        said = {PCI_BUS_ID: f"0000:{bus:02x}:00.0", "kind": "PCI", "vendor": "10de", "product": "2235"}
        return {"name": f"d{bus}", "attributes": {key: {"string": value} for key, value in said.items()}}

    @staticmethod
    def _provider(host: str, bus: int) -> Provider:
        return Provider(f"{host}_{bus}", f"u{bus}", host, 1, {CLASS: Inventory(1)}, frozenset(), devices=(f"d{bus}",))

    async def look(self) -> list[tuple[PublishedHost, Page]]:
        return [(offer, await book.read(self.store, offer.name)) for offer in self.offers]

    async def change(self, host: str, change: PageChange) -> None:
        await book.change_page(self.store, host, change, now=NOW)

    async def prepare(self, placed: Placed) -> None:
        if self.fails.get(placed.host) == "prepare":
            raise AlreadyHeld("d0", by="a stranger", since=NOW)
        await book.set_state(self.store, placed.host, placed.order.uid, "prepared", now=NOW)

    async def start(self, placed: Placed) -> None:
        if self.fails.get(placed.host) == "start":
            raise Unavailable("no memory")
        self.running[placed.order.name] = placed.host

    async def release(self, host: str, uid: str) -> None:
        await book.release(self.store, host, uid, now=NOW)

    async def held(self) -> dict[str, dict[str, str]]:
        """Host -> device -> who has it."""
        pages = [Page(obj) for obj in (await self.store.list(kinds.LEDGER_PAGE)).items]
        for each in pages:
            counts = Counter(one.device for one in each.bookings if one.counted)
            assert not [device for device, count in counts.items() if count > 1]
        return {each.host: {one.device.device: one.holder.name for one in each.bookings if one.counted} for each in pages}


def order(name: str, wish: FlavorRequest | None = None) -> Order:
    return Order(f"uid-{name}", name, wish or ask("gpu:1"), NOW)


async def test_what_is_chosen_is_booked_under_the_name_of_its_group() -> None:
    farm = Farm(oak=2, cpus=4)
    placed = await boot.boot(farm, order("a", ask("gpu:2", vcpus=3, hw__cpu_policy="dedicated",
                                                   hw__pci_numa_affinity_policy="preferred")))
    assert isinstance(placed, Placed)
    written = await book.read(farm.store, "oak")
    assert [(one.device.device, one.request, one.state, one.amount) for one in written.bookings] == [
        ("host", "", "prepared", {"resources": {"PCPU": 3, "MEMORY_MB": 512, "DISK_GB": 1}, "cells": {"0": 3},
                                  "cpus": {"0": [8, 9, 10]}}),
        ("d0", "r0-0", "prepared", {"whole": True}), ("d1", "r0-1", "prepared", {"whole": True})]
    assert {one.holder.kind for one in written.bookings} == {"Consumer"}
    assert written.bookings[1].device.driver == DRIVER


@pytest.mark.parametrize("seed", range(8))
async def test_more_want_than_there_is(seed: int) -> None:
    farm = Farm(seed, oak=3, elm=2)
    results = await asyncio.gather(*(boot.boot(farm, order(f"m{number}")) for number in range(9)))
    won = [one for one in results if isinstance(one, Placed)]
    assert len(won) == 5 == len(farm.running)
    held = await farm.held()
    assert {one.order.name for one in won} == {who for devices in held.values() for who in devices.values()}
    assert {one.order.name: one.host for one in won} == farm.running


@pytest.mark.parametrize("seed", range(8))
async def test_dedicated_cpus_are_not_given_twice(seed: int) -> None:
    farm = Farm(seed, oak=0, cpus=4)
    wish = ask("", vcpus=3, hw__cpu_policy="dedicated")
    results = await asyncio.gather(*(boot.boot(farm, order(f"m{number}", wish)) for number in range(4)))
    assert sum(isinstance(one, Placed) for one in results) == 1


@pytest.mark.parametrize("seed", range(8))
async def test_every_dedicated_cpu_has_one_owner(seed: int) -> None:
    farm = Farm(seed, oak=0, cpus=7)
    wish = ask("", vcpus=2, hw__cpu_policy="dedicated")
    results = await asyncio.gather(*(boot.boot(farm, order(f"m{number}", wish)) for number in range(5)))
    assert sum(isinstance(one, Placed) for one in results) == 3
    held = [cpu for booking in (await book.read(farm.store, "oak")).bookings for cpu in booking.cpus]
    assert sorted(held) == [8, 9, 10, 11, 12, 13]


@pytest.mark.parametrize("seed", range(8))
async def test_groups_of_machines_race_and_each_is_whole(seed: int) -> None:
    farm = Farm(seed, oak=3, elm=2)
    results = await asyncio.gather(*(
        boot.boot_all(farm, [order(f"{group}{number}") for number in range(3)]) for group in "abc"))
    whole = [all(isinstance(one, Placed) for one in group) for group in results]
    none = [all(isinstance(one, NoValidHost) for one in group) for group in results]
    assert [one != other for one, other in zip(whole, none, strict=True)] == [True] * 3
    assert sum(whole) == 1
    assert sum(map(len, (await farm.held()).values())) == 3 == len(farm.running)


@pytest.mark.parametrize("step", ["prepare", "start"])
async def test_what_fails_is_given_back_and_the_next_host_is_tried(step: str) -> None:
    farm = Farm(elm=1, oak=1)
    farm.fails["elm"] = step
    placed = await boot.boot(farm, order("a"))
    assert isinstance(placed, Placed)
    assert placed.host == "oak"
    assert await farm.held() == {"elm": {}, "oak": {"d0": "a"}}


async def test_what_fails_everywhere_says_so_for_each_host() -> None:
    farm = Farm(elm=1, oak=2)
    farm.fails = {"elm": "prepare", "oak": "start"}
    verdict = await boot.boot(farm, order("a"))
    assert isinstance(verdict, NoValidHost)
    assert [(host, why.rejection["message"]) for host, why in verdict.hosts] == [
        ("elm", f"it was tried and failed: d0 is held by a stranger since {NOW}"),
        ("oak", "it was tried and failed: no memory")]
    assert await farm.held() == {"elm": {}, "oak": {}}


async def test_only_one_host_is_tried_when_it_is_said() -> None:
    farm = Farm(elm=1, oak=2)
    placed = await boot.boot(farm, order("a"), only="oak")
    assert isinstance(placed, Placed)
    assert placed.host == "oak"
    farm.fails["oak"] = "start"
    assert isinstance(await boot.boot(farm, order("b"), only="oak"), NoValidHost)


async def test_of_several_one_that_fails_goes_on_by_itself() -> None:
    farm = Farm(elm=1, oak=3)
    farm.fails["elm"] = "start"
    results = await boot.boot_all(farm, [order("a"), order("b")])
    assert [one.host if isinstance(one, Placed) else None for one in results] == ["oak", "oak"]
    assert await farm.held() == {"elm": {}, "oak": {"d0": "b", "d1": "a"}}


async def test_all_or_none_leaves_nothing() -> None:
    farm = Farm(elm=1, oak=1)
    results = await boot.boot_all(farm, [order("a"), order("b"), order("c")])
    assert [isinstance(one, NoValidHost) for one in results] == [True] * 3
    assert await farm.held() == {}


async def test_a_page_without_room_is_a_reason_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "MOST", 1)
    farm = Farm(elm=1)
    verdict = await boot.boot(farm, order("a"))
    assert isinstance(verdict, NoValidHost)
    assert "takes at most 1: 2 more do not fit" in verdict.summary
    both = await boot.boot_all(farm, [order("a", ask("")), order("b")])
    assert [isinstance(one, NoValidHost) and "takes at most 1" in one.summary for one in both] == [True, True]
    assert await farm.held() == {"elm": {}}
