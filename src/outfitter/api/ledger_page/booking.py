"""The values on a LedgerPage: bookings (holder, device, amount) and out-of-service records (reserved, quarantined, unclean).
`page_entries` reads them from the lists of a page, `page.Page` reads and changes whole pages, `booking_limits` checks
amounts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from outfitter.api.device import DeviceId, are_partitions
from outfitter.api.kinds import Object

State = Literal["booked", "prepared", "released"]
OutOfServiceState = Literal["reserved", "quarantined", "unclean"]
# in this order: an error names the first state that a device has
OUT_OF_SERVICE_STATES: tuple[OutOfServiceState, ...] = ("reserved", "quarantined", "unclean")
DOMAIN = "Domain"  # holder kind of a running domain that was found on the host without a booking


@dataclass(frozen=True, slots=True)
class Holder:
    """The holder of a device: a claim, a Placement consumer, a migration, or a domain that was found to use it."""

    kind: str  # "ResourceClaim", "Consumer", "Migration", "Domain" (running on the host without a booking)
    namespace: str
    name: str
    uid: str
    purpose: str = ""  # for messages: "vmi/blue", the VMI or pod that uses the claim

    def __str__(self) -> str:
        what = f"{self.purpose} (claim {self.name})" if self.purpose else f"{self.kind} {self.name}"
        return f"{what} in {self.namespace}" if self.namespace else what

    def to_object(self) -> Object:
        whole = {"kind": self.kind, "namespace": self.namespace, "name": self.name, "uid": self.uid, "purpose": self.purpose}
        return {key: value for key, value in whole.items() if value}


class Key(NamedTuple):
    """Identifies a booking on a page."""

    device: DeviceId
    uid: str
    share: str  # shareID; "" for a whole device


@dataclass(frozen=True, slots=True)
class Booking:
    """One device, or a share of one, for one holder. `amount` is one of

    {"whole": true}                                        the device exclusively
    {"shareID": "...", "capacity": {"memory": "4Gi"}}      a share of its capacity
    {"resources": {"VCPU": 2}}                             a host's own resources: never conflicts; "cells": {"0": 2} is the
                                                           number of dedicated CPUs by NUMA cell, "cpus": {"0": [4, 5]}
                                                           which CPUs
    {"adminAccess": true}                                  admin access while others hold it: never conflicts

    and the first two may list the shared counters of the pool that they consume: "counters": {"<counter set>": {"<counter>":
    "1"}}."""

    device: DeviceId
    holder: Holder
    request: str  # the request of the holder's claim
    state: State
    since: str
    amount: dict[str, Any] = field(default_factory=lambda: {"whole": True})
    prepared: str = ""  # when the host first prepared it; "" before
    node: str = ""  # on a pool's page: the host that uses it; "" on a host's page
    hardware: tuple[str, ...] = ()  # PCI addresses or the UUID that the device is on its host (`device.hardware_of`), sorted;
                                    # empty: not known when it was booked or prepared
    contested: str = ""  # the device of the host that another claim was allocated, and that this one keeps from being prepared

    @property
    def key(self) -> Key:
        return Key(self.device, self.holder.uid, str(self.amount.get("shareID") or ""))

    @property
    def counted(self) -> bool:
        """Whether it holds a device: host resources and admin access do not."""
        return bool(self.amount.get("whole")) or not ("resources" in self.amount or self.amount.get("adminAccess"))

    @property
    def shared(self) -> bool:
        return not self.amount.get("whole") and ("capacity" in self.amount or "shareID" in self.amount)

    @property
    def cpus(self) -> list[int]:
        """Host CPUs that are dedicated to the holder."""
        return [cpu for cpus in (self.amount.get("cpus") or {}).values() for cpu in cpus]

    def clashes(self, other: Booking) -> bool:
        """Whether both cannot be on one page, whatever the amounts."""
        return (self.device == other.device and self.key != other.key and self.counted and other.counted
                and not (self.shared and other.shared))

    def common_hardware(self, other: Booking) -> tuple[str, ...]:
        """What both hold of one host, under two names; partitions of it do not count."""
        if not (self.hardware and other.hardware) or self.device == other.device or not (self.counted and other.counted):
            return ()
        if are_partitions(self.device, self.amount.get("counters") or (), other.device, other.amount.get("counters") or ()):
            return ()
        return tuple(key for key in self.hardware if key in other.hardware)

    def excludes(self, other: Booking) -> bool:
        """Whether one is the PF of the other's VF and only one of them was booked with the PF's counters: SR-IOV was switched
        on or off while the other was held. Where both have the counters, `booking_limits` counts them."""
        own, their = self.device, other.device
        if (own.driver, own.pool) != (their.driver, their.pool) or not (self.counted and other.counted):
            return False
        own_counters, their_counters = self.amount.get("counters") or {}, other.amount.get("counters") or {}
        return (their.device in own_counters and their.device not in their_counters) or (
            own.device in their_counters and own.device not in own_counters)

    def to_object(self) -> Object:
        out = {"device": device_object(self.device), "holder": self.holder.to_object(),
               "request": self.request, "state": self.state, "since": self.since, "amount": self.amount}
        more = (("prepared", self.prepared), ("node", self.node), ("hardware", list(self.hardware)),
                ("contested", self.contested))
        return out | {name: value for name, value in more if value}


@dataclass(frozen=True, slots=True)
class OutOfServiceRecord:
    """A device that is not allocated again: an entry of `reserved`, `quarantined` or `unclean`."""

    device: DeviceId
    reason: str
    by: str
    since: str
    origin: str = ""  # "placement": added and removed by the reserved count of a provider

    def to_object(self) -> Object:
        out = {"device": device_object(self.device), "reason": self.reason, "by": self.by, "since": self.since}
        return {**out, "origin": self.origin} if self.origin else out


@dataclass(frozen=True, slots=True)
class Limits:
    """Published limits: capacity of devices that may be shared, and shared counters of pools."""

    capacity: Mapping[DeviceId, Mapping[str, str]] = field(default_factory=dict)  # only devices that may be shared
    counters: Mapping[tuple[str, str, str], Mapping[str, str]] = field(default_factory=dict)  # (driver, pool, counter set)


def device_object(device: DeviceId) -> Object:
    return {"driver": device.driver, "pool": device.pool, "device": device.device}


def device_of(raw: Object) -> DeviceId:
    return DeviceId(raw["driver"], raw["pool"], raw["device"])


def holder_of(raw: Object) -> Holder:
    return Holder(raw["kind"], raw.get("namespace") or "", raw["name"], raw["uid"], raw.get("purpose") or "")


def booking_of(raw: Object) -> Booking:
    return Booking(device_of(raw["device"]), holder_of(raw["holder"]), raw.get("request") or "", raw["state"], raw["since"],
                   raw.get("amount") or {"whole": True}, raw.get("prepared") or "", raw.get("node") or "",
                   tuple(raw.get("hardware") or ()), raw.get("contested") or "")


def record_of(raw: Object) -> OutOfServiceRecord:
    return OutOfServiceRecord(device_of(raw["device"]), raw.get("reason") or "", raw.get("by") or "", raw.get("since") or "",
                raw.get("origin") or "")
