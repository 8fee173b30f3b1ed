"""The machines of a placement case as people make them: a Flavor and a VirtualMachineInstance for each, and the product's own
loops that bring it onto a host. What is expected of them is what is expected of those that the runner boots itself.

Cases in which something goes wrong on a host, and those in which several machines are asked for as one, are not played: there
is nobody to ask for that with objects."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from outfitter import app
from outfitter.api import conditions, kinds
from outfitter.api.kinds import Kind, Object
from outfitter.controllers.claim_deallocation import ClaimDeallocation
from outfitter.controllers.device_status import DeviceStatus
from outfitter.controllers.garbage_collector import GarbageCollector
from outfitter.controllers.manager import Controller, ControllerContext, ControllerManager, settle
from outfitter.controllers.pod_claims import PodClaims
from outfitter.controllers.scheduler import Scheduler
from outfitter.controllers.scheduler_cache import SchedulerCache
from outfitter.controllers.vmi import VmiController
from outfitter.errors import BadRequest, Invalid, NotFound
from outfitter.inventory import config
from outfitter.inventory.config import Config
from outfitter.ledger import placement_view
from outfitter.node.agent import Agent
from outfitter.node.claim_preparation import ClaimPreparation
from outfitter.node.host_audit import HostAudit
from outfitter.scheduling.explain import vm
from outfitter.scheduling.explain.cluster_objects import Facts
from outfitter.scheduling.nova.flavor_claim import AliasSet
from outfitter.scheduling.nova.host_state import NoValidHost
from tests.cases.case import Case
from tests.cases.case_product import NotDriven
from tests.cases.nova_cloud import SWITCHES, Cloud, cloud, uid_of
from tests.cases.run_nova import Log
from tests.cases.run_nova_schedule import Schedule, extra_specs, vcpus

NAMESPACE = "default"
SEEN: Mapping[str, Kind] = {
    "instances": kinds.VMI, "pods": kinds.POD, "claims": kinds.RESOURCE_CLAIM, "classes": kinds.DEVICE_CLASS,
    "slices": kinds.RESOURCE_SLICE, "pages": kinds.LEDGER_PAGE, "nodes": kinds.NODE, "trees": kinds.PROVIDER_TREE,
    "inventories": kinds.HOST_INVENTORY}


def plays(case: Case) -> bool:
    """Whether a case can be played with objects."""
    steps = case.data.get("when") or ()
    return (any(step["op"].startswith("boot") for step in steps) and not case.problems and case.basis != "quirk"
            and not any(step["op"] == "inject" or "count" in step for step in steps))


async def run(case: Case) -> list[str]:
    given = case.data["given"]
    with Log() as log:
        try:
            async with cloud(given, _settings(given)) as made:
                play = Product(made, log)
                return [wrong async for wrong in play.play(case)] + await play.audited()
        except NotDriven as error:
            return [str(error)]


def _settings(given: Mapping[str, Any]) -> Config:
    values = given.get("alias") or []
    switches = {**SWITCHES, **(given.get("config") or {})}
    texts = [each if isinstance(each, str) else json.dumps(each) for each in (values if isinstance(values, list) else [values])]
    return config.parse(yaml.safe_dump({"alias": texts, **{key: switches[key] for key in SWITCHES}}))


class Product(Schedule):
    def __init__(self, made: Cloud, log: Log) -> None:
        super().__init__(made, log)
        self.settings = _settings(made.given)
        self.machines: dict[str, Object] = {}  # server -> the machine, once it runs
        self.why: dict[str, list[str]] = {}  # server -> why it does not

    # -- what people do

    async def _do(self, step: Mapping[str, Any]) -> None:
        self.refused, self.about_alias = None, False
        match step["op"]:
            case "boot":
                await self._make([step["server"]], step)
            case "boot_concurrently":
                await self._make(step["servers"], step)
            case "delete" if step["server"] in self.machines:
                await self._settled(self._delete([step["server"]]))
                self.machines.pop(step["server"])
            case "set_reserved":
                await super()._do(step)
                for box in self.cloud.boxes.values():  # a host that runs looks at once when its page was marked
                    if box.keeper is not None:
                        await self.cloud.audit(box.name)
            case _:
                await super()._do(step)

    async def _make(self, servers: Sequence[str], step: Mapping[str, Any]) -> None:
        given, store = step["flavor"], self.cloud.store
        flavor: Object = {"metadata": {"name": f"of-{servers[0].lower()}"},
                  "spec": {"vcpus": vcpus(given), "memory": "512Mi", "disk": "1Gi", "extraSpecs": extra_specs(given)}}
        try:
            await store.create(kinds.FLAVOR, flavor)
        except Invalid as error:
            raise BadRequest(error.message) from error
        place = {"nodeSelector": {"kubernetes.io/hostname": step["host"]}} if "host" in step else {}

        async def create() -> None:
            await asyncio.gather(*(store.create(kinds.VMI, {
                "metadata": {"name": name.lower(), "namespace": NAMESPACE},
                "spec": {"flavor": {"name": flavor["metadata"]["name"]}, "domain": {}, **place}}) for name in servers))

        await self._settled(create())
        waiting = []
        for name in servers:
            made = await store.get(kinds.VMI, name.lower(), NAMESPACE)
            if (made.get("status") or {}).get("phase") == "Running":
                self.machines[name] = made
                claim = ((made["status"].get("flavor") or {}).get("claimName") or "")
                if claim:
                    uid = (await store.get(kinds.RESOURCE_CLAIM, claim, NAMESPACE))["metadata"]["uid"]
                    self.cloud.names[uid] = name
            else:
                waiting.append(name)
                self.why[name] = await self._why(made)
                self.refused = NoValidHost("no valid host: " + "\n".join(self.why[name]))
        if waiting:  # one that waits would go on later; in a case it is over
            await self._settled(self._delete(waiting))
        await store.delete(kinds.FLAVOR, flavor["metadata"]["name"])

    async def _delete(self, servers: Sequence[str]) -> None:
        for name in servers:
            await self.cloud.store.delete(kinds.VMI, name.lower(), NAMESPACE)

    async def _why(self, machine: Object) -> list[str]:
        async def every(kind: Kind) -> list[Object]:
            return (await self.cloud.store.list(kind)).items

        told = conditions.find(machine, "PodScheduled") or conditions.find(machine, "Synchronized") or {}
        seen: dict[str, Any] = {name: await every(kind) for name, kind in SEEN.items()}
        return [str(told.get("message")), *vm.instance(Facts(**seen), machine).text(long=True)]

    async def _settled(self, work: Any) -> None:
        """The product's loops, from before this is done until nobody has anything left to do."""
        store, clock = self.cloud.store, self.cloud.clock
        context = ControllerContext(store, clock=clock, names=store.names)
        up = [box for box in self.cloud.boxes.values() if box.keeper is not None]
        hosts = [self.cloud.host(box) for box in up]
        keeper = HostAudit(store, hosts, clock=clock, pages=context.informer(kinds.LEDGER_PAGE))
        for box, host in zip(up, hosts, strict=True):
            assert box.keeper is not None
            host.single_use = box.keeper.hosts[host.name].single_use
        agent = Agent(
            store,
            hosts,
            build=app.build_domain,
            preparation=ClaimPreparation(store, hosts, clock=clock),
            clock=clock,
            events=context.events,
            pods=context.informer(kinds.POD),
            instances=context.informer(kinds.VMI),
            claims=context.informer(kinds.RESOURCE_CLAIM),
            pages=context.informer(kinds.LEDGER_PAGE),
        )
        controllers: list[Controller] = [
            VmiController(context, AliasSet.of(self.settings.default)), PodClaims(context), ClaimDeallocation(context),
            Scheduler(context, SchedulerCache(context)), DeviceStatus(context), GarbageCollector(context), keeper, agent]
        runner = ControllerManager(context, controllers)
        await runner.start()
        try:
            await work
            for _ in range(5):
                await settle(lambda kind: store.watch_cache(kind).revision, context, [runner])
                clock.advance(1)  # what was put off because somebody was faster
        finally:
            await runner.stop()

    # -- what became of it

    async def _allocations(self) -> placement_view.Allocations:
        found = await super()._allocations()
        return {uid_of(self.cloud.names[uid]) if uid in self.cloud.names else uid: amounts for uid, amounts in found.items()}

    async def _state(self, name: str) -> dict[str, Any]:
        if name in self.why and name not in self.machines:
            return {"status": "ERROR", "host": None, "devices": [], "device_count": 0, "devices_on_host": [], "cell": None,
                    "devices_parent_count": {}, "device_cell_equals_guest_cell": False}
        if name not in self.machines:
            return await super()._state(name)
        try:
            machine = await self.cloud.store.get(kinds.VMI, name.lower(), NAMESPACE)
        except NotFound:
            return {"status": "DELETED", "host": None, "devices": []}
        status = machine["status"]
        host, record = status["nodeName"], status.get("flavor") or {}
        (found,) = [each for uid, each in (await self.cloud.boxes[host].hypervisor.domains()).items()
                    if uid == machine["metadata"]["uid"]]
        given = [(entry["name"].rpartition("-")[0], entry["deviceResourceClaimStatus"]["attributes"]["pciAddress"])
                 for entry in (status.get("deviceStatus") or {}).get("hostDeviceStatuses") or ()]
        alias_of = {entry["name"]: entry["alias"] for entry in record.get("devices") or ()}
        cells, devices = record.get("hostCells") or [], sorted(found.devices)
        near = {device["address"]: device.get("numa_node") for device in self.cloud.boxes[host].pci}
        return {
            "status": {"Running": "ACTIVE"}.get(status["phase"], status["phase"]), "host": host, "devices": devices,
            "device_count": len(devices), "devices_on_host": devices, "cell": cells[0] if len(cells) == 1 else cells or None,
            "devices_by_alias": {alias: sorted(address for request, address in given if alias_of[request] == alias)
                                 for alias in alias_of.values()},
            "devices_parent_count": dict(Counter(self._parent(host, address) for address in devices)),
            "device_cell_equals_guest_cell": all(near[address] in cells for address in devices),
        }
