"""`outfit vm list` and `outfit vm devices`: VMs with their status, reason and devices. Also reads VMs and VMIs for `commands`,
`wait` and `outfit delete --wait`; changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

from outfitter.api import conditions, kinds, rejection_conditions
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import device_refs, device_status, network_info, vm_actions, vm_claim_templates, vmi_actions
from outfitter.api.kubevirt import vm as vm_api
from outfitter.api.kubevirt.short_reason import in_words, short_reason
from outfitter.cli import printers
from outfitter.cli.client import Client
from outfitter.errors import BadRequest, CommandFailed, Forbidden, NotFound

OURS = "default-scheduler"  # other schedulers report nothing about a VMI that waits
INTERFACE = "interface"  # column AS of an interface
OVER = ("released", "unplugged")  # column NOW after the VMI ended: of a device, and of an interface without one


async def list_(client: Client, *, everywhere: bool) -> None:
    place = "" if everywhere else client.namespace
    vms, instances = await asyncio.gather(client.readable.list(kinds.VM, place),
                                               client.readable.list(kinds.VMI, place))
    by_name = {_place(obj): obj for obj in instances.items}
    own = [_place(vm) for vm in vms.items if (instance := by_name.get(_place(vm))) and vm_api.belongs(instance, vm)]
    rows = [_row(vm, by_name.pop(_place(vm)) if _place(vm) in own else None) for vm in vms.items]
    rows += [_row(None, instance) for instance in by_name.values()]  # VMIs without a VM
    if not rows:
        printers.print_lines([f"No VMs found{'' if everywhere else f' in namespace {client.namespace}'}."])
        return
    rows.sort()
    skip = 0 if everywhere else 1
    head = ["NAMESPACE", "NAME", "STATUS", "NODE", "DEVICES", "WHY"]
    printers.print_lines(printers.columns([head[skip:], *(row[skip:] for row in rows)]))


def _place(obj: Object) -> tuple[str, str]:
    return obj["metadata"]["namespace"], obj["metadata"]["name"]


def _row(vm: Object | None, instance: Object | None) -> list[str]:
    obj = vm or instance or {}
    given, status = instance or {}, (instance or {}).get("status") or {}
    alone = "Paused" if is_paused(instance) else str(status.get("phase") or "Pending")
    word = str((vm.get("status") or {}).get("printableStatus") or "Pending") if vm is not None else alone
    wanted = device_refs.device_refs(given or {"spec": _template(obj)})
    unknown = sum(
        bool(ref.device_name and not device_status.status_of(given, ref)) for ref in wanted if not status.get("nodeName")
    )
    have = len(wanted) - len(device_status.missing_devices(given)) - unknown if given else 0
    # An SR-IOV interface has its VF before the VMI runs, whether a claim or a device plugin allocated it.
    functions = [interface for interface in network_info.interfaces(given or {"spec": _template(obj)})
                 if interface.get("sriov") is not None and interface.get("state") != "absent"]
    have += len(functions) if status.get("phase") == "Running" else len(network_info.interface_devices(given))
    have = 0 if status.get("phase") in vm_api.FINAL else have  # its status still lists what it had
    all_ = len(wanted) + len(functions)
    return [*_place(obj), word, str(status.get("nodeName") or "-"), f"{have}/{all_}" if all_ else "-",
            _short_reason(vm, given)]


def _template(vm: Object) -> Object:
    spec: Object = ((vm.get("spec") or {}).get("template") or {}).get("spec") or {}
    return {**spec, "domain": spec.get("domain") or {}}


def reason(vm: Object | None, instance: Object) -> str:
    """What a VM waits for; if it does not wait, why it is paused, or how it ended."""
    return waiting_reason(vm, instance) or _next_start(vm) or str(
        (conditions.find(instance, _outcome(instance)) or {}).get("message") or "")


def _short_reason(vm: Object | None, instance: Object) -> str:
    """The same in a code and a few words."""
    if vm is not None and (failed := conditions.find(vm, "Failure")):
        return in_words(str(failed.get("reason") or "Failure"))
    if phase(instance) != "Running" and (
        waits_for := short_reason(instance, ("PodScheduled", "Synchronized"))
        or _other_scheduler(instance) or short_reason(instance, ("DevicesReady",))
    ):
        return waits_for
    if phase(instance) == "Running" and (lost := short_reason(instance, ("DevicesReady",))):
        return lost
    ended = conditions.find(instance, _outcome(instance)) or {}
    codes = rejection_conditions.of(instance) if phase(instance) == "Failed" else []
    return _next_start(vm) or in_words(codes[0] if codes else str(ended.get("reason") or ""))


def _next_start(vm: Object | None) -> str:
    """Of a VM that failed and starts again; "" for others."""
    status = (vm or {}).get("status") or {}
    again = status.get("startFailure")
    if not again or status.get("printableStatus") != "CrashLoopBackOff":
        return ""
    times = int(again.get("consecutiveFailCount") or 1)
    return f"it failed{f' {times} times' if times > 1 else ''}; next start at {again.get('retryAfterTimestamp')}"


def _outcome(instance: Object) -> str:
    """The condition that contains why a VMI is paused, or how it failed."""
    return vmi_actions.PAUSED if is_paused(instance) else "Ready" if phase(instance) == "Failed" else ""


def waiting_reason(vm: Object | None, instance: Object) -> str:
    if vm is not None and (failed := conditions.find(vm, "Failure")):
        return str(failed.get("message"))
    if phase(instance) == "Running":
        return ""
    return (_false_condition(instance, "PodScheduled", "Synchronized") or _other_scheduler(instance)
            or _false_condition(instance, "DevicesReady"))


def _other_scheduler(instance: Object) -> str:
    scheduler = (instance.get("spec") or {}).get("schedulerName") or OURS
    unplaced = scheduler != OURS and phase(instance) in ("Pending", "Scheduling")
    return f"scheduler {scheduler} has not bound it to a host" if unplaced else ""


def _false_condition(instance: Object, *types: str) -> str:
    """The message of the first of these conditions that is False; "" if none is."""
    entries = (conditions.find(instance, type_) or {} for type_ in types)
    return next((str(entry.get("message") or entry.get("reason")) for entry in entries if entry.get("status") == "False"), "")


async def devices(client: Client, names: Sequence[str]) -> None:
    """Prints the devices that each VM requests and has."""
    instances = [(name, await vmi_of(client, name)) for name in names]
    for name, instance in instances:  # all are checked before anything is printed
        if instance is None:
            vm, _ = await read(client, name)
            if vm_actions.will_start(vm, None):
                raise CommandFailed(f"{name} has not started yet, so it has no devices; what it waits for: outfit why "
                                    f"vm/{name}")
            kept = any(map(vm_claim_templates.kept_when_stopped, vm_claim_templates.entries(vm)))
            has = "see what its own claims hold with: outfit devices" if kept else "so it has no devices"
            raise CommandFailed(f"{name} is not running, {has}; start it with: outfit vm start {name}")
    for number, (name, instance) in enumerate(instances):
        assert instance is not None
        rows = [["DEVICE", "AS", "IS", "ADDRESS", "PRODUCT", "CLAIM", "ON"]]
        pods = await _launcher_pods(client, instance)
        host = (instance.get("status") or {}).get("nodeName") or next(
            (node for pod in pods if (node := pod["spec"].get("nodeName"))), "")
        rows += [row for ref in device_refs.device_refs(instance) for row in _device_rows(instance, ref, host)]
        rows += _interface_rows(instance, pods, host)
        printers.print_lines([*([""] if number else []), *([f"{name}:"] if len(names) > 1 else [])])
        if len(rows) > 1 and phase(instance) in vm_api.FINAL:
            now = [await _state_after_end(client, instance, row) for row in rows[1:]]
            how = "failed" if phase(instance) == "Failed" else "ended"
            printers.print_lines([f"{name} has {how}{'' if set(now) - set(OVER) else ' and released its devices'}; it had:"])
            rows = [[*row, word] for row, word in zip(rows, ["NOW", *now], strict=True)]
        printers.print_lines(printers.columns(rows) if len(rows) > 1 else [f"{name} requests no devices"])


async def _state_after_end(client: Client, instance: Object, row: Sequence[str]) -> str:
    """The state of a device whose VMI has ended: released, or kept by a claim of the VM."""
    _, as_, device, _, _, source, _ = row
    if device == "-":
        return OVER[1] if as_ == INTERFACE else OVER[0]
    try:
        claim = await client.readable.get(kinds.RESOURCE_CLAIM, source.partition(" ")[0], client.namespace)
    except NotFound:
        return OVER[0]
    except Forbidden:
        return "unknown: no permission to read its claim"
    status = claim.get("status") or {}
    results = ((status.get("allocation") or {}).get("devices") or {}).get("results") or ()
    if not any(result.get("device") == device for result in results):
        return OVER[0]
    users = [(user.get("resource"), user.get("name")) for user in status.get("reservedFor") or ()]
    if (kinds.VM.plural, (vm_api.owner(instance, kinds.VM.kind) or {}).get("name")) in users:
        return "kept for the VM by its claim"
    return f"used by {', '.join(f'{resource}/{name}' for resource, name in users)}" if users else "being released"


async def _launcher_pods(client: Client, instance: Object) -> list[Object]:
    """The pods of a VMI where they are needed: its node may be known to them alone, as the places of interfaces are."""
    meta = instance["metadata"]
    if (instance.get("status") or {}).get("nodeName") and not network_info.interfaces(instance):
        return []
    return (await client.readable.list(kinds.POD, meta["namespace"], labels=f"{vm_api.CREATED_BY}={meta['uid']}")).items


def _device_rows(instance: Object, ref: device_refs.DeviceRef, host: str) -> Iterator[list[str]]:
    """`host`: its node, "" while it has none. A pool is no node: another driver may name its pools as it likes."""
    started = bool((instance.get("status") or {}).get("nodeName"))
    for entry in device_status.status_of(instance, ref) or [{}]:
        given, where = entry.get("deviceResourceClaimStatus") or {}, device_status.address_of(entry) if entry else None
        unknown = "known to a device plugin" if ref.device_name and started and not entry else "not known yet"
        yield [ref.name, {"gpus": "gpu", "hostDevices": "host device"}[ref.list], given.get("name") or "-",
               where[1] if where else unknown, given.get("product") or "-",
               " for ".join(filter(None, (given.get("resourceClaimName"), ref.device_name))) or "-",
               host or "-"]


def _interface_rows(instance: Object, pods: Sequence[Object], host: str) -> list[list[str]]:
    """Rows of its network interfaces, with the place that the pod's network status reports."""
    interfaces = [interface for interface in network_info.interfaces(instance) if interface.get("state") != "absent"]
    plugged = {name: wire for pod in pods for name, wire in network_info.wires_of_pod(pod).items()}
    on = {network["name"]: network for network in network_info.networks(instance)}
    out = []
    for interface in interfaces:
        network, wire = on.get(interface["name"]) or {}, plugged.get(interface["name"])
        given = network_info.interface_devices(instance).get(interface["name"]) or {}
        source = given.get("resourceClaimName") or (network.get("resourceClaim") or {}).get("claimName")
        attachment = (network.get("multus") or {}).get("networkName")
        out.append([interface["name"], INTERFACE, given.get("name") or "-", wire.place if wire else "not known yet",
                    given.get("product") or "-", " for ".join(filter(None, (source, attachment))) or "-",
                    host or "-"])
    return out


