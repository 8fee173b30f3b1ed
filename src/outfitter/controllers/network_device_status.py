"""Network cards in the device status: which device of which claim a card is. Whoever plugged the card in (a network plugin, or
the node agent) says on the pod which function it took; this finds the claim that the function came from. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from outfitter.api.device import ADDRESS_NAMES, text_attribute
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import device_refs, network_info, pod_claims


def entries(
    pod: Mapping[str, Any], claims: device_refs.Claims, entry: Callable[[str, str, Mapping[str, Any]], tuple[Object, str]],
    find: Callable[[Mapping[str, Any], str | None], Mapping[str, Any] | str],
) -> list[Object]:
    """One for each card whose function one of the pod's claims got. `entry`: what is written of a result under a name."""
    wanted = {name: wire.address.lower() for name, wire in network_info.of_pod(pod).items() if name and wire.address}
    if not wanted:
        return []
    there: dict[str, tuple[str, Mapping[str, Any]]] = {}
    for claim_name in dict.fromkeys(name for _, name in pod_claims.claim_names(pod) if name):
        claim = claims(pod["metadata"]["namespace"], claim_name) or {}
        for result in (((claim.get("status") or {}).get("allocation") or {}).get("devices") or {}).get("results") or ():
            device = find(result, pod["spec"].get("nodeName"))
            if not isinstance(device, str) and (address := text_attribute(device, result["driver"], ADDRESS_NAMES)):
                there[address.lower()] = claim_name, result
    return [entry(network, *there[address])[0] for network, address in wanted.items() if address in there]
