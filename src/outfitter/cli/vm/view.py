"""Virtual machines as a person sees them: which there are, how they are and why, and what hardware they have."""

from __future__ import annotations

import asyncio
import textwrap
from collections.abc import Iterator, Sequence

from outfitter.api import conditions, kinds
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import device_refs, device_status, network_info, vm_actions, vm_claim_templates, vmi_actions
from outfitter.api.kubevirt import vm as vm_api
from outfitter.cli import printers
from outfitter.cli.client import Client
from outfitter.errors import BadRequest, CommandFailed, Forbidden, NotFound

WIDTH = 90  # letters of a reason in a row; `outfit why` has all of it
OURS = "default-scheduler"  # whoever else is named says nothing of a machine that waits
CARD = "network card"  # what a machine has one as
OVER = ("given back", "unplugged")  # what became of a device, and of a card that was none, when its machine ended


async def list_(client: Client, *, everywhere: bool) -> None:
    place = "" if everywhere else client.namespace
    machines, instances = await asyncio.gather(client.store.list(kinds.VM, place),
                                               client.store.list(kinds.VMI, place))
    by_name = {_place(obj): obj for obj in instances.items}
    own = [_place(vm) for vm in machines.items if (found := by_name.get(_place(vm))) and vm_api.belongs(found, vm)]
    rows = [_row(vm, by_name.pop(_place(vm)) if _place(vm) in own else None) for vm in machines.items]
    rows += [_row(None, instance) for instance in by_name.values()]  # instances that no machine stands behind
    if not rows:
        printers.say([f"No machines found{'' if everywhere else f' in namespace {client.namespace}'}."])
        return
    rows.sort()
    skip = 0 if everywhere else 1
    head = ["NAMESPACE", "NAME", "STATUS", "NODE", "DEVICES", "WHY"]
    printers.say(printers.columns([head[skip:], *(row[skip:] for row in rows)]))


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
    # A card of a virtual function has it before the machine runs, whoever gave it.
    functions = [each for each in network_info.interfaces(given or {"spec": _template(obj)})
                 if each.get("sriov") is not None and each.get("state") != "absent"]
    have += len(functions) if status.get("phase") == "Running" else len(network_info.given(given))
    have = 0 if status.get("phase") in vm_api.FINAL else have  # its status says what it had
    all_ = len(wanted) + len(functions)
    return [*_place(obj), word, str(status.get("nodeName") or "-"), f"{have}/{all_}" if all_ else "-",
            textwrap.shorten(why(vm, given), WIDTH, placeholder=" ... (outfit why)")]


def _template(vm: Object) -> Object:
    spec: Object = ((vm.get("spec") or {}).get("template") or {}).get("spec") or {}
    return {**spec, "domain": spec.get("domain") or {}}


def why(vm: Object | None, instance: Object) -> str:
    """What a machine waits for; if it does not wait, why it stands still, or how it ended."""
    if found := waiting(vm, instance):
        return found
    status = (vm or {}).get("status") or {}
    if (again := status.get("startFailure")) and status.get("printableStatus") == "CrashLoopBackOff":
        times = int(again.get("consecutiveFailCount") or 1)
        return f"it failed{f' {times} times' if times > 1 else ''}, and starts again at {again.get('retryAfterTimestamp')}"
    type_ = vmi_actions.PAUSED if is_paused(instance) else "Ready" if phase(instance) == "Failed" else ""
    return str((conditions.find(instance, type_) or {}).get("message") or "")


def waiting(vm: Object | None, instance: Object) -> str:
    if vm is not None and (failed := conditions.find(vm, "Failure")):
        return str(failed.get("message"))
    if ((instance.get("status") or {}).get("phase")) == "Running":
        return ""
    scheduler = (instance.get("spec") or {}).get("schedulerName") or OURS
    unplaced = scheduler != OURS and phase(instance) in ("Pending", "Scheduling")
    return _unmet(instance, "PodScheduled", "Synchronized") or (
        f"scheduler {scheduler} has not given it a host" if unplaced else _unmet(instance, "DevicesReady"))


def _unmet(instance: Object, *types: str) -> str:
    """What the first of these conditions that is false says."""
    found = (conditions.find(instance, type_) or {} for type_ in types)
    return next((str(one.get("message") or one.get("reason")) for one in found if one.get("status") == "False"), "")


async def devices(client: Client, names: Sequence[str]) -> None:
    """What each machine asked for and what it got."""
    found = [(name, await instance_of(client, name)) for name in names]
    for name, instance in found:  # before anything is shown of the others
        if instance is None:
            vm, _ = await read(client, name)
            if vm_actions.comes(vm, None):
                raise CommandFailed(f"{name} has not started yet, so it has no devices; what it waits for: outfit why "
                                    f"vm/{name}")
            kept = any(map(vm_claim_templates.kept_when_stopped, vm_claim_templates.entries(vm)))
            has = "what its own claims hold is among: outfit devices" if kept else "so it has no devices"
            raise CommandFailed(f"{name} does not run, {has}; start it with: outfit vm start {name}")
    for number, (name, instance) in enumerate(found):
        assert instance is not None
        rows = [["DEVICE", "AS", "IS", "ADDRESS", "PRODUCT", "CLAIM", "ON"]]
        rows += [row for ref in device_refs.device_refs(instance) for row in _device_rows(instance, ref)]
        rows += await _cards(client, instance)
        printers.say([*([""] if number else []), *([f"{name}:"] if len(names) > 1 else [])])
        if len(rows) > 1 and phase(instance) in vm_api.FINAL:
            now = [await _now(client, instance, row) for row in rows[1:]]
            how = "failed" if phase(instance) == "Failed" else "ended"
            printers.say([f"{name} has {how}{'' if set(now) - set(OVER) else ' and gave its devices back'}; it had:"])
            rows = [[*row, word] for row, word in zip(rows, ["NOW", *now], strict=True)]
        printers.say(printers.columns(rows) if len(rows) > 1 else [f"{name} asks for no devices"])