async def read(client: Client, name: str) -> tuple[Object, Object | None]:
    instance = await vmi_of(client, name)
    vm = await vm_of(client, name, instance)
    if vm is None:
        raise BadRequest(f"{name} is a VMI without a VM: it runs until it is deleted "
                         f"(outfit delete vmi {name})")
    return vm, instance


async def unready_node(client: Client, instance: Object | None) -> str:
    """Names the node of a VMI if that node is not ready, with the reason; "": the node is ready, or may not be read."""
    name = ((instance or {}).get("status") or {}).get("nodeName")
    if instance is None or not name or phase(instance) in vm_api.FINAL:
        return ""
    try:
        node = await client.readable.get(kinds.NODE, name)
    except NotFound:
        node = None
    except Forbidden:
        return ""
    absent = conditions.not_ready_reason(node)
    return f"it is on {name}, {absent}" if absent else ""


async def vm_and_vmi(client: Client, name: str) -> tuple[Object | None, Object | None]:
    """A VM and its VMI, or None for each that does not exist. Read in that order, so that a started VM is not seen with its
    previous VMI."""
    try:
        vm = await client.readable.get(kinds.VM, name, client.namespace)
    except NotFound:
        vm = None
    return vm, await vmi_of(client, name)


async def vm_of(client: Client, name: str, instance: Object | None) -> Object | None:
    """None: there is a VMI without a VM. NotFound: there is neither."""
    try:
        return await client.readable.get(kinds.VM, name, client.namespace)
    except NotFound:
        if instance is None:
            raise NotFound(f"there is no VM {name!r} in namespace {client.namespace}") from None
        return None


async def vmi_of(client: Client, name: str) -> Object | None:
    if not name:
        raise BadRequest("NAME is empty: write the name of a VM (outfit vm list shows them)")
    try:
        return await client.readable.get(kinds.VMI, name, client.namespace)
    except NotFound:
        return None


def phase(instance: Object) -> str:
    return str((instance.get("status") or {}).get("phase") or "Pending")


def is_paused(instance: Object | None) -> bool:
    return instance is not None and conditions.is_true(instance, vmi_actions.PAUSED)
