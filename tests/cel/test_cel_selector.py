"""Expressions against one device: what they answer, what they refuse, and what they swallow."""

from __future__ import annotations

import pytest

from outfitter import cel, errors

DEVICE = cel.Device.from_slice(
    "d.io",
    {
        "attributes": {
            "s": {"string": "abc"},
            "i": {"int": 3},
            "b": {"bool": True},
            "v": {"version": "1.2.3"},
            "l": {"strings": ["a", "b"]},
            "ints": {"ints": [3, 1, 2]},
            "versions": {"versions": ["1.0.0", "2.0.0"]},
            "other.io/model": {"string": "A100"},
        },
        "capacity": {"mem": {"value": "1Gi"}, "cores": {"value": "8"}},
    },
)

TRUE = {
    "fields of device": ["device.driver == 'd.io'", "device.allowMultipleAllocations == false", ".device.driver != ''"],
    "names without a domain get the driver": [
        "device.attributes['d.io'].s == 'abc'",
        "device.attributes['d.io']['s'] == 'abc'",
        "device.attributes['other.io'].model == 'A100'",
        "device.capacity['d.io'].mem == quantity('1024Mi')",
    ],
    "an unknown domain is an empty map": [
        "has(device.attributes.x)",
        "!has(device.attributes['x'].y)",
        "!('x' in device.attributes)",
        "!('y' in device.attributes['x'])",
        "device.attributes[?'x'].hasValue()",
        "device.attributes.?x.hasValue()",
        "!device.attributes['x'].?y.hasValue()",
        "device.attributes['x'].?y.orValue('q') == 'q'",
        "device.attributes['x'] == {}",
        "device.attributes.x.size() == 0",
        "device.attributes.size() == 2",
        "!('y' in device.capacity['x'])",
    ],
    "equality": [
        "device.attributes['d.io'].i == 3.0",
        "!(device.attributes['d.io'].b == 1)",
        "!(device.attributes['d.io'].s == 1)",
        "device.attributes['d.io'].l == ['a', 'b']",
        "!('1.2.3' == device.attributes['d.io'].v)",
        "device.attributes['d.io'].v == semver('1.2.3+build')",
        "null == null && !(null == 1) && null != false",
        "{'a': [1, 2]} == {'a': [1.0, 2.0]}",
        "{'a': 1} != {'b': 1} && {'a': 1} != {'a': 1, 'b': 2}",
        "{1: 'x', true: 'y'}[true] == 'y' && {1: 'x', true: 'y'}[1] == 'x'",
        "{1: 'x'}[1.0] == 'x' && !(true in {1: 'x'})",
        "!([1] == [true]) && !(double('NaN') == double('NaN'))",
    ],
    "order": [
        "device.attributes['d.io'].i < 3.5",
        "1 < 2 && 2 <= 2 && 3 > 2 && 2 >= 2 && 'a' < 'b' && false < true",
        "9007199254740993 > 9007199254740992.0",
    ],
    "arithmetic": [
        "7 / 2 == 3 && -7 / 2 == -3 && 7 % -2 == 1 && -7 % 2 == -1",
        "2 * 3 + 4 - 5 == 5 && 1.5 * 2.0 == 3.0 && 7.0 / 2.0 == 3.5",
        "1.0 / 0.0 > 1.7e308 && -1.0 / 0.0 < -1.7e308",
        "'a' + 'b' == 'ab' && [1] + [2] == [1, 2]",
        "-device.attributes['d.io'].i == -3",
    ],
    "an error beside the deciding side is swallowed": [
        "device.attributes['d.io'].nosuch || true",
        "true || device.attributes['d.io'].nosuch",
        "!(device.attributes['d.io'].nosuch && false)",
        "!(false && device.attributes['d.io'].nosuch)",
        "1 / 0 == 1 || 'x' || true",
        "[0, 1].exists(x, 1 / x == 1)",
        "![0, 2].all(x, 1 / x == 1)",
    ],
    "choice": ["device.attributes['d.io'].b ? true : 1 / 0 == 1", "(false ? 1 : 2) == 2"],
    "in": [
        "'a' in device.attributes['d.io'].l",
        "!('c' in device.attributes['d.io'].l)",
        "1 in [1.0] && !(true in [1])",
        "!('1.0.0' in device.attributes['d.io'].versions)",
        "semver('2.0.0') in device.attributes['d.io'].versions",
        "'s' in device.attributes['d.io']",
    ],
    "macros with one variable": [
        "device.attributes['d.io'].ints.all(x, x > 0)",
        "[].all(x, false) && ![].exists(x, true)",
        "device.attributes['d.io'].l.exists(x, x == 'b')",
        "device.attributes.exists_one(x, x == 'd.io')",
        "[1, 2, 2].existsOne(x, x == 1) && ![1, 2, 2].existsOne(x, x == 2)",
        "[1, 2, 3].filter(x, x > 1) == [2, 3]",
        "[1, 2, 3].map(x, x * 2) == [2, 4, 6]",
        "[1, 2, 3].map(x, x > 1, x * 2) == [4, 6]",
        "{'a': 1, 'b': 2}.all(k, k in ['a', 'b'])",
        "[[1], [2, 3]].all(x, x.exists(y, y == x[0]))",
        "[1, 2].all(x, [3].all(x, x == 3) && x < 3)",
        "[1].all(device, device == 1)",
    ],
    "macros with two variables": [
        "device.attributes['d.io'].exists(k, v, k == 's' && v == 'abc')",
        "['a', 'b'].all(i, v, v == ['a', 'b'][i])",
        "{'a': 1, 'b': 2}.exists_one(k, v, v == 2)",
        "['a', 'b'].transformList(i, v, i == 1, v) == ['b']",
        "{'a': 1, 'b': 2}.transformMap(k, v, v + 1) == {'a': 2, 'b': 3}",
        "{true: 1}.all(k, v, k == true)",
    ],
    "bind": [
        "cel.bind(d, device.attributes['d.io'], d.s == 'abc' && d.i == 3)",
        "cel.bind(x, 1 / 0, true)",
        "cel.bind(x, 1, cel.bind(y, x + 1, x + y == 3))",
        "[1, 2].all(x, cel.bind(y, x * 2, y == x + x))",
        "cel.bind(d, device, d.driver == 'd.io')",
    ],
    "optionals": [
        "device.attributes['d.io'].?s.orValue('q') == 'abc'",
        "device.attributes['d.io'].?s.orValue(string(1 / 0)) == 'abc'",
        "device.attributes['d.io'].?s.value() == 'abc'",
        "!device.?attributes['d.io'].nosuch.hasValue()",
        "device.?attributes['d.io'].s == optional.of('abc')",
        "['a'][?0] == optional.of('a') && ['a'][?1] == optional.none()",
        "optional.none().or(optional.of(1)).value() == 1",
        "device.attributes['d.io'].?i.optMap(x, x + 1).value() == 4",
        "!device.attributes['d.io'].?nosuch.optMap(x, x + 1).hasValue()",
        "optional.of({'a': 1}).optFlatMap(x, x.?a).value() == 1",
        "[?optional.none(), 1] == [1] && {?'a': optional.of(1), ?'b': optional.none()} == {'a': 1}",
        "!optional.ofNonZeroValue('').hasValue() && optional.ofNonZeroValue(1).hasValue()",
    ],
    "strings": [
        "device.attributes['d.io'].s.contains('b') && 'abc'.startsWith('ab') && 'abc'.endsWith('bc')",
        "'asymetric'.matches('[^a]?sym') && !'abc'.matches('^b') && matches('abc', 'b')",
        "device.attributes['d.io'].s.find('b') == 'b' && 'abc'.find('x') == ''",
        "'a1b22'.findAll('[0-9]+') == ['1', '22'] && 'a1b22'.findAll('[0-9]+', 1) == ['1']",
        "size('é€') == 2 && 'é€'.size() == 2",
        "'ÀbC'.lowerAscii() == 'Àbc' && 'àbC'.upperAscii() == 'àBC'",
        "' \\u00a0x\\n'.trim() == 'x'",
        "'aaa'.replace('a', 'b') == 'bbb' && 'aaa'.replace('a', 'b', 2) == 'bba' && 'aa'.replace('a', 'b', 0) == 'aa'",
        "'d.io.x'.split('.') == ['d', 'io', 'x'] && 'a.b.c'.split('.', 2) == ['a', 'b.c']",
        "'abc'.split('') == ['a', 'b', 'c'] && 'abc'.split('', 2) == ['a', 'bc'] && 'a'.split('.', 0) == []",
        "'abcd'.substring(1) == 'bcd' && 'abcd'.substring(1, 3) == 'bc' && 'a'.substring(1) == ''",
        "'abc'.charAt(0) == 'a' && 'abc'.charAt(3) == ''",
        "'abcb'.indexOf('b') == 1 && 'abcb'.indexOf('b', 2) == 3 && 'abc'.indexOf('x') == -1 && 'a'.indexOf('', 0) == 0",
        "'abcb'.lastIndexOf('b') == 3 && 'abcb'.lastIndexOf('b', 2) == 1 && 'abc'.lastIndexOf('a', 9) == -1",
        "['a', 'b'].join('-') == 'a-b' && ['a', 'b'].join() == 'ab' && [].join('-') == ''",
    ],
    "conversions": [
        "int('-12') == -12 && int(3.9) == 3 && int(-3.9) == -3 && int(5) == 5",
        "double('1.5') == 1.5 && double(2) == 2.0",
        "string(1) == '1' && string(true) == 'true' && string('x') == 'x'",
        "string(1.5) == '1.5' && string(2.0) == '2' && string(1e6) == '1e+06' && string(0.00001234) == '1.234e-05'",
        "string(123456.0) == '123456' && string(-0.5) == '-0.5'",
        "bool('true') && bool('1') && !bool('False')",
        "dyn(1) == 1",
    ],
    "lists": [
        "[1, 2, 3].sum() == 6 && [1.5, 2.5].sum() == 4.0 && [].sum() == 0",
        "device.attributes['d.io'].ints.min() == 1 && device.attributes['d.io'].ints.max() == 3",
        "['b', 'a'].max() == 'b'",
        "[1, 2, 2].indexOf(2) == 1 && [1, 2, 2].lastIndexOf(2) == 2 && [1].indexOf('x') == -1",
        "[1, 2, 2].isSorted() && !device.attributes['d.io'].ints.isSorted()",
        "[1, 2].includes(2) && !'ab'.includes('a') && 'a'.includes('a')",
        "device.attributes['d.io'].l.includes('b') && device.attributes['d.io'].s.includes('abc')",
        "!device.attributes['d.io'].v.includes('1.2.3') && device.attributes['d.io'].v.includes(semver('1.2.3'))",
        "sets.contains(['a', 'b'], ['a']) && sets.equivalent([1, 2], [2, 1, 1]) && sets.intersects([1], [1, 2])",
        "!sets.contains([1], [2]) && !sets.intersects([1], [2])",
        "[1, 2][0.0] == 1",
    ],
    "quantities": [
        "device.capacity['d.io'].mem.compareTo(quantity('1Gi')) == 0",
        "device.capacity['d.io'].mem.isGreaterThan(quantity('1G')) && quantity('1').isLessThan(quantity('1001m'))",
        "isQuantity('1.5Gi') && !isQuantity('200K')",
        "quantity('50k').isInteger() && quantity('50k').asInteger() == 50000 && !quantity('0.5').isInteger()",
        "quantity('500m').asApproximateFloat() == 0.5 && quantity('-1').sign() == -1",
        "quantity('1Gi').add(quantity('1Gi')) == quantity('2Gi') && quantity('10').sub(3) == quantity('7')",
        "quantity('10').add(3) == quantity('13')",
    ],
    "versions": [
        "device.attributes['d.io'].v.isGreaterThan(semver('1.2.3-rc.1'))",
        "device.attributes['d.io'].v.isGreaterThan(semver('v0.0.1', true)) && isSemver('v1.0', true)",
        "!isSemver('v1.0.0') && isSemver('1.0.0')",
        "device.attributes['d.io'].v.major() == 1 && semver('1.2.3').minor() == 2 && semver('1.2.3').patch() == 3",
        "semver('1.0.0').compareTo(semver('2.0.0')) == -1 && semver('1.0.0').isLessThan(semver('1.0.1'))",
    ],
}


