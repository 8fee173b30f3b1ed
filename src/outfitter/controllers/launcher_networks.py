"""The networks of a launcher pod: which attachments it asks for, under which names, and what they take of the host. Pure.

Names of interfaces are made from the network's name ("pod" and a part of its hash), so that they stay when networks come and
go. Pods of long ago count them instead (net1, net2, ...); a VM that migrates keeps what its guest's taps are bound to, unless
the feature gate makes migration the time to change."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from outfitter.api.kinds import Object
from outfitter.api.kubevirt import feature_gates, network_info
from outfitter.api.kubevirt.feature_gates import Gates
from outfitter.api.kubevirt.kubevirt_config import KubeVirtConfig
from outfitter.api.kubevirt.network_info import STATUS, attachment, interface_name
from outfitter.errors import NotReady

NETWORKS = "k8s.v1.cni.cncf.io/networks"
DEFAULT_NETWORK = "v1.multus-cni.io/default-network"
_COUNTED = re.compile(r"net\d+")
Attachments = Callable[[str, str], Object | None]  # namespace, name -> NetworkAttachmentDefinition


def of_pod(instance: Mapping[str, Any], settings: KubeVirtConfig, source: Mapping[str, Any] | None = None) -> Object:
    """The network annotations of a pod. `source`: the pod that the VM migrates from."""
    counted = source is not None and _counts(source) and not settings.gates.open(feature_gates.NAMING)
    entries = list(_entries(instance, settings.plugins, counted=counted))
    out: Object = {}
    if entries:
        out[NETWORKS] = json.dumps(entries, separators=(",", ":"))
    for network in instance["spec"].get("networks") or ():
        if (network.get("multus") or {}).get("default"):
            namespace, name = attachment(instance, network)
            out[DEFAULT_NETWORK] = f"{namespace}/{name}"
    return out


def of_running_pod(
    instance: Mapping[str, Any], settings: KubeVirtConfig, pod: Mapping[str, Any], *, counted: bool, left_out: Collection[str],
    plugged: Collection[str],
) -> str:
    """The networks annotation of a pod whose VM gets or loses NICs; "" without any. `left_out`: networks that this pod does not
    get; `plugged`: those that it has, whose entries stay as they are."""
    have = {str(entry.get("interface")): entry for entry in _listed(pod) if entry.get("interface")}
    known = {interface: name for name in plugged for interface in (interface_name(name),)}
    out = []
    for network, entry in _entries_by_network(instance, settings.plugins, counted=counted, absent=False):
        if network in left_out:
            continue
        same = have.get(str(entry.get("interface")))
        out.append(dict(same) if same is not None and (counted or known.get(str(entry.get("interface"))) == network) else entry)
    return json.dumps(out, separators=(",", ":")) if out else ""


def same_networks(wanted: str, have: str | None) -> bool:
    """Whether two annotations list the same networks, however they are written."""
    if not wanted or not have:
        return not wanted and not have
    try:
        return bool(json.loads(wanted) == json.loads(have))
    except ValueError:
        return False


def listed_interfaces(pod: Mapping[str, Any]) -> set[str]:
    """The interfaces that a pod's networks annotation names."""
    return {str(entry["interface"]) for entry in _listed(pod) if entry.get("interface")}


def _listed(pod: Mapping[str, Any]) -> list[Object]:
    text = (pod["metadata"].get("annotations") or {}).get(NETWORKS)
    try:
        listed = json.loads(text) if text else []
    except ValueError:
        return []
    return [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []


def _entries(instance: Mapping[str, Any], plugins: Mapping[str, str], *, counted: bool) -> Iterator[Object]:
    """In the order of the networks; what a binding plugin adds comes after the network that it binds. Where interfaces are
    counted, absent ones keep their place."""
    for _, entry in _entries_by_network(instance, plugins, counted=counted, absent=counted):
        yield entry


def _entries_by_network(
    instance: Mapping[str, Any], plugins: Mapping[str, str], *, counted: bool, absent: bool
) -> Iterator[tuple[str, Object]]:
    """Entries with the network that each is of. `absent`: also those of absent interfaces."""
    interfaces = {each["name"]: each for each in (instance["spec"]["domain"].get("devices") or {}).get("interfaces") or ()}
    number = 0
    for network in instance["spec"].get("networks") or ():
        interface = interfaces.get(network["name"]) or {}
        second = network.get("multus") and not network["multus"].get("default")
        number += bool(second)
        if interface.get("state") == "absent" and not absent:
            continue
        if second:
            namespace, name = attachment(instance, network)
            mac = {"mac": interface["macAddress"]} if interface.get("macAddress") else {}
            yield network["name"], {"name": name, "namespace": namespace, **mac,
                                    "interface": f"net{number}" if counted else interface_name(network["name"])}
        if definition := plugins.get((interface.get("binding") or {}).get("name", "")):
            namespace, name = _definition(instance, definition)
            yield network["name"], {"name": name, "namespace": namespace, "cni-args": {"logicNetworkName": network["name"]}}


def _definition(instance: Mapping[str, Any], definition: str) -> tuple[str, str]:
    namespace, _, name = definition.rpartition("/")
    return namespace or instance["metadata"]["namespace"], name


def _counts(pod: Mapping[str, Any]) -> bool:
    """Whether a pod's interfaces are counted, by what its networks say."""
    text = (pod["metadata"].get("annotations") or {}).get(STATUS)
    try:
        statuses = json.loads(text) if text else []
    except ValueError:
        return False
    return isinstance(statuses, list) and any(
        _COUNTED.fullmatch(str(entry.get("interface"))) for entry in statuses if isinstance(entry, Mapping))


def resources(instance: Mapping[str, Any], attachments: Attachments, open_: Gates) -> dict[str, str]:
    """What networks take of the host: network -> the resource that its definition names, a virtual function mostly, but also a
    label that a host has the bridge. NotReady: the definition of an SR-IOV network is missing, so its resource is unknown."""
    out: dict[str, str] = {}
    if feature_gates.INJECTION in open_.on:
        return out
    cards = {each["name"]: each for each in (instance["spec"]["domain"].get("devices") or {}).get("interfaces") or ()}
    for network in instance["spec"].get("networks") or ():
        card = cards.get(network["name"]) or {}
        if network.get("multus") and card.get("state") != "absent":
            namespace, name = attachment(instance, network)
            found = attachments(namespace, name)
            if found is None and card.get("sriov") is not None:
                raise NotReady(f"failed to locate network attachment definition {namespace}/{name}, which network "
                               f"{network['name']} names")
            if found is not None and (resource := network_info.resource_of(found)):
                out[network["name"]] = resource
    return out


def without_resource(instance: Mapping[str, Any], attachments: Attachments, open_: Gates) -> None:
    """NotReady: an SR-IOV network takes nothing of the host, so its card would never get a function."""
    cards = {each["name"]: each for each in network_info.interfaces(instance)}
    for index, network in enumerate(network_info.networks(instance)):
        card = cards.get(network["name"]) or {}
        wired = network.get("multus") and card.get("sriov") is not None and card.get("state") != "absent"
        if not wired or feature_gates.INJECTION in open_.on:
            continue
        found = attachments(*attachment(instance, network))
        if found is not None and not network_info.resource_of(found):
            raise NotReady(f"spec.networks[{index}].multus.networkName: {network_info.no_resource(found, network['name'])}")


def asked_for(instance: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Namespace and name of every definition that the networks name."""
    return [attachment(instance, network) for network in instance["spec"].get("networks") or () if network.get("multus")]
