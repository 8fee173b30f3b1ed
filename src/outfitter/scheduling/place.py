"""A host for a pod and devices for its claims, or why it waits: the short sentence first, then what stands in the way of each
host and each device."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from outfitter import cel
from outfitter.api import allocation, machine
from outfitter.api.device import DeviceId, newest_pools
from outfitter.api.kinds import Object
from outfitter.api.page import MARKS, Booking, Limits, Page
from outfitter.cel import quantity
from outfitter.errors import Invalid
from outfitter.scheduling.pick import Candidate, Choice, Refusal, pick
from outfitter.scheduling.request import Classes, Request, compile_claim

Claims = Callable[[str, str], Object | None]  # namespace, name -> ResourceClaim
CounterSet = tuple[str, str, str]  # driver, pool, name
KEEPS_AWAY = ("NoSchedule", "NoExecute")  # effects of a taint


@dataclass(frozen=True, slots=True)
class Waiting:
    """Nothing was chosen. `summary` is the one sentence; `hosts` has one refusal for each host."""

    summary: str
    hosts: tuple[tuple[str, Refusal], ...] = ()

    def lines(self) -> list[str]:
        """The long answer, for people: what each host says stands below, so the first line need not say it too."""
        out = [f"0/{len(self.hosts)} hosts are available" if self.hosts else self.summary]
        for host, refusal in self.hosts:
            out.append(f"  {host}: {refusal.summary}")
            out += [f"    {detail}" for detail in refusal.details]
        return out


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a pod goes and which devices its claims get there."""

    host: str
    claims: tuple[tuple[Object, Choice], ...]
    amounts: Mapping[DeviceId, dict[str, Any]] = field(default_factory=dict)  # how much of each device that is
    limits: Limits = field(default_factory=Limits)  # what was published to be counted against


class Inventory:
    """What is published and what is held, at one moment."""

    def __init__(self, slices: Iterable[Mapping[str, Any]], pages: Iterable[Page], nodes: Sequence[Object]) -> None:
        self.nodes = nodes
        self._held: dict[DeviceId, Booking] = {}
        self._marks: dict[DeviceId, str] = {}
        for page in pages:
            self._held |= {booking.device: booking for booking in page.bookings if booking.counted}
            self._marks |= {mark.device: f"{which} since {mark.since}{f': {mark.reason}' if mark.reason else ''}"
                            for which in MARKS for mark in page.marks(which)}
        self._candidates: dict[str, list[Candidate]] = {}
        self._counters: dict[CounterSet, Mapping[str, str]] = {}
        self._takers: dict[CounterSet, list[Candidate]] = {}
        for (driver, pool), parts in sorted(newest_pools(slices).items()):
            for part in parts:
                spec = part["spec"]
                for entry in spec.get("sharedCounters") or ():
                    self._counters[driver, pool, entry["name"]] = _amounts(entry["counters"])
                for device in spec.get("devices") or ():
                    candidate = _candidate(driver, pool, device)
                    self._candidates.setdefault(spec.get("nodeName", ""), []).append(candidate)
                    for name in candidate.takes:
                        self._takers.setdefault((driver, pool, name), []).append(candidate)

    def blocked(self, candidate: Candidate, taken: Collection[DeviceId] = ()) -> str | None:
        """Why a device is not to be had, beside those that are taken in the same decision; None if it is."""
        if booking := self._held.get(candidate.id):
            return f"held by {booking.holder} since {booking.since}"
        if mark := self._marks.get(candidate.id):
            return mark
        if candidate.taints:
            return f"tainted {', '.join(candidate.taints)}"
        for name, amounts in candidate.takes.items():
            if why := self._short(candidate, name, amounts, taken):
                return why
        return None

    def _short(self, candidate: Candidate, name: str, amounts: Mapping[str, str], taken: Collection[DeviceId]) -> str | None:
        """Which counter has too little left, and who has the rest of it."""
        place = (candidate.id.driver, candidate.id.pool, name)
        others = [other for other in self._takers[place] if other.id in self._held or other.id in taken]
        for counter, wanted in amounts.items():
            limit = self._counters.get(place, {}).get(counter)
            if limit is None:
                return f"takes {counter} of {name}, which is not published"
            try:
                used = sum((quantity.parse(other.takes[name].get(counter, "0")) for other in others), quantity.parse(wanted))
                enough = used <= quantity.parse(limit)
            except ValueError as error:
                return f"{counter} of {name} cannot be counted: {error}"
            if not enough:
                who = [f"{other.id.device}{f' by {self._held[other.id].holder}' if other.id in self._held else ''}"
                       for other in others]
                return f"excluded by {', '.join(who[:3])}{' and more' if len(who) > 3 else ''}, with which it shares {name}"
        return None

    def amount(self, device: DeviceId, node: str) -> dict[str, Any]:
        """How much of a device a booking of the whole of it takes."""
        takes = next((candidate.takes for candidate in self.candidates(node) if candidate.id == device), {})
        counters = {name: dict(amounts) for name, amounts in takes.items()}
        return {"whole": True, "counters": counters} if counters else {"whole": True}

    @property
    def limits(self) -> Limits:
        return Limits(counters=self._counters)

    def candidates(self, node: str) -> Sequence[Candidate]:
        return self._candidates.get(node, ())


