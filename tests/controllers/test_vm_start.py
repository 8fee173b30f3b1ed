"""What the start of a VM asks of the store, and in which order."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from outfitter.api import conditions, kinds
from outfitter.api.kinds import Kind, Object
from outfitter.controllers.manager import ControllerContext, ControllerManager, settle
from outfitter.controllers.vm import LOOK_AGAIN, VmController
from outfitter.errors import Conflict, Forbidden
from outfitter.store.clock import ManualClock
from outfitter.store.memory import Memory

TEMPLATE: Object = {"spec": {"domain": {"devices": {}}}}


class RecordingStore(Memory):
    atomic = False  # as a cluster's

    def __init__(self) -> None:
        self.time = ManualClock()
        super().__init__(clock=self.time)
        self.asked: list[str] = []
        self.refuses = False  # VMIs

    async def get(self, kind: Kind, name: str, namespace: str = "") -> Object:
        self.asked.append(f"get {kind.plural}")
        return await super().get(kind, name, namespace)

    async def create(self, kind: Kind, obj: Object, *, dry_run: bool = False) -> Object:
        if kind != kinds.EVENT:
            self.asked.append(f"create {kind.plural}")
        if self.refuses and kind == kinds.VMI:
            raise Forbidden("exceeded quota")
        return await super().create(kind, obj, dry_run=dry_run)

    async def patch(self, kind: Kind, name: str, patch: Any, namespace: str = "", **options: Any) -> Object:
        self.asked.append(f"patch {kind.plural}/{options.get('subresource') or ''}")
        return await super().patch(kind, name, patch, namespace, **options)


class Running:
    def __init__(self) -> None:
        self.store = RecordingStore()
        self.context = ControllerContext(self.store, clock=self.store.clock)
        self.controller = VmController(self.context)
        self.manager = ControllerManager(self.context, [self.controller])

    async def rest(self) -> None:
        await settle(lambda kind: self.store.watch_cache(kind).revision, self.context, [self.manager])

    async def vm(self, **spec: Any) -> Object:
        made = await Memory.create(self.store, kinds.VM, {
            "metadata": {"name": "blue", "namespace": "default"}, "spec": {"template": TEMPLATE, **spec}})
        await self.rest()
        return made

    async def status(self) -> Object:
        found: Object = (await Memory.get(self.store, kinds.VM, "blue", "default"))["status"]
        return found


@contextlib.asynccontextmanager
async def running() -> AsyncIterator[Running]:
    found = Running()
    await found.manager.start()
    try:
        yield found
    finally:
        await found.manager.stop()
        await found.store.close()


async def test_the_status_is_written_first_and_replaces_a_read() -> None:
    async with running() as found:
        await found.vm(runStrategy="Always")
        assert found.store.asked[:2] == ["patch virtualmachines/status", "create virtualmachineinstances"]
        assert "get virtualmachines" not in found.store.asked
        assert found.store.asked.count("patch virtualmachines/status") == 2, "it starts; its VMI is there"
        assert (await found.status())["created"]


@pytest.mark.parametrize("spec", [
    {"runStrategy": "Once"}, {"runStrategy": "RerunOnFailure"},
    {"runStrategy": "Always", "resourceClaimTemplates": [{"name": "own", "spec": {"spec": {"devices": {"requests": []}}}}]},
], ids=["Once", "RerunOnFailure", "with claims of its own"])
async def test_where_the_status_counts_it_is_written_afterwards(spec: Object) -> None:
    """A crash between the two would else leave a VM that never starts."""
    async with running() as found:
        await found.vm(**spec)
        assert found.store.asked[0] == "get virtualmachines"
        order = [each for each in found.store.asked if each in ("create virtualmachineinstances",
                                                                "patch virtualmachines/status")]
        assert order[0] == "create virtualmachineinstances"


async def test_a_start_that_is_refused_is_reported_once() -> None:
    async with running() as found:
        found.store.refuses = True
        await found.vm(runStrategy="Always")
        failure = conditions.find({"status": await found.status()}, "Failure")
        assert failure is not None
        assert failure["message"] == "exceeded quota"
        found.store.asked.clear()
        for _ in range(3):
            found.store.time.advance(LOOK_AGAIN + 1)
            await found.rest()
        assert found.store.asked.count("create virtualmachineinstances") == 3
        assert "patch virtualmachines/status" not in found.store.asked, "the condition does not come and go"
        found.store.refuses = False
        found.store.time.advance(LOOK_AGAIN + 1)
        await found.rest()
        assert conditions.find({"status": await found.status()}, "Failure") is None


async def test_an_old_view_of_a_vm_creates_nothing() -> None:
    async with running() as found:
        seen = await found.vm(runStrategy="Halted")
        late = ControllerContext(found.store, clock=found.store.clock)
        controller = VmController(late)
        late.informer(kinds.VM).put({**seen, "spec": {**seen["spec"], "runStrategy": "Always"}})
        found.store.asked.clear()
        with pytest.raises(Conflict):
            await controller.reconcile("default/blue")
        assert found.store.asked == ["patch virtualmachines/status"]
