"""`outfit vm device add`, `remove` and `list`: the GPUs and host devices of a VM. They change the template of the VM; what
follows for a VM that runs is decided by the controllers and the node (docs/device-hotplug.md)."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

from outfitter.api import conditions, kinds
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import device_refs, device_status, migration, vm_claim_templates, vmi_actions
from outfitter.api.kubevirt.attachment_pods import ATTACHED, HOTPLUG
from outfitter.api.kubevirt.device_refs import DeviceRef
from outfitter.api.rejection import RejectionCode
from outfitter.cli import printers
from outfitter.cli.client import Client
from outfitter.cli.vm import template_change, view
from outfitter.errors import CommandFailed, Forbidden, NotFound

TEMPLATE = "spec.template.spec"
REASONS = (conditions.PLUGGED, "DevicesReady", "RestartRequired")  # conditions that say why a device is not there yet
WORDS: Mapping[device_refs.List, str] = {"gpus": "GPU", "hostDevices": "host device"}
OTHER_LISTS = {"disks": "disk", "interfaces": "NIC"}  # lists of the template's devices whose names a new device may not have


async def list_(client: Client, name: str) -> None:
    vm, vmi = await view.vm_and_vmi(client, name)
    if vm is None and vmi is None:
        raise NotFound(f"there is no VM {name} in namespace {client.namespace}")
    wanted = {"spec": vm["spec"]["template"]["spec"]} if vm is not None else vmi or {}
    refs = [*device_refs.written_refs(wanted), *device_refs.flavor_refs(vmi or {})]
    listed = {(ref.list, ref.name): ref for ref in refs}
    entries = {(list_, str(entry.get("name"))): entry for list_ in device_refs.LISTS
               for entry in device_status.statuses(vmi or {}, list_)}
    rows = []
    for key in dict.fromkeys([*listed, *entries]):
        ref, entry = listed.get(key), entries.get(key) or {}
        given = entry.get("deviceResourceClaimStatus") or {}
        where = device_status.address_of(entry) if entry else None
        rows.append([key[1], WORDS[key[0]], _claim(ref), _state(ref, entry, vmi), str(given.get("name") or "-"),
                     where[1] if where else "-", str((entry.get(HOTPLUG) or {}).get("attachPodName") or "-")])
    if not rows:
        printers.print_lines([f"{name} has no GPUs and host devices"])
        return
    printers.print_lines(printers.columns([["NAME", "AS", "CLAIM", "STATE", "DEVICE", "ADDRESS", "HELD BY"], *rows]))
    template_change.print_reasons(vm, vmi, REASONS)


def _claim(ref: DeviceRef | None) -> str:
    if ref is None:
        return "-"
    return f"{ref.claim}/{ref.request}" if ref.by_claim else str(ref.device_name)


def _state(ref: DeviceRef | None, entry: Mapping[str, object], vmi: Object | None) -> str:
    if vmi is None:
        return "at start"
    hotplug = entry.get(HOTPLUG)
    if ref is None:
        return "unplugging"
    if isinstance(hotplug, Mapping):
        return "plugged" if hotplug.get("phase") == ATTACHED else "pending"
    if entry or not ref.by_claim:
        return "plugged" if (vmi.get("status") or {}).get("phase") == "Running" else "pending"
    return "pending"


async def add(
    client: Client, name: str, device: str, source: Mapping[str, str | None], *, request: str | None, gpu: bool, wait_: bool,
    timeout: float | None, dry_run: bool,
) -> None:
    list_: device_refs.List = "gpus" if gpu else "hostDevices"
    known = await (_requests_of_entry(client, name, source["claim"]) if source["claim"] else _requests(client, source))

    def change(spec: Object, vmi: Object | None) -> Object:
        _check_changeable(name, vmi)
        _check_unused(name, spec, vmi, device)
        claims = list(spec.get("resourceClaims") or ())
        claim = source["claim"] or device
        if source["claim"] is None:
            if any(entry.get("name") == claim for entry in claims):
                raise CommandFailed(f"{TEMPLATE}.resourceClaims: {name} has a claim {claim} already: use --claim {claim}, or "
                                    "choose another name")
            key = "resourceClaimTemplateName" if source["template"] else "resourceClaimName"
            claims.append({"name": claim, key: source["template"] or source["resource_claim"]})
            _check_same_source(name, vmi, claims[-1])
        entry = {"name": device, "claimName": claim, "requestName": _request(request, known, claim)}
        listed = ((spec.get("domain") or {}).get("devices") or {}).get(list_) or ()
        return {"resourceClaims": claims, "domain": {"devices": {list_: [*listed, entry]}}}

    running = await template_change.patch(client, name, "devices", change, dry_run=dry_run)
    late = "" if running else ", which does not run: it has it at the next start"
    template_change.print_done(f"{device} is added to {name}{late}", dry_run=dry_run)
    if wait_ and running:
        await template_change.until(client, name, f"given {device}", lambda vmi: _attached(vmi, list_, device), timeout,
                                    reasons=REASONS)


def _attached(vmi: Object | None, list_: device_refs.List, device: str) -> bool:
    return any(entry.get("name") == device and (entry.get(HOTPLUG) or {}).get("phase") == ATTACHED
               for entry in device_status.statuses(vmi or {}, list_))


def _check_unused(name: str, spec: Object, vmi: Object | None, device: str) -> None:
    """CommandFailed: something of the VM has this name."""
    for ref in device_refs.written_refs({"spec": spec}):
        if ref.name == device:
            raise CommandFailed(f"{TEMPLATE}.domain.devices.{ref.list}[{ref.index}].name: {name} has a {WORDS[ref.list]} "
                                f"{device} already; choose another name")
    if any(ref.name == device for ref in device_refs.flavor_refs(vmi or {})):
        raise CommandFailed(f"{RejectionCode.FLAVOR_DEVICE}: the flavor of {name} has a device {device}; choose another name")
    for list_, word in OTHER_LISTS.items():
        if (index := _index(spec, list_, device)) is not None:
            raise CommandFailed(f"{TEMPLATE}.domain.devices.{list_}[{index}].name: {name} has a {word} {device} already; "
                                "choose another name")
    if _is_unplugged(spec, vmi, device):
        raise CommandFailed(f"{TEMPLATE}.domain.devices: {device} is removed, and the running {name} still has it: wait until "
                            f"outfit vm device list {name} has it no more, or choose another name")


def _check_same_source(name: str, vmi: Object | None, claim: Mapping[str, object]) -> None:
    """CommandFailed: the running VM has had a claim of this name from elsewhere, and keeps it until it stops."""
    for index, entry in enumerate(((vmi or {}).get("spec") or {}).get("resourceClaims") or ()):
        if entry.get("name") == claim["name"] and entry != claim:
            what = next((f"{key} {value}" for key, value in entry.items() if key != "name"), "another one")
            raise CommandFailed(f"{TEMPLATE}.resourceClaims: claim {claim['name']} of the running {name} is {what} "
                                f"(spec.resourceClaims[{index}] of the VMI) until it stops; choose another name")


def _index(spec: Object, list_: str, name: str) -> int | None:
    """Where a list of the template's devices has this name."""
    entries = ((spec.get("domain") or {}).get("devices") or {}).get(list_) or ()
    return next((index for index, entry in enumerate(entries) if entry.get("name") == name), None)


