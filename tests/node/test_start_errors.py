"""What each error does that a start can end with: retry, fail the VM, or keep the process from starting."""

from __future__ import annotations

import contextlib
import random
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from outfitter import app
from outfitter.api import kinds, rejection_conditions
from outfitter.api.hypervisor import Domain
from outfitter.errors import HypervisorError, NotReady, OutfitterError, StartFailed, StartupRefused, Unauthorized
from outfitter.launcher.simulated import Simulated
from outfitter.node.agent_host import AgentHost
from outfitter.store.clock import ManualClock
from outfitter.store.id_generator import IdGenerator
from tests.controllers.scenario import Scene, hosts_of, logged
from tests.rejected import Code


class RejectingHypervisor(Simulated):
    """Raises `error` instead of starting a domain."""

    error: OutfitterError | None = None

    async def start(self, domain: Domain) -> None:
        if self.error is not None:
            raise self.error
        await super().start(domain)


@contextlib.asynccontextmanager
async def running(hosts: list[AgentHost]) -> AsyncIterator[Scene]:
    clock = ManualClock()
    async with app.embedded(hosts=hosts, clock=clock, names=IdGenerator(random.Random(1))) as product:
        await product.store.create(kinds.NAMESPACE, {"metadata": {"name": "here"}})
        scene = Scene(product, "here", clock)
        await scene.classes()
        await scene.template()
        yield scene


@pytest.mark.parametrize(("error", "reason", "code"), [
    pytest.param(StartFailed("no such bus"), "SyncFailed", Code.DOMAIN_INVALID, id="on whichever host"),
    pytest.param(HypervisorError("no room"), "FailedStart", Code.HYPERVISOR_REFUSED, id="on this host"),
])
async def test_a_start_that_cannot_succeed_fails_the_vm(error: OutfitterError, reason: str, code: Code) -> None:
    hypervisor = RejectingHypervisor()
    hypervisor.error = error
    async with running([replace(host, hypervisor=hypervisor) for host in hosts_of("node", 1)]) as scene:
        pods = logged(scene.product, kinds.POD, "here")
        await scene.machine("blue")
        await scene.phase("blue", "Failed")
        condition = await scene.condition("blue", "Ready")
        assert condition is not None
        assert (condition["reason"], condition["message"]) == (reason, error.message)
        failed = [new for _, new in pods if new is not None and new["status"].get("phase") == "Failed"]
        assert {each for pod in failed for each in rejection_conditions.of(pod)} == {code}


@pytest.mark.parametrize("error", [StartupRefused("the checkpoint is damaged"), Unauthorized("the exec plugin failed"),
                                   NotReady("the driver is loading")], ids=lambda error: type(error).__name__)
async def test_an_error_that_is_not_the_vms_does_not_fail_it(error: OutfitterError) -> None:
    """As when the credentials of this process cannot be had for a moment: the VM starts when they can."""
    hypervisor = RejectingHypervisor()
    hypervisor.error = error
    async with running([replace(host, hypervisor=hypervisor) for host in hosts_of("node", 1)]) as scene:
        await scene.machine("blue")
        await scene.phase("blue", "Scheduled")
        await scene.settle()
        pod = await scene.pod("blue")
        assert pod["status"]["phase"] == "Running", "it is prepared and waits for its domain"
        hypervisor.error = None
        await scene.running("blue")


async def test_a_vm_waits_with_a_reason_while_its_devices_are_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(hosts_of("node", 1)) as scene:
        preparation, prepare = scene.product.preparation, scene.product.preparation.prepare

        async def not_ready(*_: object) -> None:
            raise NotReady("gpu-1: its driver is loading")

        monkeypatch.setattr(preparation, "prepare", not_ready)
        await scene.machine("blue")

        async def waits() -> bool:
            return any(pod["status"].get("message") == "gpu-1: its driver is loading" for pod in await scene.all(kinds.POD))

        await scene.reach(waits, "the pod has the reason")
        assert (await scene.pod("blue"))["status"]["reason"] == "FailedPrepareDevices"
        monkeypatch.setattr(preparation, "prepare", prepare)
        await scene.running("blue")


async def test_a_host_whose_checkpoint_is_damaged_keeps_the_process_from_starting(tmp_path: Path) -> None:
    hosts = hosts_of("node", 1, count=2)
    for host in hosts:
        assert host.env is not None
        host.env.state.write("checkpoint.json", "{")
    with pytest.raises(StartupRefused) as caught:
        async with running(hosts):
            pytest.fail("it started")
    assert [reason.split(": ")[0] for reason in caught.value.reasons] == [f"host {host.name} does not start" for host in hosts]
