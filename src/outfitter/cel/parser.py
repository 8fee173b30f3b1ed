"""Parses tokens into the syntax tree: a Pratt parser. Macros (`has`, `all`, `cel.bind`, ...) become nodes of their own. Called
by `evaluator`."""

from __future__ import annotations

import typing

from outfitter import errors
from outfitter.cel import lexer
from outfitter.cel.lexer import Source, Token, TokenKind
from outfitter.cel.nodes import (
    Binary,
    Bind,
    Call,
    Comprehension,
    Conditional,
    Has,
    Ident,
    Index,
    ListLiteral,
    Literal,
    Logical,
    MapEntry,
    MapLiteral,
    Node,
    OptMap,
    Select,
    SortBy,
    Unary,
    children,
)
from outfitter.cel.values import UInt

# The limit of Kubernetes is 250 of each. These fit Python's stack with room for the caller, and exceed what people write;
# a chain of && or || counts once, however long.
MAX_BRACKETS = 50  # brackets of any kind inside each other
MAX_DEPTH = 150  # nodes above each other in the tree: a + b + c is two deep
INT_MAX = (1 << 63) - 1

# Binding power of each operator; all are left-associative.
BINDING = {
    "||": 1,
    "&&": 2,
    **dict.fromkeys(("==", "!=", "<", "<=", ">", ">=", "in"), 3),
    **dict.fromkeys("+-", 4),
    **dict.fromkeys("*/%", 5),
}
CONSTANTS: dict[str, bool | None] = {"true": True, "false": False, "null": None}
RESERVED = frozenset(
    (
        *("as", "break", "const", "continue", "else", "for", "function", "if", "import", "let"),
        *("loop", "namespace", "package", "return", "var", "void", "while"),
    )
)
QUANTIFIERS = {"all": "all", "exists": "exists", "exists_one": "exists_one", "existsOne": "exists_one"}


def parse(source: Source) -> Node:
    """Parse the whole text, or raise Invalid at the first mistake."""
    try:
        node = _Parser(source).whole()
    except RecursionError:  # the stack of the caller is deep already
        raise source.invalid(0, "the expression nests too deeply: take brackets away or split it") from None
    _check_depth(source, node)
    return node


def _check_depth(source: Source, root: Node) -> None:
    waiting = [(root, 1)]
    while waiting:
        node, depth = waiting.pop()
        if depth > MAX_DEPTH:
            raise source.invalid(node.pos, f"more than {MAX_DEPTH} operations build on each other: split the expression")
        waiting.extend((child, depth + 1) for child in children(node))


