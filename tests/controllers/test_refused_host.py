"""A host that must not start with its configuration, among others: it is refused alone, keeps what it published, ends its VMs
and starts none, and starts once the cause is gone."""

from __future__ import annotations

import contextlib
import random
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from outfitter import app
from outfitter.api import conditions, kinds
from outfitter.api.kinds import Object
from outfitter.api.rejection import RejectionCode
from outfitter.api.served import printer_columns
from outfitter.errors import StartupRefused
from outfitter.inventory import config
from outfitter.inventory.simulation import hosts_file
from outfitter.store.clock import ManualClock
from outfitter.store.id_generator import IdGenerator
from tests.controllers.scenario import Scene

NIC = "{address: 0000:3b:00.0, vendor: 8086, product: 1592, class: 020000, driver: ice, vfs: {count: 2, product: 1889}}"
DISK = "{address: 0000:66:00.0, vendor: 144d, product: a80a, class: 010802, driver: nvme}"
GOOD = "report_in_placement: true\ndevice_spec: [{product_id: a80a, resource_class: disk}]\n"
OTHER_CLASS = GOOD + "hosts: {elm: {device_spec: [{product_id: a80a, resource_class: fast}]}}\n"
OTHER_TRAITS = GOOD + "hosts: {elm: {device_spec: [{product_id: a80a, resource_class: disk, traits: fast}]}}\n"
BOTH = GOOD + "hosts: {elm: {device_spec: [{vendor_id: 8086}]}}\n"
OFF = GOOD + "hosts: {elm: {report_in_placement: false}}\n"
IMPOSSIBLE = GOOD + "hosts: {elm: {device_spec: [{address: '0000:3b:00.0', remote_managed: 'yes'}]}}\n"


@contextlib.asynccontextmanager
async def started(data: Path, settings: str, *names: str) -> AsyncIterator[Scene]:
    """The product on these hosts, and on what an earlier one left."""
    text = "hosts: [" + ", ".join(f"{{name: {name}, pci: [{NIC}, {DISK}]}}" for name in names or ("elm", "oak")) + "]"
    parsed, clock = config.parse(settings), ManualClock()
    hosts = app.simulated_hosts(hosts_file.parse(text).hosts, data, parsed)
    ids = IdGenerator(random.Random(settings))
    async with app.embedded(data=data, hosts=hosts, clock=clock, names=ids, config=parsed, synchronous="OFF") as product:
        yield Scene(product, "default", clock)


async def with_a_vm_on_elm(data: Path, settings: str = GOOD) -> None:
    async with started(data, settings) as scene:
        await scene.create(kinds.DEVICE_CLASS, "default", {})
        await scene.template()
        await scene.machine("blue", nodeSelector={"kubernetes.io/hostname": "elm"})
        await scene.running("blue")


async def ready(scene: Scene, node: str = "elm") -> Object:
    found = await scene.find(kinds.NODE, node)
    assert found is not None
    return {**(conditions.find(found, "Ready") or {}), "shown": printer_columns.node_status(found, datetime.now(UTC))}


async def published(scene: Scene) -> list[tuple[str, object]]:
    """What elm publishes."""
    return [(kind.kind, obj["spec"]) for kind in (kinds.PROVIDER_TREE, kinds.RESOURCE_SLICE, kinds.HOST_INVENTORY)
            for obj in (await scene.store.list(kind)).items if obj["metadata"]["name"].startswith("elm")]


REFUSED = {
    "another class": (OTHER_CLASS, "inventory of CUSTOM_DISK on resource provider elm_0000:66:00.0 is in use by vmi/blue"),
    "other traits": (OTHER_TRAITS, "the traits of resource provider elm_0000:66:00.0"),
    "a PF and its VFs": (BOTH, "lists both the physical function"),
    "reporting switched off": (OFF, "report_in_placement is off, but it was enabled before"),
    "an entry that cannot be": (IMPOSSIBLE, "remote_managed"),
}


@pytest.mark.parametrize(("settings", "why"), REFUSED.values(), ids=REFUSED)
async def test_a_refused_host_serves_its_vms_and_all_else_runs(tmp_path: Path, settings: str, why: str) -> None:
    await with_a_vm_on_elm(tmp_path)
    async with started(tmp_path, GOOD) as scene:
        before = await published(scene)
    async with started(tmp_path, settings) as scene:
        told = await ready(scene)
        assert (told["status"], told["reason"], told["shown"]) == ("False", "StartRefused", "NotReady,StartRefused")
        assert why in told["message"]
        assert await published(scene) == before
        assert (await ready(scene, "oak"))["shown"] == "Ready"
        assert [domain.name for domain in await scene.domains()] == ["default_blue"]
        await scene.machine("green")
        assert (await scene.running("green"))["status"]["nodeName"] == "oak"
        await scene.machine("red")
        (rejection,) = await scene.rejected("red", RejectionCode.NODE_NOT_READY)
        assert why in rejection["message"]
        await scene.delete(kinds.VMI, "blue")
        await scene.gone("blue")
        assert [domain.name for domain in await scene.domains()] == ["default_green"]


