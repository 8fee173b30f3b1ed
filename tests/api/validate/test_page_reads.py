"""What the rules of LedgerPages read for a write with many bookings: each page, slice, node and pod once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest

from outfitter.api import kinds
from outfitter.api.kinds import Kind, Object
from outfitter.api.ledger_page.page import Page, pool_page
from outfitter.api.validate import pages
from outfitter.api.write_request import WriteRequest
from outfitter.errors import Forbidden

DRIVER, HOST, MANY = "pci.example.com", "node-0", 20


@dataclass
class CountedObject:
    content: Object
    reads: Counter[str]
    derived: Any = None

    def object(self) -> Object:
        self.reads[self.content["metadata"]["name"]] += 1
        return self.content


@dataclass
class CountedStore:
    """Claims, a slice and pods of one host, without its node."""

    reads: Counter[str] = field(default_factory=Counter)
    stored: dict[str, CountedObject] = field(default_factory=dict)

    def look(self, kind: Kind, namespace: str, name: str) -> Object | None:
        if kind == kinds.RESOURCE_CLAIM:
            return {"metadata": {"namespace": namespace, "name": name, "uid": name}}
        self.reads[f"{kind.kind} {name}"] += 1
        return Page.blank(name) if kind == kinds.LEDGER_PAGE else None

    def indexed(self, kind: Kind, value: str) -> Iterable[CountedObject]:
        self.reads[f"{kind.kind}s of {value}"] += 1
        if kind == kinds.POD:
            return [CountedObject({"metadata": {"name": "pod"}, "status": {"phase": "Running"}}, self.reads)]
        spec = {"driver": DRIVER, "pool": {"name": value, "generation": 1, "resourceSliceCount": 1}, "nodeName": HOST,
                "devices": [{"name": f"vf{number}"} for number in range(MANY)]}
        return [self.stored.setdefault("slice", CountedObject({"metadata": {"name": "slice"}, "spec": spec}, self.reads))]


def page(state: str) -> Object:
    return {**Page.blank(HOST), "spec": {"host": HOST, "bookings": [
        {"device": {"driver": DRIVER, "pool": HOST, "device": f"vf{number}"}, "request": "nic", "state": state,
         "since": "2026-01-01T00:00:00Z", "amount": {"whole": True},
         "holder": {"kind": "ResourceClaim", "namespace": "here", "name": f"c{number}", "uid": f"c{number}"}}
        for number in range(MANY)]}}


def test_bookings_that_a_user_adds() -> None:
    store = CountedStore()
    request = WriteRequest("create", kinds.LEDGER_PAGE, page("booked"), None, look=store.look, indexed=store.indexed)
    assert list(pages.check(request, by_user=True)) == []
    other = pool_page(DRIVER, HOST)
    assert store.reads == {f"ResourceSlices of {HOST}": 2, "slice": 2, f"LedgerPage {other}": 1}, "the pool, and its hardware"


def test_bookings_that_are_prepared_on_a_node_that_is_gone() -> None:
    store = CountedStore()
    request = WriteRequest("delete", kinds.LEDGER_PAGE, page("prepared"), page("prepared"), look=store.look,
                           indexed=store.indexed)
    with pytest.raises(Forbidden, match=f"pods of {HOST} have not ended: pod; .* and {MANY - 3} more"):
        pages.deletable(request)
    assert store.reads == {f"Node {HOST}": 1, f"Pods of {HOST}": 1, "pod": 1}
