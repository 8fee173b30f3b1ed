"""The runner of the cases itself: what is not in a format fails by name, what is expected wrongly fails, the rest passes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from outfitter.api import kinds
from outfitter.controllers.devicestatus import DeviceStatus
from outfitter.controllers.loop import Context
from outfitter.store.base import Store
from tests.cases import areas, plugin, run_render

pytest_plugins = ["pytester"]
Outcome = tuple[str, str]  # "passed", "failed" or "skipped", and what was said
COMMAND = ("-c", str(plugin.ROOT / "pyproject.toml"), f"--rootdir={plugin.ROOT}", "-p", "no:cacheprovider", "--assert=plain",
           str(Path(__file__).with_name("test_cases.py")))


def write(folder: Path, name: str, content: Any) -> None:
    folder.mkdir(exist_ok=True)
    text = content if isinstance(content, str) else json.dumps(content) if name.endswith(".json") else yaml.safe_dump(content)
    (folder / name).write_text(text)


def run(pytester: pytest.Pytester, *options: str) -> dict[str, Outcome]:
    """Run the cases; what became of each, by the test's id."""
    recorder = pytester.inline_run(*COMMAND, *options)
    out: dict[str, Outcome] = {}
    for report in recorder.getreports("pytest_runtest_logreport"):
        assert isinstance(report, pytest.TestReport)
        if report.when == "call" or report.outcome != "passed":
            out[report.nodeid.partition("[")[2].removesuffix("]")] = (report.outcome, str(report.longrepr))
    return out


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
    "a machine is let in": (
        kubevirt("admission", INSTANCE, {"allowed": True, "causeCount": 0}), [{"allowed": False}, {"causeCount": 1}]),
    "a machine is refused": (
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
            "absent": ["spec.nodeName"], "absentAnnotations": ["a.test/b"], "onlyContainerWithClaims": "compute"}),
        [{"pod": {"spec": {"containers": [{"name": "compute", "resources": {"claims": [{"name": "b"}]}}]}}},
         {"pod": {"spec": {"containers": [{"name": "sidecar"}]}}}, {"pod": {"spec": {"hostname": "a"}}},
         {"exact": [{"path": "spec.containers[compute].resources.claims", "equals": []}]},
         {"absent": ["spec.resourceClaims"]}, {"absentAnnotations": ["kubevirt.io/domain"]},
         {"annotationJSON": {"a.test/b": {}}}, {"onlyContainerWithClaims": "sidecar"}, {"delta": {}}, {"delta": "1Gi"},
         {"error": {"messageContains": "acc"}}]),
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


def area(case: dict[str, Any]) -> str:
    return str(case.get("area") or ("allocator" if "claims" in case else "cel"))


