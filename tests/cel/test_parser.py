"""What binds to what, what macros stand for, and what is refused with its place."""

from __future__ import annotations

import pytest

from outfitter import cel, errors
from outfitter.cel import nodes, parser
from outfitter.cel.lexer import Source


def shape(node: nodes.Node) -> str:
    """The tree with every bracket written out."""
    match node:
        case nodes.Literal():
            return repr(node.value)
        case nodes.Ident():
            return node.name
        case nodes.Select():
            return f"{shape(node.operand)}.{'?' if node.optional else ''}{node.field}"
        case nodes.Index():
            return f"{shape(node.operand)}[{'?' if node.optional else ''}{shape(node.key)}]"
        case nodes.Call():
            target = f"{shape(node.target)}." if node.target else ""
            return f"{target}{node.function}({', '.join(map(shape, node.args))})"
        case nodes.ListLiteral():
            items = (("?" if at in node.optional else "") + shape(item) for at, item in enumerate(node.items))
            return f"[{', '.join(items)}]"
        case nodes.MapLiteral():
            entries = (("?" if e.optional else "") + f"{shape(e.key)}: {shape(e.value)}" for e in node.entries)
            return "{" + ", ".join(entries) + "}"
        case nodes.Unary():
            return f"({node.op}{shape(node.operand)})"
        case nodes.Binary():
            return f"({shape(node.left)} {node.op} {shape(node.right)})"
        case nodes.Logical():
            return f"({f' {node.op} '.join(map(shape, node.terms))})"
        case nodes.Conditional():
            return f"({shape(node.condition)} ? {shape(node.yes)} : {shape(node.no)})"
        case nodes.Has():
            return f"has<{shape(node.operand)}.{node.field}>"
        case nodes.Comprehension():
            names = node.first if node.second is None else f"{node.first}, {node.second}"
            condition = f" if {shape(node.condition)}" if node.condition else ""
            return f"{node.macro}<{names} of {shape(node.range)}{condition}: {shape(node.body)}>"
        case nodes.Bind():
            return f"bind<{node.name} = {shape(node.value)}: {shape(node.body)}>"
        case nodes.SortBy():
            return f"sort<{node.name} of {shape(node.target)}: {shape(node.body)}>"
        case nodes.OptMap():
            return f"{'flat' if node.flat else 'opt'}<{node.name} of {shape(node.target)}: {shape(node.body)}>"


SHAPES = {
    "and binds tighter than or": ("a || b && c || d", "(a || (b && c) || d)"),
    "a chain of and is one flat node": ("a && b && c", "(a && b && c)"),
    "brackets keep their own chain": ("a && (b && c)", "(a && (b && c))"),
    "comparison binds tighter than and": ("a == 1 && b < 2", "((a == 1) && (b < 2))"),
    "sums join from the left": ("a - b - c", "((a - b) - c)"),
    "products before sums": ("a + b * c % d", "(a + ((b * c) % d))"),
    "sums before in": ("a + 1 in b", "((a + 1) in b)"),
    "comparisons join from the left": ("a < b == c", "((a < b) == c)"),
    "not takes the member only": ("!a.b == c", "((!a.b) == c)"),
    "two nots are none": ("!!a", "a"),
    "three nots are one": ("!!!a", "(!a)"),
    "minus before a name": ("-a.b", "(-a.b)"),
    "minus before a number is the number": ("a - -1", "(a - -1)"),
    "the smallest integer": ("-9223372036854775808", "-9223372036854775808"),
    "the else branch nests": ("a ? b : c ? d : e", "(a ? b : (c ? d : e))"),
    "the condition may be an or": ("a || b ? c : d", "((a || b) ? c : d)"),
    "member, index and call in a row": ("a.b['c'].d(1, 2)[0]", "a.b['c'].d(1, 2)[0]"),
    "optional select and index": ("a.?b[?'c']", "a.?b[?'c']"),
    "a leading dot is the root": (".device.driver", "device.driver"),
    "lists with a trailing comma": ("[1, 2.5, 'x', null,]", "[1, 2.5, 'x', None]"),
    "optional items": ("[?a, b]", "[?a, b]"),
    "maps": ("{'a': 1, ?'b': c}", "{'a': 1, ?'b': c}"),
    "numbers": ("[0x1F, 1e3, .5, 1.5e-1, 7u, 0xFFu]", "[31, 1000.0, 0.5, 0.15, 7, 255]"),
    "bytes": (r"[b'a\xff\101', br'\x', B'é']", r"[b'a\xffA', b'\\x', b'\xc3\xa9']"),
    "strings and escapes": (
        r"""["a\tb", 'é\x41\101', r'\d', '''x'y''', "it's"]""",
        r"""['a\tb', 'éAA', '\\d', "x'y", "it's"]""",
    ),
    "comments are blank": ("a // why\n&& b", "(a && b)"),
    "a reserved word is fine as a field": ("a.package", "a.package"),
    "has": ("has(a.b.c)", "has<a.b.c>"),
    "one variable": ("a.all(x, x > 0)", "all<x of a: (x > 0)>"),
    "two variables": ("a.exists(k, v, k == v)", "exists<k, v of a: (k == v)>"),
    "both spellings of exists_one": (
        "[a.exists_one(i, x, x), a.existsOne(i, x, x)]",
        "[exists_one<i, x of a: x>, exists_one<i, x of a: x>]",
    ),
    "existsOne with one variable is a call": ("a.existsOne(x, x)", "a.existsOne(x, x)"),
    "sortBy": ("a.sortBy(x, -x)", "sort<x of a: (-x)>"),
    "transformMapEntry": ("a.transformMapEntry(k, v, {v: k})", "transformMapEntry<k, v of a: {v: k}>"),
    "map with a filter": ("a.map(x, x > 0, x + 1)", "map<x of a if (x > 0): (x + 1)>"),
    "transformList": ("a.transformList(i, v, v)", "transformList<i, v of a: v>"),
    "bind": ("cel.bind(x, a.b, x.c)", "bind<x = a.b: x.c>"),
    "a bind of something else is a call": ("a.bind(x, b, c)", "a.bind(x, b, c)"),
    "optMap": ("a.?b.optMap(x, x + 1)", "opt<x of a.?b: (x + 1)>"),
    "optFlatMap": ("a.?b.optFlatMap(x, x.?c)", "flat<x of a.?b: x.?c>"),
}


