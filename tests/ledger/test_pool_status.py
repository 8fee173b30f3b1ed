"""Counts of each pool: every published device is allocated, available or unavailable."""

from __future__ import annotations

from typing import Any

import pytest

from outfitter.api.device import DeviceId
from outfitter.api.kinds import Object
from outfitter.ledger.pool_status import pool_statuses
from tests.cli.test_device_view import booking, page, published, record, vf

TAINTED = {"taints": [{"key": "example.com/broken", "effect": "NoSchedule"}]}
NOTED = {"taints": [{"key": "example.com/seen", "effect": "None"}]}

# slices, pages -> total, allocated, available, unavailable
COUNTED: dict[str, tuple[list[Object], list[Object], tuple[int, int, int, int]]] = {
    "free": ([published(vf(0), vf(1))], [], (2, 0, 2, 0)),
    "one is held": ([published(vf(0), vf(1))], [page(booking())], (2, 1, 1, 0)),
    "one is kept": ([published(vf(0), vf(1))], [page(booking("released"))], (2, 1, 1, 0)),
    "shares of one device": ([published(vf(0), vf(1))], [page(booking(), booking(amount={"shareID": "b"}))], (2, 1, 1, 0)),
    "one is reserved": ([published(vf(0), vf(1))], [page(reserved=[record()])], (2, 0, 1, 1)),
    "one is held and reserved": ([published(vf(0), vf(1))], [page(booking(), reserved=[record()])], (2, 1, 1, 0)),
    "one is tainted": ([published(vf(0, **TAINTED), vf(1))], [], (2, 0, 1, 1)),
    "a taint without effect": ([published(vf(0, **NOTED), vf(1))], [], (2, 0, 2, 0)),
    "held and not published": ([published(vf(1))], [page(booking())], (1, 0, 1, 0)),
    "one is tainted by a rule": ([published(vf(0), vf(1), vf(3))], [], (3, 0, 2, 1)),
    "one is held and tainted by a rule": ([published(vf(3))], [page(booking(name="card-vf3"))], (1, 1, 0, 0)),
}


def ruled(device: DeviceId) -> list[Object]:
    """A DeviceTaintRule for one device."""
    return TAINTED["taints"] if device.device == "card-vf3" else NOTED["taints"]


@pytest.mark.parametrize("name", COUNTED)
def test_counts(name: str) -> None:
    slices, pages, wanted = COUNTED[name]
    [pool] = pool_statuses(slices, pages, ruled)
    assert (pool["totalDevices"], pool["allocatedDevices"], pool["availableDevices"], pool["unavailableDevices"]) == wanted
    assert (pool["driver"], pool["poolName"], pool["nodeName"]) == ("pci.outfitter.dev", "node-0", "node-0")


def test_pools_of_several_nodes_and_of_none() -> None:
    spread: dict[str, Any] = {"nodeName": "", "pool": {"name": "shared/a"}}
    found = pool_statuses([published(vf(2), **spread), published(vf(0)), published(vf(1), node="node-1")], [], ruled)
    assert [(pool["poolName"], pool.get("nodeName"), pool["generation"], pool["resourceSliceCount"]) for pool in found] == [
        ("node-0", "node-0", 1, 1), ("node-1", "node-1", 1, 1), ("shared/a", None, 1, 1)]


def test_a_pool_that_is_not_published_completely() -> None:
    old, new = published(vf(0), vf(1)), published(vf(0), pool={"generation": 2, "resourceSliceCount": 2})
    assert pool_statuses([old, new], [], ruled) == [{
        "driver": "pci.outfitter.dev", "poolName": "node-0", "nodeName": "node-0", "generation": 2, "validationError":
        "pool pci.outfitter.dev/node-0 is incomplete: observed 1/2 slices at generation 2"}]
    long = published(vf(0), node="n" * 250, pool={"resourceSliceCount": 2})
    assert len(pool_statuses([long], [], ruled)[0]["validationError"]) == 256
