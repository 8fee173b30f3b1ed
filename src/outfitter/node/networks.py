"""The networks of a VMI on one host, where no CNI plugin sets them up: which VF or bridge each network interface is attached
to, by the NetworkAttachmentDefinitions. Decided once for a pod and written to its annotations, for the launcher and for
readers: an interface keeps what it has."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from outfitter.api import conditions, kinds
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import attachment_pods, device_refs, network_info, pod_claims
from outfitter.api.kubevirt.attachment_pods import Attachment
from outfitter.api.kubevirt.network_info import Wire
from outfitter.api.launcher import launcher_environment
from outfitter.api.rejection import RejectionCode, carrying
from outfitter.errors import NotFound, NotReady
from outfitter.inventory.host_tree import Tree
from outfitter.node.agent_host import AgentHost
from outfitter.store.base import Store

NET = "/sys/class/net"
DEVICES = "/sys/bus/pci/devices"
MAX_VLAN = 4094
UP = 1  # IFF_UP among the flags of an interface
BRIDGES = ("bridge", "cnv-bridge")  # types of network configurations that name a bridge of the host
OURS = ("bridge", "masquerade", "slirp", "sriov")  # bindings that are set up here
UNSUPPORTED = ("passt", "binding", "macvtap")
# Settings of an SR-IOV network that the hypervisor cannot set, with the defaults that are accepted.
DEFAULTS: Mapping[str, tuple[Any, ...]] = {
    "vlanQoS": (0,), "vlanProto": ("802.1q", "802.1Q"), "spoofchk": ("on",), "trust": ("off",), "link_state": ("auto",),
    "min_tx_rate": (0,), "max_tx_rate": (0,)}


@dataclass(frozen=True, slots=True)
class NetworkContext:
    """What the attachments of one VMI are decided by."""

    instance: Object
    pod: Object
    host: str
    tree: Tree
    attachments: Mapping[tuple[str, str], Object]
    claims: device_refs.Claims
    slices: Sequence[Object]
    pod_bridge: str = ""  # the host's bridge for the pod network
    isolated: bool = False  # the VM runs in a pod's network namespace: neither bridges nor PFs of the host are in it
    plugged: PluggedNics | None = None  # None: the VM is being started


@dataclass(frozen=True, slots=True)
class PluggedNics:
    """Interfaces that are plugged into a VM that runs."""

    names: frozenset[str]
    in_use: frozenset[str]  # PCI addresses of functions that the VM has
    attachments: Mapping[Attachment, Object]  # attachment pods by what they hold

    def holder(self, attachment: Attachment) -> Object | None:
        """The attachment pod that holds what is plugged: it runs, so that its devices are prepared."""
        pod = self.attachments.get(attachment)
        return pod if pod is not None and (pod.get("status") or {}).get("phase") == "Running" else None


class Networks:
    """Decides for a pod that starts, and remembers it until the VMI runs. The annotations that it writes are for readers and
    are not read back: a user who may change a pod does not choose what its VM is attached to."""

    def __init__(self, store: Store, claims: device_refs.Claims) -> None:
        self._store, self._claims = store, claims
        self._decided: dict[str, tuple[Wire, ...]] = {}  # uid of a pod -> its VMI's interfaces

    async def attach(self, host: AgentHost, pod: Object, instance: Object) -> Object:
        """The pod, annotated with how its VMI's network interfaces are attached. NotReady: why they cannot be yet."""
        meta = pod["metadata"]
        if annotations := await self.decide(host, pod, instance):
            return await self._store.patch(kinds.POD, meta["name"], {"metadata": {
                "resourceVersion": meta["resourceVersion"], "annotations": annotations}}, meta["namespace"])
        return pod

    async def decide(self, host: AgentHost, pod: Object, instance: Object) -> dict[str, str]:
        """Annotations that the pod lacks: how its VMI's network interfaces are attached. NotReady: why they cannot be yet."""
        meta = pod["metadata"]
        if meta["uid"] in self._decided or not network_info.interfaces(instance):
            return {}
        wires = await decided(self._store, host, pod, instance, self._claims)
        annotations = {network_info.INFO: network_info.write(wires)}
        if secondary := list(_multus_status(instance, wires)):
            annotations[network_info.STATUS] = json.dumps(secondary, separators=(",", ":"))
        have = meta.get("annotations") or {}
        self._decided[meta["uid"]] = tuple(wires)
        return annotations if any(have.get(name) != text for name, text in annotations.items()) else {}

    async def plugged(self, host: AgentHost, pod: Object, instance: Object, nics: PluggedNics) -> dict[str, Wire]:
        """How interfaces are attached that are plugged into a running VM. NotReady: why one cannot be yet."""
        wires = await decided(self._store, host, pod, instance, self._claims, plugged=nics)
        return {wire.network: wire for wire in wires}

    async def annotate(
        self, pod: Object, instance: Object, wires: Sequence[Wire], kept: Collection[str] = (), ready: Collection[Wire] = (),
    ) -> Object:
        """The pod of a running VM, annotated with what its interfaces are attached to now: by the definitions that the VMI
        names, but for those of `kept`, of which the pod keeps what it has. `ready`: of interfaces that are not plugged."""
        have = network_info.wires_of_pod(pod)
        listed = {interface["name"] for interface in network_info.interfaces(instance)}
        skipped = [wire for wire in have.values() if wire.type == "none" and wire.network in listed]
        places = [(wire.network, wire.place) for wire in wires]
        meta, known = pod["metadata"], {network["name"] for network in network_info.networks(instance)}
        secondary = list(_multus_status(instance, [wire for wire in (*wires, *ready) if wire.network in known - set(kept)]))
        secondary += [dict(entry) for name in kept if (entry := network_info.pod_interface(pod, name)) is not None]
        names = {(entry["interface"], entry["name"]) for entry in secondary}
        if sorted(places) == sorted((wire.network, wire.place) for wire in have.values() if wire not in skipped) and (
                names == {(entry.get("interface"), entry.get("name")) for entry in network_info.pod_interfaces(pod)}):
            return pod
        return await self._store.patch(kinds.POD, meta["name"], {"metadata": {
            "resourceVersion": meta["resourceVersion"], "annotations": {
                network_info.INFO: network_info.write([*wires, *skipped]),
                network_info.STATUS: json.dumps(secondary, separators=(",", ":"))}}}, meta["namespace"])

    def of(self, pod: Object) -> dict[str, Wire]:
        return {wire.network: wire for wire in self._decided.get(pod["metadata"]["uid"], ())}

    def forget(self, pod: Object) -> None:
        self._decided.pop(pod["metadata"]["uid"], None)


