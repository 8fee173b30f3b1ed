"""Splits the text into tokens, each with its position for error messages. Called by `parser`."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass

from outfitter import errors

MAX_BYTES = 10 * 1024  # Kubernetes' limit for one selector
SNIPPET = 100  # columns of the user's line shown in an error


class TokenKind(enum.Enum):
    IDENT = "a name"
    INT = "a whole number"
    UINT = "an unsigned number"
    FLOAT = "a number"
    STRING = "a string"
    BYTES = "a bytes literal"
    OP = "an operator"
    END = "the end of the expression"


@dataclass(frozen=True, slots=True)
class Token:
    kind: TokenKind
    text: str  # as written; for STRING and numbers see `value`
    pos: int  # offset into the source, in characters
    value: str | bytes | int | float | None = None

    def __str__(self) -> str:
        return self.kind.value if self.kind is TokenKind.END else f"'{self.text}'"


@dataclass(frozen=True, slots=True)
class Source:
    """The text of an expression; creates errors with line and column."""

    text: str

    def invalid(self, pos: int, message: str) -> errors.Invalid:
        """An error to raise: position, message, and an excerpt of the line."""
        before = self.text[:pos]
        line, column = before.count("\n") + 1, pos - (before.rfind("\n") + 1) + 1
        shown = self.text.split("\n")[line - 1]
        cut = max(0, column - SNIPPET // 2) if len(shown) > SNIPPET else 0
        snippet = f" | {shown[cut : cut + SNIPPET]}\n | {'.' * (column - 1 - cut)}^"
        text = f"line {line}, column {column}: {message}"
        return errors.Invalid(f"{text}\n{snippet}", [errors.Cause("expression", text)])


_TOKEN = re.compile(
    r"""
    (?P<blank>(?:[ \t\r\n\f]+|//[^\n]*)+)
  | (?P<raw>[rR](?:'''.*?'''|\"\"\".*?\"\"\"|'[^'\r\n]*'|"[^"\r\n]*"))
  | (?P<rawbytes>(?:[bB][rR]|[rR][bB])(?:'''.*?'''|\"\"\".*?\"\"\"|'[^'\r\n]*'|"[^"\r\n]*"))
  | (?P<bytes>[bB](?:'''(?:[^\\]|\\.)*?'''|\"\"\"(?:[^\\]|\\.)*?\"\"\"
              |'(?:[^\\'\r\n]|\\.)*'|"(?:[^\\"\r\n]|\\.)*"))
  | (?P<string>'''(?:[^\\]|\\.)*?'''|\"\"\"(?:[^\\]|\\.)*?\"\"\"
              |'(?:[^\\'\r\n]|\\.)*'|"(?:[^\\"\r\n]|\\.)*")
  | (?P<float>[0-9]+\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+|\.[0-9]+(?:[eE][+-]?[0-9]+)?)
  | (?P<uint>(?:0x[0-9a-fA-F]+|[0-9]+)[uU])
  | (?P<int>0x[0-9a-fA-F]+|[0-9]+)
  | (?P<ident>[A-Za-z_][A-Za-z0-9_]*)
  | (?P<op>&&|\|\||==|!=|<=|>=|[-+*/%<>!?:.,()\[\]{}])
    """,
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(
    r"\\(?:(?P<plain>[abfnrtv\\?\"'`])|(?:[xX](?P<x>[0-9a-fA-F]{2})|u(?P<u>[0-9a-fA-F]{4})|U(?P<U>[0-9a-fA-F]{8}))"
    r"|(?P<octal>[0-3][0-7]{2})|.)",
    re.DOTALL,
)
_PLAIN = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


def tokens(source: Source) -> list[Token]:
    """Split the text; the last token is always END."""
    text, pos, result = source.text, 0, list[Token]()
    while pos < len(text):
        match = _TOKEN.match(text, pos)
        if match is None:
            raise _unreadable(source, pos)
        written = match.group()
        match match.lastgroup:
            case "blank":
                pass
            case "raw":
                result.append(Token(TokenKind.STRING, written, pos, _body(written[1:])))
            case "string":
                result.append(Token(TokenKind.STRING, written, pos, _unescape(source, pos, _body(written))))
            case "rawbytes":
                result.append(Token(TokenKind.BYTES, written, pos, _body(written[2:]).encode(errors="surrogatepass")))
            case "bytes":
                result.append(Token(TokenKind.BYTES, written, pos, _unescape_bytes(source, pos, _body(written[1:]))))
            case "float":
                result.append(Token(TokenKind.FLOAT, written, pos, float(written)))
            case "uint":
                result.append(Token(TokenKind.UINT, written, pos, _whole(source, pos, written[:-1], 1 << 64)))
            case "int":
                result.append(Token(TokenKind.INT, written, pos, _whole(source, pos, written)))
            case "ident":
                result.append(Token(TokenKind.IDENT, written, pos))
            case _:
                result.append(Token(TokenKind.OP, written, pos))
        pos = match.end()
    result.append(Token(TokenKind.END, "", len(text)))
    return result


def _whole(source: Source, pos: int, written: str, beyond: int = (1 << 63) + 1) -> int:
    """The number, if it is below `beyond`. 2^63 itself is valid after a minus, which the parser checks."""
    value = int(written, 16) if written.startswith("0x") else int(written) if len(written) < 100 else 1 << 64
    if value >= beyond:
        most = (1 << 64) - 1 if beyond == 1 << 64 else (1 << 63) - 1
        raise source.invalid(pos, f"Syntax error: {written[:30]} does not fit 64 bits (at most {most})")
    return value


def _body(quoted: str) -> str:
    return quoted[3:-3] if len(quoted) >= 6 and quoted[:3] in ("'''", '"""') else quoted[1:-1]


def _unescape(source: Source, pos: int, body: str) -> str:
    def one(match: re.Match[str]) -> str:
        if plain := match["plain"]:
            return _PLAIN.get(plain, plain)
        if octal := match["octal"]:
            return chr(int(octal, 8))
        code = int(match["x"] or match["u"] or match["U"] or "110000", 16)
        if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
            raise source.invalid(
                pos,
                f'Syntax error: {match.group()!r} is no escape in a string: use \\n \\t \\\\ \\" \\xHH \\uHHHH \\UHHHHHHHH,'
                ' or a raw string r"..."',
            )
        return chr(code)

    return _ESCAPE.sub(one, body) if "\\" in body else body


def _unescape_bytes(source: Source, pos: int, body: str) -> bytes:
    r"""Here \xHH and \OOO are single bytes, and \u is no escape."""

    def one(match: re.Match[str]) -> str:
        if plain := match["plain"]:
            return _PLAIN.get(plain, plain)
        if not (match["x"] or match["octal"]):
            raise source.invalid(
                pos, f"Syntax error: {match.group()!r} is no escape in bytes: use \\n \\t \\\\ \\xHH, or br'...'"
            )
        return chr(0xDC00 + (int(match["x"], 16) if match["x"] else int(match["octal"], 8)))

    made = _ESCAPE.sub(one, body) if "\\" in body else body
    parts = (bytes([ord(c) - 0xDC00]) if 0xDC00 <= ord(c) <= 0xDCFF else c.encode(errors="surrogatepass") for c in made)
    return b"".join(parts)


def _unreadable(source: Source, pos: int) -> errors.Invalid:
    character = source.text[pos]
    if character in "'\"":
        return source.invalid(pos, f"Syntax error: this string is not closed: end it with {character} on the same line")
    meant = {"=": "==", "&": "&&", "|": "||"}.get(character)
    if meant:
        return source.invalid(pos, f"Syntax error: '{character}' is not an operator: write '{meant}'")
    return source.invalid(pos, f"Syntax error: unexpected character {character!r}")
