"""What happened to VMs on a control plane, as a watching client saw it: when each came to run, and whether anything was done
twice. Used by tests and by benchmarks; needs no pytest:

    async with ClusterWatch(store) as seen:
        ...
        await seen.until(lambda: len(seen.running) == 20, "20 VMs run")
        assert seen.twice() == []
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self

from outfitter.api import kinds
from outfitter.api.device import DeviceId
from outfitter.api.kinds import Kind, Object
from outfitter.api.ledger_page.page import Page
from outfitter.errors import Expired
from outfitter.store.base import Store

PATIENCE = 1800.0  # seconds after which something that should have happened has failed
OWNERS = {kinds.VMI: "VirtualMachine", kinds.POD: "VirtualMachineInstance", kinds.RESOURCE_CLAIM: "Pod"}


class ClusterWatch:
    """Objects that are created in a namespace after it was entered. Times are this process's, in seconds (`time.monotonic`):
    of the arrival of a watch event."""

    def __init__(self, store: Store, namespace: str = "default") -> None:
        self._store, self._namespace = store, namespace
        self.running: dict[str, float] = {}  # VMI -> when it was seen in phase Running
        self.with_devices: dict[str, float] = {}  # VMI -> when its status was seen with its devices
        self.bound: dict[str, float] = {}  # pod -> when it was seen with a node
        self.allocated: dict[str, float] = {}  # claim -> when it was seen with an allocation
        self.live: dict[Kind, dict[str, Object]] = {kind: {} for kind in OWNERS}  # by name
        self._made: dict[Kind, dict[str, set[str]]] = {kind: defaultdict(set) for kind in OWNERS}  # owner -> uids
        self._owner: dict[Kind, dict[str, str]] = {kind: {} for kind in OWNERS}  # object -> name of its owner
        self._states: dict[tuple[str, str], set[str]] = defaultdict(set)  # kind and uid -> devices that it was seen with
        self._changed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        for kind in OWNERS:
            since = (await self._store.list(kind, self._namespace, limit=1)).revision
            self._tasks.append(asyncio.create_task(self._watch(kind, since)))
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def until(self, check: Callable[[], bool], what: str, patience: float = PATIENCE) -> None:
        """After each event, until the answer is true."""
        try:
            async with asyncio.timeout(patience):
                while not check():
                    self._changed.clear()
                    changed = asyncio.create_task(self._changed.wait())
                    await asyncio.wait([changed, *self._tasks], return_when=asyncio.FIRST_COMPLETED)
                    changed.cancel()
                    for task in self._tasks:
                        if task.done():
                            await task  # raises what ended it: nothing more will be seen
        except TimeoutError:
            raise TimeoutError(f"not within {patience:g} s: {what}") from None

    def device_status_lags(self) -> list[float]:
        """Seconds from a claim's allocation to the device status of its VMI, per VMI; negative values are the difference
        between two watches."""
        pods, vmis = self._owner[kinds.RESOURCE_CLAIM], self._owner[kinds.POD]
        last: dict[str, float] = {}
        for claim, when in self.allocated.items():
            vmi = vmis.get(pods.get(claim, ""), "")
            last[vmi] = max(when, last.get(vmi, when))
        return [self.with_devices[vmi] - when for vmi, when in last.items() if vmi in self.with_devices]

    def twice(self) -> list[str]:
        """What was done twice: a second VMI of a VM, a second launcher pod of a VMI, a second claim of a pod, a claim or VMI
        whose devices changed, a device of two claims."""
        more = [f"{kind.plural} of {owner}: {len(uids)} were created" for kind, owners in self._made.items()
                for owner, uids in owners.items() if len(uids) > 1]
        more += [f"{kind} {uid} had several devices one after the other: {sorted(states)}"
                 for (kind, uid), states in self._states.items() if len(states) > 1]
        holders: dict[DeviceId, list[str]] = defaultdict(list)
        for name, claim in self.live[kinds.RESOURCE_CLAIM].items():
            for device in _allocated(claim):
                holders[device].append(name)
        return more + [f"{device} is allocated to {', '.join(names)}" for device, names in holders.items() if len(names) > 1]

    async def settled_differences(self, patience: float = 300.0) -> list[str]:
        """Where allocations and ledger pages differ for longer than the controllers need."""
        deadline = time.monotonic() + patience
        while (different := await self._differences()) and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.2)  # pages are not watched here
        return different

    async def _differences(self) -> list[str]:
        booked: dict[DeviceId, str] = {}
        different: list[str] = []
        for page in map(Page, (await self._store.list(kinds.LEDGER_PAGE)).items):
            for booking in page.bookings:
                if booking.device in booked:
                    different.append(f"{booking.device} is booked twice")
                booked[booking.device] = booking.holder.uid
        allocated = {device: claim["metadata"]["uid"] for claim in self.live[kinds.RESOURCE_CLAIM].values()
                     for device in _allocated(claim)}
        return different + [f"{device}: allocated to {allocated.get(device)}, booked for {booked.get(device)}"
                            for device in allocated.keys() | booked.keys() if allocated.get(device) != booked.get(device)]

    async def _watch(self, kind: Kind, since: str) -> None:
        while True:
            try:
                async for event in self._store.watch(kind, self._namespace, since=since):
                    since = event.object["metadata"]["resourceVersion"]
                    self._see(kind, event.object, gone=event.type == "DELETED")
                    self._changed.set()
            except Expired as error:
                raise AssertionError(f"changes of {kind.plural} were missed: {error}") from error

    def _see(self, kind: Kind, obj: Object, *, gone: bool) -> None:
        name, uid, now = obj["metadata"]["name"], obj["metadata"]["uid"], time.monotonic()
        if gone:
            self.live[kind].pop(name, None)
            return
        self.live[kind][name] = obj
        for owner in obj["metadata"].get("ownerReferences") or ():
            if owner["kind"] == OWNERS[kind]:
                self._owner[kind][name] = owner["name"]
                self._made[kind][owner["name"]].add(uid)
        status = obj.get("status") or {}
        if kind is kinds.VMI:
            if status.get("phase") == "Running":
                self.running.setdefault(name, now)
            entries = [entry.get("deviceResourceClaimStatus") or {} for list_ in (status.get("deviceStatus") or {}).values()
                       for entry in list_]
            if entries and all(entry.get("name") for entry in entries):  # before, they are the names of the claims
                self.with_devices.setdefault(name, now)
                self._states[kind.kind, uid].add(_text(DeviceId(entry["driver"], entry["pool"], entry["name"])
                                                       for entry in entries))
        elif kind is kinds.POD and obj["spec"].get("nodeName"):
            self.bound.setdefault(name, now)
        elif kind is kinds.RESOURCE_CLAIM and status.get("allocation"):
            self.allocated.setdefault(name, now)
            self._states[kind.kind, uid].add(_text(_allocated(obj)))


def _allocated(claim: Mapping[str, Any]) -> list[DeviceId]:
    given = (claim.get("status") or {}).get("allocation") or {}
    return [DeviceId(result["driver"], result["pool"], result["device"])
            for result in (given.get("devices") or {}).get("results") or ()]


def _text(devices: Iterable[DeviceId]) -> str:
    return ", ".join(sorted(map(str, devices)))
