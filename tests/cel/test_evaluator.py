"""Expressions against one device: what they answer, what they refuse, and what they swallow."""

from __future__ import annotations

import pytest

from outfitter import cel, errors

DEVICE = cel.CelDevice.from_slice(
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
        "null == null && !(device.attributes['d.io'].i == null) && device != null",
        "{'a': dyn([1, 2])} == {'a': dyn([1.0, 2.0])}",
        "{'a': 1} != {'b': 1} && {'a': 1} != {'a': 1, 'b': 2}",
        "{dyn(1): 'x', dyn(true): 'y'}[true] == 'y' && {dyn(1): 'x', dyn(true): 'y'}[1] == 'x'",
        "{1: 'x'}[dyn(1.0)] == 'x' && {1: 'x'}[dyn(1u)] == 'x' && !(dyn(true) in {1: 'x'})",
        "!(dyn([1]) == [true]) && !(double('NaN') == double('NaN'))",
        "dyn(1) == 1u && dyn(1u) == 1.0 && dyn(9007199254740993) == 9007199254740992.0",
        "b'a' == b'a' && b'a' != b'b' && !(dyn(b'a') == 'a')",
        "{'a': 1, 'a': 2} == {'a': 2} && {device.driver: 1, 'd.io': 2} == {'d.io': 2}",
    ],
    "order": [
        "device.attributes['d.io'].i < 3.5",
        "1 < 2 && 2 <= 2 && 3 > 2 && 2 >= 2 && 'a' < 'b' && false < true",
        "!(9007199254740993 > 9007199254740992.0)",
        "1u < 2 && 2u >= 1.5 && b'a' < b'b' && -1 < 0u",
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
        "1 / 0 == 1 || device.attributes['d.io'].s || true",
        "[0, 1].exists(x, 1 / x == 1)",
        "![0, 2].all(x, 1 / x == 1)",
    ],
    "choice": ["device.attributes['d.io'].b ? true : 1 / 0 == 1", "(false ? 1 : 2) == 2"],
    "in": [
        "'a' in device.attributes['d.io'].l",
        "!('c' in device.attributes['d.io'].l)",
        "dyn(1) in [1.0] && !(dyn(true) in [1])",
        "!('1.0.0' in device.attributes['d.io'].versions)",
        "semver('2.0.0') in device.attributes['d.io'].versions",
        "'s' in device.attributes['d.io']",
    ],
    "macros with one variable": [
        "device.attributes['d.io'].ints.all(x, x > 0)",
        "[].all(x, false) && ![].exists(x, true)",
        "device.attributes['d.io'].l.exists(x, x == 'b')",
        "device.attributes.exists_one(x, x == 'd.io')",
        "[1, 2, 2].exists_one(x, x == 1) && ![1, 2, 2].exists_one(x, x == 2)",
        "['ccc', 'a', 'bb'].sortBy(x, x.size()) == ['a', 'bb', 'ccc']",
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
        "{'a': 1, 'b': 2}.exists_one(k, v, v == 2) && ['a', 'b'].existsOne(i, v, i == 0)",
        "{'a': 1}.transformMapEntry(k, v, {v: k}) == {1: 'a'}",
        "['a', 'b'].transformMapEntry(i, v, i > 0, {v: i}) == {'b': 1}",
        "['a', 'b'].transformMap(i, v, v + 'x') == {0: 'ax', 1: 'bx'}",
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
        "optional.unwrap([optional.of(1), optional.none()]) == [1] && [optional.of(2)].unwrapOpt() == [2]",
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
        "[1, 2, 2].indexOf(2) == 1 && [1, 2, 2].lastIndexOf(2) == 2 && [1].indexOf(2) == -1",
        "[1, 2, 3].slice(1, 3) == [2, 3] && [[1], [2]].flatten() == [1, 2]",
        "[dyn([1]), dyn([[2]])].flatten(2) == [1, 2] && [[1]].flatten(0) == [dyn([1])]",
        "[1, 2, 2].distinct() == [1, 2] && [1, 2].reverse() == [2, 1] && [3, 1, 2].sort() == [1, 2, 3]",
        "lists.range(3) == [0, 1, 2] && [1, 2].first().value() == 1 && [1, 2].last().value() == 2",
        "![1].filter(x, false).first().hasValue()",
        "[1, 2, 2].isSorted() && !device.attributes['d.io'].ints.isSorted()",
        "[1, 2].includes(2) && !'ab'.includes('a') && 'a'.includes('a')",
        "device.attributes['d.io'].l.includes('b') && device.attributes['d.io'].s.includes('abc')",
        "!device.attributes['d.io'].v.includes('1.2.3') && device.attributes['d.io'].v.includes(semver('1.2.3'))",
        "sets.contains(['a', 'b'], ['a']) && sets.equivalent([1, 2], [2, 1, 1]) && sets.intersects([1], [1, 2])",
        "!sets.contains([1], [2]) && !sets.intersects([1], [2])",
        "[1, 2][dyn(0.0)] == 1 && [1, 2][dyn(1u)] == 2",
    ],
    "quantities": [
        "device.capacity['d.io'].mem.compareTo(quantity('1Gi')) == 0",
        "device.capacity['d.io'].mem.isGreaterThan(quantity('1G')) && quantity('1').isLessThan(quantity('1001m'))",
        "isQuantity('1.5Gi') && !isQuantity('200K')",
        "quantity('50k').isInteger() && quantity('50k').asInteger() == 50000 && !quantity('0.5').isInteger()",
        "quantity('500m').asApproximateFloat() == 0.5 && sign(quantity('-1')) == -1",
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
    "formats": [
        "'%s is %d'.format(['x', 7]) == 'x is 7' && '%%'.format([]) == '%'",
        "'%s'.format([[1, 2.5, 'a', true, null, b'x', 1u]]) == '[1, 2.500000, \"a\", true, null, b\"x\", 1]'",
        "'%s'.format([{'b': 1, 'a': 2}]) == '{\"a\":2, \"b\":1}'",
        "'%.2f'.format([1234567.891]) == '1,234,567.89' && '%e'.format([1052.032911275]) == '1.052033×10⁰³'",
        "'%b %o %x %X'.format([5, 8, 255, b'hi']) == '101 10 ff 6869'",
        r"""strings.quote('a"b\n') == '"a\\"b\\n"'""",
    ],
    "numbers without sign, and bytes": [
        "uint('7') == 7u && uint(7) + 1u == 8u && 7u / 2u == 3u && 7u % 4u == 3u && int(7u) == 7 && double(2u) == 2.0",
        "bytes('é') == b'\\xc3\\xa9' && string(b'abc') == 'abc' && size(b'\\xff') == 1 && b'a' + b'b' == b'ab'",
    ],
    "types as values": [
        "type(1) == int && type('') == string && type(null) == null_type && type([1]) == list && type(1u) == uint",
        "type(device.attributes['d.io'].v) != string && type(duration('1s')) == google.protobuf.Duration",
        "type(ip('::1')) == net.IP && type(int) == type",
    ],
    "times": [
        "duration('90s') == duration('1m30s') && duration('1h') > duration('59m') && string(duration('1.5s')) == '1.5s'",
        "timestamp('2024-05-01T10:00:00Z') + duration('1h') == timestamp('2024-05-01T13:00:00+02:00')",
        "timestamp('2024-05-01T10:00:00Z') - timestamp('2024-05-01T09:00:00Z') == duration('1h')",
        "timestamp('2024-05-01T10:20:30.4Z').getMonth() == 4 && timestamp(0).getFullYear() == 1970",
        "timestamp('2024-05-01T23:20:30Z').getHours('+02:00') == 1 && timestamp('2024-05-01T23:20:30Z').getDate('+02:00') == 2",
        "duration('1h').getMinutes() == 60 && int(timestamp(5)) == 5",
        "[duration('1s'), duration('2s')].sum() == duration('3s') && timestamp(0) < timestamp(1)",
        "string(timestamp('2024-05-01T10:00:00.5+02:00')) == '2024-05-01T10:00:00.5+02:00'",
    ],
    "addresses": [
        "ip('10.0.0.1').family() == 4 && ip('::1').isLoopback() && isIP('fe80::1') && !isIP('10.0.0.01')",
        "!isIP('::ffff:10.0.0.1') && ip.isCanonical('::1') && !ip.isCanonical('0::1') && string(ip('0::1')) == '::1'",
        "ip('169.254.0.1').isLinkLocalUnicast() && ip('224.0.0.1').isLinkLocalMulticast() && ip('8.8.8.8').isGlobalUnicast()",
        "cidr('10.1.0.0/16').containsIP('10.1.2.3') && !cidr('10.1.0.0/16').containsIP(ip('10.2.0.1'))",
        "cidr('10.0.0.0/8').containsCIDR('10.1.0.0/16') && !cidr('10.1.0.0/16').containsCIDR(cidr('10.0.0.0/8'))",
        "cidr('10.0.0.1/8').masked() == cidr('10.0.0.0/8') && cidr('10.0.0.1/8').ip() == ip('10.0.0.1')",
        "cidr('10.0.0.0/8').prefixLength() == 8 && isCIDR('::/0') && !isCIDR('10.0.0.0/33')",
    ],
    "URLs": [
        "url('https://u:p@Ex.com:80/a%20b?x=1&x=2#f').getHost() == 'Ex.com:80' && url('HTTP://x').getScheme() == 'http'",
        "url('https://[::1]:80/a').getHostname() == '::1' && url('https://[::1]:80/a').getPort() == '80'",
        "url('/a b').getEscapedPath() == '/a%20b' && url('/p?x=1&x=2').getQuery() == {'x': ['1', '2']}",
        "isURL('/abs') && !isURL('rel') && !isURL('http://x:y/')",
    ],
    "named formats": [
        "!format.dns1123Label().validate('my-label').hasValue() && format.dns1123Label().validate('My').hasValue()",
        "format.named('uuid').hasValue() && !format.named('nosuch').hasValue()",
        "!format.qualifiedName().validate('a.b/c').hasValue() && format.qualifiedName().validate('a/b/c').hasValue()",
        "!format.date().validate('2024-02-29').hasValue() && format.date().validate('2023-02-29').hasValue()",
    ],
}


