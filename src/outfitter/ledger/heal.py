"""Reconciles a LedgerPage with the devices that the domains on its host have attached. Running domains are never touched: the
page is changed. Called by the host audit of the node agent.

`heal` decides (pure), `heal_page` writes. The rules, in the order in which they are applied:

- A booking records what its device is on the host now: addresses change when cards are added.
- A booking for a domain (a domain without a known consumer or claim) is dropped when the domain no longer has the device; when
  its consumer or claim is known by now, the booking becomes theirs.
- A consumer whose domain has devices of a provider has exactly those of that provider. With none of a provider, its bookings
  there are kept: the VM may be about to start.
- An attached device is booked for its holder, and a consumer's booking of an attached device is prepared. Another holder of
  that device is moved to a free device of the same provider when it is a consumer; otherwise both stay on the page, and the
  exclusive check at prepare lets only one start.
- A one-time-use device that is held is recorded as unclean."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from outfitter.api.device import DeviceId
from outfitter.api.kinds import Object
from outfitter.api.ledger_page.page import DOMAIN, OUT_OF_SERVICE_STATES, Booking, Holder, Key, Page
from outfitter.ledger import book, history
from outfitter.store.base import Store

CONSUMER = "Consumer"
NOTHING: Mapping[DeviceId, tuple[str, ...]] = {}


@dataclass(frozen=True, slots=True)
class AttachedDevice:
    """A device that a domain on this host has attached."""

    device: DeviceId
    holder: Holder  # the holder to book it for when it is not booked
    uids: frozenset[str] = frozenset()  # of the domain's claims and its consumer, under which it may be booked

    @property
    def names(self) -> frozenset[str]:
        return self.uids | {self.holder.uid}


@dataclass(frozen=True, slots=True)
class HealedPage:
    object: Object  # the same object as that of the page when nothing was wrong
    findings: tuple[str, ...]  # what was wrong, for the log
    how: Mapping[Key, str] = field(default_factory=dict)  # why bookings left the page


def heal(
    page: Page, found: Sequence[AttachedDevice], *, group: Mapping[DeviceId, str], once: Collection[DeviceId], now: str,
    hardware: Mapping[DeviceId, tuple[str, ...]] = NOTHING,
) -> HealedPage:
    """The corrected page, given the devices that are attached. `group` maps each device of the host to its provider, `once` are
    the one-time-use devices, `hardware` is what each device of the host is now."""
    work = _PageRepair(page, found, group, now, hardware)
    work.correct_hardware()
    work.drop_or_adopt_domains()
    work.drop_unattached_of_consumers()
    work.book_attached()
    work.move_displaced()
    work.record_used_once(once)
    return HealedPage(work.page.object, tuple(work.findings), work.how)


async def heal_page(
    store: Store, host: str, found: Sequence[AttachedDevice], *, group: Mapping[DeviceId, str], once: Collection[DeviceId] = (),
    now: str = "", hardware: Mapping[DeviceId, tuple[str, ...]] = NOTHING,
) -> HealedPage:
    """Heal the page of a host in the store, with retries on conflict; returns what was changed."""
    moment = now or history.clock_time(store)
    last: list[HealedPage] = []

    def change(page: Page) -> Object:
        last[:] = [heal(page, found, group=group, once=once, now=moment, hardware=hardware)]
        return last[0].object

    await book.change_page(store, host, change, now=moment, how=lambda booking: last[0].how.get(booking.key, history.GONE))
    return last[0]


class _PageRepair:
    """The page being corrected: each step replaces `page` and adds its findings."""

    def __init__(self, page: Page, found: Sequence[AttachedDevice], group: Mapping[DeviceId, str], now: str,
                 hardware: Mapping[DeviceId, tuple[str, ...]]) -> None:
        self._hardware = hardware
        self.page, self.findings, self.how = page, list[str](), dict[Key, str]()
        self._group, self._now = group, now
        self._request_of: dict[tuple[str, str], str] = {}  # (consumer, provider) -> request of its bookings there
        merged: dict[tuple[DeviceId, str], AttachedDevice] = {}  # entries of the same device and holder are merged
        for entry in found:
            key = entry.device, entry.holder.uid
            merged[key] = replace(entry, uids=entry.uids | merged[key].uids) if key in merged else entry
        self._attached = list(merged.values())
        self._by_device: dict[DeviceId, list[AttachedDevice]] = defaultdict(list)
        for attached in self._attached:
            self._by_device[attached.device].append(attached)
        self._known_uids = {booking.holder.uid for booking in page.bookings if booking.holder.kind != DOMAIN}

    def correct_hardware(self) -> None:
        """Addresses change when cards are added: a booking records what its device is now."""
        for booking in self.page.bookings:
            now = self._hardware.get(booking.device, booking.hardware)
            if booking.hardware and now and now != booking.hardware:
                self._replace(booking, replace(booking, hardware=now))
                self._report(f"{booking.device.short} is {', '.join(now)} now and not {', '.join(booking.hardware)}")

    def drop_or_adopt_domains(self) -> None:
        for booking in [booking for booking in self.page.bookings if booking.holder.kind == DOMAIN]:
            what = f"{booking.device.short} was booked for {booking.holder}"
            attached = self._by_device.get(booking.device, ())
            owner = next((candidate for candidate in attached if booking.holder.uid in candidate.names), None)
            if owner is None:
                self._drop(booking, history.GONE)
                self._report(f"{what}, which no longer has it: released")
            elif others := [other for other in self._bookings_of(owner) if other.key != booking.key]:
                self._drop(booking, f"moved to {others[0].holder}")
                self._report(f"{what} and for {others[0].holder}, which is the same VM: the first booking is dropped")
            elif (holder := self._holder_for(owner)).kind != DOMAIN:
                self._replace(booking, replace(booking, holder=holder, request=self._request(owner)))
                self._report(f"{what}, which is known as {holder} now")

    def drop_unattached_of_consumers(self) -> None:
        devices_of: dict[tuple[str, str], set[DeviceId]] = defaultdict(set)  # (consumer, provider) -> attached devices
        for attached in self._attached:
            if attached.holder.kind == CONSUMER and attached.device in self._group:
                devices_of[attached.holder.uid, self._group[attached.device]].add(attached.device)
        for booking in [booking for booking in self.page.bookings if booking.holder.kind == CONSUMER and booking.counted]:
            key = booking.holder.uid, self._group.get(booking.device, "")
            owners = self._by_device.get(booking.device, ())
            if key in devices_of and not any(booking.holder.uid in owner.names for owner in owners):
                self._request_of.setdefault(key, booking.request)
                self._drop(booking, history.GONE)
                self._report(f"{booking.device.short} was booked for {booking.holder}, which has "
                             f"{_list(devices_of[key])} of {key[1]} and not this one: released")

    def book_attached(self) -> None:
        for attached in self._attached:
            if not self._bookings_of(attached):
                holder, request = self._holder_for(attached), self._request(attached)
                self._add(Booking(attached.device, holder, request, "prepared", self._now, prepared=self._now,
                                  hardware=self._hardware.get(attached.device, ())))
                self._report(f"{attached.device.short} is in use by {holder} and was not booked for it: it is now")
            for booking in self._bookings_of(attached):
                if booking.holder.kind == CONSUMER and booking.state != "prepared":  # its VM was not started by us
                    self._replace(booking, replace(booking, state="prepared", prepared=booking.prepared or self._now))

    def move_displaced(self) -> None:
        for device, owners in self._by_device.items():
            owner_uids = frozenset[str]().union(*(owner.names for owner in owners))
            used = next(booking for booking in self.page.on(device) if booking.holder.uid in owner_uids)
            others = [booking for booking in self.page.on(device) if booking.holder.uid not in owner_uids]
            for booking in [booking for booking in others if booking.clashes(used)]:
                free = self._free(device) if booking.holder.kind == CONSUMER else None
                both = f"{device.short} is in use by {used.holder} and booked for {booking.holder}"
                if free is not None:
                    self._replace(booking, replace(booking, device=free, state="booked", since=self._now or booking.since,
                                                   prepared=""), f"moved to {free.short}")
                    self._report(f"{both}, which gets {free.short} instead")
                elif booking.holder.kind == CONSUMER:
                    self._report(f"{both}, and no other device of {self._group.get(device, 'its provider')} is free: both "
                                 "bookings are kept until one is released")
                else:
                    self._report(f"{both}, which cannot start with it: both bookings are kept until one is released")

    def record_used_once(self, once: Collection[DeviceId]) -> None:
        known = {record.device for record in self.page.unclean}
        held = [booking for booking in self.page.bookings if booking.counted and booking.device in once]
        used = {booking.device: booking for booking in reversed(held)}
        fresh = [booking for device, booking in used.items() if device not in known]
        if fresh:
            self.page = Page(book.record_used_once(self.page, fresh, self._now))
        for booking in fresh:
            self._report(f"{booking.device.short} is a one-time-use device held by {booking.holder}: it must be cleaned "
                         "before its next use")

    # -- reading

    def _bookings_of(self, attached: AttachedDevice) -> list[Booking]:
        return [booking for booking in self.page.on(attached.device) if booking.holder.uid in attached.names]

    def _holder_for(self, attached: AttachedDevice) -> Holder:
        """The holder to book an attached device for: a consumer only when the page knows it, so that no consumer gets an
        allocation that was not made in Placement."""
        if attached.holder.kind == CONSUMER and attached.holder.uid not in self._known_uids:
            return replace(attached.holder, kind=DOMAIN)
        return attached.holder

    def _request(self, attached: AttachedDevice) -> str:
        """The request of a booking: a device that replaces another one has its request."""
        uid, provider = attached.holder.uid, self._group.get(attached.device, "")
        return self._request_of.get((uid, provider)) or next(
            (booking.request for booking in self.page.of(uid) if self._group.get(booking.device, "") == provider), "")

    def _free(self, device: DeviceId) -> DeviceId | None:
        """Another device of the same provider that is neither booked (attached ones are by now) nor out of service."""
        if device not in self._group:
            return None
        taken = {booking.device for booking in self.page.bookings}
        taken |= {record.device for which in OUT_OF_SERVICE_STATES for record in self.page.records(which)}
        return min((other for other, name in self._group.items()
                    if name == self._group[device] and other not in taken), default=None)

    # -- changing

    def _report(self, finding: str) -> None:
        self.findings.append(finding)

    def _drop(self, booking: Booking, how: str) -> None:
        self.how[booking.key] = how
        self.page = Page(self.page.leaving([booking.key]))

    def _replace(self, booking: Booking, new: Booking, how: str = "") -> None:
        """Replace a booking; `how` the old one ended, for the history."""
        self.how[booking.key] = how
        self.page = Page(self.page.turning(booking.key, new))

    def _add(self, booking: Booking) -> None:
        self.page = Page(self.page.adding(booking))


def _list(devices: Collection[DeviceId]) -> str:
    return ", ".join(sorted(device.short for device in devices))
