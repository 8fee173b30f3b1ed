"""GPUs and host devices of a changed template: which reach a running VM, and which wait for a restart, with which code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from outfitter.api.kinds import Object
from outfitter.api.live_update.contribution import RunningVm
from outfitter.api.live_update.evaluator import evaluate

GPUS, DEVICES, CLAIMS = "domain.devices.gpus", "domain.devices.hostDevices", "resourceClaims"


def gpu(name: str = "a", claim: str = "", **more: Any) -> Object:
    return {"name": name, "claimName": claim or name, "requestName": "gpu", **more}


def spec(*gpus: Object, devices: tuple[Object, ...] = (), claims: tuple[str, ...] | None = None, **more: Any) -> Object:
    names = [entry["claimName"] for entry in (*gpus, *devices) if "claimName" in entry] if claims is None else claims
    listed = {"gpus": [*gpus], "hostDevices": [*devices]}
    return {"domain": {"devices": {key: value for key, value in listed.items() if value}}, **({CLAIMS: [
        {"name": name, "resourceClaimTemplateName": "one"} for name in names]} if names else {}), **more}


def vmi(of: Object, *assigned: str, phase: str = "Running", flavor: Object | None = None) -> Object:
    entries = [{"name": name, "deviceResourceClaimStatus": {"attributes": {"pciAddress": "0000:01:00.0"}}} for name in assigned]
    status = {"phase": phase, "nodeName": "node-0", "deviceStatus": {"gpuStatuses": entries}}
    return {"metadata": {"name": "vm1", "namespace": "lab"}, "spec": of, "status": {
        **status, **({"flavor": flavor} if flavor else {})}}


def started(*names: str) -> frozenset[str]:
    return frozenset(f"{GPUS}[{name}].name" for name in names) | {f"{CLAIMS}[{name}].name" for name in names}


SMALL: dict[str, Any] = {"flavor": {"name": "small"}}


@dataclass(frozen=True)
class Case:
    given: RunningVm
    live: Mapping[str, list[str]] = field(default_factory=dict)  # list -> names afterwards
    restart: tuple[str, ...] = ()
    codes: Mapping[str, str] = field(default_factory=dict)


CASES = {
    "nothing changed": Case(RunningVm(spec(gpu()), vmi(spec(gpu()), "a"), started_with=started("a"))),
    "a GPU and its claim": Case(RunningVm(spec(gpu()), vmi(spec())), {GPUS: ["a"], CLAIMS: ["a"]}),
    "a host device": Case(RunningVm(spec(devices=(gpu("d"),)), vmi(spec())), {DEVICES: ["d"], CLAIMS: ["d"]}),
    "claims are only added": Case(
        RunningVm(spec(gpu("b")), vmi(spec(gpu("b"), claims=("old", "b")), "b"), started_with=started("b"))),
    "a second GPU keeps its place": Case(
        RunningVm(spec(gpu("b"), gpu("a")), vmi(spec(gpu("a")), "a")), {GPUS: ["a", "b"], CLAIMS: ["a", "b"]}),
    "a device of a claim that the VM has": Case(
        RunningVm(spec(gpu(), gpu("b", "a", requestName="other"), claims=("a",)), vmi(spec(gpu()), "a")), {GPUS: ["a", "b"]}),
    "a GPU is removed with its claim": Case(
        RunningVm(spec(), vmi(spec(gpu()), "a"), started_with=started("a")), {GPUS: []}),
    "a GPU that admission filled in stays": Case(RunningVm(spec(), vmi(spec(gpu()), "a"), started_with=frozenset())),
    "a name that is still being unplugged waits": Case(RunningVm(spec(gpu()), vmi(spec(claims=("a",)), "a"))),
    "a VM that does not run yet waits": Case(RunningVm(spec(gpu()), vmi(spec(), phase="Scheduled"))),
    "Stage holds it back": Case(
        RunningVm(spec(gpu()), vmi(spec()), rollout="Stage"), restart=(f"{GPUS}[a]", f"{CLAIMS}[a]")),
    "a host that does not plug": Case(
        RunningVm(spec(gpu()), vmi(spec()), in_place=False), restart=(f"{GPUS}[a]", f"{CLAIMS}[a]"),
        codes={f"{GPUS}[a]": "PlugNotInPlace"}),
    "nor unplug": Case(
        RunningVm(spec(claims=("a",)), vmi(spec(gpu()), "a"), started_with=started("a"), in_place=False),
        restart=(f"{GPUS}[a]",), codes={f"{GPUS}[a]": "PlugNotInPlace"}),
    "by resource name": Case(
        RunningVm(spec(devices=({"name": "d", "deviceName": "x.com/nic"},)), vmi(spec())), restart=(f"{DEVICES}[d]",),
        codes={f"{DEVICES}[d]": "DeviceNotPlugged"}),
    "a display": Case(
        RunningVm(spec(gpu(virtualGPUOptions={"display": {}})), vmi(spec())), restart=(f"{GPUS}[a]", f"{CLAIMS}[a]"),
        codes={f"{GPUS}[a]": "DeviceNotPlugged"}),
    "another request": Case(
        RunningVm(spec(gpu(requestName="other")), vmi(spec(gpu()), "a")), restart=(f"{GPUS}[a].requestName",)),
    "another flavor": Case(
        RunningVm(spec(flavor={"name": "large"}), vmi(spec(flavor={"name": "small"}))), restart=("flavor.name",),
        codes={"flavor.name": "FlavorDevice"}),
    "the name of a flavor's device": Case(
        RunningVm(spec(devices=(gpu("acc-0"),), **SMALL), vmi(spec(**SMALL), flavor={
            "name": "small", "devices": [{"name": "acc", "count": 1}]})),
        restart=(f"{DEVICES}[acc-0]", f"{CLAIMS}[acc-0]"), codes={f"{DEVICES}[acc-0]": "FlavorDevice"}),
}


@pytest.mark.parametrize("name", CASES)
def test_a_changed_template(name: str) -> None:
    case = CASES[name]
    found = evaluate(case.given)
    assert {path: [entry["name"] for entry in entries] for path, entries in found.live.items()} == case.live
    assert found.restart == case.restart
    assert {path: str(why.code) for path, why in found.refused.items()} == case.codes
    have = case.given.vmi["spec"].get(CLAIMS) or []
    assert (found.live.get(CLAIMS) or have)[:len(have)] == have, "claims of a VMI are append-only"