async def decided(
    store: Store, host: AgentHost, pod: Object, instance: Object, claims: device_refs.Claims, *, isolated: bool = False,
    plugged: PluggedNics | None = None,
) -> list[Wire]:
    """How the network interfaces of a VMI are attached. NotReady: why they cannot be yet."""
    slices = await store.list(kinds.RESOURCE_SLICE, fields=f"spec.nodeName={host.name}")
    attachments = await _attachments(store, instance)
    return decide(NetworkContext(instance, pod, host.name, host.tree(), attachments, claims, slices.items,
                                 host.settings.pod_bridge, isolated, plugged))


async def _attachments(store: Store, instance: Object) -> dict[tuple[str, str], Object]:
    out = {}
    for place in dict.fromkeys(
        network_info.attachment(instance, network) for network in network_info.networks(instance) if network.get("multus")
    ):
        try:
            out[place] = await store.get(kinds.NETWORK_ATTACHMENT, place[1], place[0])
        except NotFound:
            continue
    return out


def decide(context: NetworkContext) -> list[Wire]:
    """How each network interface is attached, in the order of the networks. Functions are used in the order in which the claim
    lists them, after those that the VMI has by deviceName. NotReady: what is missing."""
    instance, out = context.instance, list[Wire]()
    interfaces = {each["name"]: (index, each) for index, each in enumerate(network_info.interfaces(instance))}
    taken = Counter(ref.device_name for ref in device_refs.written_refs(instance) if ref.device_name)
    for number, network in enumerate(network_info.networks(instance)):
        index, interface = interfaces.get(network["name"], (0, {"state": "absent"}))
        if interface.get("state") == "absent" or (context.plugged and interface["name"] not in context.plugged.names):
            continue
        if (other := _other(interface)) is not None:
            why = f"the binding {other} is not supported: use {', '.join(OURS[:-1])} or {OURS[-1]}"
            out.append(Wire(interface["name"], "none", why=why))
            continue
        path, at = f"spec.domain.devices.interfaces[{index}]", f"spec.networks[{number}]"
        if network.get("resourceClaim") is not None:
            functions = _claimed(context, network, at)
            out.append(_function(context, interface, functions, {}, path))
        elif network.get("multus") is not None:
            found = context.attachments.get(network_info.attachment(instance, network))
            if found is None:
                raise NotReady(f"{at}.multus.networkName: there is no NetworkAttachmentDefinition "
                               f"{'/'.join(network_info.attachment(instance, network))}")
            if interface.get("sriov") is not None:
                if not (resource := network_info.resource_of(found)):
                    raise NotReady(f"{at}.multus.networkName: {network_info.no_resource(found, network['name'])}")
                functions = _unused(context, resource, network["name"], at) if context.plugged is not None else _counted(
                    context, resource, taken[resource], at, found)
                taken[resource] += 1
                out.append(_function(context, interface, functions, _config(found), path))
            else:
                out.append(_bridged(context, interface, found, path))
        else:
            out.append(_on_pod(context, interface, path))
    return out


