"""VMs whose NICs come and go, with a product that may be killed at any point of it. At rest every book tells the same of each
NIC: the VM's template, the VMI, the domain, the taps, status.interfaces, the pod's annotation, bookings and attachment pods."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from outfitter.api import conditions, kinds
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import attachment_pods, network_info
from outfitter.errors import AlreadyExists, Conflict, Invalid, NotFound
from outfitter.inventory import config
from outfitter.node import nic_plan
from tests.controllers import invariants
from tests.node import vmi_lifecycle
from tests.node.kill_points import Kill
from tests.node.vmi_lifecycle import LifecycleScenario

HOSTS = """
publisher: node.example.com
hosts:
- name: node-a
  numa: [{id: 0, cpus: 0-15, memory: 64Gi}]
  pci:
  - {address: 0000:3b:00.0, vendor: 8086, product: 1572, class: 020000, driver: i40e, interface: ens1f0, numa: 0,
     vfs: {count: 4, product: 154c}}
  bridges: [{name: br0}, {name: br1}]
"""
VFS = 4
NAMES = ["vm0", "vm1"]
NICS = ["red", "green", "vf0", "vf1", "vf-claim"]  # the last three are VFs, the last one by a claim from a template
CLAIM = {"name": "net", "resourceClaimTemplateName": "one-vf"}
PLAN = [("plug", 12), ("unplug", 4), ("attachment", 2), ("plug", 20), ("unplug", 6), ("release", 12)]
ACTS = ("create", "start", "stop", "add", "add", "add", "remove", "remove", "link", "swap", "keep", "delete", "drop")
PATIENCE = 200  # acts after which a kill should have happened


class NicLifecycle(LifecycleScenario):
    hosts_text, config, device_count = HOSTS, config.parse("device_spec: [{vendor_id: 8086, product_id: 154c}]"), VFS

    async def networks(self) -> None:
        with self.deaths.as_user():
            for name, plugin, resource in (("lan", {"type": "bridge", "bridge": "br0"}, ""),
                                           ("lan2", {"type": "bridge", "bridge": "br1"}, ""),
                                           ("fast", {"type": "sriov", "vlan": 100}, vmi_lifecycle.RESOURCE)):
                meta = {"annotations": {network_info.RESOURCE: resource}} if resource else {}
                await self.create(kinds.NETWORK_ATTACHMENT, name, {"config": json.dumps({"name": name, **plugin})}, **meta)
            await self.create(kinds.RESOURCE_CLAIM_TEMPLATE, "one-vf", {"spec": {"devices": {"requests": [
                {"name": "vf", "exactly": {"deviceClassName": vmi_lifecycle.CLASS}}]}}})

    async def change(self, name: str, chance: random.Random, act: str) -> None:
        """What a user does to the NICs of a VM's template."""
        vm = await self.store.get(kinds.VM, name, "here")
        spec = vm["spec"]["template"]["spec"]
        cards, networks = list(spec["domain"]["devices"].get("interfaces") or ()), list(spec.get("networks") or ())
        known = {card["name"] for card in cards}
        nic = chance.choice(NICS if act == "add" or not known else sorted(known))
        if act == "add" and nic not in known:
            cards.append({"name": nic, "sriov" if nic.startswith("vf") else "bridge": {}})
            networks.append({"name": nic, **source(nic)})
        for card in cards:
            if card["name"] == nic and card.get("state") != "absent":
                if act == "remove":
                    card["state"] = "absent"
                if act == "link" and not nic.startswith("vf"):
                    card["state"] = "up" if card.get("state") == "down" else "down"
        for network in networks:
            if act == "swap" and network["name"] == nic and not nic.startswith("vf"):
                network["multus"] = {"networkName": "lan2" if network["multus"]["networkName"] == "lan" else "lan"}
        claims = [CLAIM] if any("resourceClaim" in network for network in networks) else None
        await self.store.patch(kinds.VM, name, {"spec": {"template": {"spec": {
            "domain": {"devices": {"interfaces": cards}}, "networks": networks, "resourceClaims": claims}}}}, "here")

    def _still_run(self) -> Iterator[str]:
        """A NIC that came or went makes no other VM of it."""
        for uid, before in self.ran.items():
            if not any(uid in machines.running for _, machines in self.hypervisors()):
                yield f"{before.name} ran before the death and does not any more"

    async def agree(self) -> None:
        """A VF that a VM was started with stays booked for its pod when its NIC is unplugged."""
        found = [*self.home.broken, *invariants.rest(self.home.books), *self.unlike()]
        own = {one.device.device for one in self.home.books.bookings if one.holder.name.startswith("virt-launcher-")}
        used = {self.home.books.names[host.name, address] for host, machines in self.hypervisors()
                for domain in machines.running.values() for address in domain.devices}
        prepared = {one.device.device for one in self.home.books.bookings if one.state == "prepared"}
        if used <= prepared <= used | own:
            found = [text for text in found if ", and its claims " not in text and "bookings and machines differ" not in text]
        assert not found, "\n".join([*found, *self.deaths.places[-3:], await self.picture()])

    def unlike(self) -> Iterator[str]:
        yield from super().unlike()
        for _, machines in self.hypervisors():
            for uid, domain in machines.running.items():
                vmi = next((obj for obj in self.home.books.all(kinds.VMI) if obj["metadata"]["uid"] == uid), None)
                if vmi is not None and vmi["status"].get("phase") == "Running":
                    yield from self._nics(vmi, nic_plan.named(domain.nics, []))
        launchers = {pod["metadata"]["uid"] for pod in self.home.books.all(kinds.POD)}
        for pod in self.home.books.all(kinds.POD):
            if (launcher := attachment_pods.launcher_uid(pod)) is not None and launcher not in launchers:
                yield f"{pod['metadata']['name']} outlived its launcher pod"
        pods = {pod["metadata"]["name"] for pod in self.home.books.all(kinds.POD)}
        for claim in self.home.books.all(kinds.RESOURCE_CLAIM):
            owners = [owner["name"] for owner in claim["metadata"].get("ownerReferences") or () if owner["kind"] == "Pod"]
            if owners and not pods & set(owners):
                yield f"claim {claim['metadata']['name']} outlived its pod"

    def _nics(self, vmi: Object, nics: Mapping[str, object]) -> Iterator[str]:
        name = vmi["metadata"]["name"]
        cards = {card["name"]: card for card in network_info.interfaces(vmi)}
        wanted = {nic for nic, card in cards.items() if card.get("state") != "absent"}
        reported = {entry["name"] for entry in vmi["status"].get("interfaces") or ()
                    if "domain" in str(entry.get("infoSource"))}
        [pod] = [pod for pod in self.home.books.all(kinds.POD) if pod["status"]["phase"] == "Running"
                 and pod["metadata"]["labels"].get("vm.kubevirt.io/name") == name]
        listed = {entry["interface"] for entry in json.loads(
            (pod["metadata"].get("annotations") or {}).get(network_info.STATUS) or "[]")}
        waits = conditions.find(vmi, conditions.INTERFACES)
        # A VM waits for a VF only while there is none.
        if waits is not None and (waits["reason"] != "VfNotBooked" or len(self.home.books.bookings) < VFS):
            yield f"{name}: {waits}, and {len(self.home.books.bookings)} of {VFS} VFs are taken"
        unplugged = wanted - set(nics)
        if set(nics) - wanted or (unplugged and (waits is None or not all(nic.startswith("vf") for nic in unplugged))):
            yield f"{name}: the VMI wants {sorted(wanted)}, the domain has {sorted(nics)}"
        if reported != set(nics):
            yield f"{name}: the status has {sorted(reported)}, the domain {sorted(nics)}"
        if listed != {network_info.interface_name(nic) for nic in nics if "multus" in source(nic)}:
            yield f"{name}: network-status has {sorted(listed)}, the domain {sorted(nics)}"


