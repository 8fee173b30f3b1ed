"""How network cards are plugged in on a host that sets its networks up itself: decided by objects and the host's tree alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from outfitter import app
from outfitter.api import kinds
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import network_info
from outfitter.api.kubevirt.network_info import Wire
from outfitter.errors import NotReady
from outfitter.inventory.host_tree import MemoryTree
from outfitter.inventory.simulation import hosts_file
from outfitter.node import networks, node_status
from outfitter.node.networks import NetworkContext
from outfitter.store.clock import ManualClock
from outfitter.store.id_generator import IdGenerator
from outfitter.store.memory import Memory

HOST = """
hosts:
- name: rack
  pci:
  - {address: 0000:3b:00.0, vendor: 8086, product: 1572, class: 020000, driver: i40e, interface: ens1f0,
     vfs: {count: 4, product: 154c}}
  - {address: 0000:5e:00.0, vendor: 8086, product: 1592, class: 020000, vfs: {count: 1, product: 1889}}
  - {address: 0000:65:00.0, vendor: 8086, product: 1521, class: 020000}
  bridges: [{name: br0}, {name: br1}]
"""
DRIVER, GIVEN = "pci.outfitter.dev", "02:00:00:00:00:01"
A, B, C, STUB, WHOLE = "0000:3b:01.0", "0000:3b:01.1", "0000:3b:01.2", "0000:5e:01.0", "0000:65:00.0"


def card(name: str, **how: Any) -> Object:
    return {"name": name, **(how or {"sriov": {}})}


def multus(name: str, definition: str = "") -> Object:
    return {"name": name, "multus": {"networkName": definition or name}}


def by_claim(name: str, request: str = "vf") -> Object:
    return {"name": name, "resourceClaim": {"claimName": "uplink", "requestName": request}}


def definition(resource: str = "", **config: Any) -> Object:
    meta: Object = {"annotations": {network_info.RESOURCE: resource}} if resource else {}
    return {"metadata": {**meta, "namespace": "here", "name": "net"}, "spec": {"config": json.dumps(config)} if config else {}}


DEFINITIONS = {
    "fast": definition("x.com/vf", type="sriov"), "tagged": definition("x.com/vf", type="sriov", vlan=7),
    "named": definition("x.com/vf", type="sriov", mac="02-00-00-00-00-0F"),
    "listed": definition("x.com/vf", plugins=[{"type": "sriov", "vlan": 8}, {"type": "tuning"}]),
    "trusted": definition("x.com/vf", type="sriov", trust="on", spoofchk="on"), "odd": definition("x.com/vf", vlan="many"),
    "poor": definition(type="sriov"), "other": definition("x.com/other", type="sriov"),
    "lan": definition(type="bridge", bridge="br0"), "cnv": definition("bridge.network.kubevirt.io/br1", type="cnv-bridge",
                                                                      bridge="br1"),
    "away": definition(type="bridge", bridge="br9"), "vlan": definition(type="bridge", bridge="br0", vlan=5),
    "ovs": definition(type="ovs", bridge="br0"), "empty": definition(),
    "broken": {**definition(), "spec": {"config": "{"}},
}


def around(
    nets: list[Object], cards: list[Object], got: list[str] | None = None, claimed: Mapping[str, list[str]] | None = None, *,
    tree: MemoryTree | None = None, pod_bridge: str = "", **devices: Any,
) -> NetworkContext:
    """`got`: what the pod got of x.com/vf; `claimed`: and of the requests of its claim."""
    [host] = app.simulated_hosts(hosts_file.parse(HOST, "hosts").hosts)
    found = tree or host.tree()
    assert isinstance(found, MemoryTree)
    every = [*(got or ()), *(each for listed in (claimed or {}).values() for each in listed)]
    slices: list[Object] = [{"metadata": {"name": "s"}, "spec": {
        "driver": DRIVER, "nodeName": "rack", "pool": {"name": "rack", "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": _name(each), "attributes": _attributes(each)} for each in every]}}]
    claims = {"extended": _claim({"r": got or []}), "uplink-1": _claim(claimed or {})}
    pod = {"metadata": {"namespace": "here", "name": "p"}, "spec": {"resourceClaims": [
        {"name": "uplink", "resourceClaimTemplateName": "t"}]}, "status": {
        "resourceClaimStatuses": [{"name": "uplink", "resourceClaimName": "uplink-1"}] if claimed is not None else [],
        "extendedResourceClaimStatus": {"resourceClaimName": "extended", "requestMappings": [
            {"containerName": "compute", "resourceName": "x.com/vf", "requestName": "r"}]}}}
    instance = {"metadata": {"namespace": "here", "name": "blue", "uid": "u"}, "spec": {
        "networks": nets, "domain": {"devices": {"interfaces": cards, **devices}}}}
    return NetworkContext(instance, pod, "rack", found, {("here", name): each for name, each in DEFINITIONS.items()},
                  lambda namespace, name: claims.get(name) if namespace == "here" else None, slices, pod_bridge)


def _name(address: str) -> str:
    return address.replace(":", "-").replace(".", "-").replace("+", "-")


def _attributes(address: str) -> Object:
    first, *more = address.split("+")
    out: Object = {} if first == "nowhere" else {"resource.kubernetes.io/pciBusID": {"string": first}}
    return {**out, **({"members": {"string": ",".join([first, *more])}} if more else {})}


def _claim(requests: Mapping[str, list[str]]) -> Object:
    results = [{"request": name, "driver": DRIVER, "pool": "rack", "device": _name(each)}
               for name, listed in requests.items() for each in listed]
    return {"status": {"allocation": {"devices": {"results": results}}}}


def made(name: str) -> str:
    """The address of a card without a configured one."""
    return network_info.mac({"metadata": {"uid": "u"}}, {"name": name})


CALLED = "NetworkAttachmentDefinition here/net"
KNOWN = ('outfitter attaches network interfaces to a bridge of the host ("type": "bridge", "bridge": "br0") or gives them a VF '
         "(sriov)")
PLUGGED: dict[str, tuple[NetworkContext, list[Wire]]] = {
    "behind the host": (around([{"name": "a", "pod": {}}], [card("a", masquerade={})]), [Wire("a", "user", made("a"))]),
    "as it was called before": (around([{"name": "a", "pod": {}}], [card("a", slirp={}, macAddress=GIVEN)]),
                                [Wire("a", "user", GIVEN)]),
    "a bridge": (around([multus("a", "lan"), multus("b", "cnv")], [card("a", bridge={}), card("b", bridge={})]),
                 [Wire("a", "bridge", made("a"), bridge="br0"), Wire("b", "bridge", made("b"), bridge="br1")]),
    "the pod's bridge": (around([{"name": "a", "pod": {}}], [card("a", bridge={})], pod_bridge="br1"),
                         [Wire("a", "bridge", made("a"), bridge="br1")]),
    "no bridge for the pod": (around([{"name": "a", "pod": {}}], [{"name": "a"}]), [Wire("a", "none", why=(
        "rack has no bridge for the pod network: use masquerade, set pod_bridge in the configuration, or use a multus network "
        "that names a bridge"))]),
    "functions in the order of the networks": (
        around([multus("b", "tagged"), multus("a", "fast")], [card("a"), card("b", sriov={}, macAddress="02-00-00-00-00-01")],
               [C, A]),
        [Wire("b", "function", GIVEN, C, vlan=7), Wire("a", "function", made("a"), A)]),
    "after those by deviceName": (
        around([multus("a", "fast")], [card("a")], [A, B, C], gpus=[{"name": "g", "deviceName": "x.com/vf"}],
               hostDevices=[{"name": "h", "deviceName": "x.com/vf"}, {"name": "o", "deviceName": "x.com/other"}]),
        [Wire("a", "function", made("a"), C)]),
    "an address and a list of plugins of the definition": (
        around([multus("a", "named"), multus("b", "listed")], [card("a"), card("b")], [A, B]),
        [Wire("a", "function", "02:00:00:00:00:0f", A), Wire("b", "function", made("b"), B, vlan=8)]),
    "by claim": (around([by_claim("a")], [card("a", sriov={}, macAddress=GIVEN)], claimed={"other": [B], "vf": [A]}),
                 [Wire("a", "function", GIVEN, A)]),
    "its address cannot be set": (around([by_claim("a")], [card("a")], claimed={"vf": [STUB]}),
                                   [Wire("a", "device", None, STUB)]),
    "a whole card": (around([multus("a", "fast")], [card("a")], [WHOLE]), [Wire("a", "device", None, WHOLE)]),
    "what goes": (around([multus("a", "gone")], [card("a", bridge={}, state="absent")]), []),
    "a binding that is not supported": (
        around([multus("a", "gone"), {"name": "b", "pod": {}}, multus("c", "lan")],
               [card("a", macvtap={}), card("b", passt={}), card("c", binding={"name": "own"})]),
        [Wire(name, "none", why=f"the binding {how} is not supported: use bridge, masquerade, slirp or sriov")
         for name, how in (("a", "macvtap"), ("b", "passt"), ("c", "plugin own"))]),
    "other networks": (
        around([multus("a", "vlan"), multus("b", "ovs"), multus("c", "empty"), multus("d", "fast")],
               [card(name, bridge={}) for name in "abcd"]),
        [Wire("a", "none", why=f"{CALLED} asks for VLAN 5 on bridge br0, which libvirt does not set: name one on that "
                               "VLAN"),
         Wire("b", "none", why=f"{CALLED} has the type ovs: {KNOWN}"),
         Wire("c", "none", why=f"{CALLED} names no bridge of the host in its config: {KNOWN}"),
         Wire("d", "none", why=f"{CALLED} has the type sriov: its interface has to be sriov")]),
}


@pytest.mark.parametrize("name", PLUGGED)
def test_attached(name: str) -> None:
    given, wanted = PLUGGED[name]
    found = networks.decide(given)
    assert found == wanted
    assert list(network_info.read(network_info.write(found)).values()) == found, "the launcher reads what was written"


def _off() -> MemoryTree:
    [host] = app.simulated_hosts(hosts_file.parse(HOST, "hosts").hosts)
    tree = host.tree()
    assert isinstance(tree, MemoryTree)
    return MemoryTree({**tree.entries, "/sys/devices/pci0000:3b/0000:3b:00.0/net/ens1f0/flags": "0x1002\n"})


MISSING: dict[str, tuple[NetworkContext, list[str]]] = {
    "no definition": (around([multus("a", "nowhere")], [card("a", bridge={})]), [
        "spec.networks[0].multus.networkName", "there is no NetworkAttachmentDefinition here/nowhere"]),
    "no resource": (around([multus("a", "poor")], [card("a")]), ["names no resource", network_info.RESOURCE]),
    "nothing of the resource": (around([multus("a", "other")], [card("a")], [A]), ["takes one of x.com/other", "got 0"]),
    "one too few": (around([multus("a", "fast"), multus("b", "fast")], [card("a"), card("b")], [A]), [
        "spec.networks[1]", "the pod got 1"]),
    "a bridge that the host has not": (around([multus("a", "away")], [card("a", bridge={})]), [
        "interfaces[0]", "bridge br9, which rack does not have; it has br0, br1"]),
    "a pod_bridge that the host has not": (around([{"name": "a", "pod": {}}], [{"name": "a"}], pod_bridge="br9"), [
        "pod_bridge: br9, which rack does not have"]),
    "a config that is none": (around([multus("a", "broken")], [card("a", bridge={})]), ["spec.config cannot be read"]),
    "an address without an uplink": (around([by_claim("a")], [card("a", sriov={}, macAddress=GIVEN)], claimed={"vf": [STUB]}), [
        "interfaces[0]: a MAC address cannot be set on 0000:5e:01.0: its PF 0000:5e:00.0 has no network"]),
    "a VLAN of a whole card": (around([multus("a", "tagged")], [card("a")], [WHOLE]), [
        "VLAN 7 cannot be set on 0000:65:00.0: it is not a VF"]),
    "an uplink that is off": (around([multus("a", "fast")], [card("a")], [A], tree=_off()), [
        "ens1f0, which is down on rack: ip link set ens1f0 up"]),
    "what libvirt does not set": (around([multus("a", "trusted")], [card("a")], [A]), ["asks for trust, which libvirt"]),
    "a VLAN that is none": (around([multus("a", "odd")], [card("a")], [A]), ["VLAN 'many'"]),
    "two for one card": (around([by_claim("a")], [card("a")], claimed={"vf": [A, B]}), ["has 2 devices for request vf"]),
    "several functions": (around([by_claim("a")], [card("a")], claimed={"vf": [f"{A}+{B}"]}), ["is 2 functions that travel"]),
    "a device without an address": (around([by_claim("a")], [card("a")], claimed={"vf": ["nowhere"]}), ["needs one"]),
    "a claim that is not there": (around([by_claim("a")], [card("a")]), ["claim uplink does not exist yet"]),
}


@pytest.mark.parametrize("name", MISSING)
def test_missing(name: str) -> None:
    given, words = MISSING[name]
    with pytest.raises(NotReady) as refused:
        networks.decide(given)
    for word in words:
        assert word in refused.value.message


def test_what_devices_by_name_get_is_not_what_networks_have() -> None:
    given = around([multus("a", "fast")], [card("a")], [A, B, C], hostDevices=[{"name": "h", "deviceName": "x.com/vf"}])
    cards = networks.decide(given)
    env = {"PCI_RESOURCE_X_COM_VF": f"{A},{B},{C}", "PCI_RESOURCE_UPLINK_VF": B}
    assert network_info.without_interface_functions(env, given.pod, cards) == {
        "PCI_RESOURCE_X_COM_VF": f"{A},{C}",
        "PCI_RESOURCE_UPLINK_VF": B,
    }
    assert network_info.without_interface_functions({"PCI_RESOURCE_X_COM_VF": B}, given.pod, cards) == {}


def test_a_mac_address_stays_with_the_vmi() -> None:
    def instance(uid: str, owner: str = "") -> Object:
        owners = [{"kind": "VirtualMachine", "uid": owner, "controller": True}] if owner else []
        return {"metadata": {"uid": uid, "ownerReferences": owners}}

    first = network_info.mac(instance("1", "vm"), {"name": "a"})
    assert first == network_info.mac(instance("2", "vm"), {"name": "a"}), "of another instance of the same machine"
    others = [
        network_info.mac(instance("1", "vm"), {"name": "b"}),
        network_info.mac(instance("1"), {"name": "a"}),
        network_info.mac(instance("1", "other"), {"name": "a"}),
    ]
    assert len({first, *others}) == 4
    assert all(int(each[:2], 16) & 3 == 2 for each in (first, *others)), "locally given, and for one receiver"


@pytest.mark.parametrize("text", ["[1]", '{"interfaces": [1]}', "x", '{"interfaces": [{"wire": {"type": "string"}}]}'])
def test_a_document_that_is_none(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        network_info.read(text)
    assert network_info.wires_of_pod({"metadata": {"annotations": {network_info.INFO: text}}}) == {}


async def test_a_host_offers_the_bridges_that_it_has() -> None:
    [host] = app.simulated_hosts(hosts_file.parse(HOST, "hosts").hosts)
    store = Memory(clock=ManualClock(), names=IdGenerator())
    mark = "bridge.network.kubevirt.io/"

    async def offered(*bridges: str) -> list[str]:
        node = await node_status.node(store, host, bridges, "2026-01-01T00:00:00Z")
        assert node == await store.get(kinds.NODE, "rack")
        return sorted(name.removeprefix(mark) for name in node["status"]["allocatable"] if name.startswith(mark))

    assert networks.bridges(host.tree()) == ["br0", "br1"]
    assert await offered("br0", "br1", "br@odd") == ["br0", "br1"], "resources cannot be called everything"
    assert await offered("br1", "br2") == ["br1", "br2"], "one that is gone is not offered any more"
    before = (await store.get(kinds.NODE, "rack"))["metadata"]["resourceVersion"]
    assert await offered("br1", "br2") == ["br1", "br2"]
    assert (await store.get(kinds.NODE, "rack"))["metadata"]["resourceVersion"] == before, "nothing new is not written"
