"""A selector is asked of one device for all that are alike in what it reads: the answer, its error and its price are those that
each device would have given itself."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outfitter import cel
from outfitter.api.rejection import RejectionCode
from outfitter.cel import device as cel_device
from outfitter.cel.field_usage import Read
from outfitter.errors import EvaluationError, Invalid, Unsatisfiable
from outfitter.scheduling.config import Features
from outfitter.scheduling.dra import constraints, selector_cache
from outfitter.scheduling.dra.node_devices import PoolSet
from outfitter.scheduling.dra.slices import PublishedDevice
from tests.cel.real_cost import cost_on

A, B = "a.example", "b.example"
Object = dict[str, Any]

READS = {
    "device.driver": [Read("driver")],
    "device.allowMultipleAllocations": [Read("allowMultipleAllocations")],
    f'device.attributes["{A}"].x == 1': [Read("attributes", A, "x")],
    f'device.attributes["{A}"]["x"] == 1': [Read("attributes", A, "x")],
    f'device.attributes["{A}"].?x.orValue(1) == 1': [Read("attributes", A, "x")],
    f'has(device.attributes["{A}"].x)': [Read("attributes", A, "x")],
    f'"x" in device.attributes["{A}"]': [Read("attributes", A, "x")],
    f'device.capacity["{A}"].m.isGreaterThan(quantity("1"))': [Read("capacity", A, "m")],
    f'cel.bind(d, device.attributes["{A}"], d.x == 1 && d.y == 2)': [Read("attributes", A, "x"), Read("attributes", A, "y")],
    f'"{A}" in device.attributes': [Read("attributes", A, presence=True)],
    f'device.attributes[?"{A}"].?x.orValue(1) == 1': [Read("attributes", A, "x"), Read("attributes", A, presence=True)],
    f'device.attributes["{A}"].exists(name, name == "x")': [Read("attributes", A)],
    'device.attributes.exists(device, device == "x")': [Read("attributes")],
    'device.attributes[device.driver].x == 1': [Read("attributes"), Read("driver")],
    f'device.attributes["{A}"].list.exists(x, x == 1)': [Read("attributes", A, "list")],
    "[device].size() == 1": [Read("")],
    "true": [],
}


@pytest.mark.parametrize(("text", "reads"), READS.items(), ids=READS)
def test_what_a_selector_reads(text: str, reads: list[Read]) -> None:
    assert sorted(cel.compile_selector(f"dyn({text}) == true", limit=None).reads, key=repr) == sorted(reads, key=repr)


VALUES = st.one_of(
    st.builds(lambda value: {"int": value}, st.integers(0, 2)),
    st.builds(lambda value: {"string": value}, st.sampled_from("xy")),
    st.builds(lambda value: {"bool": value}, st.booleans()), st.builds(lambda value: {"version": value}, st.just("1.0.0")),
    st.builds(lambda value: {"ints": value}, st.lists(st.integers(0, 1), max_size=2)),
    st.builds(lambda value: {"strings": value}, st.lists(st.sampled_from("xy"), max_size=2)))
BROKEN = st.sampled_from([{}, {"int": True}, {"int": 1.0}, {"int": None}, {"string": 1}, {"version": "one"}, {"ints": [True]},
                          {"int": 1, "string": "x"}, {"strings": "x"}, {"int": 1 << 63}, None, {"other": 1}])
NAMES = st.sampled_from(["x", "y", f"{A}/x", f"{A}/y", f"{B}/x", "serial"])
AMOUNTS = st.sampled_from([{"value": "1Gi"}, {"value": "2"}, {"value": 2}])
WHOLE = st.fixed_dictionaries({}, optional={
    "attributes": st.dictionaries(NAMES, VALUES, max_size=4), "capacity": st.dictionaries(NAMES, AMOUNTS, max_size=2),
    "allowMultipleAllocations": st.booleans()})
ANY = st.fixed_dictionaries({}, optional={
    "attributes": st.dictionaries(NAMES, st.one_of(VALUES, VALUES, VALUES, BROKEN), max_size=3), "capacity": st.dictionaries(
        NAMES, st.one_of(AMOUNTS, st.sampled_from([{"value": "much"}, {"value": True}, {}, None])), max_size=2),
    "allowMultipleAllocations": st.one_of(st.booleans(), st.just("yes"))})

MAPS = st.sampled_from(["device.attributes", "device.capacity"])
DOMAINS = st.sampled_from([f'["{A}"]', f'["{B}"]', "[device.driver]", f'[?"{A}"]', '["a.example/x"]'])
FIELDS = st.sampled_from([".x", ".y", '["x"]', ".?x", '[?"y"]', '[device.driver]'])
VALUE = st.builds("".join, st.tuples(MAPS, DOMAINS, FIELDS))
LEAF = st.one_of(
    st.builds("dyn({}) == dyn({})".format, VALUE, st.sampled_from(
        ["1", '"x"', "true", "[1]", "optional.none()", 'quantity("2")'])),
    st.builds("dyn({}) == dyn({})".format, VALUE, VALUE),
    st.builds("has({}{}.x)".format, MAPS, st.sampled_from([f'["{A}"]', f'["{B}"]', "[device.driver]"])),
    st.builds('"x" in {}{}'.format, MAPS, st.sampled_from([f'["{A}"]', f'["{B}"]', ""])),
    st.builds('"{}" in {}'.format, st.sampled_from([A, B]), MAPS),
    st.builds("{}{}.size() > {}".format, MAPS, st.sampled_from(["", f'["{A}"]']), st.integers(0, 2)),
    st.builds("{}.exists(device, device == '{}')".format, MAPS, st.sampled_from([A, B])),
    st.builds('cel.bind(v, {}["{}"], dyn(v.x) == dyn({}))'.format, MAPS, st.sampled_from([A, B]), VALUE),
    st.builds("{}.all(k, {}[k].all(n, dyn({}[k][n]) != dyn(1)))".format, MAPS, MAPS, MAPS),  # above the limit by estimate
    st.sampled_from([f'device.driver == "{A}"', "device.allowMultipleAllocations", "dyn(device) == dyn(device)",
                     "device.?driver.hasValue()", "true", f'device.attributes["{A}"].x.nothing()', "false ? 1 : true"]))
SELECTOR = st.recursive(LEAF, lambda inner: st.one_of(
    st.builds("({}) && ({})".format, inner, inner), st.builds("({}) || ({})".format, inner, inner),
    st.builds("!({})".format, inner), st.builds("({}) ? ({}) : ({})".format, inner, inner, inner)), max_leaves=3)
DRIVERS = st.sampled_from([A, B])


def answer(selectors: tuple[str, ...], device: PublishedDevice) -> Any:
    """Of the device itself, with nothing remembered."""
    for position, text in enumerate(selectors):
        try:
            selector = cel.compile_selector(text, limit=None)
        except Invalid as error:
            return position, f"CEL compile error: {error.message}"
        try:
            subject = cel.CelDevice.from_slice(device.id.driver, device.raw)
        except Invalid as error:
            return position, f"unsupported attribute value or capacity of device {device.id}: {error.message}"
        try:
            if not selector.matches(subject):
                return False
        except EvaluationError as error:
            return position, f"CEL runtime error: {error.message}"
    return True


def hosts(found: list[tuple[str, list[Object]]]) -> PoolSet:
    return PoolSet([{"metadata": {"name": f"s{at}"}, "spec": {
        "driver": driver, "nodeName": f"n{at}", "pool": {"name": f"n{at}", "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": f"d{place}", **raw} for place, raw in enumerate(devices)]}}
        for at, (driver, devices) in enumerate(found)])


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(DRIVERS, st.lists(st.one_of(WHOLE, WHOLE, ANY), max_size=3)), min_size=1, max_size=4),
       st.lists(st.lists(SELECTOR, max_size=2).map(tuple), min_size=1, max_size=3))
def test_one_answer_for_all_that_are_alike(found: list[tuple[str, list[Object]]], asked: list[tuple[str, ...]]) -> None:
    pools = hosts(found)
    for at in range(len(found)):
        site = pools.at({"metadata": {"name": f"n{at}"}}, Features())
        for selectors in asked:
            said = [answer(selectors, device) for device in site.devices]
            fits = site.fits(selectors)
            assert fits.mask == sum(1 << place for place, one in enumerate(said) if one is True)
            wrong = {place: (result.position, result.why) for place, result in fits.wrong.items()}
            assert wrong == {place: one for place, one in enumerate(said) if isinstance(one, tuple)}


@settings(max_examples=120, deadline=None)
@given(DRIVERS, st.lists(WHOLE, min_size=2, max_size=6), SELECTOR)
def test_what_is_alike_costs_the_same(driver: str, raw: list[Object], text: str) -> None:
    try:
        selector = cel.compile_selector(text, limit=None)
    except Invalid:
        return
    costs: dict[Hashable, int] = {}
    for device in (PublishedDevice(driver, "p", {"name": f"d{at}", **one}, ()) for at, one in enumerate(raw)):
        assert isinstance(device.cel, cel.CelDevice)
        key = tuple(selector_cache.source(read)([device])[0] for read in selector.reads)
        cost = cost_on(selector, device.cel)
        assert costs.setdefault(key, cost) == cost


@settings(max_examples=120, deadline=None)
@given(ANY)
def test_readability_is_known_without_evaluation(raw: Object) -> None:
    try:
        cel.CelDevice.from_slice(A, raw)
        fine = True
    except Invalid:
        fine = False
    assert cel_device.readable(raw) == fine


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(DRIVERS, st.lists(st.one_of(WHOLE, ANY), max_size=3)), min_size=1, max_size=4), st.booleans(), VALUE)
def test_values_under_constraints_are_those_of_each_device(
        found: list[tuple[str, list[Object]]], lists: bool, text: str) -> None:
    """Those that are published, and those that an expression makes."""
    pools, selector = hosts(found), cel.compile_selector(f"dyn({text}\n)", limit=None)
    for at in range(len(found)):
        site = pools.at({"metadata": {"name": f"n{at}"}}, Features())
        made = constraints.derived(site, selector, lists)
        for attribute in (f"{A}/x", f"{B}/x"):
            said = [constraints._value(device.attribute(attribute), lists) or frozenset() for device in site.devices]
            assert constraints.published(site, attribute, lists).of == said
        for place, device in enumerate(site.devices):
            direct = constraints._computed(selector, device, lists, cel.CostMeter(selector_cache.BUDGET))
            assert made.of[place] == (
                frozenset() if isinstance(direct, selector_cache.SelectorError) else direct or frozenset()
            )
            assert made.wrong.get(place) == (direct.why if isinstance(direct, selector_cache.SelectorError) else None)


SAID_TWICE = {
    "the last counts": ({"x": {"int": 1}, f"{A}/x": {"int": 2}}, ("int", 2)),
    "in whichever order": ({f"{A}/x": {"int": 2}, "x": {"int": 1}}, ("int", 1)),
    "a domain alone": ({f"{A}/x": {"int": 2}}, ("int", 2)),
    "the driver's own": ({"x": {"int": 1}, f"{B}/x": {"int": 3}}, ("int", 1)),
    "of another domain": ({f"{B}/x": {"int": 3}}, None),
}


@pytest.mark.parametrize(("attributes", "value"), SAID_TWICE.values(), ids=SAID_TWICE)
def test_an_attribute_with_and_without_its_domain(attributes: Object, value: object) -> None:
    one = PublishedDevice(A, "p", {"name": "d", "attributes": attributes}, ())
    assert selector_cache.source(Read("attributes", A, "x"))([one]) == [value]
    subject = one.cel
    assert isinstance(subject, cel.CelDevice)
    assert subject.attributes[A].get("x") == (value[1] if isinstance(value, tuple) else None)


def test_an_expression_that_works_too_long_is_given_up() -> None:
    devices = [{"attributes": {f"l{at}": {"ints": list(range(64))} for at in range(4)}}]
    loops = "".join(f'device.attributes["{A}"].l{at}.all(v{at}, ' for at in range(4)) + "v0 + v1 + v2 + v3 >= 0" + ")" * 4
    site = hosts([(A, devices)]).at({"metadata": {"name": "n0"}}, Features())
    for _ in range(2):  # the second time without being evaluated
        with pytest.raises(Unsatisfiable) as caught:
            constraints.derived(site, cel.compile_selector(f"dyn({loops}\n)", limit=None), True)
        assert caught.value.rejection.code is RejectionCode.SELECTOR_BUDGET
        with pytest.raises(Unsatisfiable) as caught:
            site.fits((loops,))
        assert caught.value.rejection.code is RejectionCode.SELECTOR_BUDGET


COSTLY = "[1,2,3,4,5,6,7,8,9].all(a, [1,2,3,4,5,6,7,8,9].all(b, [1,2,3,4,5,6,7,8,9].all(c, a + b + c > 0)))"


def test_selectors_have_a_budget_for_all_devices() -> None:
    """Devices that are alike in what is read count once, and other devices begin anew."""
    like = [{"attributes": {"x": {"int": at % 2}}} for at in range(50)]
    site = hosts([(A, like)]).at({"metadata": {"name": "n0"}}, Features())
    text = f'{COSTLY} && device.attributes["{A}"].x >= 0'
    assert site.fits((text,)).mask == (1 << 50) - 1
    spent = site.contents.question((text,)).spent
    assert 2 * 1_000 < spent < selector_cache.BUDGET // 2
    many = [{"attributes": {"x": {"int": at}}} for at in range(2 * selector_cache.BUDGET // spent + 2)]
    site = hosts([(A, many)]).at({"metadata": {"name": "n0"}}, Features())
    with pytest.raises(Unsatisfiable) as caught:
        site.fits((text,))
    assert (caught.value.rejection.code, caught.value.rejection["limit"]) == (
        RejectionCode.SELECTOR_BUDGET, selector_cache.BUDGET)
    site.contents.slices_changed()
    assert site.contents.question((text,)).spent == 0
