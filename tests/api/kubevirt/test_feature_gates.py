"""Gates and the other settings of the KubeVirt object."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from outfitter.api import dra_feature_gates
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import feature_gates, kubevirt_config

G, H, N, P = feature_gates.GPUS, feature_gates.HOST_DEVICES, feature_gates.NETWORKS, feature_gates.PASSTHROUGH


class Case(NamedTuple):
    on: list[str]
    off: list[str]
    closed: list[str]


CASES = {
    "nothing is said": Case([], [], []),
    "one is off": Case([], [G], [G]),
    "on beats off": Case([G], [G, H], [H]),
    "the old name closes all claims": Case([], ["DynamicResourceAllocation"], [G, H, N]),
    "the other name too, but for what is on": Case([H], ["DRADevices"], [G, N]),
    "the old name opens all claims": Case(["DynamicResourceAllocation"], [G, H, N, P], [P]),
    "gates of others": Case(["Teleportation"], ["LiveMigration"], []),
}


def kubevirt(name: str = "kubevirt", when: str = "2026-01-01T00:00:00Z", **configuration: object) -> Object:
    return {"metadata": {"name": name, "namespace": "virt", "creationTimestamp": when},
            "spec": {"configuration": configuration}}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_which_gates_are_closed(case: Case) -> None:
    said = kubevirt_config.read_config(
        kubevirt(developerConfiguration={"featureGates": case.on, "disabledFeatureGates": case.off})
    )
    assert said.gates.closed(feature_gates.KNOWN) == case.closed


def test_without_a_kubevirt_object_everything_has_its_default() -> None:
    plain = kubevirt_config.read_config(None)
    assert plain.gates.closed(feature_gates.KNOWN) == []
    assert (plain.permitted, plain.rollout, plain.update_methods) == (None, "LiveUpdate", None)


def test_other_settings() -> None:
    said = kubevirt_config.read_config({**kubevirt(vmRolloutStrategy="Stage", permittedHostDevices={
        "pciHostDevices": [{"pciVendorSelector": "10de:1eb8", "resourceName": "a.test/x"}],
        "mediatedDevices": [{"mdevNameSelector": "V", "resourceName": "a.test/y"}], "usb": None})})
    assert (said.rollout, said.permitted) == ("Stage", frozenset({"a.test/x", "a.test/y"}))
    assert kubevirt_config.read_config(kubevirt(permittedHostDevices={})).permitted == frozenset(), "nothing is permitted"
    assert kubevirt_config.read_config({"metadata": {}, "spec": {"workloadUpdateStrategy": {
        "workloadUpdateMethods": ["LiveMigrate"]}}}).update_methods == ("LiveMigrate",)


def test_the_oldest_counts() -> None:
    assert kubevirt_config.active_kubevirt([]) is None
    older, newer = kubevirt("b"), kubevirt("a", "2026-01-02T00:00:00Z")
    assert kubevirt_config.active_kubevirt([newer, older]) == older


def test_who_belongs_to_the_system() -> None:
    said = kubevirt_config.read_config(kubevirt())
    assert said.ours("")
    assert said.ours("system:serviceaccount:virt:kubevirt-controller")
    assert not said.ours("system:serviceaccount:kubevirt:kubevirt-controller")
    assert not said.ours("system:serviceaccount:virt:default")
    assert not said.ours("alice")


def test_gates_that_a_vmi_needs() -> None:
    spec: Object = {"domain": {"devices": {"gpus": [{"name": "g", "deviceName": "v"}], "hostDevices": [{"name": "h"}]}},
                    "networks": [{"name": "n", "resourceClaim": {}}]}
    assert feature_gates.used(spec) == [N, P]
    spec = {"domain": {"devices": {"gpus": [{"name": "g", "claim": {"name": "c", "request": "r"}}],
                                   "hostDevices": [{"name": "h", "claimName": "c", "deviceRequestName": "r"}]}}}
    assert feature_gates.used(spec) == [G, H, P]
    assert feature_gates.used({"domain": {}}) == []


def test_device_gates_that_must_be_enabled() -> None:
    """The others are open, as whoever asks for what they let through expects it."""
    assert {name for name, (_, on) in dra_feature_gates.DEVICE_GATES.items() if not on} == {
        "DRAFractionalCapacityRange", "DRADeviceCompatibilityGroups", "DRADerivedAttributes", "DRAOptionalNodeOperations"}
