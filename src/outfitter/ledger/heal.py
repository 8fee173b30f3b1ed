"""A page brought together with what the machines on its host really have. What runs is never touched: the page follows it.

`heal` is the decision, a value from values; `heal_page` writes it. The rules, in the order in which they are applied:

- A device booked for a domain (a machine that nobody booked for) whose domain no longer has it is free again; when the
  consumer of that domain, or a claim of it, is known by now, the device is theirs.
- A consumer that has devices of a provider has exactly those of it. One that has none of a provider keeps what was booked:
  it may be about to start.
- A device that a machine has is booked for it, and what a consumer's machine has is prepared. Who had it booked without
  having it goes to a free device of the same provider when it is a consumer; otherwise both stand on the page, and the fence
  at prepare lets only one start.
- A device for one use that anybody holds must be cleaned before the next."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from outfitter.api.device import DeviceId
from outfitter.api.kinds import Object
from outfitter.api.page import DOMAIN, MARKS, Booking, Holder, Key, Page
from outfitter.ledger import book, history
from outfitter.store.base import Store

CONSUMER = "Consumer"


@dataclass(frozen=True, slots=True)
class AttachedDevice:
    """A device that a machine on this host really has."""

    device: DeviceId
    holder: Holder  # for whom it is booked when nobody did
    uids: frozenset[str] = frozenset()  # under which it may be booked: the machine's claims, its consumer

    @property
    def names(self) -> frozenset[str]:
        return self.uids | {self.holder.uid}


@dataclass(frozen=True, slots=True)
class HealedPage:
    object: Object  # the very object of the page when nothing was wrong
    findings: tuple[str, ...]  # what was wrong, for a log
    how: Mapping[Key, str] = field(default_factory=dict)  # why bookings left the page


def heal(
    page: Page, found: Sequence[AttachedDevice], *, group: Mapping[DeviceId, str], once: Collection[DeviceId], now: str
) -> HealedPage:
    """The page as it should be, given what the machines have. `group` names the provider of each device of the host, `once`
    are the devices for one use."""
    work = _Work(page, found, group, now)
    work.settle_domains()
    work.settle_consumers()
    work.book_found()
    work.displace()
    work.use_up(once)
    return HealedPage(work.page.object, tuple(work.findings), work.how)


async def heal_page(
    store: Store, host: str, found: Sequence[AttachedDevice], *, group: Mapping[DeviceId, str], once: Collection[DeviceId] = (),
    now: str = "",
) -> HealedPage:
    """Heal the page of a host in the store, again whenever somebody else was faster; what was done."""
    moment = now or history.clock_time(store)
    last: list[HealedPage] = []

    def change(page: Page) -> Object:
        last[:] = [heal(page, found, group=group, once=once, now=moment)]
        return last[0].object

    await book.change_page(store, host, change, now=moment, how=lambda booking: last[0].how.get(booking.key, history.GONE))
    return last[0]


class _Work:
    """A page on the way to being healed: each step replaces it by a better one and says what it found."""

    def __init__(self, page: Page, found: Sequence[AttachedDevice], group: Mapping[DeviceId, str], now: str) -> None:
        self.page, self.findings, self.how = page, list[str](), dict[Key, str]()
        self._group, self._now = group, now
        self._request_of: dict[tuple[str, str], str] = {}  # (consumer, provider) -> what its bookings there answer
        merged: dict[tuple[DeviceId, str], AttachedDevice] = {}  # a machine that is named twice is one
        for each in found:
            place = each.device, each.holder.uid
            merged[place] = replace(each, uids=each.uids | merged[place].uids) if place in merged else each
        self._found = list(merged.values())
        self._have: dict[DeviceId, list[AttachedDevice]] = defaultdict(list)
        for each in self._found:
            self._have[each.device].append(each)
        self._known = {booking.holder.uid for booking in page.bookings if booking.holder.kind != DOMAIN}

    def settle_domains(self) -> None:
        for booking in [one for one in self.page.bookings if one.holder.kind == DOMAIN]:
            what = f"{booking.device.short} was booked for {booking.holder}"
            owner = next((each for each in self._have.get(booking.device, ()) if booking.holder.uid in each.names), None)
            if owner is None:
                self._drop(booking, history.GONE)
                self._say(f"{what}, which no longer has it: it is free again")
            elif others := [one for one in self._booked(owner) if one.key != booking.key]:
                self._drop(booking, f"moved to {others[0].holder}")
                self._say(f"{what} and for {others[0].holder}, which is the same machine: once is enough")
            elif (holder := self._adopted(owner)).kind != DOMAIN:
                self._turn(booking, replace(booking, holder=holder, request=self._request(owner)))
                self._say(f"{what}, which is known as {holder} by now")

    def settle_consumers(self) -> None:
        has: dict[tuple[str, str], set[DeviceId]] = defaultdict(set)
        for each in self._found:
            if each.holder.kind == CONSUMER and each.device in self._group:
                has[each.holder.uid, self._group[each.device]].add(each.device)
        for booking in [one for one in self.page.bookings if one.holder.kind == CONSUMER and one.counted]:
            place = booking.holder.uid, self._group.get(booking.device, "")
            if place in has and not any(booking.holder.uid in each.names for each in self._have.get(booking.device, ())):
                self._request_of.setdefault(place, booking.request)
                self._drop(booking, history.GONE)
                self._say(f"{booking.device.short} was booked for {booking.holder}, which has "
                          f"{_list(has[place])} of {place[1]} and not this one: it is free again")

    def book_found(self) -> None:
        for each in self._found:
            if not self._booked(each):
                holder = self._adopted(each)
                self._add(Booking(each.device, holder, self._request(each), "prepared", self._now, prepared=self._now))
                self._say(f"{each.device.short} is in use by {holder} and was not booked for it: it is now")
            for booking in self._booked(each):
                if booking.holder.kind == CONSUMER and booking.state != "prepared":  # its machine was not started by us
                    self._turn(booking, replace(booking, state="prepared", prepared=booking.prepared or self._now))

    def displace(self) -> None:
        for device, owners in self._have.items():
            real = frozenset[str]().union(*(each.names for each in owners))
            mine = next(one for one in self.page.on(device) if one.holder.uid in real)
            for booking in [one for one in self.page.on(device) if one.holder.uid not in real and one.clashes(mine)]:
                free = self._free(device) if booking.holder.kind == CONSUMER else None
                both = f"{device.short} is in use by {mine.holder} and booked for {booking.holder}"
                if free is not None:
                    self._turn(booking, replace(booking, device=free, state="booked", since=self._now or booking.since,
                                                prepared=""), f"moved to {free.short}")
                    self._say(f"{both}, which gets {free.short} in its place")
                elif booking.holder.kind == CONSUMER:
                    self._say(f"{both}, and no other device of {self._group.get(device, 'its provider')} is free: both stand "
                              "on the page until one lets go")
                else:
                    self._say(f"{both}, which cannot start with it: both stand on the page until one lets go")

    def use_up(self, once: Collection[DeviceId]) -> None:
        known = {mark.device for mark in self.page.unclean}
        used = {one.device: one for one in reversed(self.page.bookings) if one.counted and one.device in once}
        fresh = [one for device, one in used.items() if device not in known]
        if fresh:
            self.page = Page(book.record_used_once(self.page, fresh, self._now))
        for one in fresh:
            self._say(f"{one.device.short} is for one use and held by {one.holder}: it must be cleaned before anybody else "
                      "gets it")

    # -- asking

    def _booked(self, each: AttachedDevice) -> list[Booking]:
        return [one for one in self.page.on(each.device) if one.holder.uid in each.names]

    def _adopted(self, each: AttachedDevice) -> Holder:
        """For whom a found device is booked: a consumer only when the page knows it, so that nobody gets an allocation in
        Placement that Placement did not give."""
        if each.holder.kind == CONSUMER and each.holder.uid not in self._known:
            return replace(each.holder, kind=DOMAIN)
        return each.holder

    def _request(self, each: AttachedDevice) -> str:
        """A device in the place of another answers the same request."""
        place = each.holder.uid, self._group.get(each.device, "")
        return self._request_of.get(place) or next(
            (one.request for one in self.page.of(each.holder.uid) if self._group.get(one.device, "") == place[1]), "")

    def _free(self, device: DeviceId) -> DeviceId | None:
        """Another device of the same provider that nobody has booked (whoever has one has, by now) and nobody marked."""
        if device not in self._group:
            return None
        taken = {one.device for one in self.page.bookings} | {mark.device for which in MARKS for mark in self.page.marks(which)}
        return min((other for other, name in self._group.items()
                    if name == self._group[device] and other not in taken), default=None)

    # -- changing

    def _say(self, finding: str) -> None:
        self.findings.append(finding)

    def _drop(self, booking: Booking, how: str) -> None:
        self.how[booking.key] = how
        self.page = Page(self.page.leaving([booking.key]))

    def _turn(self, booking: Booking, new: Booking, how: str = "") -> None:
        """It becomes another; `how` it ended when that makes it one."""
        self.how[booking.key] = how
        self.page = Page(self.page.turning(booking.key, new))

    def _add(self, booking: Booking) -> None:
        self.page = Page(self.page.adding(booking))


def _list(devices: Collection[DeviceId]) -> str:
    return ", ".join(sorted(device.short for device in devices))