def _other(interface: Mapping[str, Any]) -> str | None:
    """The binding of an interface, if it is not one that is set up here."""
    binding = next((name for name in (*OURS, *UNSUPPORTED) if interface.get(name) is not None), None)
    if binding is None or binding in OURS:
        return None
    return f"plugin {interface[binding].get('name', '?')}" if binding == "binding" else binding


# -- functions of the host


def _claimed(context: NetworkContext, network: Mapping[str, Any], at: str) -> list[str]:
    ref, namespace = network["resourceClaim"], context.pod["metadata"]["namespace"]
    pod, attachment = context.pod, attachment_pods.of_network(network)
    if context.plugged is not None and not attachment_pods.has(pod, attachment):
        holder = context.plugged.holder(attachment)
        if holder is None:
            raise _not_booked(context, attachment, f"{at}.resourceClaim: claim {attachment.name} is not held on {context.host} "
                                                   f"for interface {network['name']} yet")
        pod = holder
    name = dict(pod_claims.claim_names(pod)).get(ref.get("claimName") or "")
    claim = context.claims(namespace, name) if name else None
    if claim is None:
        raise NotReady(f"{at}.resourceClaim: claim {name or ref.get('claimName')} does not exist yet")
    found = launcher_environment.published_devices(claim, ref.get("requestName"), context.slices)
    if len(found) != 1:
        raise NotReady(f"{at}.resourceClaim: claim {name} has {len(found)} devices for request {ref.get('requestName')}: a "
                       "network interface is one; ask for one, or list the others in hostDevices by requests of their own")
    functions = _addresses(found[0], f"{at}.resourceClaim", context)
    if context.plugged is not None and not context.plugged.in_use.isdisjoint(functions):
        raise NotReady(f"{at}.resourceClaim: the VM has {', '.join(functions)}, the device of request {ref.get('requestName')} "
                       f"of claim {name}, already: use a request of its own for interface {network['name']}")
    return functions


def _counted(context: NetworkContext, resource: str, number: int, at: str, definition: Mapping[str, Any]) -> list[str]:
    """The functions of the device that a network uses of a resource: the one with this number of the pod's devices."""
    meta = definition["metadata"]
    called = f"NetworkAttachmentDefinition {meta['namespace']}/{meta['name']}"
    found = _devices_of(context, context.pod, resource)
    if len(found) <= number:
        raise NotReady(f"{at}.multus.networkName: {called} takes one of {resource}, and the pod got {len(found)} by a "
                       "DeviceClass: its devices must come from one (spec.extendedResourceName)")
    return _addresses(found[number], at, context)


def _unused(context: NetworkContext, resource: str, network: str, at: str) -> list[str]:
    """The functions of a device for a network that is plugged: that of its attachment pod; if the VM's own pod was made with
    the network, one of that pod which the VM has no more."""
    assert context.plugged is not None
    listed = next(entry for entry in network_info.networks(context.instance) if entry["name"] == network)
    attachment = attachment_pods.of_network(listed)
    own = attachment_pods.has(context.pod, attachment)
    if (pod := context.pod if own else context.plugged.holder(attachment)) is not None:
        for device in _devices_of(context, pod, resource):
            functions = _addresses(device, at, context)
            if context.plugged.in_use.isdisjoint(functions):
                return functions
    raise _not_booked(context, attachment, f"{at}: no VF of {resource} on {context.host} is booked for interface {network} yet")


