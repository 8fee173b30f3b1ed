"""A page with malformed entries, as a cluster accepts them: the whole product goes on, and every command that reads pages shows
all else and names page and field."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from outfitter.api import admission, kinds
from outfitter.api.kinds import Object
from outfitter.api.rejection import RejectionCode
from outfitter.api.write_request import WriteRequest
from outfitter.cli import history, providers, why
from outfitter.cli.device import listing
from outfitter.store.memory import Memory
from tests.controllers import scenario
from tests.controllers.planting import InProcess

MALFORMED: list[Any] = ["x", {"device": None, "holder": {"kind": 1}},
                        {"device": {"driver": "node.example.com", "pool": "node-0", "device": "pci-0000-3b-00-0-vf2"}}]
FIELDS = ("spec.bookings[0]: ", "spec.bookings[1].device: ", "spec.bookings[2].holder: ")


class UncheckedPages(admission.AdmissionRules):
    """A cluster keeps whatever a page contains."""

    def admit(self, change: WriteRequest) -> Object:
        return change.new if change.kind == kinds.LEDGER_PAGE else super().admit(change)


async def test_product_and_commands_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    async with scenario.embedded(3) as scene:
        await scene.classes()
        await scene.template()
        assert isinstance(scene.store, Memory)
        scene.store.rules = UncheckedPages()
        await scene.store.create(kinds.LEDGER_PAGE, {"metadata": {"name": "node-0"}, "spec": {
            "host": "node-0", "bookings": list(MALFORMED)}})
        await scene.machine("blue")
        [rejection] = {(each.code, each["field"]) for each in await scene.rejected("blue", RejectionCode.OBJECT_UNREADABLE)}
        assert rejection == (RejectionCode.OBJECT_UNREADABLE, "spec.bookings[0]"), "any device may be the one that it is about"
        page = await scene.store.get(kinds.LEDGER_PAGE, "node-0")
        page["spec"]["bookings"] = MALFORMED[2:]
        await scene.store.replace(kinds.LEDGER_PAGE, page)
        await scene.running("blue")
        await scene.machine("green")
        await scene.running("green")
        await scene.delete(kinds.VMI, "blue")
        await scene.gone("blue")
        await scene.machine("red")
        await scene.running("red")
        page = await scene.store.get(kinds.LEDGER_PAGE, "node-0")
        assert page["spec"]["bookings"][:1] == MALFORMED[2:]
        held = {booking["device"]["device"] for booking in page["spec"]["bookings"][1:]}
        assert held == {"pci-0000-3b-00-0-vf0", "pci-0000-3b-00-0-vf1"}, "vf2 is held by a booking without a holder"

        page["spec"]["bookings"] = [*MALFORMED, *page["spec"]["bookings"][1:]]
        await scene.store.replace(kinds.LEDGER_PAGE, page)
        client = InProcess(scene.store, "here")
        commands: dict[str, Callable[[], Awaitable[None]]] = {
            "devices": lambda: listing.devices(client, node=None, states=(), drivers=(), how="table", everything=True),
            "providers": lambda: providers.providers(client, node=None, how="table"),
            "why": lambda: why.why(client, ["vmi/red"], long=False, how=""),
            "history": lambda: history.history(client, "node-0/pci-0000-3b-00-0-vf0", how="table")}
        for name, run in commands.items():
            await run()
            shown = capsys.readouterr()
            assert shown.out, name
            assert all(f"page node-0: {field}" in shown.err for field in FIELDS), (name, shown.err)
        await commands["devices"]()
        assert "vmi/red" in capsys.readouterr().out
