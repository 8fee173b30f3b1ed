"""What Kubernetes answers for tricky expressions, and what it counts for them: the estimate and the real cost."""

from __future__ import annotations

import pytest

from outfitter import cel, errors
from tests.cel.real_cost import cost_on

OLD = cel.CelFeatures(consumable_capacity=False, list_attributes=False)
DEVICE = cel.CelDevice.from_slice(
    "d.io",
    {
        "attributes": {
            "s": {"string": "abc"},
            "i": {"int": 3},
            "b": {"bool": True},
            "v": {"version": "1.2.3"},
            "l": {"strings": ["a", "b"]},
        },
        "capacity": {"mem": {"value": "1Gi"}},
    },
)
A = 'device.attributes["d.io"]'

# expression -> answer, estimate, real cost. An answer in text is the error; its real cost is not compared, and neither
# is one that depends on the order of a map.
CORNERS: dict[str, tuple[bool | str, int, int | None]] = {
    "has(device.attributes.x)": (True, 2, 2),
    'has(device.attributes["x"].y)': (False, 3, 3),
    '"x" in device.attributes': (False, 3, 3),
    '"y" in device.attributes["x"]': (False, 4, 4),
    'device.attributes[?"x"].hasValue()': (True, 4, 4),
    "device.attributes.?x.hasValue()": (True, 4, 4),
    'device.attributes["x"].?y.hasValue()': (False, 5, 4),
    f'{A}.?s.orValue("q") == "abc"': (True, 6, 5),
    'device.attributes["x"].?y.orValue("q") == "q"': (True, 6, 4),
    "device.attributes.x.size() == 0": (True, 5, 5),
    "device.attributes.size() == 1": (True, 4, 4),
    'device.attributes["x"] == {}': (True, 33, 3),
    f"{A}.i == 3.0": (True, 5, 5),
    f"{A}.i < 3.5": (True, 5, 5),
    f"{A}.b == 1": (False, 5, 5),
    f"{A}.s == 1": (False, 5, 5),
    f'{A}.i.startsWith("a")': ("no such overload", 5, None),
    f"{A}.s": ("CEL result of type string could not be converted to bool", 4, 4),
    f"{A}.nosuch || true": (True, 4, 4),
    f"true || {A}.nosuch": (True, 4, 0),
    f"{A}.nosuch && false": (False, 4, 4),
    'device.capacity["d.io"].mem == quantity("1024Mi")': (True, 6, 6),
    'device.capacity["d.io"].mem.compareTo(quantity("1Gi")) == 0': (True, 7, 7),
    'device.capacity["x"].mem.compareTo(quantity("1Gi")) == 0': ("no such key: mem", 7, None),
    f'{A}.v == semver("1.2.3")': (True, 12, 6),
    f'{A}.v == "1.2.3"': ("no such overload", 5, 5),
    f'{A}.v != "1.2.3"': (True, 5, 5),
    f"{A}.v.major() == 1": (True, 6, 6),
    'device.attributes.exists(k, v, k == "d.io")': (True, 195, 9),
    f'{A}.exists(k, v, k == "s" && v == "abc")': (True, 260, None),
    f'{A}.all(k, k != "")': (True, 132, 24),
    f'"a" in {A}.l': (True, 68, 5),
    f'{A}.s.matches("^a.c$") && {A}.s.find("b") == "b"': (True, 30, 12),
    'device.driver.lowerAscii().split(".")[0] == "d"': (True, 24, 7),
    'quantity("200K").isInteger()': ("unable to parse quantity's suffix", 2, None),
    'isQuantity("1.5Gi") && !isQuantity("200K")': (True, 3, 3),
    f'{A}.s.charAt(0) == "a" && "%s-%d".format(["a",1]) == "a-1"': (True, 18, 8),
    'sets.contains(["a","b"],["a"])': (True, 23, 3),
    'ip("10.0.0.1").family() == 4': (True, 3, 3),
    f'{A}["s"] in ["abc","x"]': (True, 16, 4),
    f'cel.bind(d, {A}, d.s == "abc" && d.i == 3)': (True, 19, 9),
    f"{A}.i / 0 == 1": ("division by zero", 6, None),
    f"9223372036854775807 + {A}.i > 0": ("integer overflow", 6, None),
    f"type({A}.s) == string": (True, 1844674407370955270, 6),
    f'{A}.s.contains("b") ? {A}.b : false': (True, 15, 8),
    # More of the same kind, each run through Kubernetes 1.37.
    "device.driver == device.driver": (True, 11, 5),
    "device.driver in ['a', 'b']": (False, 14, 2),
    "[1, 2, 3].exists(x, x in [1, 2])": (True, 62, 9),
    "[1, 2].all(x, [3].all(x, x == 3) && x < 3)": (True, 53, 23),
    "[1, 2].map(x, x) == [1, 2]": (True, 58, 28),
    "[1, 2].sortBy(x, -x) == [2, 1]": (True, 91, 51),
    "[1, 2, 3].slice(0, 2) == [1, 2]": (True, 34, 14),
    "lists.range(3) == [0, 1, 2]": (True, 25, 15),
    "[3, 1].sort() == [1, 3]": (True, 40, 20),
    f'{A}.?s.optMap(x, x + "b").orValue("") == "abcb"': (True, 1844674407370955288, 14),
    'device.capacity["d.io"]["mem"] != quantity("1")': (True, 5, 6),
    'device.capacity["d.io"].mem != quantity("1")': (True, 1844674407370955269, 6),
    "device.attributes[device.driver].b": (True, 6, 5),
    f"true ? {A}.b : false": (True, 4, 3),
    "{'a': 1}.a == 1": (True, 32, 3),
}


