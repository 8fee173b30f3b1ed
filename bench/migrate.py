"""Live migrations of VMs on simulated hosts, in one process: a NIC is added to every VM that it must migrate for, the
workload updater creates the migrations, and as many as are allowed run at a time. How long each took from the condition to
Succeeded, what was written for it, and what a look at a thousand VMs costs that did not change.

    python -m bench.migrate [HOSTS VMS PARALLEL] [device]

With `device` every VM has a GPU by a claim from a template, which travels with it; migrations are created directly."""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from bench.vms import _run, _spread
from outfitter import app
from outfitter.api import conditions, kinds
from outfitter.api.kinds import Kind, Object
from outfitter.api.kubevirt import kubevirt_config, migration
from outfitter.inventory import config
from outfitter.inventory.config import Config, HostSettings
from outfitter.inventory.simulation import hosts_file
from outfitter.node.agent_host import AgentHost
from outfitter.roles.process import spare_the_collector
from outfitter.store.memory import Memory

HOSTS, VMS, PARALLEL, UNCHANGED = 20, 100, 5, 1000
TEMPLATE: Object = {"spec": {"networks": [{"name": "default", "pod": {}}], "domain": {
    "memory": {"guest": "64Mi"}, "cpu": {"cores": 1}, "devices": {"interfaces": [{"name": "default", "masquerade": {}}]}}}}
NETWORK = {"metadata": {"name": "lan", "namespace": "default"}, "spec": {
    "config": '{"cniVersion": "0.3.1", "name": "lan", "type": "bridge", "bridge": "br0"}'}}
INTERFACES = [{"name": "default", "masquerade": {}}, {"name": "lan", "bridge": {}}]
WITH_NIC = {"spec": {"networks": [*TEMPLATE["spec"]["networks"], {"name": "lan", "multus": {"networkName": "lan"}}],
                     "domain": {"devices": {"interfaces": INTERFACES}}}}
CONFIG = Config(default=HostSettings(plug_in_place=False))
MOST_WRITES, MOST_WRITES_WITH_DEVICE = 15, 20
# For VMs with a device.
CLASS = {"metadata": {"name": "gpu"}, "spec": {"selectors": [{"cel": {"expression": 'device.driver == "pci.outfitter.dev"'}}]}}
CLAIM_TEMPLATE = {"metadata": {"name": "one", "namespace": "default"}, "spec": {"spec": {"devices": {"requests": [
    {"name": "card", "exactly": {"deviceClassName": "gpu"}}]}}}}
WITH_DEVICE: Object = {"spec": {**TEMPLATE["spec"], "resourceClaims": [{"name": "acc", "resourceClaimTemplateName": "one"}],
                                "domain": {**TEMPLATE["spec"]["domain"], "devices": {
                                    **TEMPLATE["spec"]["domain"]["devices"], "gpus": [
                                        {"name": "g0", "claimName": "acc", "requestName": "card"}]}}}}
DEVICE_CONFIG = config.parse("plug_in_place: false\ndevice_spec: [{vendor_id: 10de, live_migratable: 'yes'}]")


async def _started(product: app.Embedded, vms: int, template: Object = TEMPLATE) -> None:
    for number in range(vms):
        await product.store.create(kinds.VM, {"metadata": {"name": f"vm-{number}", "namespace": "default"}, "spec": {
            "runStrategy": "Always", "template": template}})
    while True:
        found = (await product.store.list(kinds.VMI)).items
        if sum((vmi.get("status") or {}).get("phase") == "Running" for vmi in found) == vms:
            return
        await asyncio.sleep(0.05)


def _hosts(count: int, data: Path) -> list[AgentHost]:
    numa = "[{id: 0, cpus: 0-63, memory: 256Gi}]"
    text = f"hosts: [{{name: node, count: {count}, numa: {numa}, bridges: [{{name: br0}}], pci: []}}]"
    return app.simulated_hosts(hosts_file.parse(text).hosts, data, CONFIG)


async def _limit(store: Memory, parallel: int) -> None:
    """How many migrations may run at a time."""
    migrations = {"parallelMigrationsPerCluster": parallel, "parallelOutboundMigrationsPerNode": parallel}
    spec = {"configuration": {"migrations": migrations}, "workloadUpdateStrategy": {"workloadUpdateMethods": ["LiveMigrate"]}}
    await store.create(kinds.KUBEVIRT, {"metadata": {"name": "kubevirt", "namespace": "default", "annotations": {
        kubevirt_config.PLUG_GRACE_ANNOTATION: "0"}}, "spec": spec})


