"""The product is killed at points of a live migration: of one that succeeds, one that is cancelled while it is copied, one that
fails, and one whose VM is deleted meanwhile. Whatever was killed, the VM runs in exactly one place, every migration ends, and
nothing of its target is left."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from outfitter.api import kinds
from outfitter.api.kubevirt import migration
from outfitter.launcher.migration.simulated_copy import SimulatedCopy
from tests.node.kill_points import Kill, When, wanted
from tests.node.vmi_lifecycle import LifecycleScenario, Ran, every_point

SLOW = SimulatedCopy(bandwidth=1 << 26)  # sixteen seconds for a guest of 1 GiB
SPEC = {"runStrategy": "Always", "template": {"spec": {
    "terminationGracePeriodSeconds": 0, "networks": [{"name": "default", "pod": {}}],
    "domain": {"memory": {"guest": "1Gi"}, "devices": {"interfaces": [{"name": "default", "masquerade": {}}]}}}}}


class MigrationScenario(LifecycleScenario):
    copy = SimulatedCopy()

    def plug_in(self) -> None:
        super().plug_in()
        for _, machines in self.hypervisors():
            machines.copy = self.copy

    def set_copy(self, copy: SimulatedCopy) -> None:
        self.copy = copy
        for _, machines in self.hypervisors():
            machines.copy = copy

    def _running(self) -> Iterator[tuple[str, Ran]]:
        """Without what a VM does not keep when it migrates."""
        for _, machines in self.hypervisors():
            for uid, domain in machines.running.items():
                if wanted(self.home.books, uid) and not self._asked_to_stop(uid):
                    yield uid, Ran(domain.name, domain.devices, (0, 0))

    def _still_run(self) -> Iterator[str]:
        """On whichever host, once."""
        for uid, before in self.ran.items():
            places = [host.name for host, machines in self.hypervisors() if uid in machines.running]
            if len(places) != 1:
                yield f"{before.name} runs on {places}"

    def unlike(self) -> Iterator[str]:
        yield from super().unlike()
        for vmi in self.home.books.all(kinds.VMI):
            places = [host.name for host, machines in self.hypervisors() if vmi["metadata"]["uid"] in machines.running]
            if places != [vmi["status"].get("nodeName")]:
                yield f"{vmi['metadata']['name']} is reported on {vmi['status'].get('nodeName')} and runs on {places}"
            active = vmi["status"].get("activePods") or {}
            pods = {pod["metadata"]["uid"] for pod in self.home.books.all(kinds.POD)
                    if pod["status"]["phase"] not in ("Succeeded", "Failed")}
            if set(active) != pods:
                yield f"{vmi['metadata']['name']} has the pods {active}, and there are {pods}"
        for job in self.home.books.all(kinds.MIGRATION):
            if not migration.is_finished(job):
                yield f"migration {job['metadata']['name']} is {migration.phase_of(job)} for ever"

    async def migrate(self, name: str) -> None:
        with self.deaths.as_user():
            await self.create(kinds.MIGRATION, name, {"vmiName": "blue"})

    async def until_copying(self) -> None:
        for _ in range(60):
            await self.settle()
            vmi = await self.find(kinds.VMI, "blue")
            if vmi is not None and (migration.state(vmi).get("startTimestamp") or not migration.under_way(vmi)):
                return
            self.clock.advance(0.5)

    async def cancel(self, name: str) -> None:
        with self.deaths.as_user():
            if await self.find(kinds.MIGRATION, name) is not None:
                await self.delete(kinds.MIGRATION, name)


async def run_lifecycle(folder: Path, kill: Kill | None) -> MigrationScenario:
    scenario = await MigrationScenario.begin(folder)
    assert isinstance(scenario, MigrationScenario)
    with scenario.deaths.as_user():
        await scenario.create(kinds.VM, "blue", SPEC)
    await scenario.rest()
    scenario.deaths.points, scenario.deaths.plan = 0, kill
    await scenario.migrate("succeeds")
    await scenario.rest()
    scenario.set_copy(SLOW)
    await scenario.migrate("cancelled")
    await scenario.until_copying()
    await scenario.cancel("cancelled")
    await scenario.rest()
    scenario.set_copy(SimulatedCopy(fails="the network is gone"))
    await scenario.migrate("fails")
    await scenario.rest()
    scenario.set_copy(SLOW)
    await scenario.migrate("deleted")
    await scenario.until_copying()
    with scenario.deaths.as_user():
        await scenario.delete(kinds.VM, "blue")
    scenario.release_from_running()
    await scenario.rest()
    await scenario.end()
    return scenario


@pytest.mark.parametrize("when", ["before", "after"])
async def test_some_points_of_a_migration(tmp_path: Path, when: When) -> None:
    await every_point(run_lifecycle, tmp_path, when, first=3 if when == "before" else 11, stride=29, at_least=100)


@pytest.mark.thorough
@pytest.mark.parametrize("when", ["before", "after"])
async def test_every_point_of_a_migration(tmp_path: Path, when: When) -> None:
    await every_point(run_lifecycle, tmp_path, when, first=1, stride=1, at_least=100)
