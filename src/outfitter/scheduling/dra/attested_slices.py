"""Slices without devices that their host does not have. A host writes into its HostInventory which devices it publishes, and
with which driver; a slice of that driver, in the host's pool or on its node, may have been written by another writer, which the
host's agent repairs. Until then such a slice can hide devices of the host, and adds none.

Drivers that write no HostInventory are taken at their word, as in Kubernetes. Called by the device index."""

from __future__ import annotations

from collections.abc import Iterable

from outfitter.api.kinds import Object

NO_DEVICES: frozenset[str] = frozenset()


class AttestedSlices:
    """Fed with slices and HostInventories by name; None takes one out."""

    def __init__(self) -> None:
        self._stored: dict[str, Object] = {}
        self._at: dict[str, set[str]] = {}  # node or pool -> names of slices
        self._hosts: dict[str, tuple[str, frozenset[str]]] = {}  # host -> driver and devices

    def put(self, name: str, obj: Object | None) -> Object | None:
        """The slice as it counts: itself where nothing is wrong with it."""
        if (old := self._stored.pop(name, None)) is not None:
            for place in _places(old):
                self._at[place].discard(name)
        if obj is None:
            return None
        self._stored[name] = obj
        for place in _places(obj):
            self._at.setdefault(place, set()).add(name)
        return self._attested(obj)

    def put_inventory(self, name: str, inventory: Object | None) -> list[tuple[str, Object]]:
        """The slices that have to be put again."""
        published = ((inventory or {}).get("spec") or {}).get("published")
        old = self._hosts.pop(name, None)
        if isinstance(published, dict) and isinstance(published.get("driver"), str):
            self._hosts[name] = published["driver"], _names(published.get("devices"))
        if self._hosts.get(name) == old:
            return []
        return [(part, self._stored[part]) for part in sorted(self._at.get(name, ()))]

    def _attested(self, obj: Object) -> Object:
        spec = obj["spec"]
        known: frozenset[str] | None = None
        for place in _places(obj):
            driver, devices = self._hosts.get(place) or ("", NO_DEVICES)
            if driver == spec.get("driver"):
                ours = devices if spec["pool"].get("name") == place else NO_DEVICES  # another pool on the host's node
                known = ours if known is None else known & ours
        listed = spec.get("devices") or ()
        if known is None or all(device["name"] in known for device in listed):
            return obj
        return {**obj, "spec": {**spec, "devices": [device for device in listed if device["name"] in known]}}


def _places(obj: Object) -> set[str]:
    spec = obj.get("spec") or {}
    return {place for place in (spec.get("nodeName"), (spec.get("pool") or {}).get("name")) if isinstance(place, str)}


def _names(devices: Iterable[object] | None) -> frozenset[str]:
    return frozenset(name for name in devices or () if isinstance(name, str))