def _is_unplugged(spec: Object, vmi: Object | None, device: str) -> bool:
    """Whether a device that the template does not have any more is still in the running VM."""
    return device not in {ref.name for ref in device_refs.written_refs({"spec": spec})} and any(
        entry.get("name") == device for list_ in device_refs.LISTS for entry in device_status.statuses(vmi or {}, list_))


def _check_changeable(name: str, vmi: Object | None) -> None:
    """CommandFailed: nothing is plugged into the VM, or unplugged, in its state."""
    if vmi is None:
        return
    if vmi["metadata"].get("deletionTimestamp"):
        raise CommandFailed(f"{RejectionCode.VM_STOPS}: {name} is being stopped, and nothing is plugged or unplugged: repeat "
                            "it once it has stopped (outfit vm list), and it counts at the next start")
    if conditions.is_true(vmi, vmi_actions.PAUSED):
        raise CommandFailed(f"{RejectionCode.VM_PAUSED}: {name} is paused, and its guest neither gets nor releases a device: "
                            f"outfit vm unpause {name}")
    if migration.under_way(vmi):
        raise CommandFailed(f"{RejectionCode.VM_MIGRATES}: {name} migrates: wait until that has ended, or cancel it: outfit vm "
                            f"migrate {name} --cancel")


async def _requests(client: Client, source: Mapping[str, str | None]) -> list[str] | None:
    """The requests of the claim; None: not known."""
    named = ((kinds.RESOURCE_CLAIM_TEMPLATE, source["template"]), (kinds.RESOURCE_CLAIM, source["resource_claim"]))
    for kind, name in named:
        if name is None:
            continue
        try:
            found = await client.store.get(kind, name, client.namespace)
        except NotFound:
            raise CommandFailed(f"{TEMPLATE}.resourceClaims: there is no {kind.kind} {name} in namespace "
                                f"{client.namespace}") from None
        except Forbidden:
            return None
        spec = found["spec"]["spec"] if kind is kinds.RESOURCE_CLAIM_TEMPLATE else found["spec"]
        return device_refs.request_names(spec)
    return None