def _not_booked(context: NetworkContext, attachment: Attachment, message: str) -> NotReady:
    """With what the scheduler reports of the attachment pod."""
    assert context.plugged is not None
    waits = conditions.find(context.plugged.attachments.get(attachment) or {}, "PodScheduled") or {}
    why = f": {waits['message']}" if waits.get("status") == "False" and waits.get("message") else ""
    return carrying(NotReady(f"{message}{why}"), RejectionCode.VF_NOT_BOOKED)


def _devices_of(context: NetworkContext, pod: Object, resource: str) -> list[tuple[str, Mapping[str, Any]]]:
    """The devices of a resource that a pod has, each with its driver."""
    made = dict(pod_claims.claim_names(pod)).get(device_refs.EXTENDED)
    claim = context.claims(pod["metadata"]["namespace"], made) if made else None
    status = (pod.get("status") or {}).get("extendedResourceClaimStatus") or {}
    return [one for mapping in status.get("requestMappings") or () if mapping.get("resourceName") == resource
            for one in launcher_environment.published_devices(claim or {}, mapping.get("requestName"), context.slices)]


def _addresses(found: tuple[str, Mapping[str, Any]], at: str, context: NetworkContext) -> list[str]:
    driver, one = found
    functions = launcher_environment.pci_addresses(one, driver)
    if not functions:
        raise NotReady(f"{at}: {driver} does not say at which PCI address its device {one.get('name', '')} of {context.host} "
                       "is: a network interface needs one (resource.kubernetes.io/pciBusID)")
    if len(functions) > 1:
        raise NotReady(f"{at}: device {one['name']} of {context.host} is {len(functions)} functions that travel together "
                       f"({', '.join(functions)}), and a network interface is one: use hostDevices for it")
    return functions


def _function(
    context: NetworkContext, interface: Mapping[str, Any], functions: Sequence[str], config: Mapping[str, Any], path: str
) -> Wire:
    address, tree = functions[0], context.tree
    mac = network_info.specified_mac(interface) or network_info.specified_mac({"macAddress": config.get("mac")})
    unsupported = [key for key, usual in DEFAULTS.items() if key in config and config[key] not in usual]
    if unsupported:
        raise NotReady(f"{path}: the definition of network {interface['name']} asks for {', '.join(unsupported)}, which "
                       "libvirt does not set: set it on the PF, and remove it from the definition")
    vlan = config.get("vlan") or None
    if vlan is not None and (not isinstance(vlan, int) or not 0 < vlan <= MAX_VLAN):
        raise NotReady(f"{path}: the definition of network {interface['name']} asks for VLAN {vlan!r}: it is a number up "
                       f"to {MAX_VLAN}")
    if context.isolated:  # a CNI plugin sets what the definition asks for
        if network_info.specified_mac(interface):
            raise NotReady(f"{path}.macAddress: in a pod the MAC address of a VF is set by the network's CNI plugin: put it "
                           "into the NetworkAttachmentDefinition, or leave it out")
        return Wire(interface["name"], "device", None, address)
    parent = tree.link(f"{DEVICES}/{address}/physfn")
    names = tree.names(f"{parent}/net") if parent else []
    if not names:
        asked = [what for what, value in (("a MAC address", mac), (f"VLAN {vlan}", vlan)) if value]
        if asked:
            lacks = f"its PF {parent.rpartition('/')[2]} has no network interface on {context.host}" if (
                parent) else "it is not a VF"
            raise NotReady(f"{path}: {' and '.join(asked)} cannot be set on {address}: {lacks}")
        return Wire(interface["name"], "device", None, address)
    flags = tree.read(f"{NET}/{names[0]}/flags")
    if flags is not None and not int(flags.strip() or "0x1", 16) & UP:
        raise NotReady(f"{path}: {address} is a VF of {names[0]}, which is down on {context.host}: "
                       f"ip link set {names[0]} up")
    return Wire(interface["name"], "function", mac or network_info.mac(context.instance, interface), address, vlan=vlan)


