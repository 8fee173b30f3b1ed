"""The product is killed at points of a live migration: of one that succeeds, one that is cancelled while it is copied, one that
fails, and one whose VM is deleted meanwhile; of a VM without devices, with a device by a template, its own claim, its flavor,
and with one that is reattached.
Whatever was killed, the VM runs in exactly one place with as many devices as before, every migration ends, nothing of its
target is left, and pages, claims and domains agree."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from outfitter.api import kinds
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import migration, reattached_devices
from outfitter.api.kubevirt import vm as vm_api
from outfitter.inventory import config
from outfitter.launcher.migration.simulated_copy import SimulatedCopy
from tests.node.kill_points import Kill, When, wanted
from tests.node.vmi_lifecycle import LifecycleScenario, Ran, every_point

SLOW = SimulatedCopy(bandwidth=1 << 26)  # sixteen seconds for a guest of 1 GiB
SPEC: Object = {"runStrategy": "Always", "template": {"spec": {
    "terminationGracePeriodSeconds": 0, "networks": [{"name": "default", "pod": {}}],
    "domain": {"memory": {"guest": "1Gi"}, "devices": {"interfaces": [{"name": "default", "masquerade": {}}]}}}}}


# One disk that may travel on each host.
HOSTS = """
publisher: node.example.com
hosts:
- name: node-a
  pci: [{address: 0000:66:00.0, vendor: 144d, product: a80a, class: 010802, driver: nvme}]
- name: node-b
  pci: [{address: 0000:68:00.0, vendor: 144d, product: a80a, class: 010802, driver: nvme}]