@pytest.mark.parametrize("settings", [OTHER_CLASS, OTHER_TRAITS], ids=["class", "traits"])
async def test_a_host_starts_once_the_vm_ended_for_which_it_was_refused(tmp_path: Path, settings: str) -> None:
    await with_a_vm_on_elm(tmp_path)
    async with started(tmp_path, settings) as scene:
        await scene.machine("red", nodeSelector={"kubernetes.io/hostname": "elm"})
        await scene.rejected("red", RejectionCode.NODE_NOT_READY)
        await scene.delete(kinds.VMI, "blue")
        assert (await scene.running("red"))["status"]["nodeName"] == "elm"
        assert (await ready(scene))["shown"] == "Ready"
        (tree,) = [spec for kind, spec in await published(scene) if kind == "ProviderTree"]
        assert ("CUSTOM_FAST" in str(tree)) == ("fast" in settings)
        await scene.nothing_missed()


async def test_a_host_with_a_damaged_checkpoint_starts_when_it_is_repaired(tmp_path: Path) -> None:
    await with_a_vm_on_elm(tmp_path)
    checkpoint = tmp_path / "hosts/elm/state/checkpoint.json"
    text = checkpoint.read_text()
    checkpoint.write_text("{")
    async with started(tmp_path, GOOD) as scene:
        assert "cannot be read as a checkpoint" in (await ready(scene))["message"]
        await scene.machine("green")
        assert (await scene.running("green"))["status"]["nodeName"] == "oak"
        await scene.delete(kinds.VMI, "blue")

        async def unreleased() -> bool:
            return any("cannot be read as a checkpoint" in words for words in await scene.events("FailedReleaseDevices"))

        await scene.reach(unreleased, "the pod says why its device is not released")
        assert [domain.name for domain in await scene.domains()] == ["default_green"], "it was stopped nevertheless"
        checkpoint.write_text(text)
        await scene.gone("blue")

        async def starts() -> bool:
            return bool((await ready(scene))["shown"] == "Ready")

        await scene.reach(starts, "elm is ready")


async def test_a_pod_that_was_bound_to_a_refused_host_goes_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with started(tmp_path, GOOD) as scene:
        await scene.create(kinds.DEVICE_CLASS, "default", {})
        await scene.template()
        monkeypatch.setattr(scene.product.agent.runtime, "run", _nothing)
        await scene.machine("blue", affinity=PREFERS_ELM)

        async def bound() -> bool:
            return bool((await scene.pod("blue"))["spec"].get("nodeName") == "elm")

        await scene.reach(bound, "bound")
    async with started(tmp_path, BOTH) as scene:
        for _ in range(60):
            await scene.settle()
            assert scene.clock is not None
            scene.clock.advance(1)
        vmi = await scene.running("blue")
        assert vmi["status"]["nodeName"] == "oak"
        assert [entry["nodeName"] for entry in vmi["status"]["failedLaunches"]] == ["elm"]


PREFERS_ELM = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "preference": {
    "matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["elm"]}]}}]}}


async def _nothing(*_: object) -> None:
    return None


async def test_the_only_host_is_an_error(tmp_path: Path) -> None:
    async with started(tmp_path, GOOD, "elm") as scene:
        await scene.create(kinds.DEVICE_CLASS, "default", {})
        await scene.template()
        await scene.machine("blue")
        await scene.running("blue")
    with pytest.raises(StartupRefused, match="is in use by vmi/blue"):
        async with started(tmp_path, OTHER_CLASS, "elm"):
            pytest.fail("it started")


WRONG = "report_in_placement: true\ndevice_spec: [{vendor_id: 8086}]\n"


async def test_with_every_host_refused_the_vms_of_one_are_served(tmp_path: Path) -> None:
    with pytest.raises(StartupRefused) as error:
        async with started(tmp_path / "new", WRONG):
            pytest.fail("it started, with nothing to serve")
    assert [f"host {name} does not start" in str(error.value) for name in ("elm", "oak")] == [True, True]
    await with_a_vm_on_elm(tmp_path)
    async with started(tmp_path, WRONG) as scene:
        assert [(await ready(scene, name))["shown"] for name in ("elm", "oak")] == ["NotReady,StartRefused"] * 2
        await scene.delete(kinds.VMI, "blue")
        await scene.gone("blue")
