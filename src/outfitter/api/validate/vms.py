"""VMs and VMIs. The spec of a VMI and the template of a VM (`spec.template.spec`) are checked by the same rules."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from outfitter.api.kubevirt import feature_gates, reattached_devices
from outfitter.api.kubevirt.device_refs import FLAVOR_CLAIM
from outfitter.api.kubevirt.feature_gates import Gates
from outfitter.api.kubevirt.kubevirt_config import KubeVirtConfig
from outfitter.api.kubevirt.vm import dedicated, owner
from outfitter.api.kubevirt.vm_claim_templates import SHAPES, template_name
from outfitter.api.kubevirt.vmi_actions import START_PAUSED
from outfitter.api.validate import devices, disks, guest, hardware, names, networks, node_placement, resources, volumes
from outfitter.errors import Cause

# The parts of a VM's spec that its VMIs are built from. A change elsewhere only starts or stops the VM.
BUILT_FROM = ("template", "resourceClaimTemplates")
BUILT_AT = tuple(f"spec.{part}" for part in BUILT_FROM)
PHASES = ("", "Pending", "Scheduling", "Scheduled", "Running", "Succeeded", "Failed", "Unknown", "WaitingForSync")
STRATEGIES = ("Always", "Halted", "Manual", "Once", "RerunOnFailure", "WaitAsReceiver")


def vmi(obj: Mapping[str, Any], settings: KubeVirtConfig) -> Iterator[Cause]:
    yield from _reattached(obj.get("metadata"), "metadata")
    yield from _spec(obj.get("spec"), "spec", settings)


def vm(obj: Mapping[str, Any], settings: KubeVirtConfig) -> Iterator[Cause]:
    spec = obj.get("spec") or {}
    if spec.get("running") is not None and spec.get("runStrategy") is not None:
        yield Cause("spec.running", "Running and RunStrategy are mutually exclusive: keep RunStrategy, Running is deprecated")
    if spec.get("runStrategy") is not None and spec["runStrategy"] not in STRATEGIES:
        yield Cause("spec.runStrategy", f'Invalid RunStrategy ({spec["runStrategy"]}): it may be {", ".join(STRATEGIES)}')
    yield from own_claims(spec, settings.gates)
    if spec.get("template") is None:
        yield Cause("spec.template", "Required value: missing virtual machine template", "FieldValueRequired")
        return
    yield from names.labels_and_annotations(spec["template"].get("metadata"), "spec.template.metadata")
    yield from _reattached(spec["template"].get("metadata"), "spec.template.metadata")
    own = [entry["name"] for entry in spec.get("resourceClaimTemplates") or () if entry.get("name")]
    uid = str((obj.get("metadata") or {}).get("uid") or "")
    yield from _spec(spec["template"].get("spec"), "spec.template.spec", settings, own, uid)


def _reattached(meta: Any, root: str) -> Iterator[Cause]:
    """The annotation that names the devices of which a guest can do without while its VM migrates."""
    text = reattached_devices.declared(meta) if isinstance(meta, Mapping) else None
    if text is not None and (why := reattached_devices.format_error(text)):
        yield Cause(f"{root}.annotations[{reattached_devices.DECLARED}]", f'Invalid value: "{text}": {why}')


def changed_annotation(new: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[Cause]:
    """The same annotation of a VMI that keeps its spec, which is not checked again: it counts at the next migration."""
    if reattached_devices.declared(new["metadata"]) != reattached_devices.declared(old["metadata"]):
        yield from _reattached(new["metadata"], "metadata")


def own_claims(spec: Mapping[str, Any], gates: Gates) -> Iterator[Cause]:
    """resourceClaimTemplates: claims that belong to the VM. One with resourceClaimTemplateName may also be in the template's
    resourceClaims, with the same name, as KubeVirt requires it."""
    template = (spec.get("template") or {}).get("spec") or {}
    listed = {entry.get("name"): entry for entry in template.get("resourceClaims") or ()}
    seen: set[str] = set()
    if any(map(template_name, spec.get("resourceClaimTemplates") or ())) and not gates.open(feature_gates.PERSISTENT):
        yield Cause("spec.resourceClaimTemplates", gates.refusal(
            feature_gates.PERSISTENT, "contains resourceClaimTemplateName but feature gate is not enabled"))
    for index, entry in enumerate(spec.get("resourceClaimTemplates") or ()):
        here, name = f"spec.resourceClaimTemplates[{index}]", entry.get("name")
        if not name:
            yield Cause(f"{here}.name", "Required value: devices name the claim by it, as an entry of resourceClaims",
                        "FieldValueRequired")
        else:
            yield from names.label(name, f"{here}.name")
            if name in seen:
                yield Cause(f"{here}.name", f'Duplicate value: "{name}"', "FieldValueDuplicate")
            if name in listed and template_name(entry) is not None:
                if template_name(listed[name]) != template_name(entry):
                    yield Cause(f"{here}.resourceClaimTemplateName", f'Invalid value: "{template_name(entry)}": claim "{name}" '
                                "is also listed in spec.template.spec.resourceClaims, and must name the same "
                                "resourceClaimTemplateName there")
            elif name in listed:
                yield Cause(
                    f"{here}.name",
                    f'Duplicate value: "{name}" is also listed in spec.template.spec.resourceClaims: a '
                    "claim either belongs to the VM or is created for each start",
                    "FieldValueDuplicate",
                )
            seen.add(name)
        given = [shape for shape in SHAPES if entry.get(shape) is not None]
        if len(given) != 1:
            yield Cause(here, f"at most one of {' or '.join(SHAPES)} may be specified" if given else
                        f"must specify one of: {', '.join(SHAPES)}", "FieldValueInvalid" if given else "FieldValueRequired")
        if "spec" in given:
            yield from resources.template_spec(entry["spec"], f"{here}.spec")
            yield from names.labels_and_annotations((entry["spec"] or {}).get("metadata"), f"{here}.spec.metadata")
        if "resourceClaimTemplateName" in given:
            yield from names.subdomain(entry["resourceClaimTemplateName"], f"{here}.resourceClaimTemplateName")


def _spec(
    spec: Any, root: str, settings: KubeVirtConfig, own: Collection[str] = (), vm_uid: str = "",
) -> Iterator[Cause]:
    if not isinstance(spec, Mapping) or not isinstance(spec.get("domain"), Mapping):
        yield Cause(f"{root}.domain", "Required value: the domain of the VM", "FieldValueRequired")
        return
    yield from _flavor(spec, root, own)
    if spec.get("startStrategy") is not None and spec["startStrategy"] != START_PAUSED:
        yield Cause(f"{root}.startStrategy", f"Invalid value: {spec['startStrategy']!r}: {root}.startStrategy is set with an "
                                             f'unrecognized option: it may be "{START_PAUSED}", or omitted')
    if (spec.get("terminationGracePeriodSeconds") or 0) < 0:
        yield Cause(f"{root}.terminationGracePeriodSeconds", f"Invalid value: {spec['terminationGracePeriodSeconds']}: must be "
                                                             "zero or more: 0 gives the guest no time")
    yield from node_placement.check(spec, root)
    yield from guest.check(spec, root)
    yield from hardware.check(spec, root)
    yield from devices.claims(spec, root)
    yield from devices.gated_claims(spec, root, settings.gates, own)
    yield from devices.devices(spec, root, settings.gates, own)
    yield from devices.displays(spec, root)
    yield from networks.check(spec, root, settings.gates, own, vm_uid)
    yield from volumes.check(spec, root)
    yield from disks.check(spec, root)


def _flavor(spec: Mapping[str, Any], root: str, own: Collection[str]) -> Iterator[Cause]:
    if spec.get("flavor") is not None:
        yield from names.required(spec["flavor"].get("name"), f"{root}.flavor.name", "the flavor of the VM")
        if spec["flavor"].get("name"):
            yield from names.subdomain(spec["flavor"]["name"], f"{root}.flavor.name")
    elif not dedicated({"spec": spec}):
        return
    taken = [f"{root}.resourceClaims[{index}].name" for index, entry in enumerate(spec.get("resourceClaims") or ())
             if entry.get("name") == FLAVOR_CLAIM]
    taken += ["spec.resourceClaimTemplates"] if FLAVOR_CLAIM in own else []
    for path in taken:
        yield Cause(path, f'Invalid value: "{FLAVOR_CLAIM}": reserved for the claim of the flavor\'s devices and '
                          "of dedicated CPUs; choose another name")


def phase(new: Mapping[str, Any], old: Mapping[str, Any] | None) -> Iterator[Cause]:
    """status.phase must be a known phase, since controllers act on it. An unknown phase that is stored already may stay."""
    now = (new.get("status") or {}).get("phase") or ""
    if now not in PHASES and (old is None or now != (old.get("status") or {}).get("phase")):
        yield node_placement.unsupported("status.phase", now, PHASES)


def changed_vmi(new: Mapping[str, Any], old: Mapping[str, Any], ours: bool) -> Iterator[Cause]:
    """Which changes of a VMI's spec are allowed: of the flavor none, of the rest those by components of the system.
    Users change the VM that owns it, or create a new VMI."""
    was, is_ = old.get("spec") or {}, new.get("spec") or {}
    if was == is_:
        return
    if was.get("flavor") != is_.get("flavor"):
        yield Cause("spec.flavor", "Invalid value: field is immutable: update of VMI object is restricted, a VMI keeps "
                                   "the flavor it was created with")
    elif not _added(was.get("resourceClaims") or [], is_.get("resourceClaims") or [], ours, owner(old, "VirtualMachine")):
        yield Cause("spec.resourceClaims", "Invalid value: field is immutable: update of VMI object is restricted, a VMI "
                                           "keeps the claims it started with")
    elif not ours:
        path = ".".join(["spec", *_common(was, is_)])
        yield Cause(path, "update of VMI object is restricted: only components of the system change the spec of a VMI; change "
                          "the VirtualMachine that it belongs to, or create a new VMI", "FieldValueNotSupported")


def _added(was: Any, is_: Any, ours: bool, vm_owner: Mapping[str, Any] | None) -> bool:
    """Claims that stay as they are, with others behind them that a component of the system adds for what is plugged. Where a VM
    owns the VMI it may also replace a claim by name: a migration gave the VM a second claim in its place."""
    if is_ == was or not ours or not isinstance(is_, list) or not isinstance(was, list):
        return bool(is_ == was)
    kept = is_[:len(was)]
    return bool(kept == was) or (vm_owner is not None and len(kept) == len(was) and all(map(_same_claim, was, kept)))


def _same_claim(old: Any, new: Any) -> bool:
    return bool(old == new) or (isinstance(old, Mapping) and isinstance(new, Mapping) and old.get("name") == new.get("name")
                                and bool(old.get("resourceClaimName")) and bool(new.get("resourceClaimName")))


def at_creation(kind: str, obj: Mapping[str, Any]) -> Iterator[Cause]:
    """What is refused for a new VM or VMI, and allowed when it is changed."""
    spec = obj.get("spec") or {}
    if kind == "VirtualMachine":
        yield from networks.absent_at_creation((spec.get("template") or {}).get("spec"), "spec.template.spec")
    elif kind == "VirtualMachineInstance":
        yield from networks.absent_at_creation(spec, "spec")


def _common(was: Any, is_: Any) -> list[str]:
    """The longest path that contains all differences."""
    if not isinstance(was, Mapping) or not isinstance(is_, Mapping):
        return []
    differ = [key for key in {**was, **is_} if was.get(key) != is_.get(key)]
    return [differ[0], *_common(was.get(differ[0]), is_.get(differ[0]))] if len(differ) == 1 else []
