"""Wrong values in fields that controllers read: refused at admission with the field, and nothing is written. What got past
it would be a fault of a controller, which the user could not see."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from outfitter.api import admission, kinds
from outfitter.api.kinds import Kind, Object
from outfitter.api.validate.node_placement import PREFERRED, REQUIRED
from outfitter.apiserver.app import App
from outfitter.apiserver.auth import MASTERS, User
from outfitter.store.clock import ManualClock
from outfitter.store.memory import Memory
from tests.apiserver.asgi import Client

TERMS: Object = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "rack", "operator": "In", "values": ["r1"]}]}]}
TOLERATION: Object = {"key": "gpu", "operator": "Equal", "value": "yes", "effect": "NoSchedule", "tolerationSeconds": 5}
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
GOOD: dict[Kind, Object] = {
    kinds.VMI: {"spec": {**WHERE, "networks": [{"name": "default", "pod": {}}], "domain": DOMAIN, "volumes": [
        {"name": name, "hostDisk": {"path": f"/{name}"}} for name in ("a", "b")]}},
    kinds.POD: {"spec": {**WHERE, "containers": [{"name": "c", "resources": {"requests": {"cpu": 0.5}}}]}},
    kinds.RESOURCE_CLAIM: {"spec": REQUESTS},
    kinds.RESOURCE_CLAIM_TEMPLATE: {"spec": {"metadata": {"labels": {"app": "web"}}, "spec": REQUESTS}},
    kinds.DEVICE_CLASS: {"spec": {"extendedResourceName": "example.com/gpu", "config": [
        {"opaque": {"driver": "pci.outfitter.dev", "parameters": {}}}]}},
    kinds.KUBEVIRT: {"spec": {"workloadUpdateStrategy": {"batchEvictionSize": 10, "batchEvictionInterval": "1m30s"}}},
    kinds.NETWORK_ATTACHMENT: {"spec": {"config": '{"type": "bridge", "bridge": "br0"}'}},
}
# Of another type than any field has that is none of these.
ODD: tuple[Any, ...] = (-1, True, 1.5, "x", ["x"], [None], [{}], {"a": "b"})
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
    amount = len(place) > 1 and place[-2] in ("requests", "limits") and type(odd) is float  # as well as its text
    return amount or kin(odd, now)


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
    for place, odd in ((place, odd) for place in places(whole["spec"], "spec") for odd in ODD):
        if not right(odd, place, at(whole, place)):
            answer = await client.post(path(kind), with_(whole, place, odd))
            told = [cause["field"] for cause in answer.json.get("details", {}).get("causes", ())]
            said = answer.status == 422 and any(field.startswith(written(place)) for field in told)
            if not said and not (answer.status == 400 and "spec" in answer.json["message"]):
                wrong.append((written(place), odd, answer.status, answer.json.get("message")))
    assert wrong == []
    assert (await client.get(f"{path(kind)}/odd")).status == 404


S, F = "spec", "firstAvailable"
VALUES: dict[str, tuple[Kind, tuple[Any, ...], Any, str, str]] = {
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