async def _now(client: Client, instance: Object, row: Sequence[str]) -> str:
    """What became of a device that an instance had which has ended: a claim that belongs to its machine keeps it."""
    _, as_, device, _, _, source, _ = row
    if device == "-":
        return OVER[1] if as_ == CARD else OVER[0]
    try:
        claim = await client.store.get(kinds.RESOURCE_CLAIM, source.partition(" ")[0], client.namespace)
    except NotFound:
        return OVER[0]
    except Forbidden:
        return "not known: its claim may not be read"
    status = claim.get("status") or {}
    results = ((status.get("allocation") or {}).get("devices") or {}).get("results") or ()
    if not any(one.get("device") == device for one in results):
        return OVER[0]
    users = [(one.get("resource"), one.get("name")) for one in status.get("reservedFor") or ()]
    if (kinds.VM.plural, (vm_api.owner(instance, kinds.VM.kind) or {}).get("name")) in users:
        return "kept for the machine by its claim"
    return f"with {', '.join(f'{resource}/{name}' for resource, name in users)}" if users else "being given back"


def _device_rows(instance: Object, ref: device_refs.DeviceRef) -> Iterator[list[str]]:
    host = (instance.get("status") or {}).get("nodeName")
    for entry in device_status.status_of(instance, ref) or [{}]:
        given, where = entry.get("deviceResourceClaimStatus") or {}, device_status.address_of(entry) if entry else None
        unknown = "a device plugin knows" if ref.device_name and host and not entry else "not known yet"
        yield [ref.name, {"gpus": "gpu", "hostDevices": "host device"}[ref.list], given.get("name") or "-",
               where[1] if where else unknown, given.get("product") or "-",
               " for ".join(filter(None, (given.get("resourceClaimName"), ref.device_name))) or "-",
               given.get("pool") or host or "-"]


async def _cards(client: Client, instance: Object) -> list[list[str]]:
    """Its network cards, and what its pod says that they are plugged into."""
    cards = [each for each in network_info.interfaces(instance) if each.get("state") != "absent"]
    if not cards:
        return []
    meta = instance["metadata"]
    pods = await client.store.list(kinds.POD, meta["namespace"], labels=f"{vm_api.CREATED_BY}={meta['uid']}")
    plugged = {name: wire for pod in pods.items for name, wire in network_info.of_pod(pod).items()}
    on = {network["name"]: network for network in network_info.networks(instance)}
    out = []
    for card in cards:
        network, wire = on.get(card["name"]) or {}, plugged.get(card["name"])
        given = network_info.given(instance).get(card["name"]) or {}
        source = given.get("resourceClaimName") or (network.get("resourceClaim") or {}).get("claimName")
        attachment = (network.get("multus") or {}).get("networkName")
        out.append([card["name"], CARD, given.get("name") or "-", wire.place if wire else "not known yet",
                    given.get("product") or "-", " for ".join(filter(None, (source, attachment))) or "-",
                    (instance.get("status") or {}).get("nodeName") or "-"])
    return out


async def read(client: Client, name: str) -> tuple[Object, Object | None]:
    instance = await instance_of(client, name)
    vm = await machine_of(client, name, instance)
    if vm is None:
        raise BadRequest(f"{name} is an instance without a machine behind it: it runs from its creation to its deletion "
                         f"(outfit delete vmi {name})")
    return vm, instance


async def away(client: Client, instance: Object | None) -> str:
    """That a machine is on a host where nobody does anything, and why; "": it is not, or it cannot be told."""
    name = ((instance or {}).get("status") or {}).get("nodeName")
    if instance is None or not name or phase(instance) in vm_api.FINAL:
        return ""
    try:
        node = await client.store.get(kinds.NODE, name)
    except NotFound:
        node = None
    except Forbidden:
        return ""
    absent = conditions.absence(node)
    return f"it is on {name}, {absent}" if absent else ""


async def both(client: Client, name: str) -> tuple[Object | None, Object | None]:
    """A machine and its instance, or what there is of them, in that order: who sees a machine that was started does not see an
    instance of before."""
    try:
        vm = await client.store.get(kinds.VM, name, client.namespace)
    except NotFound:
        vm = None
    return vm, await instance_of(client, name)


async def machine_of(client: Client, name: str, instance: Object | None) -> Object | None:
    """None: there is an instance alone."""
    try:
        return await client.store.get(kinds.VM, name, client.namespace)
    except NotFound:
        if instance is None:
            raise NotFound(f"there is no virtual machine {name!r} in namespace {client.namespace}") from None
        return None


async def instance_of(client: Client, name: str) -> Object | None:
    if not name:
        raise BadRequest("NAME is empty: it takes the name of a virtual machine (outfit vm list shows them)")
    try:
        return await client.store.get(kinds.VMI, name, client.namespace)
    except NotFound:
        return None


def phase(instance: Object) -> str:
    return str((instance.get("status") or {}).get("phase") or "Pending")


def is_paused(instance: Object | None) -> bool:
    return instance is not None and conditions.is_true(instance, vmi_actions.PAUSED)
