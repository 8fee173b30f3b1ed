"""`outfit vm nic add`, `remove`, `link` and `list`: the NICs of a VM. They change the template of the VM; what follows for a VM
that runs is decided by the controllers and the node (docs/nic-hotplug.md)."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from outfitter.api import kinds
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import network_info
from outfitter.cli import printers
from outfitter.cli.client import Client
from outfitter.cli.vm import template_change, view, wait
from outfitter.errors import CommandFailed, Forbidden, NotFound

INTERFACES, NETWORKS = "spec.template.spec.domain.devices.interfaces", "spec.template.spec.networks"
REASONS = ("InterfacesReady", "MigrationRequired", "RestartRequired")  # conditions that say why a NIC is not there yet
Nics = tuple[list[Object], list[Object]]  # interfaces and networks of a template


async def list_(client: Client, name: str) -> None:
    vm, vmi = await view.vm_and_vmi(client, name)
    if vm is None and vmi is None:
        raise NotFound(f"there is no VM {name} in namespace {client.namespace}")
    wanted = {"spec": vm["spec"]["template"]["spec"]} if vm is not None else vmi or {}
    pod = await _pod(client, vmi) if vmi is not None else None
    wires = network_info.wires_of_pod(pod) if pod is not None else {}
    reported = {entry.get("name"): entry for entry in ((vmi or {}).get("status") or {}).get("interfaces") or ()}
    networks = {network["name"]: network for network in network_info.networks(wanted)}
    listed = [str(entry["name"]) for entry in network_info.interfaces(wanted)]
    rows = []
    for nic in [*listed, *(str(each) for each in reported if each and each not in listed)]:
        card = next((each for each in network_info.interfaces(wanted) if each["name"] == nic), {})
        entry = reported.get(nic) or {}
        plugged = "domain" in str(entry.get("infoSource") or "")
        default = "bridge" if card else "-"
        binding = next((each for each in network_info.BINDINGS if card.get(each) is not None), default)
        link, mac = str(entry.get("linkState") or "-"), str(entry.get("mac") or card.get("macAddress") or "-")
        rows.append([nic, _network(networks.get(nic) or {}), binding, _state(card, plugged=plugged, running=vmi is not None),
                     link if plugged else "-", mac, wires[nic].place if plugged and nic in wires else "-"])
    if not rows:
        printers.print_lines([f"{name} has no NICs"])
        return
    printers.print_lines(printers.columns([["NAME", "NETWORK", "BINDING", "STATE", "LINK", "MAC", "ATTACHED TO"], *rows]))
    template_change.print_reasons(vm, vmi, REASONS)


async def _pod(client: Client, vmi: Object) -> Object | None:
    active = ((vmi.get("status") or {}).get("activePods") or {}).keys()
    try:
        pods = (await client.store.list(kinds.POD, client.namespace)).items
    except Forbidden:
        return None
    return next((pod for pod in pods if pod["metadata"]["uid"] in active
                 and pod["spec"].get("nodeName") == vmi["status"].get("nodeName")), None)


def _network(network: Mapping[str, Any]) -> str:
    if (claim := network.get("resourceClaim")) is not None:
        return f"claim {claim.get('claimName')}/{claim.get('requestName')}"
    return str((network.get("multus") or {}).get("networkName") or ("pod" if network.get("pod") is not None else "-"))


def _state(card: Mapping[str, Any], *, plugged: bool, running: bool) -> str:
    if not card or card.get("state") == "absent":
        return "unplugging" if plugged else "absent"
    if not running:
        return "at start"
    return "plugged" if plugged else "pending"


async def add(
    client: Client, name: str, nic: str, *, network: str | None, claim: str | None, sriov: bool, mac: str | None,
    down: bool, wait_: bool, timeout: float | None, dry_run: bool,
) -> None:
    source, by_function = await _source(client, network, claim, sriov=sriov)
    card: Object = {"name": nic, "sriov" if by_function else "bridge": {}}
    if mac:
        card["macAddress"] = mac
    if down:
        card["state"] = "down"

    def change(interfaces: list[Object], networks: list[Object]) -> Nics:
        for index, entry in enumerate(interfaces):
            if entry.get("name") == nic:
                again = f"; it is being removed: wait until outfit vm nic list {name} has it no more" if (
                    entry.get("state") == "absent") else "; choose another name"
                raise CommandFailed(f"{INTERFACES}[{index}].name: {name} has an interface {nic} already{again}")
        return [*interfaces, card], [*networks, {"name": nic, **source}]

    running = await _patch(client, name, lambda interfaces, networks, running: change(interfaces, networks), dry_run=dry_run)
    late = "" if running else ", which does not run: it has it at the next start"
    template_change.print_done(f"{nic} is added to {name}{late}", dry_run=dry_run)
    if wait_ and running:
        await _until(client, name, f"given {nic}", lambda names: nic in names, timeout)


async def _source(client: Client, network: str | None, claim: str | None, *, sriov: bool) -> tuple[Object, bool]:
    """The source of a network, and whether its NIC is a VF."""
    if claim is not None:
        claim_name, _, request = claim.partition("/")
        if not claim_name or not request:
            raise CommandFailed(f"--claim {claim}: it is CLAIM/REQUEST, an entry of spec.template.spec.resourceClaims and a "
                                "request of it")
        return {"resourceClaim": {"claimName": claim_name, "requestName": request}}, True
    assert network is not None
    namespace, _, short = network.rpartition("/")
    try:
        definition = await client.store.get(kinds.NETWORK_ATTACHMENT, short, namespace or client.namespace)
    except NotFound:
        where = namespace or client.namespace
        known = sorted(each["metadata"]["name"] for each in (await client.store.list(kinds.NETWORK_ATTACHMENT, where)).items)
        raise CommandFailed(f"{NETWORKS}[].multus.networkName: there is no NetworkAttachmentDefinition {short} in namespace "
                            f"{where}; there {'are ' + ', '.join(known) if known else 'is none'}") from None
    except Forbidden:
        return {"multus": {"networkName": network}}, sriov
    return {"multus": {"networkName": network}}, sriov or _type(definition) == "sriov"


def _type(definition: Object) -> str:
    try:
        config = json.loads((definition.get("spec") or {}).get("config") or "{}")
        return str((config["plugins"][0] if "plugins" in config else config).get("type") or "")
    except (ValueError, TypeError, KeyError, IndexError, AttributeError):
        return ""


async def remove(
    client: Client, name: str, nics: Sequence[str], *, wait_: bool, timeout: float | None, dry_run: bool
) -> None:
    def change(interfaces: list[Object], networks: list[Object], running: bool) -> Nics:
        _check_known(name, interfaces, nics)
        primary = {network["name"] for network in networks
                   if network.get("pod") is not None or (network.get("multus") or {}).get("default")}
        for index, entry in enumerate(interfaces):
            if entry["name"] in nics and entry["name"] in primary and running:
                raise CommandFailed(f"{INTERFACES}[{index}].state: {entry['name']} is on the primary network of {name}, which "
                                    "is not unplugged while it runs: stop the VM first")
        if not running:
            return ([entry for entry in interfaces if entry["name"] not in nics],
                    [network for network in networks if network["name"] not in nics])
        return [{**entry, "state": "absent"} if entry["name"] in nics else entry for entry in interfaces], networks

    running = await _patch(client, name, change, dry_run=dry_run)
    template_change.print_done(f"{', '.join(nics)} {'is' if len(nics) == 1 else 'are'} removed from {name}", dry_run=dry_run)
    if wait_ and running:
        await _until(client, name, f"rid of {', '.join(nics)}", lambda names: not names & set(nics), timeout)


async def link(
    client: Client, name: str, nic: str, *, state: str, wait_: bool, timeout: float | None, dry_run: bool
) -> None:
    def change(interfaces: list[Object], networks: list[Object], running: bool) -> Nics:
        _check_known(name, interfaces, [nic])
        for index, entry in enumerate(interfaces):
            if entry["name"] == nic and entry.get("state") == "absent":
                raise CommandFailed(f"{INTERFACES}[{index}].state: {nic} of {name} is being removed")
        return [{**entry, "state": state} if entry["name"] == nic else entry for entry in interfaces], networks

    running = await _patch(client, name, change, dry_run=dry_run)
    template_change.print_done(f"the link of {nic} of {name} is set to {state}", dry_run=dry_run)
    if wait_ and running:
        await wait.until(client, f"given link state {state} of {nic}", {name: lambda vmi: any(
            entry.get("name") == nic and entry.get("linkState") == state
            for entry in ((vmi or {}).get("status") or {}).get("interfaces") or ())}, timeout)


def _check_known(name: str, interfaces: Sequence[Object], nics: Sequence[str]) -> None:
    known = [str(entry.get("name")) for entry in interfaces]
    for nic in nics:
        if nic not in known:
            raise CommandFailed(f"{INTERFACES}: {name} has no interface {nic}; it has {', '.join(known) or 'none'}")


async def _patch(
    client: Client, name: str, change: Callable[[list[Object], list[Object], bool], Nics], *, dry_run: bool
) -> bool:
    """Change the lists of a VM's template, or nothing. Whether it runs."""

    def changed(spec: Object, vmi: Object | None) -> Object:
        devices = (spec.get("domain") or {}).get("devices") or {}
        interfaces, networks = change(
            list(devices.get("interfaces") or ()), list(spec.get("networks") or ()), vmi is not None)
        return {"domain": {"devices": {"interfaces": interfaces}}, "networks": networks}

    return await template_change.patch(client, name, "NICs", changed, dry_run=dry_run)


async def _until(
    client: Client, name: str, what: str, done: Callable[[set[str]], bool], timeout: float | None
) -> None:
    def plugged(vmi: Object | None) -> bool:
        entries = ((vmi or {}).get("status") or {}).get("interfaces") or ()
        return done({str(entry.get("name")) for entry in entries if "domain" in str(entry.get("infoSource") or "")})

    await template_change.until(client, name, what, plugged, timeout, reasons=REASONS)
