"""VMs whose GPUs and host devices come and go by claim, and that migrate with them, with a product that may be killed at any
point of it. At rest everything says the same of each device: the VM's template, the VMI, its status, the domain, the
attachment pods, claims and bookings."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from outfitter.api import conditions, kinds
from outfitter.api.hypervisor import Domain
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import attachment_pods, device_refs, device_status
from outfitter.api.kubevirt import vm as vm_api
from outfitter.api.rejection import RejectionCode
from outfitter.errors import AlreadyExists, Conflict, Invalid, NotFound
from outfitter.inventory import config
from outfitter.launcher.migration.simulated_copy import SimulatedCopy
from tests.controllers import invariants
from tests.node import vmi_lifecycle
from tests.node.kill_points import Kill
from tests.node.test_migration_kills import SLOW, SPEC, MigrationScenario

# Disks that may travel, and a card of two functions in one group that may not.
HOSTS = """
publisher: node.example.com
hosts:
- name: node-a
  pci:
  - {address: 0000:65:00.0, vendor: 10de, product: 2204, class: 030000, driver: nouveau, iommuGroup: 7}
  - {address: 0000:65:00.1, vendor: 10de, product: 1aef, class: 040300, driver: snd_hda_intel, iommuGroup: 7}
  - {address: 0000:66:00.0, vendor: 144d, product: a80a, class: 010802, driver: nvme}
  - {address: 0000:67:00.0, vendor: 144d, product: a80a, class: 010802, driver: none}
  - {address: 0000:68:00.0, vendor: 144d, product: a80a, class: 010802, driver: nvme}
- name: node-b
  pci:
  - {address: 0000:66:00.0, vendor: 144d, product: a80a, class: 010802, driver: nvme}
  - {address: 0000:67:00.0, vendor: 144d, product: a80a, class: 010802, driver: nvme}
  - {address: 0000:68:00.0, vendor: 144d, product: a80a, class: 010802, driver: nvme}
  - {address: 0000:69:00.0, vendor: 144d, product: a80a, class: 010802, driver: none}
