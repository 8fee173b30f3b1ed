"""Why somebody waits, or what they have: the answer to `outfit why`, from objects as the store has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from outfitter.api import conditions, kinds, machine
from outfitter.api.kinds import Object
from outfitter.api.page import Booking, Page
from outfitter.scheduling.fit import Used
from outfitter.scheduling.index import Index
from outfitter.scheduling.place import Placement, place
from outfitter.scheduling.plugins import NOBODY, Plugins


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that an answer may need, read at about one moment."""

    instances: Sequence[Object]
    pods: Sequence[Object]
    claims: Sequence[Object]
    classes: Sequence[Object]
    slices: Sequence[Object]
    pages: Sequence[Object]
    nodes: Sequence[Object]
    plugins: Plugins = NOBODY

    def claim(self, namespace: str, name: str) -> Object | None:
        return _named(self.claims, namespace, name)

    def class_(self, name: str) -> Object | None:
        return _named(self.classes, "", name)

    def bookings(self, uid: str) -> list[tuple[str, Booking]]:
        return [(page.host, booking) for page in map(Page, self.pages) for booking in page.of(uid)]


def _named(objects: Sequence[Object], namespace: str, name: str) -> Object | None:
    return next((obj for obj in objects
                 if (obj["metadata"].get("namespace", ""), obj["metadata"]["name"]) == (namespace, name)), None)


def instance(facts: Facts, obj: Mapping[str, Any]) -> list[str]:
    meta, status = obj["metadata"], obj.get("status") or {}
    title = f"vmi/{meta['name']}"
    phase = status.get("phase") or "Pending"
    if meta.get("deletionTimestamp"):
        return [f"{title} is being deleted since {meta['deletionTimestamp']}; it waits for {_or(meta.get('finalizers'))}"]
    if phase == "Running":
        return [f"{title} runs on {status.get('nodeName')}", *_devices(obj)]
    if phase in machine.FINAL:
        return [f"{title} has {'ended' if phase == 'Succeeded' else 'failed'}{_because(obj, 'Ready')}"]
    mine = [pod for pod in facts.pods if (machine.owner(pod, kinds.INSTANCE.kind) or {}).get("uid") == meta["uid"]]
    if not mine:
        return [f"{title} has no pod yet{_because(obj, 'Synchronized')}"]
    answer = pod(facts, mine[-1])
    if mine[-1]["spec"].get("nodeName") and (lacking := machine.missing_devices(obj)):
        answer.append(f"  devices not known yet: {', '.join(lacking)}{_because(obj, 'DevicesReady')}")
    return [f"{title} is {phase}: {answer[0]}", *answer[1:]]


def pod(facts: Facts, obj: Mapping[str, Any]) -> list[str]:
    meta, status = obj["metadata"], obj.get("status") or {}
    title = f"pod/{meta['name']}"
    if node := obj["spec"].get("nodeName"):
        more = f": {status['message']}" if status.get("message") else ""
        return [f"{title} is on {node} and {status.get('phase', 'Pending')}{more}", *_held(facts, obj)]
    index = Index.of(facts.slices, map(Page, facts.pages), facts.nodes)
    verdict = place(dict(obj), facts.claim, facts.class_, index, Used(facts.pods), plugins=facts.plugins, everybody=True)
    if isinstance(verdict, Placement):
        return [f"{title} fits on {verdict.host} and is about to be given it"]
    lines = verdict.lines()
    return [f"{title} waits: {lines[0]}", *lines[1:]]


def claim(facts: Facts, obj: Mapping[str, Any]) -> list[str]:
    meta, status = obj["metadata"], obj.get("status") or {}
    title = f"claim {meta['name']}"
    if held := facts.bookings(meta["uid"]):
        return [f"{title} holds", *(f"  {_booking(host, booking)}" for host, booking in held)]
    if status.get("allocation"):
        results = (status["allocation"].get("devices") or {}).get("results") or ()
        return [f"{title} was promised {', '.join(result['pool'] + '/' + result['device'] for result in results)}; the page of "
                "the host does not say so yet"]
    users = [obj for obj in facts.pods if meta["name"] in
             [name for _, name in machine.claim_names(obj)] and obj["metadata"]["namespace"] == meta["namespace"]]
    if not users:
        return [f"{title} has no devices: no pod uses it, and devices are given when one does"]
    answer = pod(facts, users[0])
    return [f"{title} has no devices: {answer[0]}", *answer[1:]]


def _devices(obj: Mapping[str, Any]) -> list[str]:
    out = []
    for ref in machine.device_refs(obj):
        for entry in (entry for entry in machine.statuses(obj, ref.list) if entry.get("name") == ref.name):
            given, where = entry.get("deviceResourceClaimStatus") or {}, machine.address_of(entry)
            out.append(f"  {ref.name}: {given.get('name')} at {where[1] if where else 'an unknown place'} "
                       f"(claim {given.get('resourceClaimName')})")
    return out


def _held(facts: Facts, obj: Mapping[str, Any]) -> list[str]:
    out = []
    for _, name in machine.claim_names(obj):
        found = facts.claim(obj["metadata"]["namespace"], name) if name else None
        out += [f"  {_booking(host, booking)}" for host, booking in facts.bookings(found["metadata"]["uid"])] if found else []
    return out


def _booking(host: str, booking: Booking) -> str:
    return (f"{booking.device.device} on {host} for request {booking.request}: {booking.state} since {booking.since}"
            + (f", by {booking.holder.purpose}" if booking.holder.purpose else ""))


def _because(obj: Mapping[str, Any], type_: str) -> str:
    found = conditions.find(obj, type_)
    message = (found or {}).get("message") or (found or {}).get("reason")
    return f": {message}" if message else ""


def _or(names: Sequence[str] | None) -> str:
    return ", ".join(names) if names else "nothing"
