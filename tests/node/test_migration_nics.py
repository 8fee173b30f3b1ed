"""NICs on VFs stay on their host: before the copy they are detached, on the target others are attached; after a failure the VM
has its own again."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from outfitter.api import kinds
from outfitter.cli.vm import migrate, plan_migrate
from outfitter.inventory.config import Config, HostSettings
from outfitter.launcher.migration.simulated_copy import SimulatedCopy
from outfitter.launcher.simulated import Simulated
from outfitter.ledger import book
from outfitter.store.memory import Memory
from tests.controllers.planting import InProcess
from tests.node.test_nic_hotplug import TWO, Story, nic, running


async def migrated(story: Story, name: str) -> Any:
    await story.store.create(kinds.MIGRATION, {"metadata": {"name": name, "namespace": "default"}, "spec": {"vmiName": "blue"}})
    for _ in range(80):
        await story.settle()
        job = await story.store.get(kinds.MIGRATION, name, "default")
        if (job.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
            await story.settle()
            return job
        story.clock.advance(0.5)
    raise AssertionError((await story.store.get(kinds.MIGRATION, name, "default")).get("status"))


async def functions(story: Story) -> dict[str, list[str]]:
    """Host -> the VFs that the VM has there."""
    out = {}
    for host in story.product.hosts:
        assert isinstance(host.hypervisor, Simulated)
        host.hypervisor._monotonic = story.clock.monotonic
        out[host.name] = [each.address for domain in (await host.hypervisor.domains()).values() for each in domain.nics
                          if each.address]
    return out


async def booked(story: Story) -> dict[str, int]:
    return {host.name: len((await book.read(story.store, host.name)).bookings) for host in story.product.hosts}


async def test_a_vf_is_left_behind_and_another_attached(tmp_path: Path) -> None:
    async with running(tmp_path, Config(), TWO) as story:
        await story.vmi(nic("fast", "fast", sriov={}))
        before = await functions(story)
        [source] = [name for name, found in before.items() if found]
        [target] = [name for name, found in before.items() if not found]
        job = await migrated(story, "move")
        assert job["status"]["phase"] == "Succeeded", job["status"]
        after = await functions(story)
        assert (after[source], len(after[target])) == ([], 1)
        assert await booked(story) == {source: 0, target: 1}
        shown = (await story.get("blue"))["status"]
        assert [entry["name"] for entry in shown["interfaces"]] == ["default", "fast"]


async def test_outfit_vm_migrate_shows_first_what_becomes_of_the_vf(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with running(tmp_path, Config(), TWO) as story:
        await story.vmi(nic("fast", "fast", sriov={}))
        [source] = [name for name, found in (await functions(story)).items() if found]
        assert isinstance(story.store, Memory)
        await migrate.migrate(InProcess(story.store, "default"), "blue", to=None, wait=False, timeout=None, dry_run=True)
    plan, nic_, done = capsys.readouterr().out.splitlines()
    assert plan.startswith(f"vmi/blue would migrate from {source} to ")
    assert nic_ == "  fast: reattached (the guest has no such NIC while it is copied)"
    assert done == f"blue migrates from {source} (dry run: nothing was changed)"


async def test_plan_to_its_own_host_or_to_none_says_so(tmp_path: Path) -> None:
    async with running(tmp_path, Config(), TWO) as story:
        await story.vmi(nic("fast", "fast", sriov={}))
        hosts = {bool(found): name for name, found in (await functions(story)).items()}
        assert isinstance(story.store, Memory)
        client = InProcess(story.store, "default")
        plans = {to: await plan_migrate.planned(client, "blue", to) for to in (hosts[True], "moon", hosts[False])}
    assert [(plan.possible, plan.target, plan.reason) for plan in plans.values()] == [
        (False, "", f"it runs on {hosts[True]} already: name another host, or none"),
        (False, "", "there is no host moon: outfit get nodes lists them"), (True, hosts[False], "")]
    assert {str([device.outcome for device in plan.devices]) for plan in plans.values()} == {"['reattached']"}


async def test_a_failed_migration_gives_the_vf_back(tmp_path: Path) -> None:
    async with running(tmp_path, Config(), TWO) as story:
        await story.vmi(nic("fast", "fast", sriov={}))
        before, held = await functions(story), await booked(story)
        for host in story.product.hosts:
            assert isinstance(host.hypervisor, Simulated)
            host.hypervisor.copy = SimulatedCopy(fails="the network is gone")
        job = await migrated(story, "move")
        assert job["status"]["phase"] == "Failed"
        for _ in range(20):
            await story.settle()
            if await functions(story) == before:
                break
            story.clock.advance(1)
        assert await functions(story) == before
        assert await booked(story) == held


@pytest.mark.parametrize("timeout", [2, 30, 34])
async def test_a_guest_that_keeps_its_vf_does_not_migrate(tmp_path: Path, timeout: int) -> None:
    async with running(tmp_path, Config(HostSettings(unplug_timeout=timedelta(seconds=timeout))), TWO) as story:
        await story.vmi(nic("fast", "fast", sriov={}))
        before = await functions(story)
        uid = (await story.get("blue"))["metadata"]["uid"]
        for host in story.product.hosts:
            assert isinstance(host.hypervisor, Simulated)
            host.hypervisor.keeping_nics.add(uid)
        begun = story.clock.monotonic()
        job = await migrated(story, "move")
        assert job["status"]["migrationState"]["failureCode"] == "NicNotReleased"
        assert timeout <= story.clock.monotonic() - begun < timeout + 5
        assert await functions(story) == before
