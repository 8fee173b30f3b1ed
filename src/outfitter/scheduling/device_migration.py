"""What a live migration does with each device of a VMI: it travels with its state, it is reattached, or it blocks, and why.
Pure but for the look-ups handed in. Called by the device status controller (condition LiveMigratable), by the migration
controller before it books anything, and by `outfit plan migrate`: all three show the same value.

- A GPU or host device travels when its driver publishes it with the attribute liveMigratable, or when it is a mediated device,
  the only GPU and host device of the VMI, and the gate VGPULiveMigration is open. Its state arrives in a device of the same
  kind: `target_claims` narrows the target's claim accordingly.
- A GPU or host device by a claim that cannot travel is reattached if the owner of the VM declares that its guest agrees
  (`api.kubevirt.reattached_devices`) and its host plugs devices into running VMs: the guest is asked to release it before the
  copy, and gets another one on the target.
- A NIC on a VF is detached before the copy and another is attached on the target.
- A claim that the VMI references by name is one allocation on one host: it cannot follow. Claims from templates, claims that
  the VM owns (its resourceClaimTemplates) and the claim of a flavor get a second claim on the target.
- Devices of a flavor travel only if every alias of it says live_migratable (document 002)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from outfitter.api import kinds
from outfitter.api.device import MDEV_NAMES, DeviceId, flag_attribute, text_attribute
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import device_refs, feature_gates, network_info, pod_claims, reattached_devices, vm
from outfitter.api.kubevirt.device_refs import DeviceRef
from outfitter.api.kubevirt.feature_gates import Gates
from outfitter.api.rejection import Rejection, RejectionCode
from outfitter.api.rejection_text import render
from outfitter.errors import Invalid
from outfitter.scheduling.nova import flavor_claim

How = Literal["travels", "reattached", "blocks"]
LIVE_MIGRATABLE = "liveMigratable"  # attribute of a device, of its driver
# Why a device cannot travel whose claim can follow: it may be reattached.
CANNOT_TRAVEL = frozenset({
    RejectionCode.DEVICE_NOT_MIGRATABLE, RejectionCode.FEATURE_DISABLED, RejectionCode.SEVERAL_MEDIATED_DEVICES})


@dataclass(frozen=True, slots=True)
class DeviceMigration:
    """What becomes of a device of the VMI."""

    name: str  # as the spec names it
    how: How
    rejection: Rejection | None = None  # why it blocks, or has no free twin now (`device_twins`)
    mediated: bool = False
    list: device_refs.List | None = None  # None: a NIC

    @property
    def outcome(self) -> str:
        """For people."""
        if self.rejection is None or self.how == "blocks":
            return self.how
        return "cannot travel now" if self.how == "travels" else "cannot be reattached now"

    @property
    def code(self) -> str:
        return str(self.rejection.code) if self.rejection is not None else ""

    @property
    def reason(self) -> str:
        if self.rejection is not None:
            return render(self.rejection)
        what = "device" if self.list is not None else "NIC"
        return f"the guest has no such {what} while it is copied" if self.how == "reattached" else ""

    def to_object(self) -> Object:
        whole = {"name": self.name, "how": self.how, "code": self.code, "reason": self.reason}
        return {key: value for key, value in whole.items() if value}


@dataclass(frozen=True, slots=True)
class SourceView:
    """What is known of the VMI on the host that it runs on."""

    pod: Mapping[str, Any] | None  # in which it runs; None: not known
    claim: device_refs.Claims
    find: Callable[[Mapping[str, Any], str | None], Mapping[str, Any] | str]  # an allocation's result, host -> the device
    gates: Gates
    in_place: bool = False  # its host plugs devices into running VMs


def text(devices: Sequence[DeviceMigration]) -> str:
    """For a condition's message."""
    return "; ".join(f"{one.name}: {one.outcome}{f' ({one.code}: {one.reason})' if one.code else ''}" for one in devices)


def blocking(devices: Sequence[DeviceMigration]) -> list[DeviceMigration]:
    return [one for one in devices if one.how == "blocks"]


def device_migrations(vmi: Mapping[str, Any], view: SourceView) -> tuple[DeviceMigration, ...]:
    """GPUs and host devices, those of a flavor included, then NICs on VFs."""
    refs = device_refs.refs_in(vmi, view.pod or {})
    alone = sum(len(_results(vmi, ref, view)) for ref in refs) == 1
    return (*(_device(vmi, ref, view, alone=alone) for ref in refs), *_nics(vmi, view))


def _device(vmi: Mapping[str, Any], ref: DeviceRef, view: SourceView, *, alone: bool) -> DeviceMigration:
    why, mediated = _blocks(vmi, ref, view, alone=alone)
    if why is not None and why.code in CANNOT_TRAVEL and ref.number is None and reattached_devices.declares(vmi, ref.name):
        if view.in_place:
            return DeviceMigration(ref.name, "reattached", None, mediated, ref.list)
        why = Rejection.of(RejectionCode.PLUG_NOT_IN_PLACE, why.device, message=(
            f"{ref.name} may be reattached, but {_host(vmi, view) or 'its host'} plugs no claimed devices into running VMs: a "
            "kubelet runs its pod there, or plug_in_place is off"))
    return DeviceMigration(ref.name, "travels" if why is None else "blocks", why, mediated, ref.list)


def _host(vmi: Mapping[str, Any], view: SourceView) -> str:
    return str((vmi.get("status") or {}).get("nodeName") or ((view.pod or {}).get("spec") or {}).get("nodeName") or "")


