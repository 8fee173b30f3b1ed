"""The networks of a machine on one host, where nobody else sets them up: which function or bridge each network card is plugged
into, by what the definitions of its networks say. Decided once for a pod and written there, for the launcher and for everybody
who asks: a network card keeps what it has."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from outfitter.api import kinds, launcher_environment
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import device_refs, network_info, pod_claims
from outfitter.api.kubevirt.network_info import Wire
from outfitter.errors import NotFound, NotReady
from outfitter.inventory.host_tree import Tree
from outfitter.node.agent_host import AgentHost
from outfitter.store.base import Store

NET = "/sys/class/net"
DEVICES = "/sys/bus/pci/devices"
MOST = 4094  # the highest number of a VLAN
UP = 1  # IFF_UP among the flags of an interface
BRIDGES = ("bridge", "cnv-bridge")  # types of network configurations that name a bridge of the host
OURS = ("bridge", "masquerade", "slirp", "sriov")  # bindings that are set up here
OTHERS = ("passt", "binding", "macvtap")
# Of an SR-IOV network: what is the case when nobody says anything, and cannot be set by the hypervisor.
USUAL: Mapping[str, tuple[Any, ...]] = {
    "vlanQoS": (0,), "vlanProto": ("802.1q", "802.1Q"), "spoofchk": ("on",), "trust": ("off",), "link_state": ("auto",),
    "min_tx_rate": (0,), "max_tx_rate": (0,)}


@dataclass(frozen=True, slots=True)
class Around:
    """What the cards of one machine are decided by."""

    instance: Object
    pod: Object
    host: str
    tree: Tree
    attachments: Mapping[tuple[str, str], Object]
    claims: device_refs.Claims
    slices: Sequence[Object]
    pod_bridge: str = ""  # the bridge of the host that stands for the pod's network


class Networks:
    """Decides for a pod, and remembers it until the machine runs. What it writes on the pod is for others to read: whoever may
    change a pod does not choose what its machine is plugged into."""

    def __init__(self, store: Store, claims: device_refs.Claims) -> None:
        self._store, self._claims = store, claims
        self._decided: dict[str, tuple[Wire, ...]] = {}  # uid of a pod -> its machine's cards

    async def plug(self, host: AgentHost, pod: Object, instance: Object) -> Object:
        """The pod, with how its machine's network cards are plugged in. NotReady: why they cannot be yet."""
        meta = pod["metadata"]
        if meta["uid"] in self._decided or not network_info.interfaces(instance):
            return pod
        slices = await self._store.list(kinds.RESOURCE_SLICE, fields=f"spec.nodeName={host.name}")
        around = Around(instance, pod, host.name, host.tree(), await self._attachments(instance), self._claims, slices.items,
                        host.settings.pod_bridge)
        found = decide(around)
        annotations = {network_info.INFO: network_info.write(found)}
        if second := list(_told(instance, found)):
            annotations[network_info.STATUS] = json.dumps(second, separators=(",", ":"))
        have = meta.get("annotations") or {}
        if any(have.get(name) != text for name, text in annotations.items()):
            pod = await self._store.patch(kinds.POD, meta["name"], {"metadata": {
                "resourceVersion": meta["resourceVersion"], "annotations": annotations}}, meta["namespace"])
        self._decided[meta["uid"]] = tuple(found)
        return pod

    def of(self, pod: Object) -> dict[str, Wire]:
        return {wire.network: wire for wire in self._decided.get(pod["metadata"]["uid"], ())}

    def forget(self, pod: Object) -> None:
        self._decided.pop(pod["metadata"]["uid"], None)

    async def _attachments(self, instance: Object) -> dict[tuple[str, str], Object]:
        out = {}
        for place in dict.fromkeys(
            network_info.attachment(instance, network) for network in network_info.networks(instance) if network.get("multus")
        ):
            try:
                out[place] = await self._store.get(kinds.NETWORK_ATTACHMENT, place[1], place[0])
            except NotFound:
                continue
        return out


def decide(around: Around) -> list[Wire]:
    """How each network card is plugged in, in the order of the networks. Functions are taken in the order in which the claim
    lists them, after those that the machine has by deviceName. NotReady: what is still missing."""
    instance, out = around.instance, list[Wire]()
    cards = {each["name"]: (index, each) for index, each in enumerate(network_info.interfaces(instance))}
    taken = Counter(ref.device_name for ref in device_refs.written_refs(instance) if ref.device_name)
    for number, network in enumerate(network_info.networks(instance)):
        index, card = cards.get(network["name"], (0, {"state": "absent"}))
        if card.get("state") == "absent":
            continue
        if (other := _other(card)) is not None:
            why = f"the binding {other} is not supported: use {', '.join(OURS[:-1])} or {OURS[-1]}"
            out.append(Wire(card["name"], "none", why=why))
            continue
        path, at = f"spec.domain.devices.interfaces[{index}]", f"spec.networks[{number}]"
        if network.get("resourceClaim") is not None:
            functions = _claimed(around, network["resourceClaim"], at)
            out.append(_function(around, card, functions, {}, path))
        elif network.get("multus") is not None:
            found = around.attachments.get(network_info.attachment(instance, network))
            if found is None:
                raise NotReady(f"{at}.multus.networkName: there is no NetworkAttachmentDefinition "
                               f"{'/'.join(network_info.attachment(instance, network))}")
            if card.get("sriov") is not None:
                if not (resource := network_info.resource_of(found)):
                    raise NotReady(f"{at}.multus.networkName: {network_info.no_resource(found, network['name'])}")
                functions = _counted(around, resource, taken[resource], at, found)
                taken[resource] += 1
                out.append(_function(around, card, functions, _config(found), path))
            else:
                out.append(_bridged(around, card, found, path))
        else:
            out.append(_on_pod(around, card, path))
    return out