@pytest.mark.parametrize(("text", "expected"), SHAPES.values(), ids=SHAPES)
def test_shape(text: str, expected: str) -> None:
    assert shape(parser.parse(Source(text))) == expected


def test_positions_are_kept() -> None:
    node = parser.parse(Source("a &&\n b.c == 1"))
    assert isinstance(node, nodes.Logical)
    comparison = node.terms[1]
    assert isinstance(comparison, nodes.Binary)
    assert (node.pos, comparison.pos, comparison.left.pos, comparison.right.pos) == (2, 10, 7, 13)


REFUSED = {
    "nothing": ("  ", "line 1, column 1: Syntax error: the expression is empty"),
    "stray question mark": ("?!", "line 1, column 1: Syntax error: found '?'"),
    "ends too early": ("true &&", "line 1, column 8: Syntax error: found the end of the expression"),
    "a bracket left open": ("(true", "')' to close the bracket"),
    "an index left open": ("device.attributes['x'", "']' to end the index"),
    "two values side by side": ("true false", "line 1, column 6: Syntax error: found 'false'"),
    "the place is counted in lines": ("true &&\n  ,", "line 2, column 3"),
    "single equals": ("device.driver = 'x'", "write '=='"),
    "single ampersand": ("true & true", "write '&&'"),
    "open string": ("device.driver == 'x", "end it with '"),
    "bad escape": (r"'\d' == ''", "raw string"),
    "surrogate escape": (r"'\ud800' == ''", "is no escape"),
    "unknown character": ("device.driver == `x`", "unexpected character '`'"),
    "bad escape in bytes": (r"b'\u0041' == b''", "is no escape in bytes"),
    "uint too big": ("18446744073709551616u > 0u", "does not fit 64 bits (at most 18446744073709551615)"),
    "message literal": ("Foo{a: 1}", "message literals"),
    "reserved word": ("for == 1", "'for' is a reserved word"),
    "keyword as field": ("device.in", "a field or function name"),
    "int too big": ("9223372036854775808 > 0", "does not fit 64 bits"),
    "hex too big": ("0xFFFFFFFFFFFFFFFFF > 0", "does not fit 64 bits"),
    "int far too big": ("9" * 5000 + " > 0", "does not fit 64 bits"),
    "has without a field": ("has(device)", "has(a.b)"),
    "has of a key": ("has(device.attributes['x'])", "has(a.b)"),
    "macro variable is no name": ("[1].all(1, true)", "argument must be a simple name"),
    "the same variable twice": ("[1].all(x, x, true)", "two different variable names"),
    "ternary without else": ("true ? true", "':' and the other choice"),
    "minus after not": ("!-device.driver", "Syntax error"),
    "brackets too deep": ("(" * 60 + "true" + ")" * 60, "column 51: more than 50 brackets"),
    "chain too deep": ("+".join(["1"] * 400) + " > 0", "more than 150 operations"),
    "too long": ("true" + " " * 10240, "at most 10240 are allowed"),
    "too long in bytes, not characters": ("'" + "é" * 6000 + "' == ''", "12008 bytes"),
}


@pytest.mark.parametrize(("text", "says"), REFUSED.values(), ids=REFUSED)
def test_refused(text: str, says: str) -> None:
    with pytest.raises(errors.Invalid) as caught:
        cel.compile_selector(text)
    assert says in caught.value.message
    assert [cause.field for cause in caught.value.causes] == ["expression"]


DEEP_ENOUGH = {
    "many conditions": " || ".join(["false"] * 900 + ["true"]),
    "many brackets": "(" * 49 + "true" + ")" * 49,
    "brackets below every operator": "(false || true && 1 == 0 + 1 * " * 24 + "1" + " ? 1 : 0)" * 24 + " == 1",
    "a long sum": "+".join(["1"] * 140) + " == 140",
    "loops in loops": "[1].all(x, " * 40 + "true" + ")" * 40,
    "binds in binds": "cel.bind(a, 1, " + "cel.bind(a, [a], " * 45 + "a == a" + ")" * 46,
}


@pytest.mark.parametrize("text", DEEP_ENOUGH.values(), ids=DEEP_ENOUGH)
def test_what_fits_the_limits_never_runs_out_of_stack(text: str) -> None:
    device = cel.CelDevice.from_slice("d", {})

    def from_a_caller_of_depth(depth: int) -> bool:
        return from_a_caller_of_depth(depth - 1) if depth else cel.compile_selector(text).matches(device)

    assert from_a_caller_of_depth(300)


def test_the_error_shows_the_line_and_the_place() -> None:
    with pytest.raises(errors.Invalid) as caught:
        cel.compile_selector("true &&\ndevice.driver.foo()")
    assert caught.value.message.endswith("\n | device.driver.foo()\n | ..............^")