@pytest.mark.parametrize(("text", "expected"), CORNERS.items(), ids=list(CORNERS))
def test_corner(text: str, expected: tuple[bool | str, int, int | None]) -> None:
    answer, estimate, real = expected
    selector = cel.compile_selector(text, limit=None)
    assert selector.max_cost == estimate
    if isinstance(answer, bool):
        assert selector.matches(DEVICE) is answer
    else:
        with pytest.raises(cel.EvaluationError) as caught:
            selector.matches(DEVICE)
        assert answer in caught.value.message
    if real is not None:
        assert cost_on(selector, DEVICE) == real


@pytest.mark.parametrize("text", [one for one in CORNERS if "includes" not in one])
def test_older_clusters_estimate_the_same(text: str) -> None:
    assert cel.compile_selector(text, features=OLD, limit=None).max_cost == CORNERS[text][1]


REFUSED = {
    'device.capacity["d.io"].mem.isGreaterThan(1)': "'isGreaterThan' applied to 'kubernetes.Quantity.(int)'",
    'device.capacity["d.io"].mem > quantity("1Mi")': "'_>_' applied to '(kubernetes.Quantity, kubernetes.Quantity)'",
    f'{A}.v > semver("1.0.0")': "'_>_' applied to '(dyn, kubernetes.Semver)'",
    '[1, "a"].size() == 2': "expected type 'int' but found 'string'",
    "device.nosuch == 1": "undefined field 'nosuch'",
    "devices.x": "undeclared reference to 'devices'",
    "device.driver.foo()": "undeclared reference to 'foo'",
    'device.driver + 1 == "x"': "'_+_' applied to '(string, int)'",
}


@pytest.mark.parametrize(("text", "says"), REFUSED.items())
def test_refused(text: str, says: str) -> None:
    with pytest.raises(errors.Invalid) as caught:
        cel.compile_selector(text)
    assert says in caught.value.message


SWITCHED_OFF = {
    "no shared devices": ("device.allowMultipleAllocations == true", "undefined field 'allowMultipleAllocations'"),
    "no includes": (f"{A}.s.includes('a')", "undeclared reference to 'includes'"),
    "no loops over attributes": (f"{A}.l.exists(x, x == 'a')", "expression of type 'any' cannot be range"),
    "attributes are any": (f"{A}.v > semver('1.0.0')", "'(any, kubernetes.Semver)'"),
}