# -- bridges, and bindings that need nothing of the host


def _bridged(context: NetworkContext, interface: Mapping[str, Any], definition: Mapping[str, Any], path: str) -> Wire:
    meta, config = definition["metadata"], _config(definition)
    called = f"NetworkAttachmentDefinition {meta['namespace']}/{meta['name']}"
    type_, bridge = str(config.get("type") or ""), str(config.get("bridge") or "")
    if type_ not in BRIDGES or not bridge:
        hint = "its interface has to be sriov" if type_ == "sriov" else (
            'outfitter attaches network interfaces to a bridge of the host ("type": "bridge", "bridge": "br0") or gives them a '
            "VF (sriov)")
        fault = f"has the type {type_}" if type_ and type_ not in BRIDGES else "names no bridge of the host in its config"
        return Wire(interface["name"], "none", why=f"{called} {fault}: {hint}")
    if config.get("vlan"):
        why = f"{called} asks for VLAN {config['vlan']} on bridge {bridge}, which libvirt does not set: name one on that VLAN"
        return Wire(interface["name"], "none", why=why)
    if context.isolated and network_info.pod_interface(context.pod, interface["name"]) is not None:
        return Wire(interface["name"], None, network_info.mac(context.instance, interface))  # a tap that a plugin has made
    if context.isolated:
        why = f"{called} names bridge {bridge} of the host, which a pod does not reach: use masquerade, or a VF (sriov)"
        return Wire(interface["name"], "none", why=why)
    if not is_bridge(context.tree, bridge):
        there = ", ".join(bridges(context.tree)) or "none"
        raise NotReady(f"{path}: {called} names bridge {bridge}, which {context.host} does not have; it has {there}")
    return Wire(interface["name"], "bridge", network_info.mac(context.instance, interface), bridge=bridge)


def _on_pod(context: NetworkContext, interface: Mapping[str, Any], path: str) -> Wire:
    if interface.get("masquerade") is not None or interface.get("slirp") is not None:
        return Wire(interface["name"], "user", network_info.mac(context.instance, interface))
    if interface.get("sriov") is not None:
        return Wire(interface["name"], "none", why="a VF needs a network by multus or by resourceClaim")
    if context.isolated:
        why = "a pod does not reach bridges of its host: use masquerade for the pod network"
        return Wire(interface["name"], "none", why=why)
    if not context.pod_bridge:
        return Wire(interface["name"], "none", why=f"{context.host} has no bridge for the pod network: use masquerade, set "
                                              "pod_bridge in the configuration, or use a multus network that names a bridge")
    if not is_bridge(context.tree, context.pod_bridge):
        raise NotReady(f"{path}: the configuration says pod_bridge: {context.pod_bridge}, which {context.host} does not have")
    return Wire(interface["name"], "bridge", network_info.mac(context.instance, interface), bridge=context.pod_bridge)


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


# -- status


def _multus_status(instance: Mapping[str, Any], found: Iterable[Wire]) -> Iterable[Object]:
    """The secondary networks as Multus writes them."""
    by_name = {network["name"]: network for network in network_info.networks(instance)}
    for wire in found:
        if by_name[wire.network].get("multus") and wire.type != "none":
            entry = {"name": "/".join(network_info.attachment(instance, by_name[wire.network])),
                    "interface": network_info.interface_name(wire.network), "mac": wire.mac, "dns": {},
                    "device-info": wire.device_info if wire.address else None}
            yield {key: value for key, value in entry.items() if value is not None}


def statuses(instance: Mapping[str, Any], found: Mapping[str, Wire]) -> list[Object]:
    """status.interfaces of a VMI that was started with these attachments."""
    out: list[Object] = []
    by_name = {network["name"]: network for network in network_info.networks(instance)}
    for interface in network_info.interfaces(instance):
        wire = found.get(interface["name"])
        if wire is None or wire.type in (None, "none"):
            continue
        second = by_name[wire.network].get("multus") is not None
        entry = {"name": wire.network, "mac": wire.mac, "infoSource": "domain, multus-status" if second else "domain",
                "podInterfaceName": network_info.interface_name(wire.network) if second else None,
                "linkState": "down" if interface.get("state") == "down" else "up"}
        out.append({key: value for key, value in entry.items() if value})
    return out
