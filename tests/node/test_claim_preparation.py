"""Prepare and release through the whole product: what a person reads when it does not work, what is quarantined, and what a
start finds that was left."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import random
import shutil
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from outfitter import app
from outfitter.api import conditions, kinds, rejection_conditions
from outfitter.api.kubevirt import vmi_actions
from outfitter.api.ledger_page.page import Page
from outfitter.errors import BindFailed, HypervisorError, NotReady, StartupRefused
from outfitter.inventory import config, host_devices, scan
from outfitter.inventory.host_tree import MemoryTree
from outfitter.inventory.simulation import hosts_file
from outfitter.launcher.simulated import Simulated
from outfitter.ledger import book
from outfitter.node import host_audit
from outfitter.node.agent_host import AgentHost
from outfitter.node.atomic_files import FolderFiles
from outfitter.node.devices import passthrough_device
from outfitter.node.devices.checkpoint import Checkpoint
from outfitter.node.devices.prepare import AllocatedDevice, prepare
from outfitter.node.devices.unprepare import unprepare
from outfitter.node.host_env import HostEnv
from outfitter.node.simulation.kernel import SimulatedKernel
from outfitter.node.simulation.root import SimulatedRoot
from outfitter.store.clock import ManualClock
from outfitter.store.id_generator import IdGenerator
from outfitter.store.memory import Memory
from tests.controllers.scenario import Scene, device
from tests.ledger.unchecked_pages import unchecked
from tests.node.prepare_host import BARE, BOUND, GPU, NIC, NVME, claim, folder
from tests.rejected import Code

SSD, CARD, GFX, SOUND, PF, OTHER = ("0000:66:00.0", "0000:68:00.0", "0000:65:00.0", "0000:65:00.1", "0000:3b:00.0",
                                    "0000:3b:00.1")
DISKS = "device_spec: [{vendor_id: 144d}]"
ONCE = "device_spec: [{vendor_id: 144d, one_time_use: 'yes'}]\nreport_in_placement: true"


def hosts(pci: str, spec: str = DISKS, data: Path | None = None) -> list[AgentHost]:
    played = hosts_file.parse(f"hosts: [{{name: node, pci: [{pci}]}}]").hosts
    return app.simulated_hosts(played, data, config.parse(spec))


@contextlib.asynccontextmanager
async def running(served: list[AgentHost], data: Path | None = None, seed: int = 1) -> AsyncIterator[Scene]:
    """`seed`: with another one claims have other uids."""
    clock = ManualClock()
    async with app.embedded(hosts=served, data=data, clock=clock, names=IdGenerator(random.Random(seed))) as product:
        scene = Scene(product, "here", clock)
        if await scene.find(kinds.NAMESPACE, "here") is None:
            await product.store.create(kinds.NAMESPACE, {"metadata": {"name": "here"}})
            await scene.create(kinds.DEVICE_CLASS, "here", {"selectors": [{"cel": {
                "expression": 'device.driver == "pci.outfitter.dev"'}}]})
            await scene.template()
        yield scene


def played(scene: Scene) -> SimulatedKernel:
    assert scene.host.env is not None
    root = scene.host.env.root
    assert isinstance(root, SimulatedRoot)
    return root.kernel


async def page(scene: Scene) -> Page:
    return await book.read(scene.store, "node")


async def test_a_vm_binds_its_device_to_vfio_and_restores_it() -> None:
    async with running(hosts(NVME)) as scene:
        await scene.machine("blue")
        await scene.running("blue")
        assert played(scene).driver(SSD) == "vfio-pci"
        await scene.delete(kinds.VMI, "blue")
        await scene.empty()
        assert played(scene).driver(SSD) == "nvme"
        assert not (await page(scene)).quarantined


async def refused(scene: Scene, *words: str) -> None:
    """Until a pod reports that its device is not prepared, in these words."""
    async def reported() -> bool:
        return any(all(word in each for word in words) for each in await scene.events("FailedPrepareDevices"))

    await scene.reach(reported, f"a pod says {' and '.join(words)}")


async def test_a_device_that_cannot_be_prepared_is_reported_and_retried() -> None:
    async with running(hosts(NVME)) as scene:
        played(scene).rejects.add(("vfio-pci", SSD))
        await scene.machine("blue")
        why = "0000:66:00.0 is bound to no driver after it was bound to vfio-pci; the kernel's log (dmesg) says why"

        async def reported() -> bool:
            return why in await scene.events("FailedPrepareDevices")

        await scene.reach(reported, "the pod says why")
        assert (await scene.pod("blue"))["status"]["message"] == why
        assert not await scene.domains()
        played(scene).rejects.clear()
        await scene.running("blue")


async def test_a_device_of_a_running_vm_is_not_prepared_again_even_without_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a cluster an administrator may delete it."""
    monkeypatch.setattr(host_audit, "_lost_prepared", lambda *_: False)  # it would be booked again at once
    async with running(hosts(NVME)) as scene:
        await scene.machine("blue")
        await scene.running("blue")
        with unchecked(scene.store):
            await scene.store.delete(kinds.LEDGER_PAGE, "node")
        await scene.machine("green")
        await refused(scene, "cannot be prepared: a VM still has it, by claim here/")
        assert len(await scene.domains()) == 1
        await scene.delete(kinds.VMI, "blue")
        await scene.running("green")
        assert len(await scene.domains()) == 1
        assert played(scene).resets == [SSD]  # between the two