async def _requests_of_entry(client: Client, name: str, claim: str) -> list[str] | None:
    """The requests of a claim that the VM has; None: not known. CommandFailed: it has no such claim."""
    vm, _ = await view.vm_and_vmi(client, name)
    if vm is None:
        return None  # refused when the template is to be changed
    listed = [*(vm["spec"]["template"]["spec"].get("resourceClaims") or ()), *vm_claim_templates.entries(vm)]
    entries = [entry for entry in listed if entry.get("name") == claim]
    if not entries:
        has = ", ".join(dict.fromkeys(str(entry.get("name")) for entry in listed)) or "none"
        raise CommandFailed(f"{TEMPLATE}.resourceClaims: {name} has no claim {claim}; it has {has}. A ResourceClaim of that "
                            f"name is added by --resource-claim {claim}")
    for entry in entries:
        if entry.get("spec"):
            return device_refs.request_names(entry["spec"]["spec"])
        with contextlib.suppress(CommandFailed):  # one that does not exist yet: the VM waits for it
            return await _requests(client, {
                "template": entry.get("resourceClaimTemplateName"), "resource_claim": entry.get("resourceClaimName")})
    return None


def _request(request: str | None, known: list[str] | None, claim: str) -> str:
    if request is None and (known is None or len(known) != 1):
        which = f"it has {', '.join(known)}" if known else "its requests are not read"
        raise CommandFailed(f"--request is needed: which request of claim {claim}; {which}")
    if request is not None and known is not None and request not in known:
        raise CommandFailed(f"--request {request}: claim {claim} has no such request; it has {', '.join(known) or 'none'}")
    return request or (known or [""])[0]


async def remove(
    client: Client, name: str, devices: Sequence[str], *, wait_: bool, timeout: float | None, dry_run: bool
) -> None:
    def change(spec: Object, vmi: Object | None) -> Object:
        for device in devices:
            _check_removable(name, spec, vmi, device)
        _check_changeable(name, vmi)
        lists = ((spec.get("domain") or {}).get("devices")) or {}
        left = {list_: [entry for entry in lists[list_] if entry.get("name") not in devices]
                for list_ in device_refs.LISTS if lists.get(list_)}
        before = {ref.claim for ref in device_refs.request_refs({"spec": spec})}
        fresh = {**spec, "domain": {**spec["domain"], "devices": {**lists, **left}}}
        unused = before - {ref.claim for ref in device_refs.request_refs({"spec": fresh})}
        claims = [entry for entry in spec.get("resourceClaims") or () if entry.get("name") not in unused]
        return {"domain": {"devices": left}, "resourceClaims": claims or None}

    running = await template_change.patch(client, name, "devices", change, dry_run=dry_run)
    verb = "is" if len(devices) == 1 else "are"
    template_change.print_done(f"{', '.join(devices)} {verb} removed from {name}", dry_run=dry_run)
    if wait_ and running:
        await template_change.until(client, name, f"rid of {', '.join(devices)}", lambda vmi: not any(
            entry.get("name") in devices for list_ in device_refs.LISTS for entry in device_status.statuses(vmi or {}, list_)),
            timeout, reasons=REASONS)


def _check_removable(name: str, spec: Object, vmi: Object | None, device: str) -> None:
    """CommandFailed: the template has no one GPU or host device of this name; what it is, and what would be right."""
    refs = device_refs.written_refs({"spec": spec})
    named = [f"{TEMPLATE}.domain.devices.{ref.list}[{ref.index}]" for ref in refs if ref.name == device]
    if len(named) > 1:
        raise CommandFailed(f"{named[-1]}: {name} has a GPU and a host device {device}, and which one is meant is not clear: "
                            f"kubectl edit vm {name}")
    if named:
        return
    if any(ref.name == device for ref in device_refs.flavor_refs(vmi or {})):
        raise CommandFailed(f"{RejectionCode.FLAVOR_DEVICE}: {device} is a device of the flavor of {name}: those are not "
                            "plugged or unplugged while it runs; stop the VM and give it another flavor")
    if (index := _index(spec, "disks", device)) is not None:
        raise CommandFailed(f"{TEMPLATE}.domain.devices.disks[{index}]: {device} of {name} is a disk and is not "
                            "unplugged: stop the VM and remove it from its template")
    if (index := _index(spec, "interfaces", device)) is not None:
        raise CommandFailed(f"{TEMPLATE}.domain.devices.interfaces[{index}]: {device} of {name} is a NIC: outfit vm nic remove "
                            f"{name} {device}")
    if _is_unplugged(spec, vmi, device):
        raise CommandFailed(f"{TEMPLATE}.domain.devices: {device} is removed already, and the running {name} still has it: "
                            f"outfit vm device list {name}")
    flavored = f"; devices of flavor {spec['flavor'].get('name')} are not removed" if spec.get("flavor") else ""
    raise CommandFailed(f"{TEMPLATE}.domain.devices: {name} has no GPU or host device {device}; it has "
                        f"{', '.join(ref.name for ref in refs) or 'none'}{flavored}")
