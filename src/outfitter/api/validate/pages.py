"""The rules of LedgerPages, which hold for every writer: users, our controllers and the agents.

- A booking is added for a device that is published at that moment, on the page of its pool, that no other booking holds and
  that is in service. Only an agent adds one that is `prepared`: it found the device in use, published or not.
- A booking is removed when its holder is gone: its claim does not exist, or is deallocated in the same commit. One that is
  `prepared` leaves by way of `released`, which its host writes; without a node it leaves when no pod there uses it any more.
- Users change no booking, and remove none that is held or kept. They may change reservations and quarantine.
- A page is deleted when users may remove every booking on it.

What is held stays when it is no longer published. Called by admission, inside the transaction that writes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from outfitter.api import kinds
from outfitter.api.device import DeviceId
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import pod_claims, vm
from outfitter.api.ledger_page.booking import Booking, Key
from outfitter.api.ledger_page.page import Page, held_error, is_pool_page, pool_page
from outfitter.api.ledger_page.page_entries import UNKNOWN, raw_entries, read_bookings
from outfitter.api.validate import published_pool
from outfitter.api.validate.published_pool import PoolContent
from outfitter.api.write_request import WriteRequest
from outfitter.errors import AlreadyHeld, Cause, Conflict, Forbidden, Invalid, OutOfService

FEW = 3
ADDED_BY_USERS = 32  # bookings that a user may add in one write: each is compared with all others
BOOKINGS = "spec.bookings"


class PlacedBooking(NamedTuple):
    place: int  # in the list of bookings
    booking: Booking
    raw: Any


@dataclass(frozen=True, slots=True)
class BookingChanges:
    """How the bookings of a page change in a write; those that are not recognisable do not count."""

    added: tuple[PlacedBooking, ...]
    changed: tuple[tuple[Booking, Booking], ...]  # before and after
    removed: tuple[Booking, ...]


def check(change: WriteRequest, *, by_user: bool) -> Iterator[Cause]:
    """What is wrong with a new or changed page. Conflict: a write of our own relies on what has changed meanwhile."""
    meta = change.new["metadata"]
    if (owners := meta.get("ownerReferences")) and owners != _old(change)["metadata"].get("ownerReferences"):
        yield Cause("metadata.ownerReferences", "Forbidden: a page has no owner: it would be deleted with the owner",
                    "FieldValueForbidden")
    old, new = raw_entries(change.old, "bookings"), raw_entries(change.new, "bookings")
    if old != new:
        yield from (_user_causes if by_user else _own_causes)(change, _changes(old, new))
    if by_user:
        yield from _cleaned_while_held(change)
    if meta.get("deletionTimestamp") and not meta.get("finalizers"):
        deletable(change)


def deletable(change: WriteRequest) -> None:
    """Forbidden: the page records something that is held or kept."""
    page = Page(change.new)
    if reasons := _held(change, page.bookings):
        raise Forbidden(f'ledgerpages.outfitter.dev "{page.host}" is forbidden: what it records would be allocated twice '
                        f"without it: {_few(reasons)}")


# -- what a write changes


def _old(change: WriteRequest) -> Mapping[str, Any]:
    return change.old or {"metadata": {}}


def _changes(old: Sequence[Any], new: Sequence[Any]) -> BookingChanges:
    shorter = min(len(old), len(new))
    first = next((place for place in range(shorter) if _differ(old[place], new[place])), shorter)
    last = next((place for place in range(shorter - first) if _differ(old[-1 - place], new[-1 - place])), shorter - first)
    before, after = _placed(old, first, last), _placed(new, first, last)
    unmatched: dict[Key, list[PlacedBooking]] = {}
    for placed in before:
        unmatched.setdefault(placed.booking.key, []).append(placed)
    added: list[PlacedBooking] = []
    changed: list[tuple[Booking, Booking]] = []
    for placed in after:
        same = unmatched.get(placed.booking.key) or []
        had = next((each for each in same if each.raw == placed.raw), same[0] if same else None)
        if had is None:
            added.append(placed)
            continue
        same.remove(had)
        if had.raw != placed.raw:
            changed.append((had.booking, placed.booking))
    return BookingChanges(tuple(added), tuple(changed), tuple(each.booking for left in unmatched.values() for each in left))


def _differ(one: Any, other: Any) -> bool:
    return one is not other and bool(one != other)


def _placed(entries: Sequence[Any], first: int, last: int) -> list[PlacedBooking]:
    """The bookings without so many of the first and last entries."""
    found, _ = read_bookings({"metadata": {"name": ""}, "spec": {"bookings": entries[first:len(entries) - last]}})
    return [PlacedBooking(place, booking, raw) for place, entry in enumerate(found, first) for booking, raw in entry.alone()]


# -- our own writes


def _own_causes(change: WriteRequest, changes: BookingChanges) -> Iterator[Cause]:
    for before, after in changes.changed:
        if before.state == "prepared" and after.state == "booked":
            yield _forbidden(f"{_named(before)} is prepared, and its host has not released it")
    for booking in changes.removed:
        _check_released(change, booking)
    replaced = {booking.device for booking in changes.removed}
    moved = {booking.holder.uid for booking in changes.removed}
    added = [placed for placed in changes.added if placed.booking.state != "prepared"]  # else an agent found it in use
    pools = _pools(change, added)
    for _, booking, _ in added:
        if booking.device not in replaced and booking.holder.uid not in moved and (
                problem := _unpublished(change, booking, pools)):
            raise Conflict(f"{problem}: read again and retry")
    if added:
        _fits(change, added, pools)


def _check_released(change: WriteRequest, booking: Booking) -> None:
    """Conflict: a claim still has what is removed from the page."""
    if booking.holder.kind != kinds.RESOURCE_CLAIM.kind:
        return
    if booking.state == "prepared":
        raise Conflict(f"{_named(booking)} is prepared, and its host has not released it")
    if (claim := _claim(change, booking)) is not None and _allocated(claim, booking):
        raise Conflict(f"{_named(booking)} is still allocated to its claim: deallocate it in the same commit")


def _allocated(claim: Object, booking: Booking) -> bool:
    """Whether a claim has the device of a booking or, for resources of the host, any allocation."""
    try:
        if not booking.counted:
            return bool((claim.get("status") or {}).get("allocation"))
        return booking.device in {DeviceId(result["driver"], result["pool"], result["device"])
                                  for result in pod_claims.allocation_results(claim)}
    except (AttributeError, KeyError, TypeError):
        return False  # an allocation that cannot be read is none


# -- writes of users


def _user_causes(change: WriteRequest, changes: BookingChanges) -> Iterator[Cause]:
    if changes.changed:
        yield _forbidden(f"{_few([_named(before) for before, _ in changes.changed])}: only Outfitter changes a booking")
    if reasons := _held(change, changes.removed):
        yield _forbidden(_few(reasons))
    if len(changes.added) > ADDED_BY_USERS:
        yield _forbidden(f"{len(changes.added)} bookings are added at once: at most {ADDED_BY_USERS}")
        return
    pools, wrong, page = _pools(change, changes.added), False, change.new["metadata"]["name"]
    hardware = published_pool.hardware(change, {(booking.device, booking.node or page) for _, booking, _ in changes.added})
    for place, booking, _ in changes.added:
        for field, problem in _user_added(change, booking, pools, hardware[booking.device, booking.node or page]):
            wrong = True
            yield _forbidden(problem, f"{BOOKINGS}[{place}]{field}")
    if changes.added and not wrong:
        try:
            _fits(change, changes.added, pools)
        except (AlreadyHeld, OutOfService, Invalid) as error:
            yield _forbidden(error.message)


def _user_added(
    change: WriteRequest, booking: Booking, pools: Mapping[tuple[str, str], PoolContent], hardware: tuple[str, ...]
) -> Iterator[tuple[str, str]]:
    """What is wrong with a booking that a user adds, of a device that is this hardware: the field of it, and the problem."""
    holder = booking.holder
    if booking.state != "booked":
        yield ".state", f'a new booking is "booked": only the host makes it {booking.state}'
    if holder.kind != kinds.RESOURCE_CLAIM.kind:
        yield ".holder.kind", f"{holder.kind}: only a {kinds.RESOURCE_CLAIM.kind} can be booked for by hand"
    elif _claim(change, booking) is None:
        yield ".holder", f"claim {holder.namespace}/{holder.name} with uid {holder.uid} does not exist"
    if problem := _unpublished(change, booking, pools):
        yield ".device", problem
    elif booking.counted and booking.hardware != hardware:
        yield ".hardware", f"must be what its driver publishes: {list(hardware)}"


@dataclass(frozen=True, slots=True)
class BookedNode:
    """A node on which bookings are prepared, as a write finds it."""

    gone: bool
    alive: tuple[str, ...]  # pods that have not ended; read only if the node is gone


def _node(change: WriteRequest, node: str) -> BookedNode:
    if is_pool_page(node) or change.look(kinds.NODE, "", node) is not None:
        return BookedNode(gone=False, alive=())
    pods = [stored.object() for stored in change.indexed(kinds.POD, node)]
    return BookedNode(gone=True, alive=tuple(
        pod["metadata"]["name"] for pod in pods if (pod.get("status") or {}).get("phase") not in vm.FINAL))


def _held(change: WriteRequest, bookings: Iterable[Booking]) -> list[str]:
    """Why a user may not remove bookings, and what frees each. A node and its pods are read once for all."""
    nodes: dict[str, BookedNode] = {}
    reasons: list[str] = []
    for booking in bookings:
        name = booking.node or change.new["metadata"]["name"]
        if name not in nodes:
            nodes[name] = _node(change, name)
        if reason := _held_by(change, booking, name, nodes[name]):
            reasons.append(reason)
    return reasons


def _held_by(change: WriteRequest, booking: Booking, name: str, node: BookedNode) -> str:
    """Why a user may not remove a booking of a node, and what frees it; "": it may be removed."""
    holder = booking.holder
    if holder.kind == UNKNOWN:
        return ""
    if holder.kind != kinds.RESOURCE_CLAIM.kind:
        return "" if node.gone else f"{_named(booking)} is held; its host releases it when the domain has ended"
    if booking.state != "prepared":
        kept = "kept" if booking.state == "released" else "held"
        return "" if _claim(change, booking) is None else (
            f"{_named(booking)} is {kept}; to free it: kubectl delete resourceclaim {holder.name} -n {holder.namespace}")
    if not node.gone:
        return (f"{_named(booking)} is prepared; to free it, delete the VM or the claim that holds it, or, if the host is "
                f"gone for good: kubectl delete node {name}")
    if node.alive:
        return (f"{_named(booking)} is prepared, and pods of {name} have not ended: {_few(node.alive)}; they end 40 s after "
                "their node was deleted")
    return ""


def _cleaned_while_held(change: WriteRequest) -> Iterator[Cause]:
    """A device that is used once is not clean while it is held."""
    if raw_entries(change.old, "unclean") == raw_entries(change.new, "unclean"):
        return
    before, after = Page(change.old or change.new), Page(change.new)
    for device in sorted({record.device for record in before.unclean} - {record.device for record in after.unclean}):
        for booking in after.on(device):
            yield _forbidden(f"{_named(booking)} is held, and not clean until it is free; then: outfit device clear "
                             f"{device.short}", "spec.unclean")


# -- what holds for all added bookings


def _pools(change: WriteRequest, added: Sequence[PlacedBooking]) -> dict[tuple[str, str], PoolContent]:
    names = {(placed.booking.device.driver, placed.booking.device.pool) for placed in added}
    return {(driver, pool): published_pool.read(change, driver, pool) for driver, pool in names}


def _unpublished(
    change: WriteRequest, booking: Booking, pools: Mapping[tuple[str, str], PoolContent]
) -> str:
    """Why a device cannot be booked on this page; "": its driver publishes it, and this is its page."""
    if "resources" in booking.amount and not booking.counted:
        return ""  # of the host itself
    device, page = booking.device, change.new["metadata"]["name"]
    pool = pools[device.driver, device.pool]
    if not pool.publishes(device.device):
        return f"{device} is not published"
    return "" if pool.page == page else f"{device} is booked on page {pool.page}, not on {page}"


def _fits(
    change: WriteRequest, added: Sequence[PlacedBooking], pools: Mapping[tuple[str, str], PoolContent]
) -> None:
    """AlreadyHeld, OutOfService, Invalid: by the page's own rules, or because another page has the device."""
    places = {placed.place for placed in added}
    entries = [raw for place, raw in enumerate(raw_entries(change.new, "bookings")) if place not in places]
    rest = Page({**change.new, "spec": {**change.new["spec"], "bookings": entries}})
    keys = Counter([booking.key for booking in rest.bookings] + [placed.booking.key for placed in added])
    others: dict[str, Page | None] = {}  # each is read once
    for _, booking, _ in added:
        if keys[booking.key] > 1:
            raise Invalid(f"{_named(booking)} is booked twice")
        device = booking.device
        for name in {pool_page(device.driver, device.pool), device.pool, booking.node} - {rest.host, ""}:
            if name not in others:
                other = change.look(kinds.LEDGER_PAGE, "", name)
                others[name] = Page(other) if other is not None else None
            page = others[name]
            for taken in page.on(device) if page is not None else ():
                if taken.clashes(booking):
                    raise held_error(taken)
    rest.holding([placed.booking for placed in added], published_pool.limits(pools.values()))


def _claim(change: WriteRequest, booking: Booking) -> Object | None:
    """The claim that holds a booking, if it exists."""
    claim = change.look(kinds.RESOURCE_CLAIM, booking.holder.namespace, booking.holder.name)
    return claim if claim is not None and claim["metadata"].get("uid") == booking.holder.uid else None


def _named(booking: Booking) -> str:
    return f"{booking.device.device} for {booking.holder}"


def _few(texts: Sequence[str]) -> str:
    return ", ".join(texts[:FEW]) + (f" and {len(texts) - FEW} more" if len(texts) > FEW else "")


def _forbidden(message: str, field: str = BOOKINGS) -> Cause:
    return Cause(field, f"Forbidden: {message}", "FieldValueForbidden")