async def watched(scene: Scene) -> None:
    """A pod with admin access while a VM has the device."""
    await scene.create(kinds.NAMESPACE, "admin", {}, labels={"resource.kubernetes.io/admin-access": "true"})
    place = {"namespace": "admin"}
    await scene.store.create(kinds.RESOURCE_CLAIM, {
        "metadata": {"name": "watch", **place}, "spec": scene.claim_spec("all", adminAccess=True)})
    await scene.store.create(kinds.POD, {"metadata": {"name": "watch", **place}, "spec": {
        "containers": [{"name": "main"}], "resourceClaims": [{"name": "all", "resourceClaimName": "watch"}]}})

    async def looks_on() -> bool:
        return bool((await scene.store.get(kinds.POD, "watch", "admin"))["status"].get("phase") == "Running")

    await scene.reach(looks_on, "the pod looks on")


async def test_admin_access_does_not_keep_a_device_from_its_reset() -> None:
    async with running(hosts(NVME)) as scene:
        kernel, host_env = played(scene), scene.host.env
        assert host_env is not None
        await scene.machine("blue")
        await scene.running("blue")
        await watched(scene)
        for number, name in enumerate(("blue", "green"), 1):
            if name == "green":
                await scene.machine(name)
                await scene.running(name)
            assert kernel.driver(SSD) == "vfio-pci"
            await scene.delete(kinds.VMI, name)
            await scene.gone(name)
            assert (kernel.driver(SSD), kernel.resets) == ("nvme", [SSD] * number)
        await scene.store.delete(kinds.POD, "watch", "admin")

        async def forgotten() -> bool:
            return not host_env.checkpoint.taken

        await scene.reach(forgotten, "who looked on is gone")
        assert (kernel.driver(SSD), len(kernel.resets)) == ("nvme", 2)


async def test_admin_access_to_a_running_vms_device_across_a_restart(tmp_path: Path) -> None:
    async with running(hosts(NVME, data=tmp_path), tmp_path) as scene:
        await scene.machine("blue")
        await scene.running("blue")
        await watched(scene)
    async with running(hosts(NVME, data=tmp_path), tmp_path) as scene:
        await scene.settle()
        assert not await scene.events("FailedPrepareDevices")
        assert not (await scene.pod("blue"))["status"].get("message")
        assert len(await scene.domains()) == 1


async def test_a_device_that_is_not_unprepared_yet_is_not_prepared_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(hosts(NVME, data=tmp_path)) as scene:
        await scene.machine("blue")
        await scene.running("blue")
    for path in (tmp_path / "domains" / "node").iterdir():
        path.unlink()

    def remove(name: str) -> None:
        raise OSError(errno.EROFS, "Read-only file system", name)

    served = hosts(NVME, data=tmp_path)
    assert served[0].env is not None
    monkeypatch.setattr(served[0].env.metadata, "remove", remove)
    async with running(served, seed=2) as scene:  # with books of its own, in which nothing is booked
        kernel = played(scene)
        await scene.machine("green")
        await refused(scene, "cannot be prepared: it is not restored from claim here/", "Read-only file system")
        assert kernel.resets == []
        monkeypatch.undo()
        await scene.running("green")
        assert (kernel.driver(SSD), kernel.resets) == ("vfio-pci", [SSD])
        await scene.delete(kinds.VMI, "green")
        await scene.empty()
        assert (kernel.driver(SSD), kernel.resets) == ("nvme", [SSD, SSD])


