"""Wrong values in fields that controllers read: refused at admission with the field, and nothing is written. What got past
it would be a fault of a controller, which the user could not see."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from outfitter.api import admission, kinds
from outfitter.api.kinds import Kind, Object
from outfitter.api.kubevirt.kubevirt_config import PREPARE_TIMEOUT_ANNOTATION
from outfitter.api.validate.node_placement import PREFERRED, REQUIRED
from outfitter.apiserver.app import App
from outfitter.apiserver.auth import MASTERS, User
from outfitter.store.clock import ManualClock
from outfitter.store.memory import Memory
from tests.apiserver.asgi import Client

TERMS: Object = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "rack", "operator": "In", "values": ["r1"]}]}]}
TOLERATION: Object = {"key": "gpu", "operator": "Equal", "value": "yes", "effect": "NoExecute", "tolerationSeconds": 5}
WHERE: Object = {
    "nodeSelector": {"rack": "r1"},
    "tolerations": [TOLERATION],
    "affinity": {"nodeAffinity": {REQUIRED: TERMS, PREFERRED: [{"weight": 1, "preference": TERMS["nodeSelectorTerms"][0]}]},
                 "podAntiAffinity": {REQUIRED: [{"topologyKey": "rack", "labelSelector": {"matchLabels": {"app": "web"}}}]}},
}
DOMAIN: Object = {
    "firmware": {"uuid": "5d307ca9-b3ef-428c-8861-06e72d69f223", "bootloader": {"efi": {"secureBoot": False}}},
    "clock": {"utc": {"offsetSeconds": 3600}, "timer": {"hpet": {"present": False}}},
    "features": {"acpi": {"enabled": True}},
    "cpu": {"cores": 2, "model": "host-model", "numa": {"guestMappingPassthrough": {}}},
    "memory": {"guest": "1Gi", "hugepages": {"pageSize": "2Mi"}},
    "resources": {"requests": {"cpu": 0.5}, "limits": {"memory": "2Gi", "cpu": "1"}},
    "devices": {"rng": {}, "autoattachGraphicsDevice": False, "interfaces": [
        {"name": "default", "masquerade": {}, "bootOrder": 1, "ports": [{"port": 80}]}]},
}
REQUESTS: Object = {"devices": {
    "requests": [
        {"name": "a", "exactly": {
            "deviceClassName": "gpu", "count": 1, "adminAccess": False, "capacity": {"requests": {"memory": "1Gi"}},
            "tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoExecute"}]}},
        {"name": "b", "firstAvailable": [
            {"name": "big", "deviceClassName": "gpu"}, {"name": "small", "deviceClassName": "gpu"}]}],
    "constraints": [{"requests": ["a", "b"], "matchAttribute": "resource.kubernetes.io/numaNode"}],
    "config": [{"requests": ["a"], "opaque": {"driver": "pci.outfitter.dev", "parameters": {"x": 1}}}],
}}
POLICY: Object = {"default": "1Gi", "validRange": {"min": "1Gi", "max": "8Gi", "step": "1Gi"}}
SLICE: Object = {
    "driver": "gpu.example.com", "perDeviceNodeSelection": True,
    "pool": {"name": "rack/a", "generation": 1, "resourceSliceCount": 2},
    "devices": [
        {"name": "gpu-0", "nodeName": "a", "allowMultipleAllocations": True, "bindsToNode": True,
         "attributes": {"model": {"string": "A"}, "example.com/cores": {"int": 8}, "up": {"bool": True},
                        "fw": {"version": "1.2.3"}, "links": {"ints": [1, 2]}},
         "capacity": {"memory": {"value": "8Gi", "requestPolicy": POLICY}},
         "consumesCounters": [{"counterSet": "set", "counters": {"slices": {"value": "1"}}}],
         "taints": [{"key": "example.com/hot", "value": "yes", "effect": "NoSchedule", "timeAdded": "2026-01-01T00:00:00Z"}],
         "bindingConditions": ["example.com/ready"], "bindingFailureConditions": ["example.com/failed"],
         "nodeAllocatableResourceMappings": {"cpu": {"capacityKey": "memory"}}},
        {"name": "gpu-1", "nodeSelector": TERMS}]}
GOOD: dict[Kind, Object] = {
    kinds.RESOURCE_SLICE: {"spec": SLICE},
    kinds.NODE: {"spec": {"unschedulable": True, "taints": [{"key": "a", "value": "b", "effect": "NoSchedule"}]}, "status": {
        "allocatable": {"cpu": "4"}, "capacity": {"memory": "8Gi"}, "addresses": [{"type": "Hostname", "address": "a"}],
        "conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-01-01T00:00:00Z"}]}},
    kinds.DEVICE_TAINT_RULE: {"spec": {"deviceSelector": {"driver": "d", "pool": "p", "device": "v"}, "taint": {
        "key": "a", "effect": "NoExecute"}}},
    kinds.CONFIG_MAP: {"data": {"a": "b"}, "binaryData": {"c": "eA=="}, "immutable": False},
    kinds.SECRET: {"data": {"a": "eA=="}, "type": "Opaque"},
    kinds.LEASE: {"spec": {"holderIdentity": "a", "leaseDurationSeconds": 5, "renewTime": "2026-01-01T00:00:00.000000Z"}},
    kinds.VMI: {"spec": {**WHERE, "networks": [{"name": "default", "pod": {}}], "domain": DOMAIN, "volumes": [
        {"name": name, "hostDisk": {"path": f"/{name}"}} for name in ("a", "b")]}},
    kinds.POD: {"spec": {
        **WHERE, "overhead": {"cpu": "250m"}, "resources": {"limits": {"memory": "1Gi"}}, "priority": 1, "schedulingGates": [
            {"name": "example.com/later"}], "resourceClaims": [{"name": "a", "resourceClaimName": "a"}], "containers": [
            {"name": "c", "resources": {"requests": {"cpu": 0.5}, "claims": [{"name": "a"}]}}]}},
    kinds.RESOURCE_CLAIM: {"spec": REQUESTS},
    kinds.RESOURCE_CLAIM_TEMPLATE: {"spec": {"metadata": {"labels": {"app": "web"}}, "spec": REQUESTS}},
    kinds.DEVICE_CLASS: {"spec": {"extendedResourceName": "example.com/gpu", "config": [
        {"opaque": {"driver": "pci.outfitter.dev", "parameters": {}}}]}},
    kinds.KUBEVIRT: {"spec": {"workloadUpdateStrategy": {"batchEvictionSize": 10, "batchEvictionInterval": "1m30s"}}},
    kinds.NETWORK_ATTACHMENT: {"spec": {"config": '{"type": "bridge", "bridge": "br0"}'}},
}
# Of another type than any field has that is none of these.
ODD: tuple[Any, ...] = (-1, True, 1.5, "x", ["x"], [None], [{}], {"a": "b"})
MAPS = ("data", "binaryData", "nodeSelector", "matchLabels", "labels")
AMOUNTS = ("requests", "limits", "overhead", "allocatable", "capacity", "value", "default", "min", "max", "step")
ANYTHING = ("parameters", "x", "guestMappingPassthrough", "rng", "masquerade", "pod")  # objects of which nothing is known


@pytest.fixture
async def client(clock: ManualClock) -> AsyncIterator[Client]:
    home = Memory(clock=clock, rules=admission.AdmissionRules())
    await home.create(kinds.NAMESPACE, {"metadata": {"name": "default"}})
    yield Client(App(home, tokens={"admin": User("admin", (MASTERS,))}))
    await home.close()


def path(kind: Kind) -> str:
    group = f"apis/{kind.group}/{kind.version}" if kind.group else f"api/{kind.version}"
    return f"/{group}/{'namespaces/default/' if kind.namespaced else ''}{kind.plural}"


def places(value: Any, *at: Any) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at, *(place for name, each in inner for place in places(each, *at, name))]


def written(place: tuple[Any, ...]) -> str:
    return "".join(f"[{name}]" if isinstance(name, int) else f".{name}" for name in place)[1:]


def with_(obj: Object, place: tuple[Any, ...], value: Any) -> Object:
    out: Object = json.loads(json.dumps(obj))
    inner: Any = out
    for name in place[:-1]:
        inner = inner[name]
    if not place:
        return dict(value)
    inner[place[-1]] = value
    return out


def at(obj: Object, place: tuple[Any, ...]) -> Any:
    inner: Any = obj
    for name in place:
        inner = inner[name]
    return inner


def right(odd: Any, place: tuple[Any, ...], now: Any) -> bool:
    if "parameters" in place[:-1] or (place[-1] in ANYTHING and isinstance(odd, dict)):
        return True
    if "data" in place or (place[-1] in MAPS and isinstance(odd, dict)):
        return kin(odd, now)
    amount = place[-1] in AMOUNTS or (len(place) > 1 and place[-2] in AMOUNTS)
    return (amount and type(odd) in (int, float)) or kin(odd, now)  # a number as well as its text


def kin(one: Any, other: Any) -> bool:
    """Whether one could stand where the other does, by its type."""
    if isinstance(one, list) and isinstance(other, list):
        return kin(one[0], other[0])
    numbers = (int, float)
    return type(one) is type(other) or (isinstance(one, numbers) and isinstance(other, numbers) and not (
        isinstance(one, bool) or isinstance(other, bool)))


@pytest.mark.parametrize("kind", GOOD, ids=lambda kind: kind.kind)
async def test_a_value_of_another_type_is_refused_wherever_it_stands(client: Client, kind: Kind) -> None:
    whole = {"metadata": {"name": "odd"}, **GOOD[kind]}
    answer = await client.post(f"{path(kind)}?dryRun=All&fieldValidation=Strict", whole)
    assert answer.status == 201, answer.json
    wrong = []
    for place, odd in ((place, odd) for part in GOOD[kind] for place in places(whole[part], part) for odd in ODD):
        if not right(odd, place, at(whole, place)):
            answer = await client.post(path(kind), with_(whole, place, odd))
            told = [cause["field"] for cause in answer.json.get("details", {}).get("causes", ())]
            said = answer.status == 422 and any(field.startswith(written(place)) for field in told)
            if not said and not (answer.status == 400 and place[0] in answer.json["message"]):
                wrong.append((written(place), odd, answer.status, answer.json.get("message")))
    assert wrong == []
    assert (await client.get(f"{path(kind)}/odd")).status == 404


S, F, D = "spec", "firstAvailable", "devices"
TLS = "kubernetes.io/tls"
VALUES: dict[str, tuple[Kind, tuple[Any, ...], Any, str, str]] = {
    "a slice for nodes by text": (kinds.RESOURCE_SLICE, (S, "nodeSelector"), "0", "spec.nodeSelector", "must be an object"),
    "a slice for nodes by an object": (
        kinds.RESOURCE_SLICE, (S, D, 1, "nodeSelector", "nodeSelectorTerms", 0, "matchExpressions", 0, "key"), {},
        "spec.devices[1].nodeSelector.nodeSelectorTerms[0].matchExpressions[0].key", "must be text"),
    "a device for nodes by no label": (
        kinds.RESOURCE_SLICE, (S, D, 1, "nodeSelector", "nodeSelectorTerms", 0, "matchExpressions", 0, "key"), "-",
        "spec.devices[1].nodeSelector.nodeSelectorTerms[0].matchExpressions[0].key", "example.com/MyName"),
    "a device for nodes by a field that is none": (
        kinds.RESOURCE_SLICE, (S, D, 1, "nodeSelector", "nodeSelectorTerms", 0), {"matchFields": [
            {"key": "spec.x", "operator": "In", "values": ["a"]}]},
        "spec.devices[1].nodeSelector.nodeSelectorTerms[0].matchFields[0].key", "metadata.name"),
    "a slice for no nodes": (kinds.RESOURCE_SLICE, (S,), {"driver": "d", "pool": SLICE["pool"]}, "spec", "exactly one of"),
    "a slice for a node, and not for all": (kinds.RESOURCE_SLICE, (S,), {
        "driver": "d", "pool": SLICE["pool"], "allNodes": False, "nodeName": "a"}, "spec.allNodes", "set to true"),
    "a slice for two sets of nodes": (kinds.RESOURCE_SLICE, (S, "allNodes"), True, "spec", "exactly one of `nodeName`"),
    "a slice of an unnamed driver": (kinds.RESOURCE_SLICE, (S, "driver"), "", "spec.driver", "gpu.example.com"),
    "a slice in a pool that has no name": (kinds.RESOURCE_SLICE, (S, "pool", "name"), "A b", "spec.pool.name", "example.com"),
    "a pool of no slices": (kinds.RESOURCE_SLICE, (S, "pool", "resourceSliceCount"), 0, "spec.pool.resourceSliceCount", "zero"),
    "two devices of one name": (kinds.RESOURCE_SLICE, (S, D, 1, "name"), "gpu-0", "spec.devices[1]", "Duplicate"),
    "a device for no node": (kinds.RESOURCE_SLICE, (S, D, 0, "nodeName"), None, "spec.devices[0]", "exactly one of"),
    "an attribute that no selector can name": (
        kinds.RESOURCE_SLICE, (S, D, 0, "attributes", "a-b"), {"int": 1}, "spec.devices[0].attributes", "C identifier"),
    "a capacity that is no amount": (kinds.RESOURCE_SLICE, (S, D, 0, "capacity", "memory", "value"), "lots",
                                     "spec.devices[0].capacity.memory.value", "4Gi"),
    "a counter that is no amount": (
        kinds.RESOURCE_SLICE, (S, D, 0, "consumesCounters", 0, "counters", "slices", "value"), "1 slice",
        "spec.devices[0].consumesCounters[0].counters.slices.value", "4Gi"),
    "a policy without a default": (kinds.RESOURCE_SLICE, (S, D, 0, "capacity", "memory", "requestPolicy", "default"), None,
                                   "spec.devices[0].capacity[memory].requestPolicy.default", "Required"),
    "a policy by steps of nothing": (
        kinds.RESOURCE_SLICE, (S, D, 0, "capacity", "memory", "requestPolicy", "validRange", "step"), 0,
        "spec.devices[0].capacity[memory].requestPolicy.validRange.step", "greater than zero"),
    "a policy beyond the capacity": (
        kinds.RESOURCE_SLICE, (S, D, 0, "capacity", "memory", "requestPolicy", "validRange", "max"), "9Gi",
        "spec.devices[0].capacity[memory].requestPolicy.validRange.max", "larger than capacity"),
    "a policy of a device for one": (kinds.RESOURCE_SLICE, (S, D, 0, "allowMultipleAllocations"), False,
                                     "spec.devices[0].capacity[memory].requestPolicy", "allowMultipleAllocations"),
    "a device's taint of no effect": (kinds.RESOURCE_SLICE, (S, D, 0, "taints", 0, "effect"), "Some",
                                      "spec.devices[0].taints[0].effect", '"NoSchedule", "NoExecute", "None"'),
    "conditions to bind without one to fail": (kinds.RESOURCE_SLICE, (S, D, 0, "bindingFailureConditions"), [],
                                               "spec.devices[0].bindingFailureConditions", "required to use"),
    "a rule's taint without a key": (kinds.DEVICE_TAINT_RULE, (S, "taint", "key"), "", "spec.taint.key", "Required"),
    "a rule for a pool that is none": (kinds.DEVICE_TAINT_RULE, (S, "deviceSelector", "pool"), "A b",
                                       "spec.deviceSelector.pool", "example.com"),
    "a taint without a key": (kinds.NODE, (S, "taints", 0, "key"), "", "spec.taints[0].key", "Required"),
    "a taint whose key is none": (kinds.NODE, (S, "taints", 0, "key"), "a b", "spec.taints[0].key", "example.com/MyName"),
    "a taint whose value is none": (kinds.NODE, (S, "taints", 0, "value"), "a b", "spec.taints[0].value", "63"),
    "a taint without an effect": (kinds.NODE, (S, "taints", 0, "effect"), None, "spec.taints[0].effect", "PreferNoSchedule"),
    "a taint of no effect": (kinds.NODE, (S, "taints", 0, "effect"), "Never", "spec.taints[0].effect", '"NoExecute"'),
    "one taint twice": (kinds.NODE, (S, "taints"), [{"key": "a", "effect": "NoSchedule"}] * 2, "spec.taints[1]", "unique"),
    "a host with less than nothing": (kinds.NODE, ("status", "allocatable", "cpu"), "-1", "status.allocatable.cpu", "zero"),
    "a host with what is no amount": (kinds.NODE, ("status", "capacity", "memory"), "8 Gi", "status.capacity.memory", "4Gi"),
    "overhead that is no amount": (kinds.POD, (S, "overhead", "cpu"), "x", "spec.overhead.cpu", "500m"),
    "overhead below nothing": (kinds.POD, (S, "overhead", "cpu"), "-1", "spec.overhead.cpu", "zero or more"),
    "a pod's resources below nothing": (kinds.POD, (S, "resources", "limits", "memory"), "-1", "spec.resources.limits.memory",
                                        "zero or more"),
    "a pod's claim that has no name": (kinds.POD, (S, "resourceClaims", 0, "resourceClaimName"), "A b",
                                       "spec.resourceClaims[0].resourceClaimName", "example.com"),
    "a gated pod on a node": (kinds.POD, (S, "nodeName"), "a", "spec.nodeName", "schedulingGates"),
    "a preference that does not count": (
        kinds.POD, (S, "affinity", "nodeAffinity", PREFERRED, 0, "weight"), 0,
        f"spec.affinity.nodeAffinity.{PREFERRED}[0].weight", "1-100"),
    "pods near no place": (kinds.POD, (S, "affinity", "podAntiAffinity", REQUIRED, 0, "topologyKey"), "",
                           f"spec.affinity.podAntiAffinity.{REQUIRED}[0].topologyKey", "Required"),
    "pods spread unevenly": (kinds.POD, (S, "topologySpreadConstraints"), [
        {"maxSkew": 0, "topologyKey": "rack", "whenUnsatisfiable": "DoNotSchedule"}],
        "spec.topologySpreadConstraints[0].maxSkew", "greater than zero"),
    "a while for what never ends": (kinds.POD, (S, "tolerations", 0, "effect"), "NoSchedule", "spec.tolerations[0].effect",
                                    "must be NoExecute"),
    "an empty key": (kinds.CONFIG_MAP, ("data", ""), "x", "data[]", "alphanumeric"),
    "a key that is none": (kinds.SECRET, ("data", "a/b"), "eA==", "data[a/b]", "alphanumeric"),
    "a key that is a folder": (kinds.CONFIG_MAP, ("data", ".."), "x", "data[..]", "must not"),
    "a key in both": (kinds.CONFIG_MAP, ("data", "c"), "x", "data[c]", "binaryData"),
    "binary data that is text": (kinds.CONFIG_MAP, ("binaryData", "c"), "text!", "binaryData[c]", "base64"),
    "a secret in plain text": (kinds.SECRET, ("data", "a"), "hush!", "data[a]", "stringData"),
    "a ConfigMap that is too large": (kinds.CONFIG_MAP, ("data", "a"), "x" * 1_200_000, "data", "1048576"),
    "a Secret that is too large": (kinds.SECRET, ("data", "a"), "AAAA" * 400_000, "data", "1048576"),
    "a Secret without its account": (kinds.SECRET, ("type",), "kubernetes.io/service-account-token",
                                     "metadata.annotations[kubernetes.io/service-account.name]", "Required"),
    "a Secret without its private key": (kinds.SECRET, ("type",), "kubernetes.io/ssh-auth", "data[ssh-privatekey]", "Required"),
    "a Secret without its registries": (kinds.SECRET, ("type",), "kubernetes.io/dockerconfigjson", "data[.dockerconfigjson]",
                                        "Required"),
    "registries that are no JSON": (kinds.SECRET, (), {
        "metadata": {"name": "odd"}, "type": "kubernetes.io/dockercfg", "data": {".dockercfg": "W10="}}, "data[.dockercfg]",
        "JSON object"),
    "a certificate without its key": (kinds.SECRET, (), {
        "metadata": {"name": "odd"}, "type": TLS, "data": {"tls.crt": ""}}, "data[tls.key]", "Required"),
    "a number that Go cannot read": (kinds.VMI, (S, "terminationGracePeriodSeconds"), 2 ** 63,
                                     "spec.terminationGracePeriodSeconds", "9223372036854775807"),
    "a count that Go cannot read": (
        kinds.RESOURCE_CLAIM_TEMPLATE, (S, S, "devices", "requests", 0, "exactly", "count"), 10 ** 20,
        "spec.spec.devices.requests[0].exactly.count", "must be a whole number from -9223372036854775808 to"),
    "an operator that is none": (
        kinds.VMI, (S, "affinity", "nodeAffinity", REQUIRED, "nodeSelectorTerms", 0, "matchExpressions", 0, "operator"),
        "Is", f"spec.affinity.nodeAffinity.{REQUIRED}.nodeSelectorTerms[0].matchExpressions[0].operator", '"NotIn"'),
    "no terms": (kinds.POD, (S, "affinity", "nodeAffinity", REQUIRED), {},
                 f"spec.affinity.nodeAffinity.{REQUIRED}.nodeSelectorTerms", "at least one"),
    "In nothing": (
        kinds.POD, (S, "affinity", "nodeAffinity", REQUIRED, "nodeSelectorTerms", 0, "matchExpressions", 0, "values"), [],
        f"spec.affinity.nodeAffinity.{REQUIRED}.nodeSelectorTerms[0].matchExpressions[0].values", "must be specified"),
    "an effect that is none": (kinds.VMI, (S, "tolerations", 0, "effect"), "no", "spec.tolerations[0].effect",
                               '"NoSchedule", "PreferNoSchedule", "NoExecute"'),
    "Exists with a value": (kinds.POD, (S, "tolerations", 0, "operator"), "Exists", "spec.tolerations[0].value", "empty"),
    "every taint by Equal": (kinds.POD, (S, "tolerations", 0, "key"), "", "spec.tolerations[0].operator", "Exists"),
    "an amount that is none": (kinds.VMI, (S, "domain", "resources", "limits", "memory"), "lots",
                               "spec.domain.resources.limits.memory", "4Gi"),
    "an amount below zero": (kinds.VMI, (S, "domain", "resources", "requests", "cpu"), "-1",
                             "spec.domain.resources.requests.cpu", "zero or more"),
    "an amount beyond counting": (kinds.VMI, (S, "domain", "memory", "guest"), "1e300", "spec.domain.memory.guest", "2Gi"),
    "memory with which no pod could be written": (
        kinds.VMI, (S, "domain", "memory", "guest"), str(2 ** 63 - 1), "spec.domain.memory.guest", "2Gi"),
    "more CPUs than can be counted": (kinds.VMI, (S, "domain", "resources", "requests", "cpu"), "1e15",
                                      "spec.domain.resources.requests.cpu", "500m"),
    "more cores than can be counted": (kinds.VMI, (S, "domain", "cpu", "cores"), 2 ** 32, "spec.domain.cpu.cores",
                                       "4294967295"),
    "cores that Go cannot read": (kinds.VMI, (S, "domain", "cpu", "cores"), 99999999999999999999,
                                  "spec.domain.cpu.cores", "9223372036854775807"),
    "too many sockets of too many cores": (
        kinds.VMI, (S, "domain", "cpu"), {"sockets": 2 ** 20, "cores": 2 ** 20}, "spec.domain.cpu",
        "1048576 sockets x 1048576 cores"),
    "a grace below nothing": (kinds.VMI, (S, "terminationGracePeriodSeconds"), -5, "spec.terminationGracePeriodSeconds",
                              "zero or more"),
    "an architecture that is none": (kinds.VMI, (S, "architecture"), "mips", "spec.architecture",
                                     '"amd64", "arm64", "s390x"'),
    "an unknown machine type": (kinds.VMI, (S, "domain", "machine"), {"type": "zx81"}, "spec.domain.machine.type", "q35*"),
    "pages that there are none of": (kinds.VMI, (S, "domain", "memory", "hugepages", "pageSize"), "3Mi",
                                     "spec.domain.memory.hugepages.pageSize", '"64Ki", "1Mi", "2Mi", "32Mi"'),
    "part of a page": (kinds.VMI, (S, "domain", "memory", "guest"), "1025Mi", "spec.domain.memory.guest",
                       "not a multiple of the page size"),
    "a policy that is none": (kinds.VMI, (S, "domain", "cpu", "features"), [{"name": "vmx", "policy": "maybe"}],
                              "spec.domain.cpu.features[0].policy", '"force", "require", "optional", "disable", "forbid"'),
    "a most that is none": (kinds.VMI, (S, "domain", "memory", "maxGuest"), "x", "spec.domain.memory.maxGuest", "2Gi"),
    "a name that no guest has": (kinds.VMI, (S, "hostname"), "My Host", "spec.hostname", "my-name"),
    "an eviction that is none": (kinds.VMI, (S, "evictionStrategy"), "Never", "spec.evictionStrategy", '"LiveMigrate"'),
    "threads of a kind that is none": (kinds.VMI, (S, "domain", "ioThreadsPolicy"), "many",
                                       "spec.domain.ioThreadsPolicy", '"shared"'),
    "a UUID that is none": (kinds.VMI, (S, "domain", "firmware", "uuid"), "x", "spec.domain.firmware.uuid", "5d307ca9"),
    "before the first": (kinds.VMI, (S, "domain", "devices", "interfaces", 0, "bootOrder"), 0,
                         "spec.domain.devices.interfaces[0].bootOrder", "greater than zero"),
    "two that are first": (kinds.VMI, (S, "domain", "devices", "disks"), [
        {"name": "a", "bootOrder": 2}, {"name": "b", "bootOrder": 2}], "spec.domain.devices.disks[1].bootOrder",
        "spec.domain.devices.disks[0].bootOrder"),
    "an address that no guest has": (
        kinds.VMI, (S, "domain", "devices", "hostDevices"), [{"name": "h", "deviceName": "a.b/c", "pciAddress": "1:2"}],
        "spec.domain.devices.hostDevices[0].pciAddress", "0000:81:01.0"),
    "an address of a disk that no guest has": (
        kinds.VMI, (S, "domain", "devices", "disks"), [{"name": "a", "disk": {"pciAddress": "zz"}}],
        "spec.domain.devices.disks[0].disk.pciAddress", "0000:81:01.0"),
    "a disk that is no volume": (kinds.VMI, (S, "domain", "devices", "disks"), [{"name": "c", "disk": {}}],
                                 "spec.domain.devices.disks[0].name", "'c' not found: a disk has the name of its volume"),
    "two disks of one volume": (kinds.VMI, (S, "domain", "devices", "disks"), [{"name": "b"}, {"name": "b"}],
                                "spec.domain.devices.disks[1].name", "must not have the same Name"),
    "a bus that is none": (kinds.VMI, (S, "domain", "devices", "disks"), [{"name": "a", "disk": {"bus": "nosuch"}}],
                           "spec.domain.devices.disks[0].disk.bus", '"virtio", "sata", "scsi", "usb"'),
    "a CD that cannot be ejected": (
        kinds.VMI, (S, "domain", "devices", "disks"), [{"name": "a", "cdrom": {"bus": "virtio"}}],
        "spec.domain.devices.disks[0].cdrom.bus", "use sata"),
    "a disk that would be written to": (kinds.VMI, (S, "domain", "devices", "disks"), [
        {"name": "a", "disk": {"readonly": True}}], "spec.domain.devices.disks[0].disk.bus", "use virtio"),
    "a port that is none": (kinds.VMI, (S, "domain", "devices", "interfaces", 0, "ports", 0, "port"), 70000,
                            "spec.domain.devices.interfaces[0].ports[0].port", "65535"),
    "a port without a number": (kinds.VMI, (S, "domain", "devices", "interfaces", 0, "ports", 0), {"protocol": "UDP"},
                                "spec.domain.devices.interfaces[0].ports[0].port", "65535"),
    "a request that is not there": (kinds.RESOURCE_CLAIM, (S, "devices", "constraints", 0, "requests"), ["c"],
                                    "spec.devices.constraints[0].requests[0]", "a, b, b/big, b/small"),
    "a constraint by nothing": (kinds.RESOURCE_CLAIM, (S, "devices", "constraints", 0), {}, "spec.devices.constraints[0]",
                                "distinctAttribute"),
    "an attribute of no owner": (kinds.RESOURCE_CLAIM, (S, "devices", "constraints", 0, "matchAttribute"), "numaNode",
                               "spec.devices.constraints[0].matchAttribute", "resource.kubernetes.io/numaNode"),
    "a configuration of no owner": (kinds.RESOURCE_CLAIM, (S, "devices", "config", 0, "opaque", "driver"), "",
                                  "spec.devices.config[0].opaque.driver", "driver"),
    "two alternatives of one name": (
        kinds.RESOURCE_CLAIM_TEMPLATE, (S, S, "devices", "requests", 1, F, 1, "name"), "big",
        "spec.spec.devices.requests[1].firstAvailable[1].name", "big"),
    "an alternative without a name": (
        kinds.RESOURCE_CLAIM_TEMPLATE, (S, S, "devices", "requests", 1, F, 0), {"deviceClassName": "gpu"},
        "spec.spec.devices.requests[1].firstAvailable[0].name", "Required"),
    "a capacity that is none": (
        kinds.RESOURCE_CLAIM, (S, "devices", "requests", 0, "exactly", "capacity", "requests", "memory"), "x",
        "spec.devices.requests[0].exactly.capacity.requests.memory", "4Gi"),
    "a resource without a domain": (kinds.DEVICE_CLASS, (S, "extendedResourceName"), "gpu", "spec.extendedResourceName",
                                    "example.com/gpu"),
    "a network's words that are no JSON": (kinds.NETWORK_ATTACHMENT, (S, "config"), "{type: bridge}", "spec.config", "JSON"),
    "a network's words that are a list": (kinds.NETWORK_ATTACHMENT, (S, "config"), "[]", "spec.config", "JSON object"),
    "fewer than none": (kinds.KUBEVIRT, (S, "workloadUpdateStrategy", "batchEvictionSize"), -1,
                        "spec.workloadUpdateStrategy.batchEvictionSize", "zero or more"),
    "a time that is none": (kinds.KUBEVIRT, (S, "workloadUpdateStrategy", "batchEvictionInterval"), "soon",
                            "spec.workloadUpdateStrategy.batchEvictionInterval", "1m30s"),
    "seconds that are none": (kinds.KUBEVIRT, ("metadata", "annotations"), {PREPARE_TIMEOUT_ANNOTATION: "2m"},
                              f"metadata.annotations[{PREPARE_TIMEOUT_ANNOTATION}]", "such as 150"),
}


@pytest.mark.parametrize("name", VALUES)
async def test_a_value_that_makes_no_sense_is_refused(client: Client, name: str) -> None:
    kind, place, value, field, right = VALUES[name]
    answer = await client.post(path(kind), with_({"metadata": {"name": "odd"}, **GOOD[kind]}, place, value))
    assert answer.status == 422, answer.json
    causes = answer.json["details"]["causes"]
    assert [cause["field"] for cause in causes] == [field], causes
    assert right in causes[0]["message"]


async def test_a_refusal_can_be_read_however_much_was_written(client: Client) -> None:
    endless = "x" * 100_000
    for field, value in (("name", endless), ("labels", {"a": endless})):
        wrong = with_({"metadata": {"name": "odd"}, **GOOD[kinds.DEVICE_CLASS]}, ("metadata", field), value)
        answer = await client.post(path(kinds.DEVICE_CLASS), wrong)
        assert answer.status == 422
        assert len(json.dumps(answer.json)) < 5_000
        assert "63" in answer.json["message"] or "253" in answer.json["message"]
    answer = await client.post(path(kinds.DEVICE_CLASS), {"kind": endless, **GOOD[kinds.DEVICE_CLASS]})
    assert answer.status == 400
    assert answer.json["message"].startswith("apiVersion, kind: ")
    assert len(answer.json["message"]) < 2_000