class _Parser:
    def __init__(self, source: Source) -> None:
        self.source = source
        self.tokens = lexer.tokens(source)
        self.at = 0
        self.depth = 0

    def whole(self) -> Node:
        if self.peek().kind is TokenKind.END:
            raise self.source.invalid(0, "Syntax error: the expression is empty: write a condition, or true for any")
        node = self.expression()
        if self.peek().kind is not TokenKind.END:
            raise self.unexpected("an operator or the end of the expression")
        return node

    # -- tokens

    def peek(self) -> Token:
        return self.tokens[self.at]

    def next(self) -> Token:
        token = self.tokens[self.at]
        self.at += 1
        return token

    def accept(self, op: str) -> bool:
        token = self.tokens[self.at]
        if token.kind is TokenKind.OP and token.text == op:
            self.at += 1
            return True
        return False

    def expect(self, op: str, why: str) -> None:
        if not self.accept(op):
            raise self.unexpected(f"'{op}' {why}")

    def unexpected(self, wanted: str) -> errors.Invalid:
        token = self.peek()
        return self.source.invalid(token.pos, f"Syntax error: found {token} where {wanted} should be")

    # -- expressions, loosest first

    def expression(self) -> Node:
        self.depth += 1
        if self.depth > MAX_BRACKETS:
            raise self.source.invalid(
                self.peek().pos, f"more than {MAX_BRACKETS} brackets or choices inside each other: take some away"
            )
        node = self.joined(1)
        token = self.peek()
        if self.accept("?"):
            yes = self.joined(1)
            self.expect(":", "and the other choice of '? :'")
            node = Conditional(token.pos, node, yes, self.expression())
        self.depth -= 1
        return node

    def joined(self, loosest: int) -> Node:
        """Operands joined by operators that bind at least as tightly as `loosest`."""
        node = self.prefixed()
        while True:
            token = self.peek()
            binding = BINDING.get(token.text, 0) if token.kind in (TokenKind.OP, TokenKind.IDENT) else 0
            if binding < loosest or binding == 0:
                return node
            self.at += 1
            right = self.joined(binding + 1)
            if token.text not in ("&&", "||"):
                node = Binary(token.pos, token.text, node, right)
                continue
            terms = [node, right]
            while self.accept(token.text):
                terms.append(self.joined(binding + 1))
            node = Logical(token.pos, token.text, tuple(terms))

    def prefixed(self) -> Node:
        token = self.peek()
        signs = 0
        while self.peek().text == token.text and token.text in ("!", "-") and self.peek().kind is TokenKind.OP:
            if token.text == "-" and signs == 0 and self.tokens[self.at + 1].kind in (TokenKind.INT, TokenKind.FLOAT):
                break  # a negative number is a literal: 9223372036854775808 does not fit 64 bits
            self.at += 1
            signs += 1
        node = self.member()
        return Unary(token.pos, token.text, node) if signs % 2 else node

    def member(self) -> Node:
        node = self.primary()
        while True:
            token = self.peek()
            if self.accept("."):
                optional = self.accept("?")
                name = self.next()
                if name.kind is not TokenKind.IDENT or name.text in CONSTANTS or name.text == "in":
                    self.at -= 1
                    raise self.unexpected("a field or function name")
                if not optional and self.accept("("):
                    node = self.call(name, node, self.arguments(")"))
                else:
                    node = Select(token.pos, node, name.text, optional)
            elif self.accept("["):
                optional = self.accept("?")
                key = self.expression()
                self.expect("]", "to end the index")
                node = Index(token.pos, node, key, optional)
            elif token.text == "{" and token.kind is TokenKind.OP and isinstance(node, (Ident, Select)):
                raise self.source.invalid(token.pos, "message literals, Name{...}, are not supported in device selectors")
            else:
                return node

    def primary(self) -> Node:
        token = self.next()
        match token.kind:
            case TokenKind.INT:
                return self.whole_number(token, 1)
            case TokenKind.FLOAT | TokenKind.STRING | TokenKind.BYTES:
                return Literal(token.pos, token.value)
            case TokenKind.UINT:
                return Literal(token.pos, UInt(typing.cast(int, token.value)))
            case TokenKind.IDENT if token.text in CONSTANTS:
                return Literal(token.pos, CONSTANTS[token.text])
            case TokenKind.IDENT if token.text != "in":
                return self.named(token)
            case TokenKind.OP:
                match token.text:
                    case "(":
                        node = self.expression()
                        self.expect(")", "to close the bracket")
                        return node
                    case "[":
                        return self.list_literal(token)
                    case "{":
                        return self.map_literal(token)
                    case "-" if self.peek().kind is TokenKind.INT:
                        return self.whole_number(self.next(), -1, token.pos)
                    case "-" if self.peek().kind is TokenKind.FLOAT:
                        return Literal(token.pos, -typing.cast(float, self.next().value))
                    case "." if self.peek().kind is TokenKind.IDENT:
                        return self.named(self.next())
        self.at -= 1
        raise self.unexpected("a value, a name, '(', '[', '{', '!' or '-'")

    def whole_number(self, token: Token, sign: int, pos: int | None = None) -> Literal:
        value = sign * typing.cast(int, token.value)
        if value > INT_MAX:
            raise self.source.invalid(token.pos, f"Syntax error: {token.text} does not fit 64 bits (at most {INT_MAX})")
        return Literal(token.pos if pos is None else pos, value)

    def named(self, token: Token) -> Node:
        if token.text in RESERVED:
            raise self.source.invalid(token.pos, f"Syntax error: '{token.text}' is a reserved word: use another name")
        if self.accept("("):
            return self.call(token, None, self.arguments(")"))
        return Ident(token.pos, token.text)

    def arguments(self, end: str) -> tuple[Node, ...]:
        args = list[Node]()
        if self.accept(end):
            return ()
        while True:
            args.append(self.expression())
            if self.accept(end):
                return tuple(args)
            self.expect(",", f"or '{end}' after an argument")

    def list_literal(self, token: Token) -> ListLiteral:
        items, optional = list[Node](), set[int]()
        while not self.accept("]"):
            if self.accept("?"):
                optional.add(len(items))
            items.append(self.expression())
            if not self.accept(","):
                self.expect("]", "or ',' after a list item")
                break
        return ListLiteral(token.pos, tuple(items), frozenset(optional))

    def map_literal(self, token: Token) -> MapLiteral:
        entries = list[MapEntry]()
        while not self.accept("}"):
            optional = self.accept("?")
            key = self.expression()
            self.expect(":", "between a key and its value")
            entries.append(MapEntry(key, self.expression(), optional))
            if not self.accept(","):
                self.expect("}", "or ',' after a map entry")
                break
        return MapLiteral(token.pos, tuple(entries))

    # -- macros

    def call(self, name: Token, target: Node | None, args: tuple[Node, ...]) -> Node:
        """A call, or the node of the macro with that name and number of arguments."""
        text, count = name.text, len(args)
        if target is None:
            return self.has(name, args[0]) if text == "has" and count == 1 else Call(name.pos, text, None, args)
        match text, count:
            case ("all" | "exists" | "exists_one", 2 | 3) | ("existsOne", 3):
                first, second = self.variables(args[: count - 1])
                return Comprehension(name.pos, QUANTIFIERS[text], target, first, second, None, args[-1])
            case "filter", 2:
                return Comprehension(name.pos, text, target, self.variable(args[0]), None, None, args[1])
            case "map", 2 | 3:
                condition = args[1] if count == 3 else None
                return Comprehension(name.pos, text, target, self.variable(args[0]), None, condition, args[-1])
            case "transformList" | "transformMap" | "transformMapEntry", 3 | 4:
                first, second = self.variables(args[:2])
                condition = args[2] if count == 4 else None
                return Comprehension(name.pos, text, target, first, second, condition, args[-1])
            case "optMap" | "optFlatMap", 2:
                return OptMap(name.pos, target, self.variable(args[0]), args[1], text == "optFlatMap")
            case "sortBy", 2:
                return SortBy(name.pos, target, self.variable(args[0]), args[1])
            case "bind", 3 if isinstance(target, Ident) and target.name == "cel":
                return Bind(name.pos, self.variable(args[0]), args[1], args[2])
        return Call(name.pos, text, target, args)

    def has(self, name: Token, arg: Node) -> Has:
        if not isinstance(arg, Select) or arg.optional:
            raise self.source.invalid(
                name.pos, 'invalid argument to has() macro: it wants a field, has(a.b); for a key write "b" in a'
            )
        return Has(name.pos, arg.operand, arg.field)

    def variables(self, nodes: tuple[Node, ...]) -> tuple[str, str | None]:
        """The one or two variables of a macro."""
        first = self.variable(nodes[0])
        second = self.variable(nodes[1]) if len(nodes) > 1 else None
        if first == second:
            raise self.source.invalid(nodes[1].pos, f"duplicate variable name: {first}; use two different variable names")
        return first, second

    def variable(self, node: Node) -> str:
        if not isinstance(node, Ident):
            raise self.source.invalid(node.pos, "argument must be a simple name: the variable of the macro, such as x")
        return node.name