async def test_a_device_that_was_not_restored_is_not_prepared_for_its_next_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lost page let it be booked before it was known to be in trouble."""
    monkeypatch.setattr(host_audit, "_lost_prepared", lambda *_: False)  # it would be booked again at once
    async with running(hosts(NVME)) as scene:
        kernel = played(scene)
        await scene.machine("blue")
        await scene.running("blue")
        with unchecked(scene.store):
            await scene.store.delete(kinds.LEDGER_PAGE, "node")
        await scene.machine("green")
        await refused(scene, "cannot be prepared: a VM still has it, by claim here/")
        kernel.fail("reset", errno.EIO)
        await scene.delete(kinds.VMI, "blue")
        await refused(scene, "it is not restored from claim here/", f"{SSD} could not be reset")
        assert not await scene.domains()
        assert [mark.device.device for mark in (await page(scene)).quarantined] == ["pci-0000-66-00-0"]
        kernel.faults.clear()
        await scene.running("green")
        assert kernel.resets == [SSD]


async def test_a_vm_that_never_starts_releases_everything() -> None:
    async with running(hosts(NVME)) as scene:
        played(scene).rejects.add(("vfio-pci", SSD))
        await scene.machine("blue")

        async def tried() -> bool:
            return played(scene).driver(SSD) is None

        await scene.reach(tried, "it was taken from its driver")
        await scene.delete(kinds.VMI, "blue")
        await scene.empty()
        assert played(scene).driver(SSD) == "nvme"


async def test_a_device_that_cannot_be_restored_is_quarantined_and_not_allocated() -> None:
    async with running(hosts(f"{NVME}, {BARE}")) as scene:
        await scene.machine("blue")
        await scene.running("blue")
        [booking] = await scene.bookings()
        assert booking.device.device == "pci-0000-66-00-0"
        played(scene).rejects.add(("nvme", SSD))
        await scene.delete(kinds.VMI, "blue")
        await scene.empty()
        [mark] = (await page(scene)).quarantined
        assert (mark.device.device, mark.by) == ("pci-0000-66-00-0", "host node")
        assert mark.reason == "0000:66:00.0 is bound to no driver, and was bound to nvme before it was prepared"
        await scene.machine("green")
        await scene.running("green")
        assert [booking.device.device for booking in await scene.bookings()] == ["pci-0000-67-00-0"]


async def test_device_for_one_use_is_unclean_after_release() -> None:
    async with running(hosts(NVME, ONCE)) as scene:
        await scene.machine("blue")
        await scene.running("blue")
        await scene.delete(kinds.VMI, "blue")
        await scene.empty()
        found = await page(scene)
        assert [mark.device.device for mark in found.unclean] == ["pci-0000-66-00-0"]
        assert not found.quarantined
        assert played(scene).driver(SSD) == "nvme"


async def test_a_start_finds_everything_as_it_was_left(tmp_path: Path) -> None:
    """With a folder: the VM runs on while outfitter does not, and its device stays its own."""
    pci = f"{NVME}, {GPU}"
    spec = "device_spec: [{vendor_id: 144d}, {vendor_id: 10de}]"
    async with running(hosts(pci, spec, tmp_path), tmp_path) as scene:
        await scene.machine("blue")
        await scene.machine("green")
        await scene.running("blue")
        await scene.running("green")
    files = tmp_path / "hosts" / "node"
    assert len(list((files / "cdi").iterdir())) == 2
    assert len(list((files / "metadata").rglob("*-metadata.json"))) == 2
    async with running(hosts(pci, spec, tmp_path), tmp_path) as scene:
        kernel = played(scene)
        assert [kernel.driver(address) for address in (SSD, GFX, SOUND)] == ["vfio-pci"] * 3
        await scene.running("blue")
        await scene.check_books()
        assert kernel.resets == []
        for name in ("blue", "green"):
            await scene.delete(kinds.VMI, name)
        await scene.empty()
        assert [kernel.driver(address) for address in (SSD, GFX, SOUND)] == ["nvme", "nouveau", "snd_hda_intel"]
    assert sorted(path.name for path in files.rglob("*") if path.is_file()) == ["checkpoint.json"]


async def test_a_pf_of_a_stopped_vm_gets_no_vfs(tmp_path: Path) -> None:
    """Neither its first port, by whose name it is booked, nor the other one, which goes along."""
    port = (NIC % 0).replace("vfs:", "iommuGroup: 5, vfs:")
    cards, spec = f"{port}, {port.replace(PF, OTHER).replace('ens1f0', 'ens1f1')}", "device_spec: [{product_id: '1592'}]"
    async with running(hosts(cards, spec, tmp_path), tmp_path) as scene:
        await scene.create(kinds.VM, "blue", {
            "runStrategy": "Always", "resourceClaimTemplates": [{"name": "network", "spec": {"spec": scene.claim_spec()}}],
            "template": {"spec": {"domain": {"memory": {"guest": "1Gi"}, "devices": {"hostDevices": [device()]}}}}})
        await scene.running("blue")
        await scene.store.patch(kinds.VM, "blue", {"spec": {"runStrategy": "Halted"}}, "here")
        await scene.gone("blue")
        assert played(scene).driver(PF) == "ice"
    asked = f"{spec}\nsriov: [{{vendor_id: 8086, product_id: 1592, count: 4}}]"
    async with running(hosts(cards, asked, tmp_path), tmp_path) as scene:
        await scene.store.patch(kinds.VM, "blue", {"spec": {"runStrategy": "Always"}}, "here")
        await scene.running("blue")
        said = (await scene.store.get(kinds.HOST_INVENTORY, "node"))["spec"]["warnings"]
        assert said == [f"{one} has 0 VFs, and 4 are configured: it is left as it is while {one} is in use"
                        for one in (PF, OTHER)]


async def test_a_device_without_a_holder_is_unprepared_at_the_start(tmp_path: Path) -> None:
    """The page was lost, or healed by an audit that saw no VM."""
    async with running(hosts(NVME, data=tmp_path)) as scene:
        await scene.machine("blue")
        await scene.running("blue")
    state = tmp_path / "hosts" / "node" / "state"
    kept = (state / "checkpoint.json").read_text()
    for path in (tmp_path / "domains" / "node").iterdir():
        path.unlink()
    served = hosts(NVME, data=tmp_path)
    async with running(served) as scene:  # with books of its own, in which nothing is booked
        assert played(scene).driver(SSD) == "nvme"
        assert played(scene).resets == [SSD]
    assert kept != (state / "checkpoint.json").read_text()


async def test_a_device_of_a_running_vm_is_not_unprepared_though_it_is_not_booked(tmp_path: Path) -> None:
    async with running(hosts(NVME, data=tmp_path)) as scene:
        await scene.machine("blue")
        await scene.running("blue")
        [domain] = await scene.domains()
    served = hosts(NVME, data=tmp_path)
    clock = ManualClock()
    product = app.Embedded(Memory(clock=clock, names=IdGenerator(random.Random(2))), served, clock=clock)
    await product.preparation.start()
    host_env = served[0].env
    assert host_env is not None
    assert len(host_env.checkpoint.taken) == 1
    assert domain.devices == (SSD,)
    assert host_env.root.link(f"/sys/bus/pci/devices/{SSD}/driver") == "/sys/bus/pci/drivers/vfio-pci"


async def test_a_checkpoint_that_cannot_be_read_keeps_the_host_from_starting(tmp_path: Path) -> None:
    served = hosts(NVME, data=tmp_path)
    assert served[0].env is not None
    served[0].env.state.write("checkpoint.json", '{"version": 7}')
    with pytest.raises(StartupRefused, match=r"host node does not start: .*checkpoint\.json has version 7"):
        async with running(served):
            pass


async def test_a_kernel_that_does_not_answer_is_reported_and_gets_no_second_write() -> None:
    """As when a driver waits for the process that has the device open."""
    begun, go, asked = threading.Event(), threading.Event(), list[str]()
    host_env = HostEnv("node", "pci.outfitter.dev", SimulatedKernel(MemoryTree({})), patience=0.02)

    def slow() -> str:
        asked.append("again")
        begun.set()
        go.wait(60)
        return "done"

    for _ in range(3):
        with pytest.raises(NotReady, match="the kernel of node has not answered a write for more than 0 s"):
            await host_env.run(slow)
    await asyncio.to_thread(begun.wait, 60)
    assert asked == ["again"]
    go.set()
    assert host_env._slow is not None
    await host_env._slow
    host_env._patience = 60
    assert await host_env.run(slow) == "done"


async def test_the_process_that_has_a_device_open_is_named() -> None:
    async with running(hosts(NVME)) as scene:
        played(scene).hold(SSD, 4711, "fio", "/dev/nvme0")
        await scene.machine("blue")
        await refused(scene, "Device or resource busy; process 4711 (fio) has /dev/nvme0 open")
        assert (await scene.pod("blue"))["status"]["reason"] == "FailedPrepareDevices"
        assert rejection_conditions.of(await scene.pod("blue")) == [Code.DRIVER_NOT_BOUND]
        assert rejection_conditions.of(await scene.find(kinds.VMI, "blue") or {}) == [Code.DRIVER_NOT_BOUND]


async def test_the_process_is_named_when_the_kernel_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    go = threading.Event()
    async with running(hosts(NVME)) as scene:
        env, kernel = scene.host.env, played(scene)
        assert env is not None
        env._patience = 0.05
        kernel.hold(SSD, 4711, "fio", "/dev/nvme0")
        with monkeypatch.context() as patched:
            patched.setattr(kernel, "write", lambda path, text: go.wait(60))
            await scene.machine("blue")
            await refused(scene, "has not answered a write for more than 0 s: process 4711 (fio) has /dev/nvme0 open, and the "
                                 "driver waits until it is closed")
            go.set()
            assert env._slow is not None
            await asyncio.wait([env._slow])
        kernel.busy.clear()
        await scene.running("blue")


async def test_a_real_host_writes_below_its_root_alone(tmp_path: Path) -> None:
    """A folder in the place of a VM: its attributes can be written and do nothing, so nothing is believed to be done."""
    root, data = tmp_path / "root", tmp_path / "data"
    tree = folder(hosts_file.parse(f"hosts: [{{name: node, pci: [{NVME}, {BOUND}]}}]").hosts[0].tree(), root)
    for path in ("drivers_probe", "drivers/nvme/unbind", f"devices/{CARD}/reset"):
        (root / "sys/bus/pci" / path).write_text("")
    (root / "sys/bus/pci/drivers/vfio-pci").mkdir(exist_ok=True)
    host = app.this_host("node", Simulated(), data, root, config.parse("device_spec: [{vendor_id: 10de}, {vendor_id: 144d}]"))
    assert host is not None
    host_env = host.env
    assert host_env is not None
    seen = host_devices.host_devices("node", host.settings, scan.scan(tree))
    known = passthrough_device.of(seen)
    with pytest.raises(BindFailed, match=f"{SSD} is bound to nvme after it was bound to vfio-pci"):
        await host_env.run(lambda: prepare(host_env, claim(), [AllocatedDevice(known[seen.names[SSD]], "gpu")]))
    assert (root / "sys/bus/pci/drivers/nvme/unbind").read_text() == SSD
    made = claim("mine", uid="uid-2")
    given = await host_env.run(lambda: prepare(host_env, made, [AllocatedDevice(known[seen.names[CARD]], "gpu")]))
    assert given.metadata == str(root / "var/run/outfitter/metadata/uid-2")
    said = json.loads((root / "var/run/cdi/pci.outfitter.dev-claim_uid-2.json").read_text())
    assert said["containerEdits"]["deviceNodes"] == [
        {"path": "/dev/vfio/vfio", "hostPath": str(root / "dev/vfio/vfio"), "permissions": "rw"}]
    assert len(Checkpoint(FolderFiles(data / "hosts/node/state"), "node").taken) == 2
    assert await host_env.run(lambda: unprepare(host_env, "uid-2")) == {}
    assert (root / f"sys/bus/pci/devices/{CARD}/reset").read_text() == "1"
    assert [path for path in (root / "var").rglob("*") if path.is_file()] == []


async def test_files_for_runtimes_are_of_our_devices_alone(tmp_path: Path) -> None:
    """Another driver writes its own. What an earlier version wrote for a claim on its devices goes at the next start."""
    folder, other = tmp_path / "hosts" / "node" / "cdi", {"driver": "gpu.example.com", "nodeName": "node"}
    async with running(hosts(NVME, data=tmp_path), tmp_path) as scene:
        await scene.create(kinds.RESOURCE_SLICE, "far", {**other, "pool": {
            "name": "far", "generation": 1, "resourceSliceCount": 1}, "devices": [
                {"name": "gpu-0", "attributes": {"resource.kubernetes.io/pciBusID": {"string": CARD}}}]})
        await scene.create(kinds.DEVICE_CLASS, "far", {"selectors": [{"cel": {"expression": "device.driver != '0'"}}]})
        far = [{"cel": {"expression": "device.driver == 'gpu.example.com'"}}]
        await scene.template("foreign", "gpu", deviceClassName="far", selectors=far)
        await scene.machine("green", device("gpu", request="gpu"), template="foreign")
        await scene.running("green")
        assert not [*folder.glob("*")]
        await scene.machine("blue")
        await scene.running("blue")
        [ours] = folder.glob("*")
        empty = {**json.loads(ours.read_text()), "devices": []}
        theirs = {"gpu.example.com-claim_1.json": json.dumps(empty), "pci.outfitter.dev-claim_2.json": "{"}
        for name, text in theirs.items():
            (folder / name).write_text(text)
        (folder / "pci.outfitter.dev-claim_3.json").write_text(json.dumps(empty))
    async with running(hosts(NVME, data=tmp_path), tmp_path) as scene:
        await scene.settle()
        assert sorted(path.name for path in folder.glob("*")) == sorted([*theirs, ours.name]), "not the third"
        for name in ("green", "blue"):
            await scene.delete(kinds.VMI, name)
        await scene.empty()
        assert sorted(path.name for path in folder.glob("*")) == sorted(theirs)


async def test_a_page_that_lost_a_booking_is_seen_when_a_pod_goes() -> None:
    async with running(hosts(NVME)) as scene:
        await scene.machine("blue")
        await scene.running("blue")
        host_env = scene.host.env
        assert host_env is not None
        [domain] = await scene.domains()
        await scene.host.hypervisor.stop(domain.uid)
        with unchecked(scene.store):
            await scene.store.delete(kinds.LEDGER_PAGE, "node")
        await scene.delete(kinds.VMI, "blue")

        async def free() -> bool:
            return Checkpoint(host_env.state, "node").taken == () and played(scene).driver(SSD) == "nvme"

        await scene.reach(free, "the device is back with its driver")


TAKEN = NVME.replace("driver: nvme", "driver: vfio-pci")
BY_HAND = "device_spec: [{vendor_id: 144d, managed: 'no'}]"


@pytest.mark.parametrize(("before", "spec"), [(NVME, DISKS), (TAKEN, BY_HAND)], ids=["vfio-pci refuses", "not bound again"])
async def test_a_vm_that_a_reboot_of_its_host_ended_has_failed(before: str, spec: str, tmp_path: Path) -> None:
    """The drivers have everything again, and its device cannot be prepared any more."""
    async with running(hosts(before, spec, tmp_path), tmp_path) as scene:
        await scene.machine("blue")
        await scene.running("blue")
    for path in (tmp_path / "domains" / "node").iterdir():
        path.unlink()
    (tmp_path / "hosts/node/kernel/kernel.json").unlink(missing_ok=True)
    served = hosts(NVME, spec, tmp_path)
    assert served[0].env is not None
    assert isinstance(served[0].env.root, SimulatedRoot)
    served[0].env.root.kernel.rejects.add(("vfio-pci", SSD))
    async with running(served, tmp_path) as scene:
        found = conditions.find(await scene.phase("blue", "Failed"), "Ready")
        assert found is not None
        assert found["message"] == "the VM no longer runs on node"

        async def free() -> bool:
            return not await scene.bookings()

        await scene.reach(free, "its device is free again")


async def test_a_running_vm_is_reconciled_though_its_files_cannot_be_written_again(tmp_path: Path) -> None:
    async with running(hosts(NVME, data=tmp_path), tmp_path) as scene:
        made = await scene.machine("blue")
        await scene.running("blue")
    cdi = tmp_path / "hosts/node/cdi"

    def block() -> None:
        shutil.rmtree(cdi)
        cdi.write_text("")  # nothing can be written there

    async def reports(reason: str | None) -> bool:
        return bool((await scene.pod("blue"))["status"].get("reason") == reason)

    block()
    async with running(hosts(NVME, data=tmp_path), tmp_path) as scene:
        await scene.reach(lambda: reports("FailedPrepareDevices"), "the pod says it")
        await scene.store.patch(kinds.VMI, "blue", {"status": {vmi_actions.FIELD: [{"action": "Pause"}]}}, "here",
                                subresource="status")

        async def stands() -> bool:
            return conditions.is_true(await scene.running("blue"), vmi_actions.PAUSED)

        await scene.reach(stands, "it is paused all the same")
        assert await reports("FailedPrepareDevices")
        cdi.unlink()
        await scene.reach(lambda: reports(None), "the pod no longer says it")
        assert "message" not in (await scene.pod("blue"))["status"]
    block()
    async with running(hosts(NVME, data=tmp_path), tmp_path) as scene:
        await scene.reach(lambda: reports("FailedPrepareDevices"), "the pod says it again")
        assert isinstance(scene.host.hypervisor, Simulated)
        scene.host.hypervisor.simulate_end(made["metadata"]["uid"], "it was a warm day")
        await scene.phase("blue", "Failed")


@pytest.mark.parametrize("ends", [False, True], ids=["it is deleted", "it ends by itself"])
async def test_a_device_that_cannot_be_unprepared_is_reported_and_retried(ends: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(hosts(NVME)) as scene:
        made = await scene.machine("blue")
        await scene.running("blue")
        host_env, hypervisor = scene.host.env, scene.host.hypervisor
        assert host_env is not None
        assert isinstance(hypervisor, Simulated)

        def refuse(name: str) -> None:
            raise OSError(30, "Read-only file system", name)

        monkeypatch.setattr(host_env.metadata, "remove", refuse)
        if ends:
            hypervisor.simulate_end(made["metadata"]["uid"], "it was a warm day")
        else:
            await scene.delete(kinds.VMI, "blue")

        async def reported() -> list[str]:
            return await scene.events("FailedReleaseDevices")

        [why] = await scene.reach(reported, "the pod says why")
        assert "cannot be unprepared on node: [Errno 30] Read-only file system" in why
        reason, message = "FailedReleaseDevices", why
        if ends:
            reason, message = "DomainFailed", "node: it was a warm day"
        pod = await scene.pod("blue")
        assert (pod["status"]["reason"], pod["status"]["message"]) == (reason, message)
        unreleased = conditions.find(pod, conditions.UNRELEASED)
        assert ((unreleased or {}).get("reason"), (unreleased or {}).get("message")) == (
            ("FailedReleaseDevices", why) if ends else (None, None))
        assert scene.clock is not None
        for _ in range(5):
            scene.clock.advance(1)
            await scene.settle()
        assert await reported() == [why], "the same again is not said again"
        assert [booking.state for booking in await scene.bookings()] == ["prepared"]
        monkeypatch.undo()

        async def free() -> bool:
            return not await scene.bookings()

        await scene.reach(free, "its device is free")
        await scene.settle()
        if ends:
            pod = await scene.pod("blue")
            assert (pod["status"]["reason"], pod["status"]["message"]) == (reason, "node: it was a warm day")
            assert conditions.find(pod, conditions.UNRELEASED) is None
            await scene.delete(kinds.VMI, "blue")
        await scene.empty()


async def test_a_vm_that_cannot_be_stopped_reports_why(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(hosts(NVME)) as scene:
        await scene.machine("blue")
        await scene.running("blue")

        async def refuse(uid: str, grace: float = 0.0) -> float | None:
            raise HypervisorError("libvirt cannot end it: its process does not die")

        monkeypatch.setattr(scene.host.hypervisor, "stop", refuse)
        await scene.delete(kinds.VMI, "blue")

        async def reported() -> bool:
            said = (await scene.pod("blue"))["status"].get("message")
            return bool(said == "libvirt cannot end it: its process does not die")

        await scene.reach(reported, "the pod says why")
        assert [booking.state for booking in await scene.bookings()] == ["prepared"], "not free while it runs"
        monkeypatch.undo()
        await scene.empty()
