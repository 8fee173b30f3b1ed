"""`status.interfaces` of a VMI and its sources: what the domain has (`domain`), what the guest's agent reports (`guest-agent`),
and what is ready in the pod, by Multus (`multus-status`) or by any other mechanism (`pod-status`). Pure.

The node agent writes what the domain has; `controllers/nic_hotplug` adds what the pod's network-status reports."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from outfitter.api.kinds import Object
from outfitter.api.kubevirt import network_info

DOMAIN, GUEST_AGENT, MULTUS, POD = "domain", "guest-agent", "multus-status", "pod-status"
IN_POD = (MULTUS, POD)
PRIMARY = "eth0"  # the pod interface of the primary network, unless network-status names another as default
_COUNTED = re.compile(r"net\d+")


def entries(instance: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Network name -> its entry. What only the guest knows has no name, and is not here."""
    reported = (instance.get("status") or {}).get("interfaces") or ()
    return {str(entry["name"]): entry for entry in reported if entry.get("name")}


def sources(entry: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(filter(None, (word.strip() for word in str(entry.get("infoSource") or "").split(","))))


def with_source(entry: Mapping[str, Any], source: str) -> Object:
    """The entry with a source appended, where it is new."""
    have = sources(entry)
    return {**entry, "infoSource": ", ".join(have if source in have else (*have, source))}


def without_source(entry: Mapping[str, Any], source: str) -> Object:
    """The entry without a source; one without any has no `infoSource`."""
    left = ", ".join(each for each in sources(entry) if each != source)
    rest = {key: value for key, value in entry.items() if key != "infoSource"}
    return {**rest, "infoSource": left} if left else rest


def network_status(pod: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The entries of a pod's network-status; empty where there is none or it is invalid."""
    text = (pod["metadata"].get("annotations") or {}).get(network_info.STATUS)
    try:
        listed = json.loads(text) if text else []
    except ValueError:
        return []
    return [entry for entry in listed if isinstance(entry, Mapping)] if isinstance(listed, list) else []


def counts_interfaces(instance: Mapping[str, Any], pod: Mapping[str, Any] | None) -> bool:
    """Whether the pod's secondary interfaces have ordinal names (net1, net2, ...), as pods of long ago have."""
    named = [str(entry.get("podInterfaceName")) for entry in entries(instance).values()]
    if pod is not None:
        named += [str(entry.get("interface")) for entry in network_status(pod)]
    return any(map(_COUNTED.fullmatch, named))


def is_primary(network: Mapping[str, Any]) -> bool:
    return network.get("pod") is not None or bool((network.get("multus") or {}).get("default"))


def pod_interface_names(instance: Mapping[str, Any], *, counted: bool) -> Iterator[tuple[Mapping[str, Any], str]]:
    """Secondary networks by Multus, each with the name of its interface in the pod."""
    number = 0
    for network in network_info.networks(instance):
        if network.get("multus") is not None and not is_primary(network):
            number += 1
            yield network, f"net{number}" if counted else network_info.interface_name(network["name"])


def computed(instance: Mapping[str, Any], pod: Mapping[str, Any]) -> list[Object]:
    """`status.interfaces` with what the pod's network-status reports. The order of the entries is kept, new ones come last, a
    new primary one first. Without network-status nothing is known, and nothing changes."""
    reported = [dict(entry) for entry in (instance.get("status") or {}).get("interfaces") or ()]
    statuses = network_status(pod)
    if not statuses:
        return reported
    out = dict(enumerate(reported))
    places = {str(entry.get("name")): index for index, entry in out.items() if entry.get("name")}
    first: list[Object] = []
    last: list[Object] = []
    primary = next((network["name"] for network in network_info.networks(instance) if is_primary(network)), None)
    default = next((str(entry["interface"]) for entry in statuses if entry.get("default") and entry.get("interface")), PRIMARY)
    if primary in places:
        out[places[primary]] = {**out[places[primary]], "podInterfaceName": default}
    elif primary is not None:
        first.append({"name": primary, "podInterfaceName": default})
    there = {str(entry.get("interface")) for entry in statuses}
    for network, interface in pod_interface_names(instance, counted=counts_interfaces(instance, pod)):
        place = places.get(network["name"])
        if place is not None:
            out[place] = {**with_source(out[place], MULTUS), "podInterfaceName": interface} if interface in there else (
                without_source(out[place], MULTUS))
        elif interface in there:
            last.append({"name": network["name"], "infoSource": MULTUS, "podInterfaceName": interface})
    return [*first, *out.values(), *last]


def attached_network(entry: Mapping[str, Any], statuses: Sequence[Mapping[str, Any]], namespace: str) -> str | None:
    """namespace/name of the definition that the pod's interface of an entry is attached to; None: not reported."""
    interface = entry.get("podInterfaceName")
    name = next((str(each["name"]) for each in statuses if interface and each.get("interface") == interface
                 and each.get("name")), None)
    return name if name is None or "/" in name else f"{namespace}/{name}"