"""
DEVICES = {"node-a": 4, "node-b": 4}
NAMES = ["vm0", "vm1"]
SHARED, OWN = "shared", "own"  # a claim that both VMs name, and one of a VM itself
ENTRIES: Mapping[str, device_refs.List] = {"gpu": "gpus", "disk": "hostDevices", SHARED: "hostDevices", OWN: "gpus"}
PLAN = [("plug device", 6), ("unplug device", 2), ("attachment", 2), ("migrate", 5), ("", 45), ("plug device", 12),
        ("unplug device", 4), ("leave", 2), ("release", 8), ("arrive", 1)]
ACTS = ("create", "create", "start", "stop", "add", "add", "add", "add", "remove", "remove", "remove", "keep", "pause",
        "unpause", "unpause", "drop", "delete", "migrate", "migrate", "migrate", "cancel")
MOVES = ("create", "start", "unpause", "add", "remove", "lighten", "cancel", "migrate", "migrate", "migrate", "migrate")
ACTS_OF = {"migrate": MOVES, "leave": MOVES, "arrive": MOVES}  # by the step that is to be reached
COPIES = [SimulatedCopy(), SimulatedCopy(), SLOW, SimulatedCopy(fails="the network is gone")]
PATIENCE = 300  # acts after which a kill should have happened


class DeviceLifecycle(MigrationScenario):
    hosts_text, device_count = HOSTS, sum(DEVICES.values())
    config = config.parse("device_spec: [{vendor_id: 10de}, {vendor_id: 144d, product_id: a80a, live_migratable: 'yes'}]")

    async def before(self) -> None:
        await self.create(kinds.RESOURCE_CLAIM, SHARED, self.claim_spec())

    def spec_with(self, names: Sequence[str]) -> Object:
        """What a VM's spec says of these devices; None removes."""
        devices: dict[str, Any] = {list_: [{"name": name, "claimName": name, "requestName": "card"} for name in names
                                           if ENTRIES[name] == list_] or None for list_ in device_refs.LISTS}
        claims = [{"name": name, **({"resourceClaimName": name} if name == SHARED else {"resourceClaimTemplateName": "one"})}
                  for name in names if name != OWN]
        own = [{"name": OWN, "spec": {"spec": self.claim_spec()}}] if OWN in names else None
        return {"resourceClaimTemplates": own, "template": {"spec": {
            "resourceClaims": claims or None, "domain": {"devices": devices}}}}

    async def change(self, name: str, device: str, *, present: bool) -> None:
        vm = await self.store.get(kinds.VM, name, "here")
        have = [each for each in ENTRIES if (ENTRIES[each], each) in wanted(vm["spec"]["template"])]
        await self.store.patch(kinds.VM, name, {"spec": self.spec_with(
            [each for each in ENTRIES if (present if each == device else each in have)])}, "here")

    async def new(self, name: str, devices: Sequence[str]) -> None:
        made = self.spec_with(devices)
        base, more = SPEC["template"]["spec"], made["template"]["spec"]
        found = {key: value for key, value in more["domain"]["devices"].items() if value}
        spec = {**base, "domain": {**base["domain"], "devices": {**base["domain"]["devices"], **found}},
                **({"resourceClaims": more["resourceClaims"]} if more["resourceClaims"] else {})}
        own = {"resourceClaimTemplates": made["resourceClaimTemplates"]} if made["resourceClaimTemplates"] else {}
        await self.create(kinds.VM, name, {"runStrategy": "Always", **own, "template": {"spec": spec}})

    # -- what must be true at rest

    async def agree(self) -> None:
        """A claim that a VM was started with stays with its launcher pod when its device is unplugged, and one that a VM
        got just before it was paused stays until it is resumed."""
        found = [*self.home.broken, *invariants.rest(self.home.books), *self.unlike()]
        used = {(host.name, self.home.books.names[host.name, address]) for host, machines in self.hypervisors()
                for domain in machines.running.values() for address in domain.devices}
        prepared = {(one.device.pool, one.device.device) for one in self.home.books.bookings if one.state == "prepared"}
        if used <= prepared <= used | set(self._kept()):
            found = [text for text in found if ", and its claims " not in text and "bookings and machines differ" not in text]
        kept = tuple(f"claim {name} {what}" for name in self._kept_by_paused_guests() for what in (
            "has devices and no user", "was deleted, nobody uses it", "outlived its pod"))
        found = [text for text in found if not text.startswith(kept)]
        assert not found, "\n".join([*found, *self.deaths.places[-3:], await self.picture()])

    def _kept_by_paused_guests(self) -> Iterator[str]:
        """Claims whose attachment pod was deleted by force while the guest of a paused VM has the device: they end when it is
        resumed."""
        devices = {(host.name, self.home.books.names[host.name, address]) for host, machines in self.hypervisors()
                   for domain in machines.running.values() if domain.paused is not None for address in domain.devices}
        for claim in self.home.books.all(kinds.RESOURCE_CLAIM):
            if {(device.pool, device.device) for device in invariants.results(claim)} & devices:
                yield claim["metadata"]["name"]

    def _kept(self) -> Iterator[tuple[str, str]]:
        """Devices that may be prepared and in no domain."""
        pods = {pod["metadata"]["uid"]: pod for pod in self.home.books.all(kinds.POD)}
        paused = {vmi["metadata"]["uid"] for vmi in self.home.books.all(kinds.VMI) if conditions.is_true(vmi, "Paused")}
        for claim in self.home.books.all(kinds.RESOURCE_CLAIM):
            users = [pods[user["uid"]] for user in (claim.get("status") or {}).get("reservedFor") or () if user["uid"] in pods]
            launcher = any(attachment_pods.held(pod) is None for pod in users)
            waits = any(pod["metadata"]["labels"].get(vm_api.CREATED_BY) in paused for pod in users)
            if launcher or waits:
                yield from ((device.pool, device.device) for device in invariants.results(claim))

    def _waiting_pods(self) -> Iterator[str]:
        """Each says why (`invariants`); those of a host or of a shared claim wait while others have free devices."""
        return iter(())

    def unlike(self) -> Iterator[str]:
        yield from super().unlike()
        pods = {pod["metadata"]["uid"]: pod for pod in self.home.books.all(kinds.POD)}
        for pod in pods.values():
            launcher = attachment_pods.launcher_uid(pod)
            if launcher is not None and pods.get(launcher, {"status": {}})["status"].get("phase") in (None, *vm_api.FINAL):
                yield f"{pod['metadata']['name']} outlived its launcher pod"
        for vmi in self.home.books.all(kinds.VMI):
            for host, machines in self.hypervisors():
                if (domain := machines.running.get(vmi["metadata"]["uid"])) is not None:
                    yield from self._devices(host.name, vmi, domain)

    def _devices(self, host: str, vmi: Object, domain: Domain) -> Iterator[str]:
        name, names = vmi["metadata"]["name"], self.home.books.names
        waits, paused = conditions.find(vmi, conditions.PLUGGED) or {}, domain.paused is not None
        entries = {(list_, str(entry["name"])): entry for list_ in device_refs.LISTS
                   for entry in device_status.statuses(vmi, list_)}
        known = {key: names[host, entry["deviceResourceClaimStatus"]["attributes"]["pciAddress"]]
                 for key, entry in entries.items()}
        reported = {key: device for key, device in known.items()
                    if entries[key].get("hotplugDevice", {"phase": "Attached"}).get("phase") == "Attached"}
        have = {names[host, address] for address in domain.devices}
        # A paused guest keeps a device whose attachment pod was deleted by force.
        if not set(reported.values()) <= have or (not paused and have != set(reported.values())):
            yield f"{name}: the status has {known}, of which {sorted(reported)} are attached, and the domain {sorted(have)}"
        if (vm := self.home.books.objects[kinds.VM].get(("here", name))) is None:
            return
        refs, template = wanted(vmi), wanted(vm["spec"]["template"])
        if refs != template and not paused:
            yield f"{name}: the template has {sorted(template)}, the VMI {sorted(refs)}: {vm['status']}"
        if set(reported) - refs and not paused:
            yield f"{name} has {sorted(set(reported) - refs)}, which it should not have: {waits}"
        missing = refs - set(reported)
        if not waits and (missing or set(reported) - refs):
            yield f"{name} waits for {sorted(missing)} and does not say why"
        if waits and not missing and not set(reported) - refs:
            yield f"{name} has all its devices: {waits}"
        held = {one.device.device for one in self.home.books.bookings if one.device.pool == host}
        proper = {RejectionCode.VM_PAUSED: paused, RejectionCode.NO_FREE_DEVICE_ON_HOST: len(held) == DEVICES[host],
                  RejectionCode.CLAIM_IN_USE: (ENTRIES[SHARED], SHARED) in missing}
        if waits and not any(holds for code, holds in proper.items() if str(code) == waits["reason"]):
            yield f"{name} has no reason to wait: {waits}, and on {host} {sorted(held)} are held"