@pytest.mark.parametrize("text", [pytest.param(text, id=f"{name}: {text}") for name, texts in TRUE.items() for text in texts])
def test_true(text: str) -> None:
    assert cel.compile_selector(text, limit=None).matches(DEVICE) is True
    assert cel.compile_selector(f"!({text})", limit=None).matches(DEVICE) is False


RUN_ERRORS = {
    "missing attribute": ("device.attributes['d.io'].nosuch == 1", "no such key: nosuch"),
    "missing attribute of an unknown domain": ("device.attributes['x'].y", "no such key: y"),
    "missing by index": ("device.attributes['x']['y'] == 1", "no such key: y"),
    "missing capacity": ("device.capacity['x'].mem.compareTo(quantity('1Gi')) == 0", "no such key: mem"),
    "a version is not a string": ("device.attributes['d.io'].v == '1.2.3'", "no such overload"),
    "a list of versions is no list of strings": ("device.attributes['d.io'].versions == ['1.0.0', '2.0.0']", "no such"),
    "method of another type": ("device.attributes['d.io'].i.startsWith('a')", "no such overload: startsWith"),
    "a string is no answer": ("device.attributes['d.io'].s", "CEL result of type string could not be converted to bool"),
    "a list is no answer": ("device.attributes['d.io'].l", "CEL result of type list could not"),
    "index that is no number": ("[1][dyn('a')] == 1", "unsupported index a"),
    "half an index": ("[1][dyn(0.5)] == 1", "unsupported index 0.5"),
    "key that cannot be one": ("{[1]: 1} == {}", "unsupported key type: list"),
    "a made int": ("int(device.attributes['d.io'].s) == 1", "not a whole number"),
    "a made uint": ("uint(-device.attributes['d.io'].i) == 1u", "unsigned integer overflow"),
    "a made time": ("timestamp(device.attributes['d.io'].s) == timestamp(0)", "is not a timestamp"),
    "unknown zone": ("timestamp(0).getHours('No/Where') == 0", "unknown time zone"),
    "uint below zero": ("1u - 2u == 0u", "unsigned integer overflow"),
    "slice beyond": ("[1].slice(0, 2) == [1]", "cannot slice(0, 2)"),
    "a key twice in one map": ("['a', 'a'].transformMapEntry(i, v, {v: i}) == {}", "already exists"),
    "an address that is none": ("ip(device.driver) == ip('::1')", "is not an IP address"),
    "a range that is none": ("cidr('10.0.0.0').prefixLength() == 1", "is not a CIDR range"),
    "a URL that is none": ("url('x y').getHost() == ''", "is not a URL"),
    "bytes that are no text": ("string(b'\\xff' + b'') == ''", "invalid UTF-8"),
    "a format of the wrong type": ("'%d'.format([device.attributes['d.io'].s]) == ''", "%d formats whole numbers"),
    "division by zero": ("device.attributes['d.io'].i / 0 == 1", "division by zero"),
    "modulus by zero": ("1 % 0 == 1", "modulus by zero"),
    "overflow of a sum": ("9223372036854775807 + device.attributes['d.io'].i > 0", "integer overflow"),
    "overflow of a product": ("9223372036854775807 * 2 > 0", "integer overflow"),
    "overflow of a quotient": ("-9223372036854775808 / -1 > 0", "integer overflow"),
    "overflow of a sign": ("-(-9223372036854775808) > 0", "integer overflow"),
    "NaN has no order": ("double('NaN') < 1.0", "NaN"),
    "not of a string": ("!device.attributes['d.io'].s", "no such overload: !"),
    "and of a string": ("true && device.attributes['d.io'].s", "no such overload: &&"),
    "the first error of or is reported": ("1 / 0 == 1 || device.attributes['x'].y", "division by zero"),
    "an error of all is reported": ("[1, 0].all(x, 1 / x == 1)", "division by zero"),
    "an error of exists is reported": ("[0, 2].exists(x, 1 / x == 1)", "division by zero"),
    "exists_one swallows nothing": ("[0, 1].exists_one(x, 1 / x == 1)", "division by zero"),
    "filter swallows nothing": ("[0, 1].filter(x, 1 / x == 1) == []", "division by zero"),
    "a macro over a string": ("device.attributes['d.io'].s.exists(x, x == 'a')", "got 'string', expected iterable type"),
    "a macro over a version": ("device.attributes['d.io'].v.all(x, true)", "got 'kubernetes.Semver', expected iterable"),
    "index out of bounds": ("[1][1] == 1", "index out of bounds: 1"),
    "negative index": ("[1][-1] == 1", "index out of bounds: -1"),
    "select on a number": ("device.attributes['d.io'].i.x == 1", "no such overload: .x"),
    "value of nothing": ("optional.none().value() == 1", "optional.none() dereference"),
    "bad quantity": ("quantity('200K').isInteger()", "unable to parse quantity's suffix"),
    "no whole quantity": ("quantity('0.5').asInteger() == 0", "cannot convert value to integer"),
    "bad version": ("semver('v1.0.0').major() == 1", "is not a semantic version"),
    "pattern made at run time": ("'a'.matches('(' + '')", "invalid regular expression"),
    "charAt beyond": ("'abc'.charAt(4) == ''", "index out of range: 4"),
    "substring backwards": ("'abc'.substring(2, 1) == ''", "index out of range: 2"),
    "min of nothing": ("[].min() == 1", "min called on empty list"),
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
    "quantity against a number": ("device.capacity['d.io'].cores == 8", "no matching overload for '_==_'", "quantity('1Gi')"),
    "quantities have no operators": (
        "device.capacity['d.io'].mem > quantity('1Mi')",
        "'_>_' applied to '(kubernetes.Quantity, kubernetes.Quantity)'",
        "write .isGreaterThan(quantity('1Gi')) or .compareTo(quantity('1Gi')) > 0",
    ),
    "a quantity compares with a quantity": (
        "device.capacity['d.io'].mem.isGreaterThan(1)",
        "'isGreaterThan' applied to 'kubernetes.Quantity.(int)'",
        "write .isGreaterThan(quantity('1Gi'))",
    ),
    "versions have no operators": (
        "device.attributes['d.io'].v > semver('1.0.0')",
        "'_>_' applied to '(dyn, kubernetes.Semver)'",
        "write .isGreaterThan(semver('1.2.3'))",
    ),
    "a number is no answer": ("1", "must evaluate to bool or the unknown type, not int", "end it with a comparison"),
    "int and double do not add": ("1 + 1.0 == 2.0", "'_+_' applied to '(int, double)'", "convert one with int(), double()"),
    "a string and a number": ("device.driver + 1 == 'x'", "column 15", "'_+_' applied to '(string, int)'"),
    "two types never compare": ("device.driver == 1", "'_==_' applied to '(string, int)'", "dyn(...)"),
    "choice by a string": ("'x' ? true : false", "'_?_:_' applied to '(string, bool, bool)'", "the condition is a bool"),
    "and of a string": ("true && 'x'", "column 9: expected type 'bool' but found 'string'", "compare it"),
    "index that is no number": ("[1]['a'] == 1", "'_[_]' applied to '(list(int), string)'", "a list takes a whole number"),
    "in on a string": ("'a' in 'abc'", "'@in' applied to '(string, string)'", ".contains(...)"),
    "mixed list": ("[1, 'a'].size() == 2", "column 5: expected type 'int' but found 'string'", "have one type"),
    "mixed list of attributes": ("['a', device.attributes['d'].x].size() == 2", "expected type 'string' but found", "dyn(...)"),
    "mixed keys": ("{1: 'x', true: 'y'}.size() == 2", "column 10", "expected type 'int' but found 'bool'"),
    "string of a quantity": ("string(quantity('1')) == '1'", "applied to '(kubernetes.Quantity)'", "it is declared as"),
    "join of numbers": ("[1].join() == '1'", "'join' applied to 'list(int).()'", "list(string).join()"),
    "bound device has its fields only": ("cel.bind(d, device, d.nosuch == 1)", "undefined field 'nosuch'", "device has driver"),
    "a function used as a field": ("device.driver.size == 1", "does not support field selection", "write .size(...)"),
    "a field of text": ("device.driver.x == 1", "type 'string' does not support field selection", "only device and maps"),
    "a field of a quantity": ("device.capacity['d'].mem.x == 1", "undefined field 'x'", "isGreaterThan"),
    "orValue without an optional": ("device.driver.orValue('x') == 'x'", "applied to 'string.(string)'", "optional_type(V)"),
    "a macro over a string": ("device.driver.all(x, true)", "expression of type 'string' cannot be range", "must be list, map"),
    "existsOne with one variable": ("[1].existsOne(x, x == 1)", "undeclared reference to 'existsOne'", "x.exists_one(item"),
    "an optional item that is none": ("[?1].size() == 1", "expected type 'optional_type(int)'", "take the ? away"),
    "bad int": ("int('1_0') == 10", "column 5", "not a whole number"),
    "int out of range": ("int(1e30) == 0", "column 5", "integer overflow"),
    "bad double": ("double('1__0') == 10.0", "column 8", "not a number"),
    "bad bool": ("bool('yes')", "column 6", "not true or false"),
    "bad duration": ("duration('1 hour') > duration('1s')", "column 10", "write 300ms, 1.5h or 2h45m"),
    "bad timestamp": ("timestamp('2024-05-01') > timestamp(0)", "column 11", "write 2024-05-01T10:00:00Z"),
    "bad format": ("'%z'.format([1]) == ''", "could not parse formatting clause '%z'", "use %s %d"),
    "a format with too few arguments": ("'%s %s'.format([1]) == ''", "2 placeholder(s)", "1 argument(s)"),
    "a format of the wrong type": ("'%d'.format([1.5]) == ''", "%d formats whole numbers, not a double", "%s for any value"),
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
    "a replacement that explodes": f"cel.bind(a, '{'x' * 500}', cel.bind(b, a.replace('x', a), b.replace('x', b).size() > 0))",
    "a join that explodes": f"cel.bind(a, '{'x' * 900}', a.split('').join(a.replace('x', 'xxxx')).size() > 0)",
    "a list that doubles": doubled(40, "[1, 2]"),
    "lists of lists compared": "".join(f"cel.bind(v{n + 1}, [v{n}, v{n}], " for n in range(30)).join(
        ("cel.bind(v0, [dyn(1)], ", f"v30 == [v29, v29]{')' * 31}")
    ),
    "lists of lists printed": "".join(f"cel.bind(v{n + 1}, [v{n}, v{n}], " for n in range(30)).join(
        ("cel.bind(v0, [dyn(1)], ", f"'%s'.format([v30]) == ''{')' * 31}")
    ),
}


@pytest.mark.parametrize("text", TOO_MUCH.values(), ids=TOO_MUCH)
def test_too_much_work_is_stopped(text: str) -> None:
    with pytest.raises(cel.EvaluationError, match="cost limit exceeded"):
        cel.compile_selector(text, limit=None).matches(DEVICE)


def test_bad_pattern_is_reported_to_the_user_only(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(errors.Invalid):
        cel.compile_selector("device.driver.matches('a{2,1}')")
    assert capfd.readouterr() == ("", "")


def test_a_hostile_pattern_takes_linear_time() -> None:
    assert not cel.compile_selector(f"'{'a' * 64}b'.matches('^(a+)+$')").matches(DEVICE)


def test_a_selector_keeps_nothing_between_devices() -> None:
    selector = cel.compile_selector("cel.bind(a, device.attributes['d'].n, a == 1 && [a].all(x, x == 1))")
    one, two = (cel.CelDevice.from_slice("d", {"attributes": {"n": {"int": n}}}) for n in (1, 2))
    assert [selector.matches(device) for device in (one, two, one)] == [True, False, True]