@pytest.mark.parametrize("text", [pytest.param(text, id=f"{name}: {text}") for name, texts in TRUE.items() for text in texts])
def test_true(text: str) -> None:
    assert cel.compile_selector(text).matches(DEVICE) is True
    assert cel.compile_selector(f"!({text})").matches(DEVICE) is False


RUN_ERRORS = {
    "missing attribute": ("device.attributes['d.io'].nosuch == 1", "no such key: nosuch"),
    "missing attribute of an unknown domain": ("device.attributes['x'].y", "no such key: y"),
    "missing by index": ("device.attributes['x']['y'] == 1", "no such key: y"),
    "missing capacity": ("device.capacity['x'].mem.compareTo(quantity('1Gi')) == 0", "no such key: mem"),
    "a version is not a string": ("device.attributes['d.io'].v == '1.2.3'", "no such overload"),
    "a quantity is not a number": ("device.capacity['d.io'].cores == 8", "no such overload"),
    "a list of versions is no list of strings": ("device.attributes['d.io'].versions == ['1.0.0', '2.0.0']", "no such"),
    "method of another type": ("device.attributes['d.io'].i.startsWith('a')", "no such overload: startsWith"),
    "quantities have no operators": ("device.capacity['d.io'].mem > quantity('1Mi')", "no such overload: >"),
    "quantity against int": ("device.capacity['d.io'].mem.isGreaterThan(1)", "no such overload: isGreaterThan"),
    "a string is no answer": ("device.attributes['d.io'].s", "CEL result of type string could not be converted to bool"),
    "a list is no answer": ("device.attributes['d.io'].l", "CEL result of type list could not"),
    "a number is no answer": ("1", "CEL result of type int could not"),
    "division by zero": ("device.attributes['d.io'].i / 0 == 1", "division by zero"),
    "modulus by zero": ("1 % 0 == 1", "modulus by zero"),
    "overflow of a sum": ("9223372036854775807 + device.attributes['d.io'].i > 0", "integer overflow"),
    "overflow of a product": ("9223372036854775807 * 2 > 0", "integer overflow"),
    "overflow of a quotient": ("-9223372036854775808 / -1 > 0", "integer overflow"),
    "overflow of a sign": ("-(-9223372036854775808) > 0", "integer overflow"),
    "int and double do not add": ("1 + 1.0 == 2.0", "no such overload: +"),
    "bool is no number": ("true + 1 == 2", "no such overload: +"),
    "bool has no order with int": ("true < 2", "no such overload: <"),
    "NaN has no order": ("double('NaN') < 1.0", "NaN"),
    "not of a string": ("!device.attributes['d.io'].s", "no such overload: !"),
    "and of a string": ("true && device.attributes['d.io'].s", "no such overload: &&"),
    "choice by a string": ("'x' ? true : false", "no such overload: ?:"),
    "the first error of or is told": ("1 / 0 == 1 || device.attributes['x'].y", "division by zero"),
    "an error of all is told": ("[1, 0].all(x, 1 / x == 1)", "division by zero"),
    "an error of exists is told": ("[0, 2].exists(x, 1 / x == 1)", "division by zero"),
    "exists_one swallows nothing": ("[0, 1].exists_one(x, 1 / x == 1)", "division by zero"),
    "filter swallows nothing": ("[0, 1].filter(x, 1 / x == 1) == []", "division by zero"),
    "a macro over a string": ("device.attributes['d.io'].s.exists(x, x == 'a')", "got 'string', expected iterable type"),
    "a macro over a version": ("device.attributes['d.io'].v.all(x, true)", "got 'kubernetes.Semver', expected iterable"),
    "index out of bounds": ("[1][1] == 1", "index out of bounds: 1"),
    "negative index": ("[1][-1] == 1", "index out of bounds: -1"),
    "index that is no number": ("[1]['a'] == 1", "unsupported index a"),
    "half an index": ("[1][0.5] == 1", "unsupported index 0.5"),
    "key that cannot be one": ("{'a': 1}[[1]] == 1", "unsupported key type: list"),
    "repeated key": ("{'a': 1, 'a': 2} == {}", "repeated key: a"),
    "select on a number": ("device.attributes['d.io'].i.x == 1", "no such overload: .x"),
    "in on a string": ("'a' in 'abc'", "no such overload: in"),
    "value of nothing": ("optional.none().value() == 1", "optional.none() dereference"),
    "orValue without an optional": ("device.driver.orValue('x') == 'x'", "no such overload: orValue"),
    "bad quantity": ("quantity('200K').isInteger()", "unable to parse quantity's suffix"),
    "no whole quantity": ("quantity('0.5').asInteger() == 0", "cannot convert value to integer"),
    "bad version": ("semver('v1.0.0').major() == 1", "is not a semantic version"),
    "bad int": ("int('1_0') == 10", "not a whole number"),
    "int out of range": ("int(1e30) == 0", "integer overflow"),
    "bad double": ("double('1_0') == 10.0", "not a number"),
    "bad bool": ("bool('yes')", "not true or false"),
    "string of a quantity": ("string(quantity('1')) == '1'", "no such overload: string"),
    "pattern made at run time": ("'a'.matches('(' + '')", "invalid regular expression"),
    "charAt beyond": ("'abc'.charAt(4) == ''", "index out of range: 4"),
    "substring backwards": ("'abc'.substring(2, 1) == ''", "index out of range: 2"),
    "min of nothing": ("[].min() == 1", "min called on empty list"),
    "min of lists": ("[[1]].min() == [1]", "no such overload: min"),
    "join of numbers": ("[1].join() == '1'", "no such overload: join"),
    "bound device has its fields only": ("cel.bind(d, device, d.nosuch == 1)", "no such key: nosuch"),
}