@pytest.mark.parametrize(("text", "says"), SWITCHED_OFF.values(), ids=SWITCHED_OFF)
def test_what_features_bring_is_refused_without_them(text: str, says: str) -> None:
    with pytest.raises(errors.Invalid) as caught:
        cel.compile_selector(text, features=OLD)
    assert says in caught.value.message


def test_an_attribute_alone_is_an_answer_with_and_without_lists() -> None:
    assert cel.compile_selector(f"{A}.b").matches(DEVICE)
    assert cel.compile_selector(f"{A}.b", features=OLD).matches(DEVICE)


LOOPS = f"{A}.l.all(a, {A}.l.all(b, {A}.l.all(c, {A}.l.all(d, a != 'x' && b != 'x' && c != 'x' && d != 'x'))))"


def test_what_may_cost_too_much_is_refused_with_the_estimate_and_a_way_out() -> None:
    with pytest.raises(errors.Invalid) as caught:
        cel.compile_selector(LOOPS)
    estimate = cel.compile_selector(LOOPS, limit=None).max_cost
    assert f"the estimate is {estimate}, the limit is 1000000" in caught.value.message
    assert "nest fewer loops" in caught.value.message
    assert cel.compile_selector(LOOPS, limit=estimate).max_cost == estimate
    with pytest.raises(errors.Invalid):
        cel.compile_selector(LOOPS, limit=estimate - 1)


def test_what_was_let_through_answers_where_it_is_cheap_and_stops_where_it_is_not() -> None:
    selector = cel.compile_selector(LOOPS, limit=None)
    assert selector.matches(DEVICE)
    many = {"attributes": {"l": {"strings": [f"value-{n}" for n in range(48)]}}}
    with pytest.raises(cel.EvaluationError, match="actual cost limit exceeded"):
        selector.matches(cel.CelDevice.from_slice("d.io", many))


def test_unbounded_estimate_is_rendered() -> None:
    with pytest.raises(errors.Invalid, match="more than can be counted"):
        cel.compile_selector(f"type({A}.s) == string")


# Of every rule of the estimate one, as Kubernetes 1.37 estimates it.
ESTIMATES = {
    "'abc'.replace('b', 'xyz').size() > 0": 3,
    "device.attributes['d.io'].s.replace('', 'xy').contains('x')": 37,
    "device.attributes['d.io'].s.split(',').map(x, x.size()).sum() > 0": 989,
    "device.attributes['d.io'].l.join(',').size() > 0": 13,
    "['a', 'b'].max() == 'b'": 3689348814741910541,
    "device.attributes.map(k, k).join('').size() > 0": 1844674407370955695,
    "{'a': ['x', 'yy']}.all(k, v, v.exists(s, s == 'yyy'))": 58,
    "format.uuid().validate('x').hasValue()": 34,
    "cidr('10.0.0.0/8').containsIP(device.driver)": 14,
    "url('/a') == url('/a')": 3,
    "[[1], [2]].flatten() == [1, 2]": 54,
    "bytes(device.driver).size() > 0": 11,
    "strings.quote(device.driver).size() > 0": 11,
    "device.attributes.transformMap(k, v, v.size()).size() > 0": 195,
    "[1, 2].distinct().reverse() == [2, 1]": 55,
    "device.driver.substring(1) < device.driver": 18,
    "'a,b'.split(',', 2).all(x, x == 'abc')": 12,
    "dyn(device.driver) == 'a'": 4,
    "(true ? 'abc' : device.driver) == device.driver": 11,
    "cel.bind(l, ['a', 'bcd'], l.all(x, x == device.driver))": 36,
    "device.attributes['d.io'].?l[?0].orValue('x') == 'x'": 7,
}


@pytest.mark.parametrize(("text", "estimate"), ESTIMATES.items(), ids=list(ESTIMATES))
def test_estimate(text: str, estimate: int) -> None:
    assert cel.compile_selector(text, limit=None).max_cost == estimate