def _vm(kind: Kind, obj: Object) -> str:
    """The VM that an object is about."""
    if kind == kinds.MIGRATION:
        return migration.vmi_name(obj)
    if kind == kinds.POD:
        return str((obj["metadata"].get("labels") or {}).get("vm.kubevirt.io/name"))
    if kind == kinds.EVENT:
        return f"vm-{obj['involvedObject']['name'].partition('vm-')[2].partition('-')[0]}"
    return str(obj["metadata"]["name"])


async def _change(store: Memory, vms: int) -> None:
    """Every VM gets a NIC that it must migrate for."""
    await store.create(kinds.NETWORK_ATTACHMENT, NETWORK)
    for number in range(vms):
        await store.patch(kinds.VM, f"vm-{number}", {"spec": {"template": WITH_NIC}}, "default")


async def measure(hosts: int, vms: int, parallel: int, data: Path) -> None:
    async with app.embedded(data=data, hosts=_hosts(hosts, data), config=CONFIG) as product:
        store = product.store
        await _limit(store, parallel)
        await _started(product, vms)
        await product.settle()
        spare_the_collector()
        written: Counter[str] = Counter()
        revision, took, ran = store.revision, dict[str, float](), dict[str, float]()
        required, created = dict[str, float](), dict[str, float]()
        start, cpu = time.perf_counter(), time.process_time()

        async def count(kind: Kind) -> None:
            """Writes of a kind that are about a VM whose condition is set."""
            async for event in store.watch(kind, since=str(revision)):
                if kind == kinds.VMI and conditions.is_true(event.object, migration.MIGRATION_REQUIRED) and (
                        event.object["metadata"]["name"] not in required):
                    required[event.object["metadata"]["name"]] = time.perf_counter()
                elif _vm(kind, event.object) in required:
                    written[kind.kind] += 1
                    if kind == kinds.POD and migration.job_uid(event.object):
                        created.setdefault(_vm(kind, event.object), time.perf_counter())

        async def look() -> None:
            async for event in store.watch(kinds.MIGRATION, since=str(revision)):
                name, phase = migration.vmi_name(event.object), migration.phase_of(event.object)
                if phase == "Failed":
                    raise RuntimeError(f"a migration failed: {event.object['status']}")
                if phase == "Succeeded" and name not in took:
                    took[name], ran[name] = time.perf_counter() - required[name], time.perf_counter() - created[name]
                    if len(took) == vms:
                        return

        counted = (kinds.VM, kinds.VMI, kinds.MIGRATION, kinds.POD, kinds.EVENT)
        counting = [asyncio.ensure_future(count(kind)) for kind in counted]
        looking = asyncio.ensure_future(look())
        await _change(store, vms)
        await looking
        total, used = time.perf_counter() - start, time.process_time() - cpu
        await product.settle()
        for task in counting:
            task.cancel()
        events = written.pop(kinds.EVENT.kind, 0)
        each = sum(written.values()) / vms
        print(f"{hosts} hosts: {vms} migrations, {parallel} at a time, in {total:.2f} s ({used:.2f} s of CPU)\n"
              f"  from MigrationRequired, set on all within a second, to Succeeded {_spread(list(took.values()))}\n"
              f"  from the target's pod to Succeeded {_spread(list(ran.values()))}\n"
              f"  {each:.1f} writes each (at most {MOST_WRITES}), and {events / vms:.1f} events: "
              + ", ".join(f"{kind} {count / vms:.1f}" for kind, count in written.most_common()), flush=True)
        if each > MOST_WRITES:
            raise SystemExit(f"more than {MOST_WRITES} writes for a migration")


async def unchanged(hosts: int, vms: int, data: Path) -> None:
    """The controllers look at every VM again: nothing is written."""
    async with app.embedded(data=data, hosts=_hosts(hosts, data), config=CONFIG) as product:
        await _started(product, vms)
        await product.settle()
        revision, cpu = product.store.revision, time.process_time()
        for controller in product.runner.controllers:
            if controller.name in ("vm", "workload_update", "nic_hotplug"):
                for vm in product.context.informer(kinds.VM).items():
                    controller.queue.add(f"default/{vm['metadata']['name']}")
        await product.settle()
        used = time.process_time() - cpu
        writes = product.store.revision - revision
        print(f"{vms} VMs that did not change: {writes} writes, {used * 1e6 / vms:.0f} us of CPU each", flush=True)