def flipped(case: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    if "expression" in case:
        return {key: value for key, value in {**case, **change}.items() if value is not None}
    return {**case, "expect": {**case["expect"], **change}}


def test_what_holds_passes_and_its_flips_fail(pytester: pytest.Pytester, tmp_path: Path) -> None:
    cases: list[dict[str, Any]] = []
    want: dict[str, str] = {}
    for name, (case, changes) in HOLDS.items():
        cases.append({**case, "name": name})
        id_ = f"made-{area(case)}-{name}"
        want[id_] = "passed"
        for number, change in enumerate(changes):
            cases.append({**flipped(case, change), "name": f"{name}, but {number}"})
            want[f"{id_}, but {number}"] = "failed"
    write(tmp_path / "cases", "made.yaml", cases)
    got = run(pytester, "--cases", str(tmp_path / "cases"), "--cases-not-built")
    assert {name: outcome for name, (outcome, _) in got.items()} == want, "\n".join(
        f"{name}: {text}" for name, (outcome, text) in got.items() if outcome != want.get(name))


def test_every_runner_has_cases_here() -> None:
    assert {area(case) for case, _ in HOLDS.values()} == set(areas.RUNNERS)


def test_a_fault_of_the_product_fails_the_case(
    pytester: pytest.Pytester, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def stumble(controller: DeviceStatus, key: str) -> None:
        raise ZeroDivisionError(f"{key} cannot be divided")

    monkeypatch.setattr(DeviceStatus, "reconcile", stumble)
    write(tmp_path / "cases", "made.yaml", [{**kubevirt("status", WAITING, {"crashes": False}), "name": "a fault"}])
    [(outcome, text)] = run(pytester, "--cases", str(tmp_path / "cases"), "--cases-not-built").values()
    assert (outcome, "lab/vm1 cannot be divided" in text) == ("failed", True), text


@pytest.mark.parametrize(("most", "outcome"), {3: "failed", 4: "passed"}.items())
def test_writes_for_devices_are_counted_over_all_runs(
    pytester: pytest.Pytester, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, outcome: str
) -> None:
    async def scribble(controller: DeviceStatus, key: str) -> None:
        if controller not in seen:  # one of each run
            seen.append(controller)
            for name in ("first", "second"):
                await stores[-1].patch(kinds.INSTANCE, "vm1", {"status": {"deviceStatus": {"gpuStatuses": [{"name": name}]}}},
                                       "lab", subresource="status")

    def remember(controller: DeviceStatus, context: Context) -> None:
        stores.append(context.store)
        usual(controller, context)

    seen: list[DeviceStatus] = []
    stores: list[Store] = []
    usual = DeviceStatus.__init__
    monkeypatch.setattr(DeviceStatus, "__init__", remember)
    monkeypatch.setattr(DeviceStatus, "reconcile", scribble)
    case = kubevirt("status", WAITING, {"patchesAtMost": most}, reconciles=2)
    write(tmp_path / "cases", "made.yaml", [{**case, "name": "writes"}])
    assert {name: got for name, (got, _) in run(pytester, "--cases", str(tmp_path / "cases"), "--cases-not-built").items()} == {
        "made-status-writes": outcome}


STEP = {"at": 0, "do": {"apply": []}, "then": {"conditions": []}}
SERVERS = {"servers": {"s1": {"status": "ACTIVE"}}}
NOVA: dict[str, Any] = {"area": "numa", "basis": "nova", "given": {"hosts": [{"name": "h", "pci_devices": []}]},
                        "when": [{"op": "start_host", "host": "h"}, BOOT], "expect": SERVERS}
ALLOCATOR: dict[str, Any] = {"claims": [], "features": {"AdminAccess": True}, "allocated": {"devices": []},
                             "expect": {"results": [], "errorContains": None, "searchStepsOfMine": 3}}
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
    "a key of the given world": ({**NOVA, "given": {"planets": []}}, "planets"),
    "a key of a host": ({**NOVA, "given": {"hosts": [{"name": "h", "moons": 1}]}}, "moons"),
    "a placement setting": ({**NOVA, "given": {"config": {"speed": 1}}}, "speed"),
    "a placement expectation": ({**NOVA, "expect": {"mood": 1}}, "mood"),
    "a word of a server": ({**NOVA, "expect": {"servers": {"s1": {"mood": 1}}}}, "mood"),
    "a key of an allocator case": ({**ALLOCATOR, "mood": 1}, "mood"),
    "a feature": ({**ALLOCATOR, "features": {"Levitation": True}}, "Levitation"),
    "an allocator expectation": ({**ALLOCATOR, "expect": {"mood": 1}}, "mood"),
    "a key of a selector case": ({**EXPRESSION, "expectMatch": True, "mood": 1}, "mood"),
    "a shape": ({**NOVA, "when": {"op": "boot"}}, "list is expected"),
}


def test_what_is_not_in_a_format_fails_and_is_named(pytester: pytest.Pytester, tmp_path: Path) -> None:
    write(tmp_path / "cases", "made.json", [{**case, "name": name} for name, (case, _) in STRANGE.items()])
    got = run(pytester, "--cases", str(tmp_path / "cases"))
    assert len(got) == len(STRANGE)
    for (id_, (outcome, text)), (_, word) in zip(got.items(), STRANGE.values(), strict=True):
        assert (outcome, word in text) == ("failed", True), f"{id_}: {outcome}, {text}"


def test_a_broken_file_fails_alone(pytester: pytest.Pytester, tmp_path: Path) -> None:
    cases = tmp_path / "cases"
    good = {**NOVA, "basis": "quirk"}
    write(cases, "broken.yaml", "- name: [")
    write(cases, "broken.json", "{")
    write(cases, "empty.yaml", "")
    write(cases, "layout.json", {"format": 2, "mood": 1, "cases": [{**good, "name": "of the file"}]})
    write(cases, "list.yaml", ["a", {**good, "name": ""}])
    write(cases, "twice.yaml", [{**good, "name": "same"}, {**good, "name": "same"}])
    (cases / "below").mkdir()
    write(cases / "below", "again.json", {"cases": [{**good, "name": "same"}]})
    (cases / "README.md").write_text("not a case")
    got = run(pytester, "--cases", str(cases))
    failed = {id_: text for id_, (outcome, text) in got.items() if outcome == "failed"}
    assert {id_ for id_, (outcome, _) in got.items() if outcome == "skipped"} == {"again-numa-same", "layout-numa-of the file"}
    assert {id_.rstrip("01") for id_ in failed} == {
        "broken-file-unreadable", "empty-file-empty", "layout-file-layout", "list-unknown-", "list-numa-", "twice-numa-same"}
    assert len(failed) == 2 + 1 + 2 + 2 + 2
    assert all("again.json" in text for id_, text in failed.items() if "same" in id_)


def test_unbuilt_areas_and_quirks_are_skipped_with_a_reason(
    pytester: pytest.Pytester, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(areas, "NOT_BUILT", {"numa": "a reason", "allocator": "a reason", "hotplug": "a reason"})
    write(tmp_path / "cases", "made.yaml", [
        {**NOVA, "name": "known words"}, {**ALLOCATOR, "name": "known words"}, {**HOTPLUG, "name": "known words"},
        {**NOVA, "name": "quirk", "basis": "quirk"}])
    got = run(pytester, "--cases", str(tmp_path / "cases"))
    assert {id_: (outcome, next(word for word in ("area numa", "area allocator", "area hotplug", "quirk") if word in text))
            for id_, (outcome, text) in got.items()} == {
        "made-numa-known words": ("skipped", "area numa"),
        "made-allocator-known words": ("skipped", "area allocator"),
        "made-hotplug-known words": ("skipped", "area hotplug"),
        "made-numa-quirk": ("skipped", "quirk"),
    }


def test_without_a_folder_one_test_is_skipped(
    pytester: pytest.Pytester, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugin, "DEFAULT", tmp_path / "nowhere")
    assert [(id_, outcome) for id_, (outcome, text) in run(pytester).items() if "--cases" in text] == [("no-cases", "skipped")]


def test_the_usual_folder_is_used_when_it_is_there(
    pytester: pytest.Pytester, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "cases", "made.yaml", [{**NOVA, "name": "found", "basis": "quirk"}])
    monkeypatch.setattr(plugin, "DEFAULT", tmp_path / "cases")
    assert list(run(pytester)) == ["made-numa-found"]


def test_a_folder_without_cases_fails(pytester: pytest.Pytester, tmp_path: Path) -> None:
    (tmp_path / "cases").mkdir()
    assert [outcome for outcome, _ in run(pytester, "--cases", str(tmp_path / "cases")).values()] == ["failed"]


def test_a_folder_that_is_not_there_is_a_mistake(pytester: pytest.Pytester, tmp_path: Path) -> None:
    result = pytester.runpytest_inprocess(*COMMAND, "--cases", str(tmp_path / "nowhere"))
    assert result.ret != pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["*there is no such folder*"])


def test_the_command_of_the_documentation(tmp_path: Path) -> None:
    """In a process of its own: a folder elsewhere must not lead pytest away from this repository's settings."""
    write(tmp_path / "cases", "made.yaml", [{**kubevirt("status", WAITING, {"ready": False}), "name": "documented"}])
    command = (sys.executable, "-m", "pytest", "tests/cases", "--cases", str(tmp_path / "cases"), "--cases-not-built", "-q",
               "-p", "no:cacheprovider", "-k", "documented and not command")
    done = subprocess.run(command, cwd=plugin.ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, "1 passed" in done.stdout) == (0, True), done.stdout + done.stderr


PATHS = {
    "spec.containers[compute].resources.limits.acme.test/vf": "2",
    "spec.containers[compute].name": "compute",
    "spec.containers[other]": run_render.MISSING,
    "spec.containers[compute].resources.limits[acme.test/vf]": "2",
    "metadata.annotations[a.b/c]": "x",
    "spec.containers[0].name": "compute",
    "spec.containers[1]": run_render.MISSING,
    "spec.empty[compute]": run_render.MISSING,
    "metadata.annotations.a.b/c": "x",
    "spec.nothing.here": run_render.MISSING,
    "spec.empty": [],
}


@pytest.mark.parametrize("path", PATHS)
def test_paths_into_a_pod(path: str) -> None:
    pod = {"metadata": {"annotations": {"a.b/c": "x"}}, "spec": {"empty": [], "containers": [
        {"name": "compute", "resources": {"limits": {"acme.test/vf": "2"}}}]}}
    assert run_render.find(pod, path) == PATHS[path]


CPU = "spec.containers[compute].resources.requests.cpu"
DELTAS: Mapping[str, tuple[Any, dict[str, Any]]] = {
    "a bare amount": ("1Gi", {"equals": "1Gi"}),
    "a path with an amount": ({CPU: "1"}, {"path": CPU, "equals": "1"}),
    "all of it": ({"path": CPU, "of": ["a", "b"], "equals": "1"}, {"path": CPU, "of": ["a", "b"], "equals": "1"}),
    "other words": ({"quantity": CPU, "more": "b", "less": "a", "is": 1}, {"path": CPU, "of": ["b", "a"], "equals": 1}),
    "in the order of the case": ({"vmis": ["a", "b"], "resource": "memory", "difference": "1Gi"},
                                 {"path": run_render.MEMORY, "of": ["a", "b"], "equals": "1Gi"}),
    "in a list": ([{"equals": "1Gi"}], {"path": run_render.MEMORY, "of": [], "equals": "1Gi"}),
}


@pytest.mark.parametrize("name", DELTAS)
def test_differences_between_pods_are_read_in_many_words(name: str) -> None:
    said, meant = DELTAS[name]
    assert run_render.deltas(said, ["a", "b"]) == [meant]
