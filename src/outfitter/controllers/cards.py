"""Network cards in the device status: which device of which claim a card is. Whoever plugged the card in (a network plugin, or
the node agent) says on the pod which function it took; this finds the claim that the function came from. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from outfitter.api import machine
from outfitter.api.device import ADDRESS_NAMES, text_attribute
from outfitter.api.kinds import Object

INFO = "kubevirt.io/network-info"  # annotation of a launcher pod
LIST = "interfaceStatuses"  # of status.deviceStatus


def plugged(pod: Mapping[str, Any]) -> dict[str, str]:
    """The function that each network has, as far as the pod says so in a way that can be read."""
    text = (pod["metadata"].get("annotations") or {}).get(INFO)
    try:
        listed = json.loads(text).get("interfaces") or () if text else ()
        return {str(each["network"]): str(each["deviceInfo"]["pci"]["pci-address"]) for each in listed
                if ((each.get("deviceInfo") or {}).get("pci") or {}).get("pci-address")}
    except (ValueError, AttributeError, TypeError, KeyError):
        return {}


def entries(
    pod: Mapping[str, Any], claims: machine.Claims, entry: Callable[[str, str, Mapping[str, Any]], tuple[Object, str]],
    find: Callable[[Mapping[str, Any], str | None], Mapping[str, Any] | str],
) -> list[Object]:
    """One for each card whose function one of the pod's claims got. `entry`: what is written of a result under a name."""
    wanted = plugged(pod)
    if not wanted:
        return []
    there: dict[str, tuple[str, Mapping[str, Any]]] = {}
    for claim_name in dict.fromkeys(name for _, name in machine.claim_names(pod) if name):
        claim = claims(pod["metadata"]["namespace"], claim_name) or {}
        for result in (((claim.get("status") or {}).get("allocation") or {}).get("devices") or {}).get("results") or ():
            device = find(result, pod["spec"].get("nodeName"))
            if not isinstance(device, str) and (address := text_attribute(device, result["driver"], ADDRESS_NAMES)):
                there[address.lower()] = claim_name, result
    return [entry(network, *there[address.lower()])[0] for network, address in wanted.items() if address.lower() in there]
