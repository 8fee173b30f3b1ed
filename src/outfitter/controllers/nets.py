"""The networks of a launcher pod: which attachments it asks for, under which names, and what they take of the host. Pure.

Names of interfaces are made from the network's name ("pod" and a part of its hash), so that they stay when networks come and
go. Pods of long ago count them instead (net1, net2, ...); a machine that moves keeps what its guest's taps are bound to, unless
the gate says that moving is the time to change."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from outfitter.api.gates import Gates
from outfitter.api.kinds import Object
from outfitter.errors import Refused

NETWORKS = "k8s.v1.cni.cncf.io/networks"
DEFAULT_NETWORK = "v1.multus-cni.io/default-network"
STATUS = "k8s.v1.cni.cncf.io/network-status"
RESOURCE = "k8s.v1.cni.cncf.io/resourceName"
INJECTION = "ExternalNetResourceInjection"  # somebody else adds what networks take of the host
UPGRADE = "PodSecondaryInterfaceNamingUpgrade"
_COUNTED = re.compile(r"net\d+")
Attachments = Callable[[str, str], Object | None]  # namespace, name -> NetworkAttachmentDefinition


def of_pod(instance: Mapping[str, Any], source: Mapping[str, Any] | None = None, open_: Gates | None = None) -> Object:
    """What a pod says of its networks. `source`: the pod that the machine moves away from."""
    counted = source is not None and _counts(source) and not (open_ or Gates()).open(UPGRADE)
    entries = list(_entries(instance, counted=counted))
    out: Object = {}
    if entries:
        out[NETWORKS] = json.dumps(entries, separators=(",", ":"))
    for network in instance["spec"].get("networks") or ():
        if (network.get("multus") or {}).get("default"):
            namespace, name = attachment(instance, network)
            out[DEFAULT_NETWORK] = f"{namespace}/{name}"
    return out


def _entries(instance: Mapping[str, Any], *, counted: bool) -> Iterator[Object]:
    interfaces = {each["name"]: each for each in (instance["spec"]["domain"].get("devices") or {}).get("interfaces") or ()}
    second = [network for network in instance["spec"].get("networks") or ()
              if network.get("multus") and not network["multus"].get("default")]
    for number, network in enumerate(second, 1):
        interface = interfaces.get(network["name"]) or {}
        if interface.get("state") == "absent" and not counted:
            continue
        namespace, name = attachment(instance, network)
        entry: Object = {"name": name, "namespace": namespace}
        if interface.get("macAddress"):
            entry["mac"] = interface["macAddress"]
        entry["interface"] = f"net{number}" if counted else interface_name(network["name"])
        yield entry


def interface_name(network: str) -> str:
    return "pod" + hashlib.sha256(network.encode()).hexdigest()[:11]


def attachment(instance: Mapping[str, Any], network: Mapping[str, Any]) -> tuple[str, str]:
    """Namespace and name of a network's definition."""
    namespace, _, name = str(network["multus"]["networkName"]).rpartition("/")
    return namespace or instance["metadata"]["namespace"], name


def _counts(pod: Mapping[str, Any]) -> bool:
    """Whether a pod's interfaces are counted, by what its networks say."""
    text = (pod["metadata"].get("annotations") or {}).get(STATUS)
    try:
        said = json.loads(text) if text else []
    except ValueError:
        return False
    return isinstance(said, list) and any(
        _COUNTED.fullmatch(str(entry.get("interface"))) for entry in said if isinstance(entry, Mapping))


def resources(instance: Mapping[str, Any], attachments: Attachments, open_: Gates) -> Counter[str]:
    """What networks take of the host, by the resource that their definitions name: virtual functions mostly, but also a mark
    that a host has the bridge. Refused: the definition of an SR-IOV network is missing, so nobody knows what it takes."""
    out: Counter[str] = Counter()
    if INJECTION in open_.on:
        return out
    cards = {each["name"]: each for each in (instance["spec"]["domain"].get("devices") or {}).get("interfaces") or ()}
    for network in instance["spec"].get("networks") or ():
        card = cards.get(network["name"]) or {}
        if network.get("multus") and card.get("state") != "absent":
            namespace, name = attachment(instance, network)
            found = attachments(namespace, name)
            if found is None and card.get("sriov") is not None:
                raise Refused(f"failed to locate network attachment definition {namespace}/{name}, which network "
                              f"{network['name']} names")
            if resource := ((found or {}).get("metadata", {}).get("annotations") or {}).get(RESOURCE):
                out[resource] += 1
    return out


def asked_for(instance: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Namespace and name of every definition that the networks name."""
    return [attachment(instance, network) for network in instance["spec"].get("networks") or () if network.get("multus")]
