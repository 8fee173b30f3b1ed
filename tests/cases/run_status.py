"""Area status: the given objects are there, the controllers run to rest, and the VM's status is compared."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from outfitter import app
from outfitter.api import kinds
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import device_status, vm
from tests.cases.case import Case
from tests.cases.case_product import Api, Faults, NotDriven, case_scenario, contains

# What outfitter's status says of a device besides what the cases know; compared only where a case names it.
BESIDES = ("driver", "pool", "product")
DEVICES_READY = "DevicesReady"
WAITING = (DEVICES_READY, "PodScheduled", "Synchronized")


async def run(case: Case) -> list[str]:
    given = list(case.data["given"])
    target = next(obj for obj in given if obj["kind"] == kinds.VMI.kind)
    writes, faults = 0, Faults()
    async with case_scenario() as place:
        try:
            async with place.product(controllers=False) as (product, api):
                await place.load(product, api, case.config, given)
            with faults:
                for _ in range(int(case.config.get("reconciles", 1))):  # each start looks at everything again
                    async with place.product() as (product, api):
                        before, since = await api.read(target), product.store.revision
                        await product.settle()
                        writes += await _device_writes(product, before, since)
                        instance = await api.read(target)
                        events = await _warnings(api, instance)
        except NotDriven as error:
            return [str(error), *place.notes]
        wrong = [*compare(case.expect, instance, writes, events), *faults.said]
        if case.expect.get("orError") and (events or _waits(instance)):
            wrong = faults.said
        return wrong and [*wrong, *place.notes]


def compare(expect: Mapping[str, Any], instance: Object, writes: int, events: list[Object]) -> list[str]:
    status, wrong = instance.get("status") or {}, []
    have = status.get("deviceStatus")
    if "deviceStatus" in expect:
        wanted = _spelled(expect["deviceStatus"])
        shown = _spelled(have) if _names_besides(wanted) else _without_besides(_spelled(have))
        for entry in [*_entries(wanted), *_entries(shown)]:  # no attributes yet: nothing in it, or not there
            entry["attributes"] = entry.get("attributes") or {}
        wanted = {list_: entries for list_, entries in (wanted or {}).items() if entries}
        if (shown or None) != (wanted or None):
            wrong.append(f"deviceStatus: expected {json.dumps(wanted)}, it is {json.dumps(shown)}")
    unwanted = expect.get("deviceStatusNotContains", [])
    wrong += [f"deviceStatus contains {each}: {json.dumps(have)}" for each in (
        unwanted if isinstance(unwanted, list) else [unwanted]) if str(each) in json.dumps(have)]
    if "ready" in expect and expect["ready"] != (missing := device_status.missing_devices(instance) == []):
        wrong.append(f"ready: {expect['ready']} was expected, it is {missing}; conditions: {_said(status)}")
    if "patchesAtMost" in expect and writes > expect["patchesAtMost"]:
        wrong.append(f"patchesAtMost: {expect['patchesAtMost']}, there were {writes}")
    if "retried" in expect and expect["retried"] != _waits(instance):
        wrong.append(f"retried: {expect['retried']} was expected; phase {status.get('phase')}, conditions: {_said(status)}")
    if "warningEvent" in expect and not _warned(expect["warningEvent"], events):
        wrong.append(f"warningEvent: {expect['warningEvent']} was expected; there are: {[_line(event) for event in events]}")
    return wrong  # `crashes: false` needs no word here: a fault fails every case


def _warned(wanted: Any, events: list[Object]) -> bool:
    """`true`: there is one; `false`: there is none; a text or a mapping: one that fits."""
    if isinstance(wanted, bool):
        return bool(events) == wanted
    if not isinstance(wanted, Mapping):
        return any(contains(_line(event), wanted) for event in events)
    return any(wanted.get("reason", event.get("reason")) == event.get("reason")
               and contains(event.get("message", ""), wanted.get("messageContains", "")) for event in events)


def _line(event: Object) -> str:
    return f"{event.get('reason')}: {event.get('message')}"


async def _warnings(api: Api, instance: Object) -> list[Object]:
    events = await api.list(kinds.EVENT, instance["metadata"]["namespace"])
    return [event for event in events if event.get("type") == "Warning"
            and event["involvedObject"].get("name") == instance["metadata"]["name"]]


async def _device_writes(product: app.Embedded, before: Object, since: int) -> int:
    """How often the VM was written for its devices: what its status says of them changed. Other events of its life (its
    phase, its pods) is not what the cases count."""
    meta = before["metadata"]
    last = (await product.store.get(kinds.VMI, meta["name"], meta["namespace"]))["metadata"]["resourceVersion"]
    count, old = 0, before
    if int(last) <= since:
        return 0
    async for event in product.store.watch(kinds.VMI, meta["namespace"], since=str(since)):
        if event.object["metadata"]["name"] != meta["name"]:
            continue
        count += _of_devices(event.object) != _of_devices(old)
        old = event.object
        if old["metadata"]["resourceVersion"] == last:
            break
    return count


def _of_devices(instance: Object) -> Any:
    status = instance.get("status") or {}
    return status.get("deviceStatus"), [each for each in status.get("conditions") or () if each["type"] == DEVICES_READY]


def _waits(instance: Object) -> bool:
    """It was not given up: not over, and it reports that it waits, for its devices or for what comes before them."""
    status = instance.get("status") or {}
    return status.get("phase") not in vm.FINAL and any(
        each["type"] in WAITING and each["status"] == "False" for each in status.get("conditions") or ())


def _said(status: Object) -> str:
    return "; ".join(f"{each['type']}={each['status']} {each.get('message', '')}".strip()
                     for each in status.get("conditions") or ()) or "none"


def _spelled(value: Any) -> Any:
    """mdevUUID and mDevUUID are one key."""
    if isinstance(value, Mapping):
        return {"mdevUUID" if key == "mDevUUID" else key: _spelled(inner) for key, inner in value.items()}
    return [_spelled(inner) for inner in value] if isinstance(value, list) else value


def _entries(status: Any) -> list[dict[str, Any]]:
    return [entry["deviceResourceClaimStatus"] for entries in (status or {}).values() for entry in entries or ()
            if entry.get("deviceResourceClaimStatus")]


def _names_besides(status: Any) -> bool:
    return any(key in entry for entry in _entries(status) for key in BESIDES)


def _without_besides(status: Any) -> Any:
    for entry in _entries(status):
        for key in BESIDES:
            entry.pop(key, None)
    return status
