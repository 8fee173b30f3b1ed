"""Which watch updates the agent reconciles for, and that those which it drops were not needed."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from outfitter.api import kinds
from outfitter.api.device import DeviceId
from outfitter.api.hypervisor import Domain
from outfitter.api.kinds import Object
from outfitter.api.ledger_page.page import Booking, Holder, Page
from outfitter.launcher.simulated import Simulated
from outfitter.node import watch_filter
from outfitter.node.agent import Agent
from tests.controllers import resync
from tests.controllers.scenario import hosts_of
from tests.node.test_agent import running

Change = Callable[[Object], Any]
POD: Object = {"metadata": {"name": "p", "uid": "u", "resourceVersion": "1", "generation": 1}, "spec": {"nodeName": "a"},
               "status": {"phase": "Pending", "conditions": []}}
VMI: Object = {"metadata": {"name": "v", "uid": "u", "resourceVersion": "1", "generation": 1}, "spec": {},
               "status": {"phase": "Scheduled", "activePods": {"p": ""}}}


@dataclass(frozen=True)
class Case:
    change: Change
    wakes: bool
    phase: str = "Scheduled"  # of the VMI


PODS = {
    "the revision": Case(lambda pod: pod["metadata"].update(resourceVersion="2", generation=2, managedFields=[{}]), False),
    "a condition of the scheduler": Case(
        lambda pod: pod["status"].update(conditions=[{"type": "PodScheduled", "status": "True"}]), False),
    "its readiness gate": Case(lambda pod: pod["status"].update(
        conditions=[{"type": "kubevirt.io/virtual-machine-unpaused", "status": "True"}]), True),
    "its host": Case(lambda pod: pod["spec"].update(nodeName="b"), True),
    "it is deleted": Case(lambda pod: pod["metadata"].update(deletionTimestamp="now"), True),
    "its finalizers": Case(lambda pod: pod["metadata"].update(finalizers=["x"]), True),
    "its phase": Case(lambda pod: pod["status"].update(phase="Failed"), True),
    "the names of its claims": Case(lambda pod: pod["status"].update(resourceClaimStatuses=[{"name": "a"}]), True),
    "another of its name": Case(lambda pod: pod["metadata"].update(uid="other"), True),
}

VMIS = {
    "the revision": Case(lambda vmi: vmi["metadata"].update(resourceVersion="2"), False),
    "a condition": Case(lambda vmi: vmi["status"].update(conditions=[{"type": "Ready", "status": "True"}]), False),
    "its devices": Case(lambda vmi: vmi["status"].update(deviceStatus={"gpuStatuses": [{}]}), True),
    "its flavor's devices": Case(lambda vmi: vmi["status"].update(flavor={"claimName": "x"}), True),
    "its devices before it is scheduled": Case(
        lambda vmi: vmi["status"].update(deviceStatus={"gpuStatuses": [{}]}), False, "Scheduling"),
    "from pending to scheduling": Case(lambda vmi: vmi["status"].update(phase="Scheduling"), False, "Pending"),
    "to scheduled": Case(lambda vmi: vmi["status"].update(phase="Scheduled"), True, "Scheduling"),
    "to failed": Case(lambda vmi: vmi["status"].update(phase="Failed"), True),
    "the host of its pod": Case(lambda vmi: vmi["status"].update(activePods={"p": "a"}), False),
    "its pod": Case(lambda vmi: vmi["status"].update(activePods={"q": ""}), True),
    "it is deleted": Case(lambda vmi: vmi["metadata"].update(deletionTimestamp="now"), True, "Scheduling"),
    "its spec": Case(lambda vmi: vmi["metadata"].update(generation=2), True, "Scheduling"),
    "an action request": Case(lambda vmi: vmi["status"].update(stateChangeRequests=[{"action": "Pause"}]), True, "Running"),
    "that it is paused": Case(lambda vmi: vmi["status"].update(
        conditions=[{"type": "Paused", "status": "True", "reason": "PausedByUser"}]), True, "Running"),
    "another of its name": Case(lambda vmi: vmi["metadata"].update(uid="other"), True),
}


@pytest.mark.parametrize("name", PODS)
def test_pods(name: str) -> None:
    new = copy.deepcopy(POD)
    PODS[name].change(new)
    assert watch_filter.pod_changed(POD, new) is PODS[name].wakes


@pytest.mark.parametrize("name", VMIS)
def test_vmis(name: str) -> None:
    case = VMIS[name]
    old = copy.deepcopy(VMI)
    old["status"]["phase"] = case.phase
    new = copy.deepcopy(old)
    case.change(new)
    assert watch_filter.vmi_changed(old, new) is case.wakes


def test_added_and_deleted_objects_always_pass() -> None:
    assert watch_filter.pod_changed(None, POD)
    assert watch_filter.vmi_changed(None, VMI)
    assert watch_filter.vmi_changed(VMI, None)


def booked(*claims: str, state: Any = "booked") -> Object:
    page = Page(Page.blank("a"))
    for claim in claims:
        holder = Holder("ResourceClaim", "here", claim, f"uid-{claim}")
        page = Page(page.adding(Booking(DeviceId("d", "a", f"dev-{claim}"), holder, "nic", state, "now")))
    return page.object


@pytest.mark.parametrize(("old", "new", "claims", "released"), [
    pytest.param(None, booked("x"), {"here/x"}, False, id="a new page"),
    pytest.param(booked("x"), booked("x", "y"), {"here/y"}, False, id="one more"),
    pytest.param(booked("x"), booked("x", state="prepared"), set(), False, id="prepared"),
    pytest.param(booked("x", "y"), booked("y"), set(), True, id="one less"),
    pytest.param(booked("x"), booked("y"), {"here/y"}, True, id="another"),
    pytest.param(booked("x"), None, set(), True, id="the page is gone"),
])
def test_pages(old: Object | None, new: Object | None, claims: set[str], released: bool) -> None:
    assert watch_filter.newly_booked(old, new) == claims
    assert watch_filter.released(old, new) is released


async def test_a_vm_is_started_in_two_reconciles(monkeypatch: pytest.MonkeyPatch) -> None:
    """One prepares its devices, one starts its domain; that its own writes come back as watch updates is nothing new."""
    keys: list[str] = []
    reconcile = Agent.reconcile

    async def counted(self: Agent, key: str) -> float | None:
        keys.append(key)
        return await reconcile(self, key)

    monkeypatch.setattr(Agent, "reconcile", counted)
    async with running(hosts_of("node", 3)) as scene:
        await scene.settle()
        keys.clear()
        for name in ("red", "green", "blue"):
            await scene.machine(name)
            await scene.running(name)
        await scene.settle()
        assert len(keys) <= 6
        assert resync.LOOPS.keys() <= {controller.name for controller in scene.product.runner.controllers}
        await scene.nothing_missed()


class Mayfly(Simulated):
    """Its domains end while they are being started, and it reports that only then."""

    async def start(self, domain: Domain) -> None:
        await super().start(domain)
        self.simulate_end(domain.uid, "it was a warm day")


async def test_a_domain_that_ends_while_it_is_started_is_noticed() -> None:
    async with running([replace(host, hypervisor=Mayfly()) for host in hosts_of("node", 1)]) as scene:
        await scene.machine("blue")
        await scene.phase("blue", "Failed")
        assert [pod["status"]["reason"] for pod in await scene.all(kinds.POD)] in ([], ["DomainFailed"])
        await scene.settle()
        assert not await scene.bookings()
