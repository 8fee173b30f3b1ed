"""GPUs and host devices of a running VM, matched by name.

| change in the VM's template | effect |
| --- | --- |
| a new entry by claim, on a host that plugs in place | copied, with its claim; an attachment pod on the host holds the claim |
| an entry by claim is removed | removed from the VMI; its device is unplugged, and released with its attachment pod |
| the same name again while it is still being unplugged | waits until it is gone |
| a new entry of a claim that the VMI has from elsewhere | waits for a restart |
| a new entry or one removed on another host, by `deviceName`, with `virtualGPUOptions` or a `tag` | waits for a restart |
| another claim or request of an entry, another flavor | waits for a restart |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from outfitter.api.kinds import Object
from outfitter.api.kubevirt import device_refs, device_status
from outfitter.api.kubevirt.device_refs import DeviceRef, List
from outfitter.api.live_update import spec_fields
from outfitter.api.live_update.contribution import Contribution, MigrationNeed, RunningVm
from outfitter.api.rejection import Rejection, RejectionCode

FLAVOR, CLAIMS = "flavor", "resourceClaims"
AT_START = ("virtualGPUOptions", "tag")  # of an entry: the domain and the config drive have them from the start


def path_of(list_: List) -> str:
    return f"domain.devices.{list_}"


class ClaimedDevices:
    fields: tuple[str, ...] = (*map(path_of, device_refs.LISTS), FLAVOR)

    def compare(self, running: RunningVm) -> Contribution:
        comparison = _DeviceComparison(running)
        for list_ in device_refs.LISTS:
            comparison.compare(list_)
        comparison.compare_flavor()
        return Contribution(comparison.live, tuple(comparison.plugged), tuple(comparison.restart),
                            frozenset(comparison.claims), frozenset(comparison.later), refused=comparison.refused)

    def migration(self, vmi: Object, pod: Mapping[str, Any]) -> MigrationNeed:
        """None: a device is plugged where the VM runs, or at its next start."""
        return MigrationNeed()


@dataclass(slots=True)
class _DeviceComparison:
    running: RunningVm
    live: dict[str, Any] = field(default_factory=dict)
    plugged: list[str] = field(default_factory=list)
    restart: list[str] = field(default_factory=list)
    refused: dict[str, Rejection] = field(default_factory=dict)
    claims: set[str] = field(default_factory=set)
    later: set[str] = field(default_factory=set)

    def compare(self, list_: List) -> None:
        running, path = self.running, path_of(list_)
        wanted = {ref.name: ref for ref in _refs({"spec": running.wanted}, list_)}
        own = {ref.name: ref for ref in _refs(running.vmi, list_)}
        entries: list[Mapping[str, Any]] = list(spec_fields.get(running.wanted, path) or ())
        have: list[Mapping[str, Any]] = list(spec_fields.get(running.vmi["spec"], path) or ())
        kept = []
        for name, ref in own.items():
            if name in wanted:
                self.restart += spec_fields.changed(entries[wanted[name].index], have[ref.index], f"{path}[{name}]",
                                                    started_with=running.started_with)
            elif self._removed(ref, f"{path}[{name}]", wanted):
                continue
            kept.append(have[ref.index])
        known = {str(entry.get("name")) for entry in device_status.statuses(running.vmi, list_)}
        for name, ref in wanted.items():
            if name in own or not self._added(ref, entries[ref.index], f"{path}[{name}]", known):
                continue
            kept.append(entries[ref.index])
            self.claims.add(str(ref.claim))
        if kept != have:
            self.live[path] = [dict(entry) for entry in kept]

    def _removed(self, ref: DeviceRef, path: str, wanted: Mapping[str, DeviceRef]) -> bool:
        """Whether an entry that only the VMI has is unplugged now."""
        started = self.running.started_with
        ours = bool(wanted) if started is None else any(each.startswith((f"{path}.", path)) for each in started)
        if not ours:
            return False  # filled in by admission
        if not self.running.live or (why := self._impossible(ref)):
            self._wait(path, why if self.running.live else None)
            return False
        if self.running.running:
            self.plugged.append(path)
        return self.running.running

    def _added(self, ref: DeviceRef, entry: Mapping[str, Any], path: str, known: set[str]) -> bool:
        """Whether an entry that only the template has is plugged now."""
        if not self.running.live:
            self._wait(path, None)
            return False
        flavored = {each.name: each for each in device_refs.flavor_refs(self.running.vmi)}
        if ref.list == "hostDevices" and ref.name in flavored:
            self._wait(path, Rejection.of(RejectionCode.FLAVOR_DEVICE, message=(
                f"{ref.name} is the name of a device of the VM's flavor: choose another name")))
            return False
        at_start = [key for key in AT_START if entry.get(key)]
        why = self._impossible(ref) or self._other_claim(ref) or (Rejection.of(RejectionCode.DEVICE_NOT_PLUGGED, message=(
            f"{ref.name} has {' and '.join(at_start)}, which a VM gets at its start")) if at_start else None)
        if why is not None:
            self._wait(path, why)
            return False
        if not self.running.running or ref.name in known:  # `known`: the one of this name is still being unplugged
            self.later.add(str(ref.claim))
            return False
        self.plugged.append(path)
        return True

    def _other_claim(self, ref: DeviceRef) -> Rejection | None:
        why = self.running.other_claim(ref.claim)
        return Rejection.of(RejectionCode.DEVICE_NOT_PLUGGED, message=f"{ref.name}: {why}") if why is not None else None

    def _impossible(self, ref: DeviceRef) -> Rejection | None:
        if not ref.by_claim:
            return Rejection.of(RejectionCode.DEVICE_NOT_PLUGGED, message=(
                f"{ref.name} is requested by deviceName: only devices of claims are plugged into a running VM"))
        if self.running.in_place:
            return None
        node = (self.running.vmi.get("status") or {}).get("nodeName") or "its host"
        return Rejection.of(RejectionCode.PLUG_NOT_IN_PLACE, message=(
            f"{ref.name}: {node} plugs no claimed devices into running VMs: a kubelet runs its pod there, or plug_in_place is "
            "off"))

    def _wait(self, path: str, why: Rejection | None) -> None:
        self.restart.append(path)
        if why is not None:
            self.refused[path] = why

    def compare_flavor(self) -> None:
        """Devices of a flavor stay as long as the VM runs (document 002)."""
        wanted, have = self.running.wanted.get(FLAVOR), self.running.vmi["spec"].get(FLAVOR)
        for path in spec_fields.changed(wanted, have, FLAVOR, started_with=self.running.started_with):
            self._wait(path, Rejection.of(RejectionCode.FLAVOR_DEVICE, message=(
                "devices of a flavor are neither plugged nor unplugged while the VM runs")))


def _refs(instance: Mapping[str, Any], list_: List) -> list[DeviceRef]:
    return [ref for ref in device_refs.written_refs(instance) if ref.list == list_ and ref.name]
