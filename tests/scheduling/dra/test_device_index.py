"""The index: counting rules out no host that could serve, and it is the same however the events arrived."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outfitter.api.device import DeviceId
from outfitter.api.kinds import Object
from outfitter.api.ledger_page.page import Booking, Holder, OutOfServiceRecord, Page
from outfitter.errors import Invalid
from outfitter.scheduling.dra.allocator import Allocated, allocate
from outfitter.scheduling.dra.claim_request import compile_claim
from outfitter.scheduling.dra.device_index import DeviceIndex

DRIVER, SINCE = "d.example", "2026-01-01T12:04:00Z"
HOSTS = ("a", "b", "c")
ADDRESS = "0000:01:00.0"
CLASSES: dict[str, Object] = {"any": {"metadata": {"name": "any"}, "spec": {}}}


def node(name: str) -> Object:
    return {"metadata": {"name": name, "labels": {}}}


def device(
    place: int, kind: str, numa: int, *, taint: bool = False, card: str = "", whole: int = 0, address: str = ""
) -> Object:
    out: Object = {"name": f"d{place}", "attributes": {"kind": {"string": kind}, "numa": {"int": numa}}}
    if address:
        out["attributes"]["pciAddress"] = {"string": address}
    if taint:
        out["taints"] = [{"key": "a.test/sick", "effect": "NoSchedule"}]
    if card:
        out["consumesCounters"] = [{"counterSet": card, "counters": {"f": {"value": str(whole or 1)}}}]
    return out


def slices(host: str, devices: list[Object], counters: int = 0) -> list[Object]:
    def part(name: str, **more: Any) -> Object:
        return {"metadata": {"name": f"{host}-{name}"}, "spec": {
            "driver": DRIVER, "nodeName": host, "pool": {
                "name": host, "generation": 1, "resourceSliceCount": 2 if counters else 1}, **more}}

    sets = {"sharedCounters": [{"name": "card", "counters": {"f": {"value": str(counters)}}}]}
    return [part("0", devices=devices), *([part("1", **sets)] if counters else [])]


def page(host: str, held: list[int], marked: list[int]) -> Page:
    found = Page(Page.blank(host))
    for place in held:
        holder = Holder("ResourceClaim", "here", f"c{place}", f"uid-{place}")
        hardware = (ADDRESS,) if place == 0 else ()
        found = Page(found.adding(Booking(
            DeviceId(DRIVER, host, f"d{place}"), holder, "r", "booked", SINCE, hardware=hardware)))
    marks = [OutOfServiceRecord(DeviceId(DRIVER, host, f"d{place}"), "", "admin", SINCE) for place in marked]
    return Page(found.with_records("reserved", marks))


def claim(*requests: Object, **more: Any) -> Object:
    return {"metadata": {"name": "c", "namespace": "here"}, "spec": {"devices": {"requests": list(requests), **more}}}


def ask(name: str, kind: str = "", **exactly: Any) -> Object:
    where = [{"cel": {"expression": f'device.attributes["{DRIVER}"].kind == "{kind}"'}}] if kind else []
    return {"name": name, "exactly": {"deviceClassName": "any", "selectors": where, **exactly}}


DEVICES = st.lists(st.tuples(st.sampled_from("xy"), st.integers(0, 1), st.booleans(), st.booleans(),
                             st.sampled_from(["", "", "", ADDRESS, "0000:02:00.0"])), max_size=5)
WORLD = st.fixed_dictionaries({host: st.tuples(DEVICES, st.sets(st.integers(0, 4)), st.sets(st.integers(0, 4)),
                                               st.integers(0, 3)) for host in HOSTS})
EXACTLY = st.fixed_dictionaries({"count": st.integers(1, 3)}, optional={
    "tolerations": st.just([{"operator": "Exists"}]), "allocationMode": st.just("All")})
ASKS = st.lists(st.tuples(st.sampled_from(["", "x", "y"]), EXACTLY), min_size=1, max_size=2)
UNDER = st.lists(st.sampled_from([{"matchAttribute": f"{DRIVER}/numa"}, {"distinctAttribute": f"{DRIVER}/numa"},
                                  {"matchAttribute": f"{DRIVER}/none"}]), max_size=1)


def built(world: Any) -> tuple[list[Object], list[Page]]:
    parts: list[Object] = []
    pages = []
    for host, (raw, held, marked, counters) in world.items():
        devices = [device(place, kind, numa, taint=taint, card="card" if counted and counters else "", address=address)
                   for place, (kind, numa, taint, counted, address) in enumerate(raw)]
        parts += slices(host, devices, counters)
        places = range(len(devices))
        pages.append(page(host, [each for each in held if each in places], [each for each in marked if each in places]))
    return parts, pages


def serves(index: DeviceIndex, wanted: Object, host: str) -> bool:
    try:
        return isinstance(allocate([wanted], node=index.node(host), pools=index.pools, classes=CLASSES.get, held=index.held,
                                   features=index.features), Allocated)
    except Invalid:
        return False


def wanted_of(asks: Any, under: Any) -> Object:
    requests = [ask(f"r{place}", kind, **{key: value for key, value in exactly.items()
                                          if key != "count" or "allocationMode" not in exactly})
                for place, (kind, exactly) in enumerate(asks)]
    return claim(*requests, constraints=under)


@settings(max_examples=70, deadline=None)
@given(WORLD, ASKS, UNDER)
def test_counting_rejects_no_host_that_fits(world: Any, asks: Any, under: Any) -> None:
    parts, pages = built(world)
    index = DeviceIndex.of(parts, pages, [node(host) for host in HOSTS])
    wanted = wanted_of(asks, under)
    demands = [compile_claim(wanted, CLASSES.get, index.features)]
    passing = {index.names[row] for row in index.candidates(demands)}
    able = {host for host in HOSTS if serves(index, wanted, host)}
    assert able <= passing
    if index.counted(demands):
        assert able == passing, "where counting is said to be the answer it is"


@settings(max_examples=60, deadline=None)
@given(WORLD, WORLD, st.sets(st.sampled_from(HOSTS)), ASKS, UNDER)
def test_order_of_events_does_not_matter(first: Any, then: Any, gone: set[str], asks: Any, under: Any) -> None:
    """An index that lived through one scenario answers in the next as one that was made for it."""
    old_parts, old_pages = built(first)
    index = DeviceIndex.of([], [], [])
    for part in old_parts:
        index.put_slice(part["metadata"]["name"], part)
    for each in old_pages:
        index.put_page(each.host, each)
    for host in HOSTS:
        index.put_node(host, node(host))
    wanted = wanted_of(asks, under)
    index.candidates([compile_claim(wanted, CLASSES.get, index.features)])
    parts, pages = built(then)
    for part in [*old_parts]:
        index.put_slice(part["metadata"]["name"], None)
    for part in parts:
        index.put_slice(part["metadata"]["name"], part)
    index.candidates([])
    for each in pages:
        index.put_page(each.host, each)
    index.candidates([])
    for host in gone:
        index.put_node(host, None)
        index.put_page(host, None)
    left = [host for host in HOSTS if host not in gone]
    made = DeviceIndex.of(parts, [each for each in pages if each.host in left], [node(host) for host in left])
    demands = [compile_claim(wanted, CLASSES.get, index.features)]
    assert [index.names[row] for row in index.candidates(demands)] == [made.names[row] for row in made.candidates(demands)]
    assert (index.held.whole, index.held.shares, index.held.consumed) == (
        made.held.whole, made.held.shares, made.held.consumed)
    assert [index.held.blocked(index.node_devices(row)) for row in range(len(left))] == [
        made.held.blocked(made.node_devices(row)) for row in range(len(left))]


def test_shares_come_and_go() -> None:
    shared = {**device(0, "x", 0), "allowMultipleAllocations": True, "capacity": {"memory": {"value": "8Gi"}}}
    index = DeviceIndex.of(slices("a", [shared]), [], [node("a")])

    def booked(*shares: str) -> Page:
        out = Page(Page.blank("a"))
        for place, amount in enumerate(shares):
            out = Page(out.adding(Booking(DeviceId(DRIVER, "a", "d0"), Holder("ResourceClaim", "h", f"c{place}", f"u{place}"),
                                          "r", "booked", SINCE, {"shareID": f"s{place}", "capacity": {"memory": amount}})))
        return out

    wanted = claim(ask("r", capacity={"requests": {"memory": "4Gi"}}))
    for shares, fits in ((("4Gi",), True), (("4Gi", "2Gi"), False), (("2Gi",), True), ((), True), (("6Gi",), False)):
        index.put_page("a", booked(*shares))
        index.candidates([])
        assert serves(index, wanted, "a") == fits, shares
    assert index.limits("a").capacity == {DeviceId(DRIVER, "a", "d0"): {"memory": "8Gi"}}


@pytest.mark.parametrize(("value", "text"), {"3": "3", "500m": "500000000n", "1.5Gi": "1610612736"}.items())
def test_counters_are_exact(value: str, text: str) -> None:
    parts = slices("a", [device(0, "x", 0, card="card")], 4)
    parts[0]["spec"]["devices"][0]["consumesCounters"][0]["counters"]["f"]["value"] = value
    index = DeviceIndex.of(parts, [], [node("a")])
    index.candidates([])
    assert index.uses(DeviceId(DRIVER, "a", "d0"), "a") == {"card": {"f": text}}


# -- one event after the other


def one_slice(name: str, what: tuple[str, str, list[str], int, int]) -> Object:
    pool, host, kinds, of, generation = what
    return {"metadata": {"name": name}, "spec": {
        "driver": DRIVER, "nodeName": host, "devices": [odd_device(*one) for one in enumerate(kinds)],
        "pool": {"name": pool, "generation": generation, "resourceSliceCount": of}}}


def odd_device(place: int, kind: str) -> Object:
    """Among others one of which a selector cannot tell, one that can be shared, and one that is the same hardware as others."""
    out = device(place, "x" if kind in ("shared", "twin") else kind, place % 2, address=ADDRESS if kind == "twin" else "")
    if kind == "nothing":
        del out["attributes"]["kind"]
    return {**out, "allowMultipleAllocations": True} if kind == "shared" else out


ODD = st.lists(st.sampled_from(["x", "x", "y", "nothing", "shared", "twin"]), max_size=3)
SLICE = st.tuples(st.just("slice"), st.sampled_from("pqr"), st.one_of(st.none(), st.tuples(
    st.sampled_from(["a", "b", "c", "s"]), st.sampled_from(HOSTS), ODD, st.integers(1, 2), st.integers(1, 2))))
NODE = st.tuples(st.just("node"), st.sampled_from(HOSTS), st.sampled_from([None, "1", "2"]))
PAGE = st.tuples(st.just("page"), st.sampled_from([*HOSTS, "s"]), st.one_of(st.none(), st.sets(st.integers(0, 2))))
NEWS = st.lists(st.one_of(SLICE, NODE, PAGE), min_size=1, max_size=12)


@settings(max_examples=120, deadline=None)
@given(NEWS, ASKS, UNDER)
def test_incremental_index_equals_a_rebuilt_one(news: Any, asks: Any, under: Any) -> None:
    """Pools of several hosts, slices that move from one pool or host to another, hosts that come and go."""
    index, parts, pages, nodes = DeviceIndex(), dict[str, Object](), dict[str, Page](), dict[str, Object]()
    for host in HOSTS[:2]:
        nodes[host] = node(host)
        index.put_node(host, nodes[host])
    demands = [compile_claim(wanted_of(asks, under), CLASSES.get, index.features)]
    for kind, name, what in news:
        if kind == "slice":
            _keep(parts, name, one_slice(name, what) if what else None)
            index.put_slice(name, parts.get(name))
        elif kind == "node":
            _keep(nodes, name, what and {"metadata": {"name": name, "labels": {"zone": what}}})
            index.put_node(name, nodes.get(name))
        else:
            _keep(pages, name, page(name, list(what), []) if what is not None else None)
            index.put_page(name, pages.get(name))
        fresh = DeviceIndex.of(parts.values(), pages.values(), nodes.values())
        assert index.candidates(demands) == fresh.candidates(demands)
        assert index.names == fresh.names
        assert index.counted(demands) == fresh.counted(demands)
        for row in range(len(index.names)):
            assert [one.id for one in index.open(row, demands)] == [one.id for one in fresh.open(row, demands)]


def _keep(table: dict[str, Any], name: str, obj: Any) -> None:
    if obj is None:
        table.pop(name, None)
    else:
        table[name] = obj


def test_a_pool_of_two_hosts_is_whole_for_both_when_its_last_slice_comes() -> None:
    index = DeviceIndex.of([], [], [node("a"), node("b")])
    demands = [compile_claim(claim(ask("r")), CLASSES.get, index.features)]
    index.put_slice("p", one_slice("p", ("s", "a", ["x"], 2, 1)))
    assert index.candidates(demands) == []
    index.put_slice("q", one_slice("q", ("s", "b", ["x"], 2, 1)))
    assert index.candidates(demands) == [0, 1]
    index.put_slice("q", None)
    assert index.candidates(demands) == []