def _device_hosts(count: int, vms: int, data: Path) -> list[AgentHost]:
    """Each with twice its share of the devices."""
    cards = ", ".join(f"{{address: '0000:{bus:02x}:00.0', vendor: 10de, product: 2235, class: '030200'}}"
                      for bus in range(1, 2 * -(-vms // count) + 3))
    numa = "[{id: 0, cpus: 0-63, memory: 256Gi}]"
    text = f"hosts: [{{name: node, count: {count}, numa: {numa}, pci: [{cards}]}}]"
    return app.simulated_hosts(hosts_file.parse(text).hosts, data, DEVICE_CONFIG)


async def with_device(hosts: int, vms: int, parallel: int, data: Path) -> None:
    """Migrations of VMs that each have a device: what is written for each, pages and claims included."""
    async with app.embedded(data=data, hosts=_device_hosts(hosts, vms, data), config=DEVICE_CONFIG) as product:
        store = product.store
        await _limit(store, parallel)
        await store.create(kinds.DEVICE_CLASS, CLASS)
        await store.create(kinds.RESOURCE_CLAIM_TEMPLATE, CLAIM_TEMPLATE)
        await _started(product, vms, WITH_DEVICE)
        await product.settle()
        spare_the_collector()
        written: Counter[str] = Counter()
        revision, start, cpu = store.revision, time.perf_counter(), time.process_time()
        created, took, ran = dict[str, float](), dict[str, float](), dict[str, float]()

        async def count(kind: Kind) -> None:
            async for event in store.watch(kind, since=str(revision)):
                written[kind.kind] += 1
                name, now = _vm(kind, event.object), time.perf_counter()
                if kind == kinds.POD and migration.job_uid(event.object):
                    created.setdefault(name, now)
                elif kind == kinds.MIGRATION and migration.phase_of(event.object) == "Succeeded" and name not in took:
                    took[name], ran[name] = now - start, now - created[name]

        counted = (kinds.VM, kinds.VMI, kinds.MIGRATION, kinds.POD, kinds.RESOURCE_CLAIM, kinds.LEDGER_PAGE)
        counting = [asyncio.ensure_future(count(kind)) for kind in counted]
        for number in range(vms):
            await store.create(kinds.MIGRATION, {"metadata": {"name": f"move-{number}", "namespace": "default"},
                                                 "spec": {"vmiName": f"vm-{number}"}})
        while True:
            phases = Counter(migration.phase_of(job) for job in (await store.list(kinds.MIGRATION)).items)
            if phases["Failed"]:
                raise RuntimeError(f"a migration failed: {phases}")
            if phases["Succeeded"] == vms:
                break
            await asyncio.sleep(0.05)
        total, used = time.perf_counter() - start, time.process_time() - cpu
        await product.settle()
        for task in counting:
            task.cancel()
        each = sum(written.values()) / vms
        print(f"{hosts} hosts: {vms} migrations with a device, {parallel} at a time, in {total:.2f} s ({used:.2f} s of CPU)\n"
              f"  from the request, made for all within a second, to Succeeded {_spread(list(took.values()))}\n"
              f"  from the target's pod to Succeeded {_spread(list(ran.values()))}\n"
              f"  {each:.1f} writes each (at most {MOST_WRITES_WITH_DEVICE}), beside events: "
              + ", ".join(f"{kind} {count / vms:.1f}" for kind, count in written.most_common()), flush=True)
        if each > MOST_WRITES_WITH_DEVICE:
            raise SystemExit(f"more than {MOST_WRITES_WITH_DEVICE} writes for a migration")


def main() -> None:
    if sys.argv[-1:] == ["device"]:
        hosts, vms, parallel = (int(word) for word in sys.argv[1:4]) if len(sys.argv) > 4 else (HOSTS, VMS, PARALLEL)
        with tempfile.TemporaryDirectory() as folder:
            _run(with_device(hosts, vms, parallel, Path(folder)))
        return
    hosts, vms, parallel = (int(word) for word in sys.argv[1:4]) if len(sys.argv) > 3 else (HOSTS, VMS, PARALLEL)
    with tempfile.TemporaryDirectory() as folder:
        _run(measure(hosts, vms, parallel, Path(folder)))
    if len(sys.argv) <= 3:
        with tempfile.TemporaryDirectory() as folder:
            _run(unchanged(100, UNCHANGED, Path(folder)))


if __name__ == "__main__":
    main()
