"""What of a changed template reaches a running VM: which fields are copied, need a migration, or wait for a restart."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from outfitter.api.kinds import Object
from outfitter.api.live_update import spec_fields
from outfitter.api.live_update.contribution import Contribution, MigrationNeed, RunningVm
from outfitter.api.live_update.evaluator import CONTRIBUTORS, NOTHING, evaluate, migration_need
from outfitter.api.rejection import RejectionCode

DEFAULT: Object = {"name": "default", "masquerade": {}}
POD: Object = {"name": "default", "pod": {}}


def nic(name: str = "blue", **more: Any) -> Object:
    return {"name": name, "bridge": {}, **more}


def vf(name: str = "fast", **more: Any) -> Object:
    return {"name": name, "sriov": {}, **more}


def on(name: str = "blue", definition: str = "") -> Object:
    return {"name": name, "multus": {"networkName": definition or f"{name}-nad"}}


def by_claim(name: str = "fast") -> Object:
    return {"name": name, "resourceClaim": {"claimName": "nic", "requestName": "vf"}}


def spec(*cards: Object, networks: list[Object] | None = None, **more: Any) -> Object:
    found = networks if networks is not None else [on(card["name"]) for card in cards]
    domain = {"memory": {"guest": "1Gi"}, "devices": {"interfaces": [DEFAULT, *cards]}}
    return {"domain": domain, "networks": [POD, *found], **more}


def vmi(of: Object, *plugged: str, migratable: bool = True, phase: str = "Running", names: str = "pod") -> Object:
    interfaces = [{"name": name, "infoSource": "domain, multus-status", "podInterfaceName": f"{names}{number}"}
                  for number, name in enumerate(("default", *plugged))]
    return {"metadata": {"name": "vm1", "namespace": "lab"}, "spec": of, "status": {
        "phase": phase, "interfaces": interfaces,
        "conditions": [{"type": "LiveMigratable", "status": str(migratable)}]}}


def unplugged(is_: Object, name: str) -> Object:
    """The VMI whose pod has the network of a NIC that the guest has not got."""
    for entry in is_["status"]["interfaces"]:
        if entry["name"] == name:
            entry["infoSource"] = "multus-status"
    return is_


def running(wanted: Object, is_: Object, **more: Any) -> RunningVm:
    return RunningVm(wanted, is_, **more)


CARDS, NETWORKS = "domain.devices.interfaces", "networks"
BLUE = f"{CARDS}[blue]"


@dataclass(frozen=True)
class Case:
    given: RunningVm
    copied: list[str] | None = None  # names of the VMI's interfaces afterwards; None: none is copied
    restart: tuple[str, ...] = ()
    migration: tuple[str, ...] = ()
    states: Mapping[str, str] = field(default_factory=dict)
    template: list[str] | None = None  # names of the template's interfaces afterwards


PLUGGED = spec(nic())
CASES = {
    "nothing changed": Case(running(PLUGGED, vmi(PLUGGED, "blue"))),
    "a bridge NIC is added": Case(running(PLUGGED, vmi(spec())), ["default", "blue"], migration=(BLUE,)),
    "a NIC without a binding is a bridge": Case(
        running(spec({"name": "blue"}), vmi(spec())), ["default", "blue"], migration=(BLUE,)),
    "a VF is added": Case(running(spec(vf()), vmi(spec())), ["default", "fast"], migration=(f"{CARDS}[fast]",)),
    "Stage holds a NIC back": Case(running(PLUGGED, vmi(spec()), rollout="Stage"), restart=(BLUE,)),
    "a VM that does not run yet gets it when it runs": Case(running(PLUGGED, vmi(spec(), phase="Scheduled"))),
    "a NIC by a plugin waits": Case(running(spec({"name": "blue", "binding": {"name": "x"}}), vmi(spec())), restart=(BLUE,)),
    "a second primary network waits": Case(running(spec(nic(), networks=[{"name": "blue", "multus": {
        "networkName": "x", "default": True}}]), vmi(spec())), restart=(BLUE,)),
    "a plugged NIC is absent": Case(running(spec(nic(state="absent")), vmi(PLUGGED, "blue")), ["default", "blue"],
                                    migration=(BLUE,), states={"blue": "absent"}),
    "Stage holds an unplug back": Case(
        running(spec(nic(state="absent")), vmi(PLUGGED, "blue"), rollout="Stage"), restart=(f"{BLUE}.state",)),
    "a NIC with an ordinal name stays": Case(
        running(spec(nic(state="absent")), vmi(PLUGGED, "blue", names="net")), restart=(f"{BLUE}.state",)),
    "a NIC that was never plugged goes at once": Case(
        running(spec(nic(state="absent")), vmi(PLUGGED)), ["default"], migration=(BLUE,)),
    "a NIC that was never plugged is removed": Case(running(spec(), vmi(PLUGGED)), ["default"]),
    "a NIC that the pod alone has is removed": Case(
        running(spec(), unplugged(vmi(PLUGGED, "blue"), "blue")), ["default", "blue"], states={"blue": "absent"}),
    "one with an ordinal name waits": Case(
        running(spec(), unplugged(vmi(PLUGGED, "blue", names="net"), "blue")), restart=(BLUE,)),
    "a plugged NIC that is removed waits": Case(running(spec(), vmi(PLUGGED, "blue")), restart=(BLUE,)),
    "a NIC that leaves is not called back": Case(running(PLUGGED, vmi(spec(nic(state="absent")), "blue"))),
    "an absent NIC that is gone leaves the VMI": Case(
        running(spec(nic(state="absent")), vmi(spec(nic(state="absent")))), ["default"]),
    "an absent NIC that the VMI has no more leaves the template": Case(
        running(spec(nic(state="absent")), vmi(spec())), template=["default"]),
    "a link goes down": Case(running(spec(nic(state="down")), vmi(PLUGGED, "blue")), ["default", "blue"],
                             states={"blue": "down"}),
    "Stage holds a link back": Case(
        running(spec(nic(state="down")), vmi(PLUGGED, "blue"), rollout="Stage"), restart=(f"{BLUE}.state",)),
    "a MAC address waits": Case(
        running(spec(nic(macAddress="02:00:00:00:00:01")), vmi(PLUGGED, "blue")), restart=(f"{BLUE}.macAddress",)),
    "a MAC address of a pool is no change": Case(
        running(PLUGGED, vmi(spec(nic(macAddress="02:00:00:00:00:01")), "blue"))),
    "one that was in the template is": Case(
        running(PLUGGED, vmi(spec(nic(macAddress="02:00:00:00:00:01")), "blue"),
                started_with=frozenset({f"{BLUE}.macAddress"})), restart=(f"{BLUE}.macAddress",)),
    "MAC addresses are spelled in two ways": Case(
        running(spec(nic(macAddress="02-00-00-00-00-AB")), vmi(spec(nic(macAddress="02:00:00:00:00:ab")), "blue"))),
    "interfaces that admission filled in are no change": Case(
        running({"domain": {"memory": {"guest": "1Gi"}}}, vmi(spec()))),
    "the order does not count": Case(running(
        {"domain": {"memory": {"guest": "1Gi"}, "devices": {"interfaces": [nic(), DEFAULT]}}, "networks": [on(), POD]},
        vmi(PLUGGED, "blue"))),
    "a network is swapped": Case(running(spec(nic(), networks=[on("blue", "other")]), vmi(PLUGGED, "blue")), [],
                                 migration=(f"{NETWORKS}[blue].multus.networkName",)),
    "a swap of a VM that cannot migrate waits": Case(
        running(spec(nic(), networks=[on("blue", "other")]), vmi(PLUGGED, "blue", migratable=False)),
        restart=(f"{NETWORKS}[blue].multus.networkName",)),
    "a swap before the plug needs no migration": Case(
        running(spec(nic(), networks=[on("blue", "other")]), vmi(PLUGGED, migratable=False)), [],
        migration=(f"{NETWORKS}[blue].multus.networkName",)),
    "other fields wait": Case(running(
        {**PLUGGED, "nodeSelector": {"a": "b"}, "tolerations": [{"key": "x"}]}, vmi(PLUGGED, "blue")),
        restart=("nodeSelector", "tolerations")),
    "the start strategy counts at the start alone": Case(
        running({**PLUGGED, "startStrategy": "Paused"}, vmi(PLUGGED, "blue"))),
}


@pytest.mark.parametrize("name", CASES)
def test_a_changed_template(name: str) -> None:
    case = CASES[name]
    before = copy.deepcopy((case.given.wanted, case.given.vmi))
    found = evaluate(case.given)
    assert (found.restart, found.migration) == (case.restart, case.migration)
    patch = found.vmi_patch()
    cards = spec_fields.get(patch, CARDS)
    assert case.copied == (None if not patch else [card["name"] for card in cards or ()])
    assert {card["name"]: card["state"] for card in cards or () if card.get("state")} == dict(case.states)
    left = spec_fields.get(found.template_patch(), CARDS)
    assert case.template == (None if left is None else [card["name"] for card in left])
    assert before == (case.given.wanted, case.given.vmi), "nothing of what was given is changed"


def test_networks_follow_their_interfaces() -> None:
    wanted = spec(nic("red"), nic("blue"), networks=[on("blue"), on("red")])
    assert [each["name"] for each in evaluate(running(wanted, vmi(spec()))).live[NETWORKS]] == ["default", "red", "blue"]


def test_a_nic_by_claim_brings_its_claim_and_no_other() -> None:
    claims = [{"name": "nic", "resourceClaimTemplateName": "vfs"}, {"name": "gpu", "resourceClaimName": "card"}]
    found = evaluate(running(spec(vf(), networks=[by_claim()], resourceClaims=claims), vmi(spec())))
    assert found.live["resourceClaims"] == claims[:1]
    assert found.restart == ("resourceClaims[gpu]",)


def test_a_nic_by_a_claim_that_the_vmi_has_from_elsewhere_waits() -> None:
    """It would get a device of the other one."""
    have = vmi(spec(resourceClaims=[{"name": "nic", "resourceClaimTemplateName": "slow"}]))
    claims = [{"name": "nic", "resourceClaimTemplateName": "vfs"}]
    found = evaluate(running(spec(vf(), networks=[by_claim()], resourceClaims=claims), have))
    assert (found.live, found.migration) == ({}, ())
    assert found.restart == (f"{CARDS}[fast]", "resourceClaims[nic].resourceClaimTemplateName")
    assert found.refused[f"{CARDS}[fast]"].code is RejectionCode.NIC_NOT_PLUGGED
    assert "resourceClaimTemplateName slow until it stops" in found.refused[f"{CARDS}[fast]"]["message"]


@pytest.mark.parametrize(("listed", "level"), [
    ([], "immediate"), ([{"name": "nic", "request": "other"}], "immediate"), ([{"name": "nic", "request": "vf"}], "none"),
    ([{"name": "nic"}], "none")])
def test_a_nic_by_claim_migrates_its_vm_into_a_pod_that_has_its_vf_and_no_further(listed: list[Object], level: str) -> None:
    pod = {"metadata": {}, "spec": {"containers": [{"resources": {"claims": listed}}]}}
    assert migration_need(vmi(spec(vf(), networks=[by_claim()])), pod).level == level


class Lamps:
    """A kind of device that is not ours."""

    fields: tuple[str, ...] = ("domain.devices.lamps",)

    def compare(self, running: RunningVm) -> Contribution:
        wanted, have = (spec_fields.get(of, self.fields[0]) for of in (running.wanted, running.vmi["spec"]))
        return Contribution({self.fields[0]: wanted}, claims=frozenset({"power"})) if wanted != have else Contribution()

    def migration(self, vmi: Object, pod: Mapping[str, Any]) -> MigrationNeed:
        return MigrationNeed("immediate", ("a lamp",)) if spec_fields.get(vmi["spec"], self.fields[0]) else MigrationNeed()


def test_a_contributor_is_added_without_the_others_knowing() -> None:
    wanted = spec(nic(), resourceClaims=[{"name": "power", "resourceClaimName": "socket"}])
    wanted["domain"]["devices"]["lamps"] = [{"name": "red"}]
    alone = evaluate(running(wanted, vmi(spec())))
    assert alone.restart == ("resourceClaims[power]", "domain.devices.lamps[red]"), "what no contributor owns waits"
    both = evaluate(running(wanted, vmi(spec())), (*CONTRIBUTORS, Lamps()))
    assert both.restart == ()
    assert both.vmi_patch()["domain"]["devices"]["lamps"] == [{"name": "red"}]
    assert [card["name"] for card in both.live[CARDS]] == ["default", "blue"]
    assert both.live["resourceClaims"] == [{"name": "power", "resourceClaimName": "socket"}]
    pod: Object = {"metadata": {}}
    assert migration_need(vmi(wanted), pod).level == "pending"
    need = migration_need(vmi(wanted), pod, (*CONTRIBUTORS, Lamps()))
    assert (need.level, need.waiting) == ("immediate", ('NIC "blue" is to be plugged', "a lamp"))


def test_nothing_is_nothing() -> None:
    assert (NOTHING.vmi_patch(), NOTHING.template_patch()) == ({}, {})
