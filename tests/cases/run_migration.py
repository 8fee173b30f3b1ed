"""Area migration: VMs move between played nodes, with an injected clock. The steps are run by `step_engine`; `held` reads the
ledger's pages, `plan` asks what `outfit plan migrate` asks.

Cases with a claimed device and cases that drain are the next step: `not_built` says so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from outfitter.api import kinds
from outfitter.api.booking import read_bookings
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import kubevirt_config
from outfitter.api.kubevirt import migration as migration_api
from outfitter.controllers.migrations import migration_plan
from outfitter.scheduling.explain.cluster_objects import ClusterObjects
from tests.cases.case import Case
from tests.cases.case_product import NotDriven, contains
from tests.cases.played_nodes import PlayedNodes
from tests.cases.run_hotplug import with_rights
from tests.cases.step_engine import StepEngine, stepped


def not_built(case: Case) -> str:
    """Why a case is not run yet; "" if it is."""
    if case.area != "migration":
        return ""
    steps = case.expect.get("steps") or ()
    if any("drain" in (step.get("do") or {}) for step in steps):
        return "hosts are not drained yet"
    if any((obj.get("spec") or {}).get("resourceClaims") for obj in case.data.get("given") or ()
           if obj.get("kind") == kinds.VMI.kind):
        return "VMs with claimed devices do not migrate yet"
    return ""


async def run(case: Case) -> list[str]:
    try:
        async with stepped(case) as engine:
            with_rights(case, engine)
            engine.actors.append(PlayedNodes(engine))
            words = _Words(engine)
            engine.words |= {"held": words.held, "plan": words.plan}
            wrong = await engine.run()
            return wrong and [*wrong, *engine.notes]
    except NotDriven as error:
        return [str(error)]


class _Words:
    """Words of `then` that only this area has."""

    def __init__(self, engine: StepEngine) -> None:
        self._engine = engine

    async def held(self, entries: Sequence[Mapping[str, Any]]) -> list[str]:
        wrong = []
        for entry in entries:
            found = self._holder(str(entry["node"]), str(entry["device"]))
            if entry["by"] != found and not (entry["by"] == "*" and found is not None):
                wrong.append(f"held {entry['node']}/{entry['device']}: by {found}, not by {entry['by']}")
        return wrong

    def _holder(self, node: str, device: str) -> str | None:
        for obj in self._engine.all(kinds.LEDGER_PAGE):
            for booking in (entry.booking for entry in read_bookings(obj)[0]):
                if booking is not None and (booking.device.pool, booking.device.device) == (node, device):
                    return self._named(booking.holder.namespace, booking.holder.name)
        return None

    def _named(self, namespace: str, claim: str) -> str:
        """`migration/NAME`, `vmi/NAME` or `claim/NAME`: by the pod that the claim of a booking is reserved for."""
        pods = {pod["metadata"]["name"]: pod for pod in self._engine.all(kinds.POD, namespace)}
        for obj in self._engine.all(kinds.RESOURCE_CLAIM, namespace):
            if obj["metadata"]["name"] != claim:
                continue
            for user in (obj.get("status") or {}).get("reservedFor") or ():
                if (pod := pods.get(user.get("name"))) is not None:
                    return self._user(pod)
        return f"claim/{claim}"

    def _user(self, pod: Object) -> str:
        """The target's pod belongs to the migration until it has ended; every other pod of a VMI, to the VMI."""
        for job in self._engine.all(kinds.MIGRATION, pod["metadata"]["namespace"]):
            if job["metadata"]["uid"] == migration_api.job_uid(pod) and not migration_api.is_finished(job):
                return f"migration/{job['metadata']['name']}"
        uid = (pod["metadata"].get("labels") or {}).get("kubevirt.io/created-by")
        vmis = self._engine.all(kinds.VMI, pod["metadata"]["namespace"])
        return next((f"vmi/{vmi['metadata']['name']}" for vmi in vmis if vmi["metadata"]["uid"] == uid),
                    f"pod/{pod['metadata']['name']}")

    async def plan(self, entries: Sequence[Mapping[str, Any]]) -> list[str]:
        return [line for entry in entries for line in self._plan(entry)]

    def _plan(self, entry: Mapping[str, Any]) -> list[str]:
        engine = self._engine
        vmi = next(obj for obj in engine.all(kinds.VMI) if obj["metadata"]["name"] == entry["vmi"])
        definitions = {(one["metadata"]["namespace"], one["metadata"]["name"]): one
                       for one in engine.all(kinds.NETWORK_ATTACHMENT)}
        config = kubevirt_config.read_config(kubevirt_config.active_kubevirt(engine.all(kinds.KUBEVIRT)))
        there = ClusterObjects(engine.all(kinds.VMI), engine.all(kinds.POD), engine.all(kinds.RESOURCE_CLAIM),
                               engine.all(kinds.DEVICE_CLASS), engine.all(kinds.RESOURCE_SLICE), engine.all(kinds.LEDGER_PAGE),
                               engine.all(kinds.NODE))
        found = migration_plan.plan(vmi, config, lambda namespace, name: definitions.get((namespace, name)), there.choose)
        wrong = [f"plan of {entry['vmi']}: {key} is {is_}, not {entry[key]}" for key, is_ in (
            ("possible", found.possible), ("to", found.target)) if entry.get(key, is_) != is_]
        if not contains(found.reason, entry.get("reasonContains", "")):
            wrong.append(f"plan of {entry['vmi']}: the reason is {found.reason}")
        if "devices" in entry:
            wrong += self._devices(entry["vmi"], entry["devices"], {one.name: one for one in found.devices})
        return wrong

    def _devices(self, vmi: str, wanted: Sequence[Mapping[str, Any]], found: Mapping[str, Any]) -> list[str]:
        if {one["name"] for one in wanted} != found.keys():
            return [f"plan of {vmi}: devices are {sorted(found)}"]
        return [f"plan of {vmi}: {one['name']} is {found[one['name']]}" for one in wanted
                if found[one["name"]].how not in _alternatives(one.get("how", found[one["name"]].how))
                or not contains(found[one["name"]].reason, one.get("reasonContains", ""))]


def _alternatives(how: Any) -> Sequence[Any]:
    return how if isinstance(how, list) else [how]
