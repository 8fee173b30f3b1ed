"""Which pods hold which devices of device plugins, by host: an index that follows the pods, so that admission does not take
longer the more pods are there. Counts what is assigned in a pod's object, and what this process has reserved for it and the API
does not contain yet. No I/O. Called by `DeviceAssignment`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from outfitter.api import kinds
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import vm
from outfitter.api.ledger_page.page import Holder
from outfitter.errors import Invalid
from outfitter.node.device_manager import allocated_devices, device_admission
from outfitter.store.informer import Informer

DeviceKey = tuple[str, str]  # resource and id
Age = tuple[str, int, str]


@dataclass(frozen=True, slots=True)
class _HoldingPod:
    host: str
    holder: Holder
    runs: bool
    asks: bool  # for devices of device plugins
    devices: frozenset[DeviceKey]  # in its object
    reserved: frozenset[DeviceKey] = frozenset()


class HeldDevices:
    def __init__(self, pods: Informer[Object]) -> None:
        self.admitted: set[str] = set()  # pods that keep what they have, whatever other pods contain
        self.incomplete: set[str] = set()  # pods with devices that are on the page alone: their annotation was changed
        self._pods: dict[str, _HoldingPod] = {}  # by uid: those that have not ended
        self._ages: dict[str, Age] = {}  # as they were when they were first seen
        self._undecided: dict[str, set[str]] = defaultdict(set)  # host -> pods that ask for devices and do not run
        self._holders: dict[tuple[str, str], dict[str, dict[str, Holder]]] = {}  # host and resource -> id -> pod -> holder
        self._one: dict[tuple[str, str], dict[str, Holder]] = {}  # host and resource -> id -> one of its holders
        pods.on_change(self._changed)

    # -- following pods

    def _changed(self, old: Object | None, new: Object | None) -> None:
        pod = new or old
        assert pod is not None
        meta = pod["metadata"]
        uid = meta["uid"]
        if new is None:
            self.forget(uid)
            return
        self._ages.setdefault(uid, _age(new))
        host, phase = new["spec"].get("nodeName") or "", (new.get("status") or {}).get("phase")
        if not host or phase in vm.FINAL:
            self._put(uid, None)
            self.incomplete.discard(uid)
            return
        known = self._pods.get(uid)
        reserved = known.reserved if known is not None and known.host == host else frozenset[DeviceKey]()
        try:
            devices = frozenset(device_admission.devices_of(new))
        except Invalid:  # one that does not run is rejected
            devices = frozenset()
            self.incomplete.add(uid)
        if (known is not None and known.devices - devices) or (phase == "Running" and not allocated_devices.complete(new)):
            self.incomplete.add(uid)
        asks = bool(device_admission.resources_of(new))
        self._put(uid, _HoldingPod(host, holder_of(new), phase == "Running", asks, devices, reserved))

    def _put(self, uid: str, new: _HoldingPod | None) -> None:
        old = self._pods.pop(uid, None)
        had = _places(old)
        has = _places(new)
        for place in had - has:
            self._leave(uid, *place)
        if old is not None:
            self._undecided[old.host].discard(uid)
        if new is None:
            return
        self._pods[uid] = new
        if new.asks and not new.runs:
            self._undecided[new.host].add(uid)
        for host, resource, device in has - had:
            self._holders.setdefault((host, resource), {}).setdefault(device, {})[uid] = new.holder
            self._one.setdefault((host, resource), {})[device] = new.holder

    def _leave(self, uid: str, host: str, resource: str, device: str) -> None:
        holders = self._holders[host, resource]
        del holders[device][uid]
        if holders[device]:
            self._one[host, resource][device] = next(iter(holders[device].values()))
        else:
            del holders[device], self._one[host, resource][device]

    def reserve(self, uid: str, devices: Iterable[DeviceKey]) -> None:
        """Other pods do not get these devices, beside those that are in the pod's object; instead of what was reserved before.
        Without effect for a pod that has ended."""
        if (pod := self._pods.get(uid)) is not None:
            self._put(uid, _HoldingPod(pod.host, pod.holder, pod.runs, pod.asks, pod.devices, frozenset(devices)))

    def forget(self, uid: str) -> None:
        """A pod is gone."""
        self._put(uid, None)
        self._ages.pop(uid, None)
        self.admitted.discard(uid)
        self.incomplete.discard(uid)

    # -- reading

    def of_others(
        self, host: str, pod: Object, resources: Iterable[str], without: Collection[str] = ()
    ) -> dict[str, Mapping[str, Holder]]:
        """What other pods of a host have of these resources: id -> its holder. What a younger pod has that is not admitted yet
        does not count against ids that this pod has. `without`: pods whose devices do not count."""
        uid = pod["metadata"]["uid"]
        own, excluded = device_admission.devices_of(pod), {uid, *without}
        out: dict[str, Mapping[str, Holder]] = {}
        for resource in resources:
            held = dict(self._one.get((host, resource), {}))
            holders = self._holders.get((host, resource), {})
            special = {device for each in excluded for _, name, device in _places(self._pods.get(each)) if name == resource}
            special |= {device for name, device in own if name == resource}
            for device in special & held.keys():
                rest = [holder for other, holder in holders[device].items() if other not in excluded
                        and ((resource, device) not in own or self._is_before(other, uid))]
                if rest:
                    held[device] = rest[0]
                else:
                    del held[device]
            out[resource] = held
        return out

    def _is_before(self, other: str, uid: str) -> bool:
        return other in self.admitted or self._pods[other].runs or self.is_older(other, uid)

    def is_older(self, other: str, uid: str) -> bool:
        return self._age(other) < self._age(uid)

    def undecided_before(self, host: str, uid: str) -> list[str]:
        """Older pods of the host that ask for devices and may still be rejected, the oldest first."""
        older = [(self._age(other), other) for other in self._undecided[host] if other != uid and other not in self.admitted]
        return [other for age, other in sorted(older) if age < self._age(uid)]

    def _age(self, uid: str) -> Age:
        return self._ages.get(uid, ("", 0, ""))


def _places(pod: _HoldingPod | None) -> set[tuple[str, str, str]]:
    return {(pod.host, *key) for key in pod.devices | pod.reserved} if pod is not None else set()


def holder_of(pod: Object) -> Holder:
    meta = pod["metadata"]
    return Holder(kinds.POD.kind, meta["namespace"], meta["name"], meta["uid"])


def _age(pod: Object) -> Age:
    """When it was created; of pods of one second those whose last write is earlier come first, which is their creation as long
    as the agent has not written them."""
    meta = pod["metadata"]
    revision = str(meta.get("resourceVersion") or "")
    return str(meta.get("creationTimestamp") or ""), len(revision), revision
