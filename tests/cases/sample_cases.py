"""Made-up cases for the runner's own tests: some that hold, each with changes that do not, and some that are in no format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

INSTANCE: dict[str, Any] = {
    "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "metadata": {"name": "vm1", "namespace": "lab"},
    "spec": {
        "domain": {"devices": {"gpus": [{"name": "g0", "claimName": "acc", "requestName": "card"}]}},
        "resourceClaims": [{"name": "acc", "resourceClaimName": "shared-card"}],
    },
}


def with_claims(*claims: Any) -> dict[str, Any]:
    return {**INSTANCE, "spec": {**INSTANCE["spec"], "resourceClaims": list(claims)}}


DEVICES = {"gpuStatuses": [{"name": "g0", "deviceResourceClaimStatus": {
    "resourceClaimName": "shared-card", "name": "d0", "attributes": {"pciAddress": "0000:65:00.0"}}}]}
KNOWN = {**INSTANCE, "status": {"phase": "Scheduled", "nodeName": "node-a", "deviceStatus": DEVICES}}
OTHER = with_claims({"name": "acc", "resourceClaimName": "other"})
TWICE = with_claims({"name": "acc", "resourceClaimName": "one"}, {"name": "acc", "resourceClaimName": "two"})
WAITING = with_claims({"name": "acc", "resourceClaimTemplateName": "of-nobody"})
EXPRESSION = {"expression": "device.attributes['a.test'].size > 3", "driver": "a.test", "attributes": {"size": {"int": 4}}}
GATES = ["HostDevices", "GPUsWithDRA", "HostDevicesWithDRA"]


def kubevirt(area: str, given: Any, expect: Any, **config: Any) -> dict[str, Any]:
    return {"area": area, "basis": "seed", "tier": 1, "config": {"featureGates": GATES, **config},
            "given": given if isinstance(given, list) else [given], "expect": expect}


CARD = {"address": "0000:17:00.0", "vendor_id": "10de", "product_id": "2235", "type": "PCI"}
TWIN = {**CARD, "address": "0000:18:00.0"}
CLASS, HOME = "CUSTOM_PCI_10DE_2235", "oak_0000:17:00.0"


def nova(area: str, steps: list[dict[str, Any]], expect: Any, **given: Any) -> dict[str, Any]:
    return {"area": area, "basis": "nova", "when": steps, "expect": expect, "given": {
        "hosts": [{"name": "oak", "pci_devices": [CARD, TWIN]}], "device_spec": [{"address": CARD["address"], "traits": "a"}],
        **given}}


START = {"op": "start_host", "host": "oak"}
AUDIT = {"op": "periodic", "host": "oak"}
SERVER = {"name": "s1", "host": "oak", "devices": [CARD["address"]], "placement": "root_only"}
EXTRA = {"name": "theirs", "parent": "oak", "inventories": {"VGPU": 4}, "traits": ["CUSTOM_T"]}
IDS = {"vendor_id": CARD["vendor_id"], "product_id": CARD["product_id"]}
GPU = {"name": "gpu", **IDS}
GROUP = {"request": "r", "index": 0, "resources": {CLASS: 1}, "required": ["CUSTOM_A"], "forbidden": ["CUSTOM_B"]}
BOOT = {"op": "boot", "server": "s1", "flavor": {"alias": "gpu:1"}}
FAULT = {"op": "inject", "fault": "spawn_failure", "host": "first_selected", "times": 1}
PROVIDER = {"name": HOME, "parent": "oak", "inventories": {CLASS: 1}, "traits": ["CUSTOM_A"]}


def claim(count: int = 1, class_name: str = "any") -> dict[str, Any]:
    return {"metadata": {"name": "c"}, "spec": {"devices": {"requests": [
        {"name": "r", "exactly": {"deviceClassName": class_name, "count": count}}]}}}


def allocation(*devices: str) -> dict[str, Any]:
    return {"devices": {"results": [{"request": "r", "driver": "a.test", "pool": "p", "device": name} for name in devices]},
            "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [
                {"key": "metadata.name", "operator": "In", "values": ["n"]}]}]}}


POOL = {
    "node": {"metadata": {"name": "n"}}, "deviceClasses": [{"metadata": {"name": "any"}, "spec": {}}],
    "resourceSlices": [{"metadata": {"name": "s"}, "spec": {
        "driver": "a.test", "nodeName": "n", "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": "d1"}, {"name": "d2"}]}}]}


def expected(*devices: str, order: str = "exact") -> dict[str, Any]:
    return {"results": [{"allocation": allocation(*devices), "deviceOrder": order}], "errorContains": None}


# Cases that hold, and what makes each of them wrong: new values of its expectation.
HOLDS: Mapping[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {
    "a selector matches": (
        {**EXPRESSION, "expectMatch": True, "expectMaxCost": 5},
        [{"expectMatch": False}, {"expectMaxCost": 4}, {"expectMaxCost": 6}, {"expectMatchErrorContains": "no"},
         {"expectCompileErrorContains": "no"}]),
    "a selector does not compile": (
        {**EXPRESSION, "expression": "?!", "expectCompileErrorContains": "syntax"},
        [{"expectCompileErrorContains": None, "expectMatch": True}]),
    "a selector has no answer": (
        {**EXPRESSION, "attributes": {}, "expectMatchErrorContains": "no such key"},
        [{"expectMatchErrorContains": None, "expectMatch": True}]),
    "a VM is let in": (
        kubevirt("admission", INSTANCE, {"allowed": True, "causeCount": 0}), [{"allowed": False}, {"causeCount": 1}]),
    "a VM is refused": (
        kubevirt("admission", TWICE, {
            "allowed": False, "field": "spec.resourceClaims[1].name", "messageContains": "Duplicate", "causeCount": 1,
            "causes": [{"field": "spec.resourceClaims[1].name"}]}),
        [{"allowed": True}, {"field": "spec.resourceClaims[0].name"}, {"messageContains": "gate"}, {"causeCount": 2},
         {"fieldAny": ["spec"]}, {"causes": [{"field": "spec.resourceClaims[1].name", "messageContains": "gate"}]}]),
    "an update is refused": (
        kubevirt("admission", [INSTANCE, OTHER], {"allowed": False, "field": "spec.resourceClaims"}, operation="UPDATE"),
        [{"allowed": True}, {"field": "spec.domain"}]),
    "a status is complete": (
        kubevirt("status", KNOWN, {"deviceStatus": DEVICES, "ready": True, "patchesAtMost": 0,
                                   "deviceStatusNotContains": "0000:66:00.0", "crashes": False}),
        [{"deviceStatus": None}, {"deviceStatus": {"gpuStatuses": []}}, {"ready": False}, {"patchesAtMost": -1},
         {"deviceStatusNotContains": "0000:65:00.0"}, {"warningEvent": "teleported"},
         {"warningEvent": {"reason": "Teleported"}}, {"retried": True}]),
    "a status is empty": (
        kubevirt("status", WAITING, {"deviceStatus": None, "ready": False}), [{"deviceStatus": DEVICES}, {"ready": True}]),
    "a domain has the card": (
        kubevirt("domainxml", KNOWN, {"xpathAssertions": [
            {"xpath": "//hostdev", "count": 1}, {"xpath": "//hostdev/source/address/@bus", "equals": "0x65"}]}),
        [{"xpathAssertions": [{"xpath": "//hostdev", "count": 2}]}, {"error": {"messageContains": "g0"}},
         {"xpathAssertions": [{"xpath": "//hostdev/source/address/@bus", "equals": "0x66"}]}]),
    "a pod has the claim": (
        kubevirt("render", INSTANCE, {
            "pod": {"spec": {"containers": [{"name": "compute", "resources": {"claims": [{"name": "acc"}]}}]}},
            "exact": [{"path": "spec.containers[compute].resources.claims", "equals": [{"name": "acc", "request": "card"}]}],
            "absent": ["spec.nodeName"], "absentAnnotations": ["a.test/b"], "onlyContainerWithClaims": ["compute"]}),
        [{"pod": {"spec": {"containers": [{"name": "compute", "resources": {"claims": [{"name": "b"}]}}]}}},
         {"pod": {"spec": {"containers": [{"name": "sidecar"}]}}}, {"pod": {"spec": {"hostname": "a"}}},
         {"exact": [{"path": "spec.containers[compute].resources.claims", "equals": []}]},
         {"absent": ["spec.resourceClaims"]}, {"absentAnnotations": ["kubevirt.io/domain"]},
         {"annotationJSON": {"a.test/b": {}}}, {"onlyContainerWithClaims": "sidecar"}, {"delta": {}}, {"delta": "1Gi"},
         {"onlyContainerWithClaims": ["sidecar"]}, {"onlyContainerWithClaims": []}, {"error": {"messageContains": "acc"}}]),
    "devices are allocated": (
        {**POOL, "claims": [claim(2)], "expect": expected("d1", "d2")},
        [expected("d2", "d1"), expected("d1"), expected("d1", "d3"), {"results": []}, {"errorContains": "class"}]),
    "in any order": (
        {**POOL, "claims": [claim(2)], "expect": expected("d2", "d1", order="any")},
        [expected("d2", "d2", order="any")]),
    "nothing fits": (
        {**POOL, "claims": [claim(3)], "expect": {"results": [], "errorContains": None}},
        [expected("d1", "d2"), {"errorContains": "count"}]),
    "a claim is wrong": (
        {**POOL, "claims": [claim(1, "none")], "expect": {"results": [], "errorContains": "class none"}},
        [{"errorContains": None}, {"results": [expected("d1")["results"][0]], "errorContains": None}]),
    "entries match": (
        nova("device_spec", [{"op": "match_devices"}], {"matched": {CARD["address"]: 0, TWIN["address"]: None}}),
        [{"matched": {CARD["address"]: None}}, {"matched": {TWIN["address"]: 0}}, {"matched": {"0000:99:00.0": None}},
         {"error": {"kind": "invalid_config"}}]),
    "an entry is wrong": (
        nova("device_spec", [{"op": "match_devices"}], {"error": {"kind": "invalid_config", "contains": ["vendor_id"]}},
             device_spec=[{"vendor_id": "zz"}]),
        [{"error": {"kind": "refuse_start"}}, {"error": {"kind": "invalid_config", "contains": ["horse"]}}]),
    "a host starts": (
        nova("modelling", [START, AUDIT], {
            "providers": [{**PROVIDER, "same_uuid_as_after_step": 0}], "provider_generations_unchanged_since_step": 0,
            "extra_providers_untouched": True, "devices": {"oak": {CARD["address"]: {"status": "available"}}}},
            extra_providers=[EXTRA]),
        [{"providers": []}, {"providers": [PROVIDER], "on_host": "elm"}, {"providers": [{**PROVIDER, "name": "other"}]},
         {"providers": [{**PROVIDER, "parent": "elm"}]}, {"providers": [{**PROVIDER, "traits": []}]},
         {"providers": [{**PROVIDER, "inventories": {CLASS: 2}}]}, {"providers": [{**PROVIDER, "inventories": {}}]},
         {"providers": [{**PROVIDER, "inventories": {CLASS: {"total": 1, "reserved": 1}}}]},
         {"devices": {"oak": {CARD["address"]: {"status": "allocated"}}}}, {"usages": {HOME: {CLASS: 1}}},
         {"devices": {"oak": {TWIN["address"]: {"status": "available"}}}}, {"log": ["horse"]},
         {"allocations": {"s1": {HOME: {CLASS: 1}}}}, {"servers": {"s1": {"status": "ACTIVE"}}},
         {"error": {"kind": "refuse_start"}}, {"request_groups": []}]),
    "a provider changes": (
        nova("modelling", [START, {"op": "restart_host", "host": "oak", "device_spec": [{"address": CARD["address"]}]}],
             {"providers": [{**PROVIDER, "traits": []}]}),
        [{"provider_generations_unchanged_since_step": 0}]),
    "a host refuses": (
        nova("refusal", [START], {"error": {"kind": ["refuse_start", "invalid_config"], "contains": ["devname"]},
                                  "providers": []}, device_spec=[{"devname": "ens1"}]),
        [{"error": {"kind": "invalid_config"}}, {"error": {"kind": "refuse_start", "contains": ["horse"]}},
         {"providers": [PROVIDER]}]),
    "a server is adopted": (
        nova("healing", [START], {
            "usages": {HOME: {CLASS: 1}}, "allocations": {"s1": {HOME: {CLASS: 1}}}, "allocation_totals": {"s1": 1},
            "root_allocations_unchanged": ["s1"], "servers": {"s1": {"status": "ACTIVE", "host": "oak"}},
            "devices": {"oak": {CARD["address"]: {"status": "allocated", "owner": "s1"}}}}, servers=[SERVER]),
        [{"usages": {HOME: {CLASS: 0}}}, {"usages": {"other": {CLASS: 1}}}, {"allocations": {"s1": {}}},
         {"allocations": {"s1": {HOME: {CLASS: 2}}}}, {"allocation_totals": {"s1": 2}},
         {"root_allocations_unchanged": ["s1", "s2"]}, {"servers": {"s1": {"host": "elm"}}},
         {"devices": {"oak": {CARD["address"]: {"status": "allocated", "owner": "s2"}}}},
         {"devices": {"oak": {CARD["address"]: {"status": "available"}}}}]),
    "aliases are read": (
        nova("alias", [{"op": "load_alias"}], {"aliases": {"gpu": {"numa_policy": "legacy", "specs": [IDS]}}}, alias=[GPU]),
        [{"aliases": {}}, {"aliases": {"gpu": {"numa_policy": "socket"}}}, {"aliases": {"gpu": {"specs": []}}},
         {"error": {"kind": "invalid_alias"}}, {"requests": []}]),
    "an alias is wrong": (
        nova("alias", [{"op": "load_alias"}], {"error": {"kind": "invalid_alias", "contains": ["gpu", "id"]}},
             alias=[{**GPU, "id": "1"}]),
        [{"error": {"kind": "bad_request"}}, {"error": {"kind": "invalid_alias", "contains": ["horse"]}}]),
    "a flavor is wrong": (
        nova("alias", [{"op": "build_request", "flavor": {"alias": "fpga:1"}}], {"error": {"kind": "bad_request"}},
             alias=[GPU]),
        [{"error": {"kind": "invalid_alias"}}, {"error": {"kind": "bad_request", "contains": ["horse"]}}]),
    "a flavor asks": (
        nova("prefilter", [{"op": "build_request", "flavor": {"alias": "gpu:1"}}], {
            "requests": [{"alias": "gpu", "count": 1, "numa_policy": "legacy"}], "request_groups": [GROUP],
            "query": {"group_policy": None, "limit": 1000}}, alias=[{**GPU, "traits": "a,!b"}]),
        [{"requests": []}, {"requests": [{"alias": "gpu", "count": 2}]}, {"requests": [{"numa_policy": "socket"}]},
         {"request_groups": []}, {"request_groups": [GROUP, GROUP]}, {"request_groups": [{**GROUP, "index": 1}]},
         {"request_groups": [{**GROUP, "resources": {"PGPU": 1}}]}, {"request_groups": [{**GROUP, "required": []}]},
         {"request_groups": [{**GROUP, "forbidden": []}]}, {"request_groups": [{**GROUP, "suffix_pattern": "horse"}]},
         {"query": {"group_policy": "none"}}, {"query": {"limit": 10}}]),
    "a server boots": (
        nova("scheduling", [START, BOOT], {
            "servers": {"s1": {"status": "ACTIVE", "host": "oak", "devices_one_of": [CARD["address"]], "device_count": 1}},
            "usages": {HOME: {CLASS: 1}}}, alias=[GPU]),
        [{"servers": {"s1": {"status": "ERROR"}}}, {"servers": {"s1": {"devices_one_of": [TWIN["address"]]}}},
         {"servers": {"s1": {"device_count": 2}}}, {"servers": {"s1": {"devices_parent_count": {TWIN["address"]: 1}}}},
         {"error": {"kind": "no_valid_host"}}, {"usages": {HOME: {CLASS: 0}}}]),
    "servers race": (
        nova("scheduling", [START, {"op": "boot_concurrently", "servers": ["s1", "s2"], "flavor": {"alias": "gpu:1"}}], {
            "exactly_one_of": {"servers": ["s1", "s2"], "is": {"status": "ACTIVE"}, "others": {"status": "ERROR"}}},
            alias=[GPU]),
        [{"exactly_one_of": {"servers": ["s1", "s2"], "is": {"status": "DELETED"}, "others": {}}},
         {"exactly_one_of": {"servers": ["s1", "s2"], "is": {"status": "ACTIVE"}, "others": {"status": "ACTIVE"}}}]),
    "several servers do not fit": (
        nova("scheduling", [START, {**BOOT, "count": 2}], {
            "all_servers_of": {"server": "s1", "status": "ERROR"}, "error": {"kind": "no_valid_host", "contains": ["held"]}},
            alias=[GPU], servers=[{**SERVER, "placement": "exact"}]),
        [{"all_servers_of": {"server": "s1", "status": "ACTIVE"}}, {"all_servers_of": {"server": "s2", "status": "ERROR"}},
         {"all_servers_of": {"s1": {"distinct_devices": True}}}, {"error": {"kind": "bad_request"}},
         {"error": {"kind": "no_valid_host", "contains": ["horse"]}}]),
    "a guest gets a cell": (
        nova("numa", [START, {**BOOT, "flavor": {"alias": "gpu:1", "pinned": True}}], {
            "servers": {"s1": {"cell": 1, "device_cell_equals_guest_cell": True}}}, alias=[GPU], hosts=[
                {"name": "oak", "numa_cells": [{"id": 0, "pcpus": 4}, {"id": 1, "pcpus": 4}],
                 "pci_devices": [{**CARD, "numa_node": 1}]}]),
        [{"servers": {"s1": {"cell": 0}}}, {"servers": {"s1": {"device_cell_equals_guest_cell": False}}}]),
    "a claim goes to another host": (
        nova("claim", [START, {**START, "host": "yew"}, FAULT, BOOT], {
            "only_host_of_server_has_claimed_devices": "s1",
            "servers": {"s1": {"devices_by_alias": {"gpu": [CARD["address"]]}}},
            "exactly_one_of": {"providers": [HOME, "yew_0000:17:00.0"], "used": {CLASS: 1}, "others_used": {CLASS: 0}}},
            alias=[GPU], hosts=[{"name": name, "pci_devices": [CARD]} for name in ("oak", "yew")]),
        [{"only_host_of_server_has_claimed_devices": "s2"}, {"servers": {"s1": {"devices_by_alias": {"gpu": []}}}},
         {"servers": {"s1": {"host": "oak"}}},
         {"exactly_one_of": {"providers": [HOME], "used": {CLASS: 1}, "others_used": {CLASS: 0}}}]),
}

RUNNING: dict[str, Any] = {
    "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "metadata": {"name": "vm1", "namespace": "lab"},
    "spec": {"domain": {"devices": {"interfaces": [{"name": "default", "masquerade": {}}, {"name": "blue", "bridge": {}}]}},
             "networks": [{"name": "default", "pod": {}}, {"name": "blue", "multus": {"networkName": "blue-nad"}}]},
    "status": {"phase": "Running", "nodeName": "node-a", "interfaces": [{"name": "default", "infoSource": "domain"}]}}
LAUNCHER: dict[str, Any] = {
    "apiVersion": "v1", "kind": "Pod", "spec": {"nodeName": "node-a", "containers": [{"name": "compute"}]},
    "metadata": {"name": "launcher", "namespace": "lab", "labels": {"kubevirt.io": "virt-launcher"}, "ownerReferences": [
        {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "name": "vm1", "controller": True}]},
    "status": {"phase": "Running"}}
_VMI = {"kind": "VirtualMachineInstance", "name": "vm1"}
_LAUNCHER = {"kind": "Pod", "name": "launcher", "key": "k8s.v1.cni.cncf.io/networks"}
_REFUSED_PATCH = {"kind": "VirtualMachineInstance", "name": "vm1", "patch": {"spec": {"flavor": {"name": "other"}}}}
_THEN: dict[str, Any] = {
    "conditions": [{**_VMI, "type": "MigrationRequired", "status": "False", "reason": "AutoMigrationPending",
                    "messageContains": "blue"}],
    "noConditions": [{**_VMI, "type": "Paused"}],
    "fieldEquals": [{**_VMI, "path": "status.interfaces[*].name", "equals": ["default"]},
                    {**_VMI, "path": "spec.networks[name=blue].multus.networkName", "equals": "blue-nad"}],
    "annotationJSON": [{**_LAUNCHER, "equals": [{"name": "blue-nad", "namespace": "lab", "interface": "pod16477688c0e"}]}],
    "annotationAbsent": [{**_LAUNCHER, "key": "no.such/key"}],
    "count": [{"kind": "Pod", "match": {"spec.nodeName": "node-a"}, "equals": 1}],
    "countAtMost": [{"kind": "Pod", "match": {}, "atMost": 1}],
    "objects": [{"kind": "Pod", "metadata": {"name": "launcher"}}],
    "noObjects": [{"kind": "Pod", "metadata": {"name": "other"}}],
    "unchanged": [{**_VMI, "path": "spec"}],
}


def steps(then: Mapping[str, Any], **do: Any) -> dict[str, Any]:
    return {"steps": [{"at": 3, "do": do, "then": {**_THEN, **then}}]}


_WRONG: list[dict[str, Any]] = [
    {"refused": {"status": 403}}, {"refused": {"status": 422, "field": "status"}},
    {"conditions": [{**_VMI, "type": "MigrationRequired", "status": "True"}]},
    {"conditions": [{**_VMI, "type": "MigrationRequired", "messageContains": "horse"}]},
    {"conditions": [{**_VMI, "type": "Paused"}]},
    {"noConditions": [{**_VMI, "type": "MigrationRequired"}]},
    {"fieldEquals": [{**_VMI, "path": "spec.networks[name=red]", "equals": {}}]},
    {"annotationJSON": [{**_LAUNCHER, "equals": []}]}, {"annotationEquals": [{**_LAUNCHER, "equals": ""}]},
    {"annotationAbsent": [_LAUNCHER]}, {"count": [{"kind": "Pod", "match": {}, "equals": 2}]},
    {"countAtMost": [{"kind": "Pod", "match": {}, "atMost": 0}]},
    {"objects": [{"kind": "Pod", "metadata": {"name": "other"}}]},
    {"noObjects": [{"kind": "Pod", "metadata": {"name": "launcher"}}]},
    {"unchanged": [{"kind": "Pod", "name": "none", "path": "spec"}], "fieldEquals": [
        {"kind": "Pod", "name": "none", "path": "spec", "equals": {}}]},
]
STEPPED: tuple[dict[str, Any], list[dict[str, Any]]] = (
    kubevirt("hotplug", [RUNNING, LAUNCHER],
             steps({"refused": {"status": 422, "field": "spec.flavor"}}, apply=[_REFUSED_PATCH])),
    [steps({"refused": {}, **wrong}, apply=[_REFUSED_PATCH]) for wrong in _WRONG])
STEP = {"at": 0, "do": {"apply": []}, "then": {"conditions": []}}
SERVERS = {"servers": {"s1": {"status": "ACTIVE"}}}
NOVA: dict[str, Any] = {"area": "numa", "basis": "nova", "given": {"hosts": [{"name": "h", "pci_devices": []}]},
                        "when": [{"op": "start_host", "host": "h"}, BOOT], "expect": SERVERS}
ALLOCATOR: dict[str, Any] = {"claims": [], "features": {"AdminAccess": True}, "allocated": {"devices": []},
                             "expect": {"results": [], "errorContains": None, "searchStepsOfMine": 3}}
_HOSTS: list[dict[str, Any]] = [
    {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
     "status": {"allocatable": room, "capacity": room, "conditions": [{"type": "Ready", "status": "True"}]}}
    for name in ("node-a", "node-b") for room in ({"cpu": "16", "memory": "64Gi", "pods": "110"},)]
_MIGRATION = {"kind": "VirtualMachineInstanceMigration", "name": "m1"}


def moved(plan: Mapping[str, Any], holder: str | None, host: str) -> dict[str, Any]:
    """A VM whose plan is asked for, that then migrates."""
    job = {"apiVersion": "kubevirt.io/v1", "kind": _MIGRATION["kind"], "spec": {"vmiName": "vm1"},
           "metadata": {"name": "m1", "namespace": "lab"}}
    return {"steps": [
        {"at": 0, "then": {"plan": [{"vmi": "vm1", **plan}], "held": [{"node": "node-a", "device": "d", "by": holder}]}},
        {"at": 1, "do": {"create": [job]}},
        {"at": 60, "then": {"fieldEquals": [{**_MIGRATION, "path": "status.phase", "equals": "Succeeded"},
                                            {**_VMI, "path": "status.nodeName", "equals": host}]}}]}


_PLAN: dict[str, Any] = {"possible": True, "to": "node-b", "devices": []}
_PLAIN = {"domain": {"devices": {"interfaces": [{"name": "default", "masquerade": {}}]}},
          "networks": [{"name": "default", "pod": {}}]}
MOVED: tuple[dict[str, Any], list[dict[str, Any]]] = (
    kubevirt("migration", [{**RUNNING, "spec": _PLAIN}, LAUNCHER, *_HOSTS], moved(_PLAN, None, "node-b")),
    [moved({**_PLAN, "possible": False}, None, "node-b"), moved({**_PLAN, "to": "node-a"}, None, "node-b"),
     moved({**_PLAN, "devices": [{"name": "g", "how": "travels"}]}, None, "node-b"),
     moved(_PLAN, "vmi/vm1", "node-b"), moved(_PLAN, None, "node-a")])



def _assigned(area: str, given: dict[str, Any], expect: dict[str, Any]) -> dict[str, Any]:
    """One pod that asks for a device of a plugin."""
    pod = {"name": "p", "containers": [{"name": "c", "limits": {"a.io/gpu": 2}}]}
    return {"area": area, "basis": "document", "when": [{"op": "create", "pods": [pod]}], "expect": expect, "given": {
        "plugins": {"gpu": {"resource": "a.io/gpu", "devices": {"g0": [0], "g1": [0], "g2": [1]}}}, **given}}


ASSIGNED: Mapping[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {
    "a pod is assigned devices": (
        _assigned("assign", {}, {"pods": {"p": {"phase": "Running", "assigned": {"c": {"a.io/gpu": 2}}}},
                                 "order": [["written p", "Allocate gpu", "started p"]]}),
        [{"pods": {"p": {"phase": "Failed"}}}, {"pods": {"p": {"assigned": {}}}},
         {"order": [["Allocate gpu", "written p"]]}, {"error": {}}]),
    "a plugin registers": (
        _assigned("plugin", {}, {"nodes": {"n1": {"capacity": {"a.io/gpu": 3}}}, "calls": {"gpu": {"Allocate": 1}}}),
        [{"nodes": {"n1": {"capacity": {"a.io/gpu": 2}}}}, {"calls": {"gpu": {"Allocate": 0}}}]),
    "a monitor sees the devices": (
        _assigned("readers", {}, {"readers": {"list": {"p": {"c": {"a.io/gpu": 2}}}, "pods": ["p"], "cni": [
            {"pod": "p", "knows": ["a.io/gpu"], "devices": {"a.io/gpu": 2}}]}, "checkpoint": {"p": {"c": {"a.io/gpu": 2}}}}),
        [{"readers": {"list": {}}}, {"readers": {"pods": []}}, {"checkpoint": {}}, {"readers": {"allocatable": {}}},
         {"readers": {"cni": [{"pod": "p", "knows": ["a.io/nic"], "devices": {"a.io/gpu": 2}}]}}]),
    "a claim is prepared by its driver": (
        {"area": "driver", "basis": "kubelet", "given": {
            "drivers": {"net": {"driver": "net.d.io", "devices": ["d0"], "health": {"d0": "Healthy"}}},
            "claims": {"k": {"results": [{"request": "r", "driver": "net.d.io", "device": "d0"}]}}},
         "when": [{"op": "create", "pods": [{"name": "p", "claims": {"nic": "k"}, "containers": [
             {"name": "c", "claims": ["nic"]}]}]}],
         "expect": {"pods": {"p": {"phase": "Running", "health": {"c": {"claim:nic": {"net.d.io/dev=d0": "Healthy"}}}}},
                    "calls": {"net": {"NodePrepareResources": [["k"]]}}, "slices": {"net.d.io": 1},
                    "order": [["NodePrepareResources net", "started p"]], "notified": {"net": {"registered": True}}}},
        [{"pods": {"p": {"health": {"c": {"claim:nic": {"net.d.io/dev=d0": "Unknown"}}}}}},
         {"calls": {"net": {"NodePrepareResources": [["k"], ["k"]]}}}, {"slices": {"net.d.io": 0}},
         {"order": [["started p", "NodePrepareResources net"]]}, {"notified": {"net": {"registered": False}}}]),
    "devices are aligned": (
        _assigned("topology", {"nodes": {"n1": {"numa": [0, 1], "policy": "single-numa-node"}}},
                  {"pods": {"p": {"assigned": {"c": {"a.io/gpu": ["g0", "g1"]}}}}}),
        [{"pods": {"p": {"assigned": {"c": {"a.io/gpu": ["g1", "g2"]}}}}}, {"pods": {"p": {"phase": "Failed"}}}]),
}
HOLDS = {**HOLDS, "a NIC waits": STEPPED, "a VM moves": MOVED, **ASSIGNED}
HOTPLUG = kubevirt("hotplug", INSTANCE, {"steps": [STEP]})
STRANGE: Mapping[str, tuple[dict[str, Any], str]] = {  # a case that is not in its format -> what the failure names
    "an area": ({"area": "teleport", "expect": {"arrived": True}}, "teleport"),
    "no area": ({"expect": {"arrived": True}}, "no area"),
    "no expectation": (kubevirt("status", INSTANCE, {}), "expects nothing"),
    "a key of a case": ({**kubevirt("status", INSTANCE, {"ready": False}), "mood": 1}, "mood"),
    "a setting": (kubevirt("status", INSTANCE, {"ready": False}, speed=1), "speed"),
    "a kind": (kubevirt("status", {"kind": "Unicorn", "metadata": {"name": "u"}}, {"ready": False}), "Unicorn"),
    "a key of an object": (kubevirt("status", {**INSTANCE, "wishes": {}}, {"ready": False}), "wishes"),
    "a key of a pseudo kind": (kubevirt("domainxml", {"kind": "LauncherEnv", "vars": {}}, {"error": {}}), "vars"),
    "an expectation": (kubevirt("status", INSTANCE, {"readyish": True}), "readyish"),
    "an expectation of another area": (kubevirt("status", INSTANCE, {"allowed": True}), "allowed"),
    "a key of an assertion": (kubevirt("domainxml", INSTANCE, {"xpathAssertions": [{"xpath": "/", "is": 1}]}), '"is"'),
    "a key of a cause": (kubevirt("admission", INSTANCE, {"causes": [{"path": "spec"}]}), '"path"'),
    "a word of a hotplug step": (kubevirt("hotplug", INSTANCE, {"steps": [{**STEP, "do": {"reboot": []}}]}), "reboot"),
    "a word after a hotplug step": (kubevirt("hotplug", INSTANCE, {"steps": [{**STEP, "then": {"mood": []}}]}), "mood"),
    "a placement op": ({**NOVA, "when": [{"op": "teleport"}]}, "teleport"),
    "a key of a placement op": ({**NOVA, "when": [{**BOOT, "speed": 1}]}, "speed"),
    "an expectation of a placement step": ({**NOVA, "when": [{**BOOT, "expect": {"mood": 1}}]}, "mood"),
    "a key of a flavor": ({**NOVA, "when": [{**BOOT, "flavor": {"color": 1}}]}, "color"),
    "a key of the given scenario": ({**NOVA, "given": {"planets": []}}, "planets"),
    "a key of a host": ({**NOVA, "given": {"hosts": [{"name": "h", "moons": 1}]}}, "moons"),
    "a placement setting": ({**NOVA, "given": {"config": {"speed": 1}}}, "speed"),
    "a placement expectation": ({**NOVA, "expect": {"mood": 1}}, "mood"),
    "a word of a server": ({**NOVA, "expect": {"servers": {"s1": {"mood": 1}}}}, "mood"),
    "a key of an allocator case": ({**ALLOCATOR, "mood": 1}, "mood"),
    "a feature": ({**ALLOCATOR, "features": {"Levitation": True}}, "Levitation"),
    "an allocator expectation": ({**ALLOCATOR, "expect": {"mood": 1}}, "mood"),
    "a key of a selector case": ({**EXPRESSION, "expectMatch": True, "mood": 1}, "mood"),
    "a step of an assignment case": (
        {**ASSIGNED["a plugin registers"][0], "when": [{"op": "restart_agent", "checkpoint": "burnt"}]}, "burnt"),
    "a policy of a node": (_assigned("topology", {"nodes": {"n1": {"policy": "strict"}}}, {"nodes": {}}), "strict"),
    "a method that fails": (_assigned("plugin", {"drivers": {"d": {"fails": {"Allocate": "no"}}}}, {"nodes": {}}), "Allocate"),
    "a shape": ({**NOVA, "when": {"op": "boot"}}, "list is expected"),
}