def source(nic: str) -> Object:
    """What a NIC is attached to."""
    if nic == "vf-claim":
        return {"resourceClaim": {"claimName": CLAIM["name"], "requestName": "vf"}}
    return {"multus": {"networkName": "fast" if nic.startswith("vf") else "lan"}}


async def act(lifecycle: NicLifecycle, chance: random.Random) -> None:
    name = chance.choice(NAMES)
    match chance.choice(ACTS):
        case "create":
            await lifecycle.create(kinds.VM, name, {"runStrategy": "Always", "template": {"spec": {
                "terminationGracePeriodSeconds": 0, "domain": {"memory": {"guest": "1Gi"}, "devices": {}}}}})
        case "start" | "stop" as action:
            await lifecycle.ask(action, name)
        case "delete":
            if chance.random() < 0.3:
                await lifecycle.delete(kinds.VM, name)
        case "drop":  # an attachment pod, by hand
            held = [pod for pod in await lifecycle.all(kinds.POD) if attachment_pods.launcher_uid(pod)]
            if held:
                await lifecycle.delete(kinds.POD, chance.choice(held)["metadata"]["name"], grace=chance.choice([None, 0]))
        case "keep":  # guests do not release NICs, or do again
            for _, machines in lifecycle.hypervisors():
                machines.keeping_nics = set() if machines.keeping_nics else set(machines.running)
        case change:
            await lifecycle.change(name, chance, change)


async def run_lifecycle(folder: Path, seed: int, plan: Sequence[tuple[str, int]] = PLAN) -> NicLifecycle:
    chance = random.Random(seed)
    lifecycle = await NicLifecycle.begin(folder, seed=seed)
    assert isinstance(lifecycle, NicLifecycle)
    await lifecycle.networks()

    async def one_act() -> None:
        with lifecycle.deaths.as_user(), contextlib.suppress(AlreadyExists, Conflict, NotFound, Invalid):
            await act(lifecycle, chance)

    for step, most in plan:
        lifecycle.deaths.plan = Kill(chance.randint(1, most), chance.choice(["before", "after"]), step)
        lifecycle.while_dead = one_act if chance.random() < 0.3 else None
        deaths = len(lifecycle.deaths.places)
        for _ in range(PATIENCE):
            await one_act()
            if chance.random() < 0.3:
                lifecycle.clock.advance(chance.choice([0.01, 1, 5, 31]))
            await lifecycle.live(vmi_lifecycle.turns(chance.choice([0, 1, 10, 60, 300])))
            if len(lifecycle.deaths.places) > deaths:
                break
        else:
            pytest.fail(f"seed {seed}: no process reached the point of {step} where it should have been killed")
        for _, machines in lifecycle.hypervisors():
            machines.keeping_nics.clear()
        await lifecycle.rest()
    lifecycle.deaths.plan = None
    for obj in await lifecycle.all(kinds.VM):
        with lifecycle.deaths.as_user():
            await lifecycle.delete(kinds.VM, obj["metadata"]["name"])
    await lifecycle.rest()
    await lifecycle.end()
    return lifecycle
