"""Which of a host's NUMA cells a guest gets, and which devices are near enough to it. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from outfitter.scheduling.nova.alias import Policy
from outfitter.scheduling.nova.extra_specs import Guest

NEAR, NEXT, FAR = 0, 1, 2  # how good a device is for a guest: on its cells; the next best; anything else that is allowed


@dataclass(frozen=True, slots=True)
class NumaCell:
    """A NUMA cell of a host."""

    id: int
    cpus: int  # dedicated CPUs that are free
    socket: int | None = None  # None: the host does not tell
    ids: tuple[int, ...] = ()  # the numbers of these CPUs, in order; empty: the host does not tell

    def without(self, taken: Collection[int], count: int) -> NumaCell:
        """The cell when `count` of its CPUs are taken: these, as far as they have numbers."""
        ids = tuple(each for each in self.ids if each not in taken)
        return replace(self, cpus=min(self.cpus - count, len(ids)) if self.ids else self.cpus - count, ids=ids)


@dataclass(frozen=True, slots=True)
class Seat:
    """Cells of a host for a guest."""

    cells: frozenset[int]
    sockets: frozenset[int] = frozenset()  # of these cells; empty when the host does not tell those of all its cells
    socket_of: Mapping[int, int] | None = None  # cell -> socket, if known for all

    def tier(self, policy: Policy, numa: int | None) -> int | None:
        """How good a device on a cell (None: unknown) is under a policy; None: not allowed."""
        if numa is not None and numa in self.cells:
            return NEAR
        if policy == "required":
            return None
        if policy == "socket":
            beside = numa is not None and self.socket_of is not None and self.socket_of.get(numa) in self.sockets
            return NEXT if beside else None
        if numa is None:
            return NEXT
        return FAR if policy == "preferred" else None


def share(guest: Guest) -> list[int]:
    """How many CPUs each of the guest's cells has: as even as possible."""
    cells = guest.cells or 1
    return [guest.vcpus // cells + (index < guest.vcpus % cells) for index in range(cells)]


def seats(cells: Sequence[NumaCell], guest: Guest, devices: Mapping[int, int], *, wants_devices: bool) -> Iterator[Seat]:
    """Every set of cells that the guest fits on, best first: a guest with devices goes where most are free, one without to
    where the fewest are, so as not to stand in the way. `devices`: free ones by cell."""
    sign = -1 if wants_devices else 1
    order = sorted(cells, key=lambda cell: (sign * devices.get(cell.id, 0), cell.id))
    parts = sorted(share(guest), reverse=True)
    if guest.pinned:
        order = [cell for cell in order if cell.cpus >= parts[-1]]
    socket_of = {cell.id: cell.socket for cell in cells if cell.socket is not None}
    known = socket_of if len(socket_of) == len(cells) else None
    for chosen in itertools.combinations(order, len(parts)):
        roomy = sorted((cell.cpus for cell in chosen), reverse=True)
        if guest.pinned and any(have < need for have, need in zip(roomy, parts, strict=True)):
            continue
        ids = frozenset(cell.id for cell in chosen)
        yield Seat(ids, frozenset(known[each] for each in ids) if known else frozenset(), known)


def pins(cells: Sequence[NumaCell], seat: Seat, guest: Guest) -> dict[int, int]:
    """How many dedicated CPUs the guest takes of which cell."""
    if not guest.pinned:
        return {}
    chosen = sorted((cell for cell in cells if cell.id in seat.cells), key=lambda cell: (-cell.cpus, cell.id))
    return {cell.id: part for cell, part in zip(chosen, sorted(share(guest), reverse=True), strict=True)}


def named(cells: Sequence[NumaCell], pins: Mapping[int, int]) -> dict[int, tuple[int, ...]]:
    """Which CPUs these are: the first free ones. Empty where the host does not publish them."""
    have = {cell.id: cell.ids for cell in cells}
    if any(len(have[cell]) < count for cell, count in pins.items()):
        return {}
    return {cell: have[cell][:count] for cell, count in pins.items()}