@pytest.mark.parametrize(("text", "says"), RUN_ERRORS.values(), ids=RUN_ERRORS)
def test_run_errors(text: str, says: str) -> None:
    selector = cel.compile_selector(text)
    with pytest.raises(cel.EvaluationError) as caught:
        selector.matches(DEVICE)
    assert says in caught.value.message
    assert not isinstance(caught.value, errors.Invalid)


COMPILE_ERRORS = {
    "unknown variable": ("devices.x == 1", "column 1: undeclared reference to 'devices'", "did you mean 'device'?"),
    "unknown function": ("device.driver.foo()", "column 15: undeclared reference to 'foo'", "no such function"),
    "mistyped function": ("device.driver.startWith('x')", "'startWith'", "did you mean 'startsWith'?"),
    "unknown field": ("device.nosuch == 1", "column 7: undefined field 'nosuch'", "driver, attributes, capacity"),
    "unknown field in has": ("has(device.attribute)", "undefined field 'attribute'", "did you mean 'attributes'?"),
    "device is no map": ("device['driver'] == ''", "device is not a map", "device.driver"),
    "variable out of its macro": ("[1].all(x, true) && x == 1", "column 21", "undeclared reference to 'x'"),
    "wrong number of arguments": ("'a'.contains()", "it takes 1 argument(s), not 0", "contains"),
    "macro with too few arguments": ("[1].all(x)", "'all'", "x.all(item, condition)"),
    "bind with too few arguments": ("cel.bind(x, 1)", "'cel.bind'", "cel.bind(name, value, expression)"),
    "method written as a function": ("contains('a', 'b')", "'contains'", "x.contains(...)"),
    "function written as a method": ("'1Gi'.quantity().isInteger()", "'quantity'", "quantity(x)"),
    "bad pattern": ("device.driver.matches('(')", "column 23", "invalid regular expression"),
    "bad pattern of the plain form": ("matches(device.driver, '[')", "column 24", "invalid regular expression"),
    "addresses": ("ip('10.0.0.1') == ip('10.0.0.1')", "'ip' (IP addresses)", "not supported"),
    "format": ("'%d'.format([1]) == '1'", "'format' (string formatting)", "not supported"),
    "types": ("type(1) == int", "'type'", "not supported"),
    "namespaced": ("lists.range(3) == [0, 1, 2]", "'lists.range'", "not supported"),
    "unknown in a namespace": ("sets.contain([1], [1])", "'sets.contain'", "did you mean 'sets.contains'?"),
}


