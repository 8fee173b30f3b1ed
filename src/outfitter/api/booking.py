"""What stands on a page of the ledger, as values: who holds which device, or how much of it, and what was taken out of
service."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from outfitter.api.device import DeviceId
from outfitter.api.kinds import Object

State = Literal["booked", "prepared", "released"]
OutOfServiceRecords = Literal["reserved", "quarantined", "unclean"]
MARKS: tuple[OutOfServiceRecords, ...] = ("reserved", "quarantined", "unclean")  # also the order in which a refusal names them
DOMAIN = "Domain"  # the kind of a holder that was found on the host and that nobody booked for


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a device: a claim, a Placement consumer, a migration, or a machine that was found to have it."""

    kind: str  # "ResourceClaim", "Consumer", "Migration", "Domain" (runs on the host, and nobody booked for it)
    namespace: str
    name: str
    uid: str
    purpose: str = ""  # for people: "vmi/blue", the machine or pod for which it is held

    def __str__(self) -> str:
        what = f"{self.purpose} (claim {self.name})" if self.purpose else f"{self.kind} {self.name}"
        return f"{what} in {self.namespace}" if self.namespace else what

    def to_object(self) -> Object:
        whole = {"kind": self.kind, "namespace": self.namespace, "name": self.name, "uid": self.uid, "purpose": self.purpose}
        return {key: value for key, value in whole.items() if value}


class Key(NamedTuple):
    """What tells bookings on a page apart."""

    device: DeviceId
    uid: str
    share: str  # "" for what is no share


@dataclass(frozen=True, slots=True)
class Booking:
    """One device, or a share of one, for one holder. `amount` is one of

    {"whole": true}                                        alone on the device
    {"shareID": "...", "capacity": {"memory": "4Gi"}}      beside others, while the capacity lasts
    {"resources": {"VCPU": 2}}                             a host's own resources: never in the way; "cells": {"0": 2} says how
                                                           many CPUs of which NUMA cell are the holder's alone, and
                                                           "cpus": {"0": [4, 5]} which
    {"adminAccess": true}                                  looks on while others have it: never in the way

    and the first two may say which of the pool's counters they use: "counters": {"<counter set>": {"<counter>": "1"}}."""

    device: DeviceId
    holder: Holder
    request: str  # which of the holder's requests it answers
    state: State
    since: str
    amount: dict[str, Any] = field(default_factory=lambda: {"whole": True})
    prepared: str = ""  # when the host handed it over; "" while it did not
    node: str = ""  # on the page of a pool: the host that uses it; on a host's page it is that host

    @property
    def key(self) -> Key:
        return Key(self.device, self.holder.uid, str(self.amount.get("shareID") or ""))

    @property
    def counted(self) -> bool:
        """It holds a device: a host's own resources do not, nor does whoever only looks on."""
        return bool(self.amount.get("whole")) or not ("resources" in self.amount or self.amount.get("adminAccess"))

    @property
    def shared(self) -> bool:
        return not self.amount.get("whole") and ("capacity" in self.amount or "shareID" in self.amount)

    @property
    def cpus(self) -> list[int]:
        """CPUs of the host that are the holder's alone."""
        return [cpu for cpus in (self.amount.get("cpus") or {}).values() for cpu in cpus]

    def clashes(self, other: Booking) -> bool:
        """Both cannot stand on one page, whatever the amounts."""
        return (self.device == other.device and self.key != other.key and self.counted and other.counted
                and not (self.shared and other.shared))

    def excludes(self, other: Booking) -> bool:
        """One is the card that the other is a part of, and was published without saying so: the parts were switched off, or on,
        while somebody had one. Where both say it their amounts are counted."""
        one, two = self.device, other.device
        if (one.driver, one.pool) != (two.driver, two.pool) or not (self.counted and other.counted):
            return False
        mine, theirs = self.amount.get("counters") or {}, other.amount.get("counters") or {}
        return (two.device in mine and two.device not in theirs) or (one.device in theirs and one.device not in mine)

    def to_object(self) -> Object:
        out = {"device": device_object(self.device), "holder": self.holder.to_object(),
               "request": self.request, "state": self.state, "since": self.since, "amount": self.amount}
        return out | {name: value for name, value in (("prepared", self.prepared), ("node", self.node)) if value}


@dataclass(frozen=True, slots=True)
class OutOfServiceRecord:
    """A device that nobody new gets: an entry of `reserved`, `quarantined` or `unclean`."""

    device: DeviceId
    reason: str
    by: str
    since: str
    origin: str = ""  # "placement": made from a provider's reserved count, and taken away by it

    def to_object(self) -> Object:
        out = {"device": device_object(self.device), "reason": self.reason, "by": self.by, "since": self.since}
        return {**out, "origin": self.origin} if self.origin else out


@dataclass(frozen=True, slots=True)
class Limits:
    """What was published: how much of each device, and how much of each counter that devices share."""

    capacity: Mapping[DeviceId, Mapping[str, str]] = field(default_factory=dict)  # a device that may be shared is in here
    counters: Mapping[tuple[str, str, str], Mapping[str, str]] = field(default_factory=dict)  # (driver, pool, counter set)


def device_object(device: DeviceId) -> Object:
    return {"driver": device.driver, "pool": device.pool, "device": device.device}


def device_of(raw: Object) -> DeviceId:
    return DeviceId(raw["driver"], raw["pool"], raw["device"])


def holder_of(raw: Object) -> Holder:
    return Holder(raw["kind"], raw.get("namespace") or "", raw["name"], raw["uid"], raw.get("purpose") or "")


def booking_of(raw: Object) -> Booking:
    return Booking(device_of(raw["device"]), holder_of(raw["holder"]), raw.get("request") or "", raw["state"], raw["since"],
                   raw.get("amount") or {"whole": True}, raw.get("prepared") or "", raw.get("node") or "")


def record_of(raw: Object) -> OutOfServiceRecord:
    return OutOfServiceRecord(device_of(raw["device"]), raw.get("reason") or "", raw.get("by") or "", raw.get("since") or "",
                raw.get("origin") or "")