"""
DEVICE_SPEC = "device_spec: [{vendor_id: 144d, product_id: a80a, live_migratable: 'yes'}]"
CONFIG = config.parse(DEVICE_SPEC)


class MigrationScenario(LifecycleScenario):
    copy = SimulatedCopy()
    spec = SPEC

    def vm_spec(self) -> Object:
        return self.spec

    async def before(self) -> None:
        """What the VM needs."""

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
                    yield uid, Ran(domain.name, (), (0, 0))

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
            if not places and vmi["status"].get("phase") not in ("Running", *vm_api.FINAL):
                continue  # it waits for a host
            if places != [vmi["status"].get("nodeName")]:
                yield f"{vmi['metadata']['name']} is reported on {vmi['status'].get('nodeName')} and runs on {places}"
            active = vmi["status"].get("activePods") or {}
            pods = {pod["metadata"]["uid"] for pod in self.home.books.all(kinds.POD)
                    if (vm_api.owner(pod, kinds.VMI.kind) or {}).get("uid") == vmi["metadata"]["uid"]
                    and pod["status"]["phase"] not in vm_api.FINAL}
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


class DeviceMigrationScenario(MigrationScenario):
    """Of a VM with a disk by a claim from a template."""

    hosts_text, config, device_count, how = HOSTS, CONFIG, 2, "template"

    def vm_spec(self) -> Object:
        asked = self.request_spec(self.how)
        spec = {**asked["template"]["spec"], "networks": SPEC["template"]["spec"]["networks"]}
        spec["domain"]["devices"]["interfaces"] = SPEC["template"]["spec"]["domain"]["devices"]["interfaces"]
        return {**asked, "runStrategy": "Always", "template": {"spec": spec}}

    def unlike(self) -> Iterator[str]:
        yield from super().unlike()
        for vmi in self.home.books.all(kinds.VMI):
            domains = [domain for _, machines in self.hypervisors() for uid, domain in machines.running.items()
                       if uid == vmi["metadata"]["uid"]]
            entries = (vmi["status"].get("deviceStatus") or {}).get("hostDeviceStatuses") or ()
            places = tuple(entry["deviceResourceClaimStatus"]["attributes"]["pciAddress"] for entry in entries)
            if [domain.devices for domain in domains] != [places] or len(places) != 1:
                yield f"{vmi['metadata']['name']} is reported with {places} and has {[domain.devices for domain in domains]}"
        if len(self.home.books.all(kinds.RESOURCE_CLAIM)) > len(self.home.books.all(kinds.VM)):
            yield f"claims are left: {[claim['metadata']['name'] for claim in self.home.books.all(kinds.RESOURCE_CLAIM)]}"


class OwnClaimMigrationScenario(DeviceMigrationScenario):
    """The same by a claim of its own."""

    how = "own"


class ReattachedMigrationScenario(DeviceMigrationScenario):
    """With a disk that does not travel and whose guest agrees."""

    config = config.parse("device_spec: [{vendor_id: 144d, product_id: a80a}]")

    def vm_spec(self) -> Object:
        spec = super().vm_spec()
        return {**spec, "template": {**spec["template"], "metadata": {"annotations": {reattached_devices.DECLARED: "card"}}}}


class FlavorMigrationScenario(DeviceMigrationScenario):
    """By an alias of its flavor that says live_migratable."""

    hosts_text = HOSTS.replace("publisher: node.example.com\n", "")
    config = config.parse(f"{DEVICE_SPEC}\nalias: [{{name: disk, vendor_id: 144d, product_id: a80a, live_migratable: 'yes'}}]")

    def vm_spec(self) -> Object:
        return {**SPEC, "template": {"spec": {**SPEC["template"]["spec"], "flavor": {"name": "with-disk"}}}}

    async def before(self) -> None:
        extra = {"pci_passthrough:alias": "disk:1"}
        await self.create(kinds.FLAVOR, "with-disk", {"vcpus": 1, "memory": "1Gi", "extraSpecs": extra})


async def run_lifecycle(
    folder: Path, kill: Kill | None, scenario_type: type[MigrationScenario] = MigrationScenario
) -> MigrationScenario:
    scenario = await scenario_type.begin(folder)
    assert isinstance(scenario, MigrationScenario)
    with scenario.deaths.as_user():
        await scenario.before()
        await scenario.create(kinds.VM, "blue", scenario.vm_spec())
    await scenario.rest()
    scenario.deaths.points, scenario.deaths.plan = 0, kill
    await scenario.migrate("succeeds")
    await scenario.rest()
    job = await scenario.find(kinds.MIGRATION, "succeeds")
    assert kill is not None or (job is not None and migration.phase_of(job) == "Succeeded"), job
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


async def with_device(folder: Path, kill: Kill | None) -> MigrationScenario:
    return await run_lifecycle(folder, kill, DeviceMigrationScenario)


async def with_own_claim(folder: Path, kill: Kill | None) -> MigrationScenario:
    return await run_lifecycle(folder, kill, OwnClaimMigrationScenario)


async def with_flavor(folder: Path, kill: Kill | None) -> MigrationScenario:
    return await run_lifecycle(folder, kill, FlavorMigrationScenario)


async def with_reattached_device(folder: Path, kill: Kill | None) -> MigrationScenario:
    return await run_lifecycle(folder, kill, ReattachedMigrationScenario)


LIVES = {"no device": run_lifecycle, "a device by a template": with_device, "a device by its own claim": with_own_claim,
         "a device by a flavor": with_flavor, "a device that is reattached": with_reattached_device}


PLAIN, *WITH_DEVICES = LIVES
WHEN = pytest.mark.parametrize("when", ["before", "after"])


async def some_points(folder: Path, when: When, life: str) -> None:
    await every_point(LIVES[life], folder, when, first=3 if when == "before" else 11, stride=29, at_least=100)


@pytest.mark.parametrize("life", [PLAIN, pytest.param(WITH_DEVICES[0], marks=pytest.mark.thorough)])
@WHEN
async def test_some_points_of_a_migration(tmp_path: Path, when: When, life: str) -> None:
    await some_points(tmp_path, when, life)


@pytest.mark.thorough
@pytest.mark.parametrize("life", WITH_DEVICES[1:])
@WHEN
async def test_some_points_of_a_migration_with_other_claims(tmp_path: Path, when: When, life: str) -> None:
    await some_points(tmp_path, when, life)


@pytest.mark.thorough
@WHEN
async def test_every_point_of_a_migration(tmp_path: Path, when: When) -> None:
    await every_point(LIVES[PLAIN], tmp_path, when, first=1, stride=1, at_least=100)


@pytest.mark.long
@pytest.mark.parametrize("life", WITH_DEVICES)
@WHEN
async def test_every_point_of_a_migration_with_a_device(tmp_path: Path, when: When, life: str) -> None:
    await every_point(LIVES[life], tmp_path, when, first=1, stride=1, at_least=100)