@pytest.mark.parametrize(("text", "says", "teaches"), COMPILE_ERRORS.values(), ids=COMPILE_ERRORS)
def test_compile_errors(text: str, says: str, teaches: str) -> None:
    with pytest.raises(errors.Invalid) as caught:
        cel.compile_selector(text)
    assert says in caught.value.message
    assert teaches in caught.value.message


TEN = "[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]"


def nested(depth: int, body: str) -> str:
    return f"{TEN}.all(x{depth}, {nested(depth - 1, body)})" if depth else body


def doubled(times: int, first: str) -> str:
    binds = "".join(f"cel.bind(v{n + 1}, v{n} + v{n}, " for n in range(times))
    return f"cel.bind(v0, {first}, {binds}v{times}.size() > 0{')' * (times + 1)}"


TOO_MUCH = {
    "loops in loops": nested(7, "true"),
    "and no or swallows it": f"{nested(7, 'true')} || true",
    "a string that doubles": doubled(40, "'0123456789'"),
    "a list that doubles": doubled(40, "[1, 2]"),
    "a replacement that explodes": f"cel.bind(a, '{'x' * 500}', cel.bind(b, a.replace('x', a), b.replace('x', b).size() > 0))",
    "a join that explodes": f"cel.bind(a, '{'x' * 900}', a.split('').join(a.replace('x', 'xxxx')).size() > 0)",
}


@pytest.mark.parametrize("text", TOO_MUCH.values(), ids=TOO_MUCH)
def test_too_much_work_is_stopped(text: str) -> None:
    with pytest.raises(cel.EvaluationError, match="cost limit exceeded"):
        cel.compile_selector(text).matches(DEVICE)


def test_a_bad_pattern_is_told_to_the_user_alone(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(errors.Invalid):
        cel.compile_selector("device.driver.matches('a{2,1}')")
    assert capfd.readouterr() == ("", "")


def test_a_hostile_pattern_takes_linear_time() -> None:
    assert not cel.compile_selector(f"'{'a' * 64}b'.matches('^(a+)+$')").matches(DEVICE)


def test_a_selector_keeps_nothing_between_devices() -> None:
    selector = cel.compile_selector("cel.bind(a, device.attributes['d'].n, a == 1 && [a].all(x, x == 1))")
    one, two = (cel.Device.from_slice("d", {"attributes": {"n": {"int": n}}}) for n in (1, 2))
    assert [selector.matches(device) for device in (one, two, one)] == [True, False, True]
