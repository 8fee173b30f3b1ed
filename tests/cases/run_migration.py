"""Area migration: VMs move between played nodes, with an injected clock. The steps are run by `step_engine`; `held` reads the
ledger's pages, `plan` is `outfit plan migrate`.

Cases that drain are a later step: `not_built` says so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from outfitter.api import kinds
from outfitter.api.ledger_page.page_entries import read_bookings
from outfitter.cli.vm import plan_migrate
from tests.cases.case import Case
from tests.cases.case_product import NotDriven, contains
from tests.cases.played_nodes import PlayedNodes
from tests.cases.run_hotplug import with_rights
from tests.cases.step_engine import StepEngine, stepped
from tests.controllers.planting import InProcess


def not_built(case: Case) -> str:
    """Why a case is not run yet; "" if it is."""
    if case.area != "migration":
        return ""
    steps = case.expect.get("steps") or ()
    if any("drain" in (step.get("do") or {}) for step in steps):
        return "hosts are not drained yet"
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
        """As the page has it: `migration/NAME` or `vmi/NAME`; `claim/NAME` if no pod has the claim."""
        for obj in self._engine.all(kinds.LEDGER_PAGE):
            for booking in (booking for entry in read_bookings(obj)[0] for booking in entry.bookings):
                if (booking.device.pool, booking.device.device) == (node, device):
                    return booking.holder.purpose or f"claim/{booking.holder.name}"
        return None

    async def plan(self, entries: Sequence[Mapping[str, Any]]) -> list[str]:
        return [line for entry in entries for line in await self._plan(entry)]

    async def _plan(self, entry: Mapping[str, Any]) -> list[str]:
        vmi = self._engine.find({"kind": kinds.VMI.kind, "name": entry["vmi"]})
        if vmi is None:
            return [f"plan of {entry['vmi']}: there is no such VMI"]
        client = InProcess(self._engine.store, vmi["metadata"]["namespace"])
        found = await plan_migrate.planned(client, entry["vmi"])
        wrong = [f"plan of {entry['vmi']}: {key} is {is_}, not {entry[key]}" for key, is_ in (
            ("possible", found.possible), ("to", found.target or None)) if entry.get(key, is_) != is_]
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
