"""A machine's way onto a host: choose, book, hand over, start; and back again where one of these fails.

The order of steps and what follows from a failure is decided here; each step is done by a `House`. Choosing and booking are
one replacement of a host's page: the choice is made again on the page as it is then, so whoever was faster has won, and every
other way to choose on that host is still open. Only when a host has none left is the next one tried.

- A device that is handed over or started in vain is given back, and this machine does not try that host again.
- Several machines that are asked for at once get their devices all together, or none does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from outfitter.api import rejection_text
from outfitter.api.kinds import Object
from outfitter.api.page import Booking, Holder, Page
from outfitter.api.rejection import Rejection, RejectionCode
from outfitter.errors import AlreadyExists, Conflict, OutfitterError, TooLarge, Unsatisfiable
from outfitter.ledger import placement_view
from outfitter.ledger.heal import CONSUMER
from outfitter.scheduling.nova import pci_allocator, request_groups
from outfitter.scheduling.nova.extra_specs import FlavorRequest
from outfitter.scheduling.nova.host_state import HostState, NoValidHost, PciAllocation, PciRejection, PublishedHost

TRIES = 16  # how often everything is looked at again because others were faster
# The only refusal after which it is worth to look again.
BEATEN = PciRejection(Rejection.of(RejectionCode.PAGE_CONFLICT, message="others were faster"))
PageChange = Callable[[Page], Object]


@dataclass(frozen=True, slots=True)
class Order:
    """One machine that is to be."""

    uid: str  # of the consumer in Placement, and of the machine
    name: str
    ask: FlavorRequest
    now: str  # from when on it has what it gets


@dataclass(frozen=True, slots=True)
class Placed:
    """A machine and what is booked for it."""

    order: Order
    choice: PciAllocation

    @property
    def host(self) -> str:
        return self.choice.host


class House(Protocol):
    """All hosts, and what can be done to them."""

    async def look(self) -> Sequence[tuple[PublishedHost, Page]]:
        """What they offer and who has what, now."""
        ...

    async def change(self, host: str, change: PageChange) -> None:
        """Replace a host's page by what `change` makes of it, again whenever somebody was faster. What `change` raises is the
        answer; Conflict or AlreadyExists: others were faster all the time."""
        ...

    async def prepare(self, placed: Placed) -> None:
        """The host hands the booked devices over; those for one use are used up from here on. OutfitterError: it cannot."""
        ...

    async def start(self, placed: Placed) -> None:
        """The machine runs. OutfitterError: it does not, and nothing of it is left."""
        ...

    async def release(self, host: str, uid: str) -> None:
        """A consumer has nothing left on a host."""
        ...


def bookings(order: Order, choice: PciAllocation) -> list[Booking]:
    """What stands on the page for a machine: its share of the host, and each device under the name of its group."""
    holder = Holder(CONSUMER, "", order.name, order.uid)
    own: dict[str, object] = {"resources": request_groups.host_resources(order.ask)}
    if choice.pins:
        own["cells"] = {str(cell): count for cell, count in choice.pins.items()}
    if choice.cpus:
        own["cpus"] = {str(cell): list(cpus) for cell, cpus in choice.cpus.items()}
    out = [Booking(placement_view.host_resources(choice.host), holder, "", "booked", order.now, own)]
    for given in choice.given:
        amount: dict[str, object] = {"whole": True}
        if given.device.takes:
            amount["counters"] = {name: dict(amounts) for name, amounts in given.device.takes.items()}
        out.append(Booking(given.device.id, holder, given.request.suffix(given.index), "booked", order.now, amount))
    return out


async def boot(
    house: House, order: Order, *, only: str | None = None, passed: Mapping[str, PciRejection] | None = None
) -> Placed | NoValidHost:
    """Bring a machine onto a host (`only` that one, if it is said), or say why it is on none. `passed`: hosts that failed it
    already, and how."""
    failed = dict(passed or {})
    while True:
        placed = await _book(house, order, only, failed)
        if isinstance(placed, NoValidHost):
            return placed
        if (why := await _start(house, placed)) is None:
            return placed
        failed[placed.host] = why


async def boot_all(house: House, orders: Sequence[Order], *, only: str | None = None) -> list[Placed | NoValidHost]:
    """Bring several machines onto hosts. All of them are booked before any is started, or none is; one whose start fails goes
    on by itself."""
    booked = await _book_all(house, orders, only)
    if isinstance(booked, NoValidHost):
        return [booked] * len(orders)
    out: list[Placed | NoValidHost] = []
    for placed in booked:
        why = await _start(house, placed)
        out.append(placed if why is None else await boot(house, placed.order, only=only, passed={placed.host: why}))
    return out


async def _start(house: House, placed: Placed) -> PciRejection | None:
    """Hand over and start; how that failed, with everything given back."""
    try:
        await house.prepare(placed)
        await house.start(placed)
    except OutfitterError as error:
        await house.release(placed.host, placed.order.uid)
        return PciRejection(Rejection.of(RejectionCode.PAGE_CONFLICT, message=f"it was tried and failed: {error.message}"))
    return None


async def _look(house: House, only: str | None) -> list[tuple[PublishedHost, HostState]]:
    """The hosts that may be, best first."""
    seen = {each.name: (each, each.at(page)) for each, page in await house.look() if only in (None, each.name)}
    return [seen[host.name] for host in pci_allocator.by_weight(host for _, host in seen.values())]


async def _book(house: House, order: Order, only: str | None, passed: Mapping[str, PciRejection]) -> Placed | NoValidHost:
    refusals: list[tuple[str, PciRejection]] = []
    for _ in range(TRIES):
        refusals, beaten = [], False
        for offer, host in await _look(house, only):
            if host.name in passed:
                refusals.append((host.name, passed[host.name]))
                continue
            verdict: PciAllocation | PciRejection | Placed = pci_allocator.choose(host, order.ask)
            if isinstance(verdict, PciAllocation):
                verdict = await _book_on(house, offer, order)
                beaten = beaten or verdict is BEATEN
            if isinstance(verdict, Placed):
                return verdict
            refusals.append((host.name, verdict))
        if not beaten:
            break
    return pci_allocator.nowhere(refusals)


async def _book_on(house: House, offer: PublishedHost, order: Order) -> Placed | PciRejection:
    """Choose and book on one host in one step."""
    chosen: list[PciAllocation] = []

    def change(page: Page) -> Object:
        verdict = pci_allocator.choose(offer.at(page), order.ask)
        if isinstance(verdict, PciRejection):
            raise rejection_text.error(Unsatisfiable, verdict.rejection)
        chosen[:] = [verdict]
        return page.holding(bookings(order, verdict), offer.limits)

    try:
        await house.change(offer.name, change)
    except (Conflict, AlreadyExists, Unsatisfiable):
        return BEATEN
    except TooLarge as error:
        return PciRejection(Rejection.of(RejectionCode.PAGE_CONFLICT, message=error.message))
    return Placed(order, chosen[0])


async def _book_all(house: House, orders: Sequence[Order], only: str | None) -> list[Placed] | NoValidHost:
    for _ in range(TRIES):
        seen = await _look(house, only)
        plan = pci_allocator.pick_all([host for _, host in seen], [order.ask for order in orders])
        if isinstance(plan, NoValidHost):
            return plan
        offers = {offer.name: offer for offer, _ in seen}
        booked: list[Placed] = []
        verdict: Placed | PciRejection = BEATEN
        try:
            for order, choice in zip(orders, plan, strict=True):
                verdict = await _book_on(house, offers[choice.host], order)
                if isinstance(verdict, PciRejection):
                    break
                booked.append(verdict)
        finally:
            if len(booked) < len(orders):
                for placed in booked:
                    await house.release(placed.host, placed.order.uid)
        if len(booked) == len(orders):
            return booked
        if isinstance(verdict, PciRejection) and verdict is not BEATEN:
            return pci_allocator.nowhere([(plan[len(booked)].host, verdict)])
    return NoValidHost("no valid host: others were faster every time; try again")
