"""What is to be done about the network interfaces of a VMI that runs: its spec against its domain. Pure. Called by
`nic_hotplug`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from outfitter.api.hypervisor import DomainNic
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import network_info
from outfitter.api.kubevirt.network_info import TYPES, Wire
from outfitter.api.live_update import nics as live_nics

DOMAIN, MULTUS = "domain", "multus-status"  # sources of an entry of status.interfaces


@dataclass(frozen=True, slots=True)
class NicPlan:
    attach: tuple[str, ...]  # names of interfaces
    detach: tuple[tuple[str, DomainNic], ...]
    links: tuple[tuple[str, DomainNic, bool], ...]  # whether the link is to be up

    @property
    def nothing(self) -> bool:
        return not (self.attach or self.detach or self.links)


def plan(instance: Object, nics: Sequence[DomainNic]) -> NicPlan:
    """A NIC of ours whose interface the spec no longer has goes as well: its plug was cancelled while it was done."""
    interfaces = {str(entry["name"]): entry for entry in network_info.interfaces(instance)}
    have = named(nics, interfaces)
    attach = [name for name, entry in interfaces.items() if name not in have and _pluggable(instance, entry)]
    detach = [(name, nic) for name, nic in have.items()
              if name not in interfaces or interfaces[name].get("state") == "absent"]
    links = [(name, nic, up) for name, nic in have.items() if (entry := interfaces.get(name)) is not None
             and entry.get("state") != "absent" and not nic.address and (up := entry.get("state") != "down") != nic.link_up]
    return NicPlan(tuple(attach), tuple(detach), tuple(links))


def _pluggable(instance: Object, entry: Mapping[str, Any]) -> bool:
    network = next((each for each in network_info.networks(instance) if each.get("name") == entry["name"]), None)
    return entry.get("state") != "absent" and live_nics.pluggable(entry, network)


def named(nics: Iterable[DomainNic], names: Collection[str]) -> dict[str, DomainNic]:
    """The NICs of a domain by the names of their interfaces. An alias may have underscores in addition."""
    out: dict[str, DomainNic] = {}
    for nic in nics:
        plain = nic.name.rstrip("_")
        name = nic.name if nic.name in names else next((each for each in names if each.rstrip("_") == plain), nic.name)
        out[name if name not in out else nic.name] = nic
    return out


def wires(nics: Mapping[str, DomainNic]) -> list[Wire]:
    """What the NICs of a domain are attached to."""
    return [Wire(name, nic.type if nic.type in TYPES else None, nic.mac or None, nic.address or None, nic.bridge,
                 nic.vlan) for name, nic in nics.items()]


def statuses(
    instance: Object, nics: Mapping[str, DomainNic], *, multus: bool, kept: Collection[str] = ()
) -> list[Object]:
    """status.interfaces of a VMI whose domain has these NICs now. `multus`: the networks of the pod are set up here, and their
    source comes and goes with the NIC, but for `kept`; else a controller writes it. Entries of other sources stay."""
    networks = {network["name"]: network for network in network_info.networks(instance)}
    have: list[Object] = list((instance.get("status") or {}).get("interfaces") or ())
    known = {str(entry.get("name")): entry for entry in have if entry.get("name")}
    order = [str(entry["name"]) for entry in network_info.interfaces(instance)]
    out: list[Object] = []
    for name in [*order, *(name for name in [*known, *nics] if name not in order)]:
        entry, nic = known.pop(name, {}), nics.get(name)
        second = (networks.get(name) or {}).get("multus") is not None
        sources = _without(entry, DOMAIN, *([MULTUS] if multus and nic is None and name not in kept else []))
        if nic is None:
            if sources:
                out.append({**entry, "infoSource": ", ".join(sources)})
            continue
        added = [DOMAIN, *([MULTUS] if multus and second else [])]
        listed = [source.strip() for source in str(entry.get("infoSource") or "").split(",") if source.strip()]
        fresh = {**entry, "name": name, "mac": nic.mac or entry.get("mac"),
                 "infoSource": ", ".join(dict.fromkeys([*listed, *added])),
                 "podInterfaceName": entry.get("podInterfaceName") or (network_info.interface_name(name) if second else None),
                 "linkState": "up" if nic.link_up else "down"}
        out.append({key: value for key, value in fresh.items() if value})
    return [*out, *(entry for entry in have if not entry.get("name"))]


def arrived(entries: Iterable[Object], nics: Mapping[str, DomainNic]) -> list[Object]:
    """status.interfaces of a VMI that arrived by a migration: its pod has these networks, its domain has these NICs. The others
    are plugged next."""
    out = [entry if entry["name"] in nics else {**entry, "infoSource": ", ".join(_without(entry, DOMAIN))} for entry in entries]
    return [entry for entry in out if entry["infoSource"]]


def _without(entry: Mapping[str, Any], *gone: str) -> list[str]:
    sources = [source.strip() for source in str(entry.get("infoSource") or "").split(",")]
    return [source for source in sources if source and source not in gone]