def _candidate(driver: str, pool: str, device: Mapping[str, Any]) -> Candidate:
    name = DeviceId(driver, pool, device["name"])
    taints = tuple(taint["key"] for taint in device.get("taints") or () if taint.get("effect") in KEEPS_AWAY)
    takes = {entry["counterSet"]: _amounts(entry["counters"]) for entry in device.get("consumesCounters") or ()}
    try:
        return Candidate(name, cel.Device.from_slice(driver, device), "", taints, takes)
    except Invalid as error:
        return Candidate(name, None, error.message, taints, takes)


def _amounts(counters: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(each.get("value", "")) for name, each in counters.items()}


def place(pod: Object, claims: Claims, classes: Classes, inventory: Inventory) -> Placement | Waiting:
    """A host for a pod and devices for its claims that have none, or the reason why it waits."""
    wanted: list[tuple[Object, list[Request]]] = []
    fixed: set[str] | None = None  # the hosts that claims allocated earlier leave
    for name, claim_name in machine.claim_names(pod):
        claim = claims(pod["metadata"]["namespace"], claim_name) if claim_name else None
        if claim is None:
            return Waiting(_no_claim(pod, name, claim_name))
        if claim["metadata"].get("deletionTimestamp"):
            return Waiting(f"claim {claim_name} is being deleted")
        if any(claim is earlier for earlier, _ in wanted):
            continue  # two entries of the pod name the same claim
        given = (claim.get("status") or {}).get("allocation")
        if given:
            hosts = allocation.hosts(given)
            fixed = hosts if fixed is None else fixed & hosts
            if users := _strangers(claim, pod):
                return Waiting(f"claim {claim_name} is in use by {', '.join(users)}")
            continue
        try:
            wanted.append((claim, compile_claim(claim, classes)))
        except Invalid as error:
            return Waiting(f"claim {claim_name}: {error.message}")
    refusals: list[tuple[str, Refusal]] = []
    for node in inventory.nodes:
        host = node["metadata"]["name"]
        verdict = _unfit(node, pod, fixed) or _on(host, wanted, inventory)
        if isinstance(verdict, Refusal):
            refusals.append((host, verdict))
        else:
            amounts = {device: inventory.amount(device, host) for _, choice in verdict for _, device in choice.devices}
            return Placement(host, verdict, amounts, inventory.limits)
    return Waiting(_summary(refusals), tuple(refusals))


def _strangers(claim: Object, pod: Object) -> list[str]:
    """Who uses a claim besides this pod, when it may not be shared by pods of ours: a machine's devices are its own."""
    return [f"{user.get('resource', 'pods')[:-1]}/{user['name']}" for user in claim["status"].get("reservedFor") or ()
            if user.get("uid") != pod["metadata"].get("uid")]


def _on(
    host: str, wanted: Sequence[tuple[Object, list[Request]]], inventory: Inventory
) -> tuple[tuple[Object, Choice], ...] | Refusal:
    chosen: list[tuple[Object, Choice]] = []
    taken: dict[DeviceId, str] = {}
    for claim, requests in wanted:
        choice = pick(requests, inventory.candidates(host), inventory.blocked, taken)
        if isinstance(choice, Refusal):
            return choice
        taken.update((device, f"claim {claim['metadata']['name']} of the same pod") for _, device in choice.devices)
        chosen.append((claim, choice))
    return tuple(chosen)


def _unfit(node: Object, pod: Object, fixed: set[str] | None) -> Refusal | None:
    host, spec = node["metadata"]["name"], pod["spec"]
    if fixed is not None and host not in fixed:
        return Refusal(f"the devices that the pod's claims hold are on {', '.join(sorted(fixed)) or 'no common host'}")
    if (node.get("spec") or {}).get("unschedulable"):
        return Refusal("it takes no new pods (cordoned)")
    labels = node["metadata"].get("labels") or {}
    for key, value in (spec.get("nodeSelector") or {}).items():
        if labels.get(key) != value:
            return Refusal(f"nodeSelector wants {key}={value}; it has {labels.get(key, 'no such label')}")
    ready = next((entry for entry in (node.get("status") or {}).get("conditions") or () if entry["type"] == "Ready"), None)
    if ready is not None and ready.get("status") != "True":
        return Refusal(f"it is not ready: {ready.get('message') or ready.get('reason') or 'no reason given'}")
    return None


def _no_claim(pod: Object, name: str, claim_name: str | None) -> str:
    if claim_name:
        return f'claim "{claim_name}" (resourceClaims entry {name}) does not exist'
    entry = next(entry for entry in pod["spec"]["resourceClaims"] if entry["name"] == name)
    return f'claim {name} has not been made yet: is there a ResourceClaimTemplate "{entry.get("resourceClaimTemplateName")}"?'


def _summary(refusals: Sequence[tuple[str, Refusal]]) -> str:
    if not refusals:
        return "0/0 hosts are available: there is no host"
    first = "; ".join(f"{host}: {_short(refusal)}" for host, refusal in refusals[:3])
    more = f"; and {len(refusals) - 3} more" if len(refusals) > 3 else ""
    return f"0/{len(refusals)} hosts are available: {first}{more}"


def _short(refusal: Refusal) -> str:
    holders = [detail for detail in refusal.details if "held by" in detail]
    shown = f" ({'; '.join(holders[:2])}{'; ...' if len(holders) > 2 else ''})" if holders else ""
    return refusal.summary + shown
