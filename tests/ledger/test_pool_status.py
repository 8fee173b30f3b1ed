"""Counts of each pool: every published device is allocated, available or unavailable."""

from __future__ import annotations

from typing import Any

import pytest

from outfitter.api.kinds import Object
from outfitter.ledger.device_list import device_list
from outfitter.ledger.pool_status import pool_statuses
from tests.cli.test_device_view import booking, inventory, page, published, record, vf

TAINTED = {"taints": [{"key": "example.com/broken", "effect": "NoSchedule"}]}
NOTED = {"taints": [{"key": "example.com/seen", "effect": "None"}]}

# slices, pages, inventories -> total, allocated, available, unavailable
COUNTED: dict[str, tuple[list[Object], list[Object], list[Object], tuple[int, int, int, int]]] = {
    "free": ([published(vf(0), vf(1))], [], [], (2, 0, 2, 0)),
    "one is held": ([published(vf(0), vf(1))], [page(booking())], [], (2, 1, 1, 0)),
    "one is kept": ([published(vf(0), vf(1))], [page(booking("released"))], [], (2, 1, 1, 0)),
    "shares of one device": ([published(vf(0), vf(1))], [page(booking(), booking(amount={"shareID": "b"}))], [], (2, 1, 1, 0)),
    "one is reserved": ([published(vf(0), vf(1))], [page(reserved=[record()])], [], (2, 0, 1, 1)),
    "one is held and reserved": ([published(vf(0), vf(1))], [page(booking(), reserved=[record()])], [], (2, 1, 1, 0)),
    "one is tainted": ([published(vf(0, **TAINTED), vf(1))], [], [], (2, 0, 1, 1)),
    "a taint without effect": ([published(vf(0, **NOTED), vf(1))], [], [], (2, 0, 2, 0)),
    "held and not published": ([published(vf(1))], [page(booking())], [], (1, 0, 1, 0)),
    "withheld": ([published(vf(1))], [], [inventory(withheld=[{"name": "card-vf0", "reason": "is not listed"}])], (1, 0, 1, 0)),
}


@pytest.mark.parametrize("name", COUNTED)
def test_counts(name: str) -> None:
    slices, pages, inventories, wanted = COUNTED[name]
    [pool] = pool_statuses(device_list(slices, pages, inventories))
    assert (pool["totalDevices"], pool["allocatedDevices"], pool["availableDevices"], pool["unavailableDevices"]) == wanted
    assert (pool["driver"], pool["poolName"], pool["nodeName"]) == ("pci.outfitter.dev", "node-0", "node-0")


def test_pools_of_several_nodes_and_of_none() -> None:
    spread: dict[str, Any] = {"nodeName": "", "pool": {"name": "shared/a"}}
    found = pool_statuses(device_list([published(vf(0)), published(vf(1), node="node-1"), published(vf(2), **spread)], [], []))
    assert {(pool["poolName"], pool.get("nodeName"), pool["metadata"]["name"]) for pool in found} == {
        ("node-0", "node-0", "pci.outfitter.dev.node-0"), ("node-1", "node-1", "pci.outfitter.dev.node-1"),
        ("shared/a", None, "pci.outfitter.dev.shared.a")}
    incomplete = published(vf(0), pool={"resourceSliceCount": 2})
    assert pool_statuses(device_list([incomplete], [], [])) == []