def _blocks(vmi: Mapping[str, Any], ref: DeviceRef, view: SourceView, *, alone: bool) -> tuple[Rejection | None, bool]:
    """Why a device cannot travel (None: it can), and whether it is a mediated device."""
    if not ref.by_claim or ref.by_resource:
        return Rejection.of(RejectionCode.DEVICE_BY_RESOURCE, name=ref.name), False
    name, claim = claim_of(vmi, ref.claim or "", view)
    if why := stays(vmi, ref.claim or "", view):
        return why, False
    if claim is None:
        return Rejection.of(RejectionCode.CLAIM_MISSING, claim=name, entry=ref.claim), False
    if ref.number is not None and ref.claim == device_refs.FLAVOR_CLAIM and (why := _alias(claim, ref)):
        return why, False
    results = pod_claims.results_for(claim, ref)
    if not results:
        return Rejection.of(RejectionCode.CLAIM_NOT_ALLOCATED, claim=name), False
    host, mediated = _host(vmi, view), False
    first: tuple[Rejection, bool] | None = None
    for result in results:
        device, id_ = view.find(result, host or None), DeviceId(result["driver"], result["pool"], result["device"])
        if isinstance(device, str):
            return Rejection.of(RejectionCode.DEVICE_NOT_PUBLISHED, id_), False
        mediated = text_attribute(device, id_.driver, MDEV_NAMES) is not None
        cannot = _cannot_travel(device, id_, ref, view, alone=alone)
        if cannot is not None and first is None:
            first = cannot, mediated
    return first or (None, mediated)


def _cannot_travel(
    device: Mapping[str, Any], id_: DeviceId, ref: DeviceRef, view: SourceView, *, alone: bool
) -> Rejection | None:
    """One of CANNOT_TRAVEL."""
    if flag_attribute(device, id_.driver, LIVE_MIGRATABLE):
        return None
    if text_attribute(device, id_.driver, MDEV_NAMES) is None:
        return Rejection.of(RejectionCode.DEVICE_NOT_MIGRATABLE, id_, name=ref.name)
    if feature_gates.VGPU_MIGRATION not in view.gates.on:
        what = f"{id_.short} ({ref.name}) is a mediated device"
        return Rejection.of(RejectionCode.FEATURE_DISABLED, what=what, feature=feature_gates.VGPU_MIGRATION)
    return None if alone else Rejection.of(RejectionCode.SEVERAL_MEDIATED_DEVICES, id_, name=ref.name)


def _alias(claim: Mapping[str, Any], ref: DeviceRef) -> Rejection | None:
    """Whether the alias of a flavor's device admits devices that cannot travel."""
    try:
        ask = flavor_claim.read(claim)
    except Invalid as error:
        return Rejection.of(RejectionCode.CLAIM_INVALID, message=error.message)
    for request in ask.requests if ask is not None else ():
        if request.request_id == ref.request and not all(spec.live_migratable for spec in request.specs):
            return Rejection.of(RejectionCode.ALIAS_NOT_MIGRATABLE, alias=request.alias, name=ref.name)
    return None


def _nics(vmi: Mapping[str, Any], view: SourceView) -> Iterator[DeviceMigration]:
    networks = {network.get("name"): network for network in network_info.networks(vmi)}
    for interface in network_info.interfaces(vmi):
        if interface.get("sriov") is None or interface.get("state") == "absent":
            continue
        entry = str(((networks.get(interface.get("name")) or {}).get("resourceClaim") or {}).get("claimName") or "")
        why = stays(vmi, entry, view) if entry else None
        yield DeviceMigration(str(interface["name"]), "reattached" if why is None else "blocks", why)


# -- claims


def stays(vmi: Mapping[str, Any], entry: str, view: SourceView) -> Rejection | None:
    """Why the claim of an entry of spec.resourceClaims cannot follow: it is referenced by name, and the VM does not own it."""
    listed = _entry(vmi, entry)
    if listed is None or not listed.get("resourceClaimName"):
        return None
    name, claim = claim_of(vmi, entry, view)
    return None if claim is not None and owned_by_vm(vmi, claim) else Rejection.of(RejectionCode.CLAIM_BY_NAME, claim=name)


def owned_by_vm(vmi: Mapping[str, Any], claim: Mapping[str, Any]) -> bool:
    """Whether a claim was created from the resourceClaimTemplates of the VMI's VM."""
    owner, own = vm.owner(claim, kinds.VM.kind), vm.owner(vmi, kinds.VM.kind)
    return owner is not None and own is not None and owner.get("uid") == own.get("uid")


def _entry(vmi: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    listed = (vmi.get("spec") or {}).get("resourceClaims") or ()
    return next((one for one in listed if one.get("name") == name), None)


def claim_of(vmi: Mapping[str, Any], entry: str, view: SourceView) -> tuple[str, Object | None]:
    """Name and object of the claim that the VMI has for an entry: that of its pod, which a migration may have replaced."""
    named = dict(pod_claims.claim_names(view.pod or {})).get(entry) or (_entry(vmi, entry) or {}).get("resourceClaimName")
    if not named and entry == device_refs.FLAVOR_CLAIM:
        named = vm.flavored(vmi).get("claimName")
    return str(named or entry), view.claim(vmi["metadata"]["namespace"], named) if named else None


def _results(vmi: Mapping[str, Any], ref: DeviceRef, view: SourceView) -> Sequence[Mapping[str, Any]]:
    """The devices of a reference; one that is not known counts as one."""
    claim = claim_of(vmi, ref.claim or "", view)[1] if ref.by_claim else None
    return pod_claims.results_for(claim or {}, ref) or ({},)