def wanted(instance: Object) -> set[tuple[str, str]]:
    return {(ref.list, ref.name) for ref in device_refs.written_refs(instance)}


async def act(lifecycle: DeviceLifecycle, chance: random.Random, number: int, acts: Sequence[str]) -> None:
    name = chance.choice(NAMES)
    match chance.choice(acts):
        case "create":
            await lifecycle.new(name, chance.sample(list(ENTRIES), chance.choice([0, 1, 1, 2])))
        case "start" | "stop" as action:
            await lifecycle.ask(action, name)
        case "pause" | "unpause" as action:
            await lifecycle.nudge(action, name)
        case "delete":
            if chance.random() < 0.3:
                await lifecycle.delete(kinds.VM, name)
        case "drop":  # an attachment pod, by hand
            held = [pod for pod in await lifecycle.all(kinds.POD) if attachment_pods.launcher_uid(pod)]
            if held:
                await lifecycle.delete(kinds.POD, chance.choice(held)["metadata"]["name"], grace=chance.choice([None, 0]))
        case "keep":  # guests do not release devices, or do again
            for _, machines in lifecycle.hypervisors():
                machines.keeping_devices = set() if machines.keeping_devices else set(machines.running)
        case "migrate":
            lifecycle.set_copy(chance.choice(COPIES))
            await lifecycle.create(kinds.MIGRATION, f"move-{number}", {"vmiName": name})
        case "cancel":
            if jobs := [job["metadata"]["name"] for job in await lifecycle.all(kinds.MIGRATION)]:
                await lifecycle.delete(kinds.MIGRATION, chance.choice(jobs))
        case "lighten":  # to what may travel
            spec = lifecycle.spec_with([chance.choice(["gpu", "disk", OWN])])
            await lifecycle.store.patch(kinds.VM, name, {"spec": spec}, "here")
        case "add" | "remove" as change:
            await lifecycle.change(name, chance.choice(list(ENTRIES)), present=change == "add")


async def run_lifecycle(folder: Path, seed: int, plan: Sequence[tuple[str, int]] = PLAN) -> DeviceLifecycle:
    chance, number, step = random.Random(seed), 0, ""
    lifecycle = await DeviceLifecycle.begin(folder, seed=seed)
    assert isinstance(lifecycle, DeviceLifecycle)
    with lifecycle.deaths.as_user():
        await lifecycle.before()

    async def one_act() -> None:
        nonlocal number
        number += 1
        with lifecycle.deaths.as_user(), contextlib.suppress(AlreadyExists, Conflict, NotFound, Invalid):
            await act(lifecycle, chance, number, ACTS_OF.get(step, ACTS))

    for step, most in plan:
        lifecycle.deaths.plan = Kill(chance.randint(1, most), chance.choice(["before", "after"]), step)
        lifecycle.while_dead = one_act if chance.random() < 0.3 else None
        deaths = len(lifecycle.deaths.places)
        for _ in range(PATIENCE):
            await one_act()
            if chance.random() < 0.3:
                lifecycle.clock.advance(chance.choice([0.01, 1, 5, 31]))
            await lifecycle.live(vmi_lifecycle.turns(chance.choice([1, 10, 60, 300, 1000])))
            if len(lifecycle.deaths.places) > deaths:
                break
        else:
            pytest.fail(f"seed {seed}: no process reached the point of {step} where it should have been killed")
        for _, machines in lifecycle.hypervisors():
            machines.keeping_devices.clear()
        await lifecycle.rest()
    lifecycle.deaths.plan = None
    for obj in await lifecycle.all(kinds.VM):
        with lifecycle.deaths.as_user():
            await lifecycle.delete(kinds.VM, obj["metadata"]["name"])
    await lifecycle.rest()
    with lifecycle.deaths.as_user():
        await lifecycle.delete(kinds.RESOURCE_CLAIM, SHARED)
    await lifecycle.end()
    return lifecycle