def _other(card: Mapping[str, Any]) -> str | None:
    """How a card meets its network, if not in a way that is set up here."""
    said = next((name for name in (*OURS, *OTHERS) if card.get(name) is not None), None)
    if said is None or said in OURS:
        return None
    return f"plugin {card[said].get('name', '?')}" if said == "binding" else said


# -- functions of the host


def _claimed(around: Around, ref: Mapping[str, Any], at: str) -> list[str]:
    namespace = around.pod["metadata"]["namespace"]
    name = dict(pod_claims.claim_names(around.pod)).get(ref.get("claimName") or "")
    claim = around.claims(namespace, name) if name else None
    if claim is None:
        raise NotReady(f"{at}.resourceClaim: claim {name or ref.get('claimName')} does not exist yet")
    found = launcher_environment.published(claim, ref.get("requestName"), around.slices)
    if len(found) != 1:
        raise NotReady(f"{at}.resourceClaim: claim {name} has {len(found)} devices for request {ref.get('requestName')}: a "
                       "network card is one; ask for one, or list the others in hostDevices by requests of their own")
    return _addresses(found[0], f"{at}.resourceClaim", around)


def _counted(around: Around, resource: str, number: int, at: str, definition: Mapping[str, Any]) -> list[str]:
    """The functions of the device that a network takes of a resource: the one with this number of those that the pod got."""
    meta = definition["metadata"]
    called = f"NetworkAttachmentDefinition {meta['namespace']}/{meta['name']}"
    made = dict(pod_claims.claim_names(around.pod)).get(device_refs.EXTENDED)
    claim = around.claims(around.pod["metadata"]["namespace"], made) if made else None
    told = (around.pod.get("status") or {}).get("extendedResourceClaimStatus") or {}
    found = [one for mapping in told.get("requestMappings") or () if mapping.get("resourceName") == resource
             for one in launcher_environment.published(claim or {}, mapping.get("requestName"), around.slices)]
    if len(found) <= number:
        raise NotReady(f"{at}.multus.networkName: {called} takes one of {resource}, and the pod got {len(found)} by a "
                       "DeviceClass: its devices must come from one (spec.extendedResourceName)")
    return _addresses(found[number], at, around)


def _addresses(found: tuple[str, Mapping[str, Any]], at: str, around: Around) -> list[str]:
    driver, one = found
    functions = launcher_environment.functions(one, driver)
    if not functions:
        raise NotReady(f"{at}: {driver} does not say at which PCI address its device {one.get('name', '')} of {around.host} "
                       "is: a network card needs one (resource.kubernetes.io/pciBusID)")
    if len(functions) > 1:
        raise NotReady(f"{at}: device {one['name']} of {around.host} is {len(functions)} functions that travel together "
                       f"({', '.join(functions)}), and a network card is one: use hostDevices for it")
    return functions


def _function(around: Around, card: Mapping[str, Any], functions: Sequence[str], config: Mapping[str, Any], path: str) -> Wire:
    address, tree = functions[0], around.tree
    said = network_info.told_mac(card) or network_info.told_mac({"macAddress": config.get("mac")})
    odd = [key for key, usual in USUAL.items() if key in config and config[key] not in usual]
    if odd:
        raise NotReady(f"{path}: the definition of network {card['name']} asks for {', '.join(odd)}, which libvirt does not "
                       "set: set it on the physical function, and leave it out of the definition")
    vlan = config.get("vlan") or None
    if vlan is not None and (not isinstance(vlan, int) or not 0 < vlan <= MOST):
        raise NotReady(f"{path}: the definition of network {card['name']} asks for VLAN {vlan!r}: it is a number up to {MOST}")
    parent = tree.link(f"{DEVICES}/{address}/physfn")
    names = tree.names(f"{parent}/net") if parent else []
    if not names:
        asked = [what for what, value in (("a MAC address", said), (f"VLAN {vlan}", vlan)) if value]
        if asked:
            lacks = f"its physical function {parent.rpartition('/')[2]} has no network interface on {around.host}" if (
                parent) else "it is no virtual function"
            raise NotReady(f"{path}: {' and '.join(asked)} cannot be set on {address}: {lacks}")
        return Wire(card["name"], "device", None, address)
    flags = tree.read(f"{NET}/{names[0]}/flags")
    if flags is not None and not int(flags.strip() or "0x1", 16) & UP:
        raise NotReady(f"{path}: {address} is a virtual function of {names[0]}, which is switched off on {around.host}: "
                       f"ip link set {names[0]} up")
    return Wire(card["name"], "function", said or network_info.mac(around.instance, card), address, vlan=vlan)


# -- bridges, and what needs nothing of the host


def _bridged(around: Around, card: Mapping[str, Any], definition: Mapping[str, Any], path: str) -> Wire:
    meta, config = definition["metadata"], _config(definition)
    called = f"NetworkAttachmentDefinition {meta['namespace']}/{meta['name']}"
    type_, bridge = str(config.get("type") or ""), str(config.get("bridge") or "")
    if type_ not in BRIDGES or not bridge:
        hint = "its interface has to be sriov" if type_ == "sriov" else (
            'outfitter plugs network cards into a bridge of the host ("type": "bridge", "bridge": "br0") or gives them a '
            "virtual function (sriov)")
        said = f"has the type {type_}" if type_ and type_ not in BRIDGES else "names no bridge of the host in its config"
        return Wire(card["name"], "none", why=f"{called} {said}: {hint}")
    if config.get("vlan"):
        return Wire(card["name"], "none", why=f"{called} asks for VLAN {config['vlan']} on bridge {bridge}, which libvirt does "
                                              "not set: name a bridge that is on that VLAN")
    if not is_bridge(around.tree, bridge):
        there = ", ".join(bridges(around.tree)) or "none"
        raise NotReady(f"{path}: {called} names bridge {bridge}, which {around.host} does not have; it has {there}")
    return Wire(card["name"], "bridge", network_info.mac(around.instance, card), bridge=bridge)


def _on_pod(around: Around, card: Mapping[str, Any], path: str) -> Wire:
    if card.get("masquerade") is not None or card.get("slirp") is not None:
        return Wire(card["name"], "user", network_info.mac(around.instance, card))
    if card.get("sriov") is not None:
        return Wire(card["name"], "none", why="a virtual function needs a network by multus or by resourceClaim")
    if not around.pod_bridge:
        return Wire(card["name"], "none", why=f"{around.host} has no bridge for the pod network: use masquerade, say "
                                              "pod_bridge in the configuration, or use a multus network that names a bridge")
    if not is_bridge(around.tree, around.pod_bridge):
        raise NotReady(f"{path}: the configuration says pod_bridge: {around.pod_bridge}, which {around.host} does not have")
    return Wire(card["name"], "bridge", network_info.mac(around.instance, card), bridge=around.pod_bridge)


def bridges(tree: Tree) -> list[str]:
    return [name for name in tree.names(NET) if is_bridge(tree, name)]


def is_bridge(tree: Tree, name: str) -> bool:
    return "/" not in name and tree.exists(f"{NET}/{name}/bridge")


def _config(definition: Mapping[str, Any]) -> Mapping[str, Any]:
    """A network's configuration; of a list of plugins the first, which makes the interface."""
    text = (definition.get("spec") or {}).get("config") or "{}"
    try:
        config = json.loads(text)
        config = config["plugins"][0] if "plugins" in config else config
        return dict(config)
    except (ValueError, TypeError, KeyError, IndexError) as error:
        meta = definition["metadata"]
        raise NotReady(f"NetworkAttachmentDefinition {meta['namespace']}/{meta['name']}: spec.config cannot be read: "
                       f"{error}") from error


# -- what others are told


def _told(instance: Mapping[str, Any], found: Iterable[Wire]) -> Iterable[Object]:
    """The secondary networks in the words of Multus."""
    by_name = {network["name"]: network for network in network_info.networks(instance)}
    for wire in found:
        if by_name[wire.network].get("multus") and wire.type != "none":
            told = {"name": "/".join(network_info.attachment(instance, by_name[wire.network])),
                    "interface": network_info.interface_name(wire.network), "mac": wire.mac, "dns": {},
                    "device-info": wire.device_info if wire.address else None}
            yield {key: value for key, value in told.items() if value is not None}


def statuses(instance: Mapping[str, Any], found: Mapping[str, Wire]) -> list[Object]:
    """status.interfaces of a machine that was started so."""
    out: list[Object] = []
    by_name = {network["name"]: network for network in network_info.networks(instance)}
    for card in network_info.interfaces(instance):
        wire = found.get(card["name"])
        if wire is None or wire.type in (None, "none"):
            continue
        second = by_name[wire.network].get("multus") is not None
        told = {"name": wire.network, "mac": wire.mac, "infoSource": "domain, multus-status" if second else "domain",
                "podInterfaceName": network_info.interface_name(wire.network) if second else None,
                "linkState": "down" if card.get("state") == "down" else "up"}
        out.append({key: value for key, value in told.items() if value})
    return out
