"""A request as the verbs see it, and what they give back; and how both are read and written as ASGI."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote

import msgspec

from outfitter.api import write_request
from outfitter.api.kinds import Object
from outfitter.apiserver import auth, body_transfer, negotiate, status
from outfitter.apiserver.body_transfer import Send
from outfitter.apiserver.paths import RequestPath
from outfitter.apiserver.status import BadOptions
from outfitter.errors import BadRequest, OutfitterError, shortened

Scope = Mapping[str, Any]  # of ASGI
Headers = list[tuple[bytes, bytes]]
MAX_WARNINGS = 4096  # bytes of Warning headers
MAX_INT64 = 2**63 - 1
MAX_QUERY_FIELDS = 100
MAX_WARNING_HEADERS = 50  # clients bound how many headers a response may have


@dataclass(slots=True)
class Request:
    """What was asked, after its path was understood."""

    verb: str
    target: RequestPath
    query: Mapping[str, Sequence[str]]
    headers: Mapping[bytes, bytes]
    body: bytes = b""
    warnings: list[str] = field(default_factory=list)  # sent to the client beside the response
    user: str = ""  # who asks

    @property
    def by(self) -> write_request.Writer:
        return write_request.Writer(self.user, self.warnings.append)

    def header(self, name: str) -> str:
        return self.headers.get(name.encode(), b"").decode("latin-1")

    def text(self, name: str) -> str:
        return self.query.get(name, ("",))[0]

    def flag(self, name: str) -> bool:
        """As Kubernetes reads a boolean in a query: there and not false."""
        return self.text(name).lower() not in ("", "0", "f", "false")

    def number(self, name: str) -> int | None:
        text = self.text(name)
        if not text:
            return None
        if not (text.isascii() and text.removeprefix("-").isdigit() and len(text) <= 20 and abs(int(text)) <= MAX_INT64):
            raise BadRequest(f'{name}: Invalid value: "{shortened(text)}": must be a whole number of 64 bits')
        return int(text)

    def choice(self, options: str, name: str, among: Sequence[str]) -> str:
        return self._supported(options, name, self.text(name), among)

    @staticmethod
    def _supported(options: str, name: str, text: str, among: Sequence[str]) -> str:
        if text and text not in among:
            known = ", ".join(f'"{each}"' for each in among)
            raise BadOptions(options, name, f'Unsupported value: "{shortened(text)}": supported values: {known}')
        return text

    def dry_run(self, options: str) -> bool:
        return bool({self._supported(options, "dryRun", text, ("All",)) for text in self.query.get("dryRun", ())} - {""})

    def content(self) -> negotiate.Body:
        return negotiate.read(self.body, self.header("content-type"))

    def wanted(self, *, streaming: bool = False) -> negotiate.ResponseFormat:
        return negotiate.response_format(self.header("accept"), streaming=streaming)


@dataclass(frozen=True, slots=True)
class Response:
    """A whole answer, in one piece."""

    data: bytes
    status: int = 200
    content_type: str = negotiate.JSON
    headers: Headers = field(default_factory=list)


def response(value: Object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status)


def warning_headers(warnings: Sequence[str]) -> Headers:
    out: Headers = []
    room = MAX_WARNINGS
    for text in dict.fromkeys(warnings):
        plain = "".join(letter if letter.isprintable() else " " for letter in text)
        quoted = plain.replace("\\", "\\\\").replace('"', '\\"').encode("ascii", "backslashreplace")
        room -= len(quoted)
        if room < 0 or len(out) == MAX_WARNING_HEADERS:
            break
        out.append((b"warning", b'299 - "' + quoted + b'"'))
    return out


def split_path(scope: Scope) -> tuple[list[str], str]:
    """The path's words, each decoded on its own so that an encoded slash stays inside its word."""
    raw = scope.get("raw_path") or scope["path"].encode()
    try:
        path = raw.partition(b"?")[0].decode("ascii")
        words = [unquote(word, errors="strict") for word in path.strip("/").split("/")]
    except UnicodeDecodeError as error:
        raise BadRequest("the path is not UTF-8") from error
    return words, path.rstrip("/") or "/"


def parse_query(scope: Scope) -> Mapping[str, list[str]]:
    try:
        return parse_qs(scope["query_string"].decode("ascii"), keep_blank_values=True, errors="strict",
                        max_num_fields=MAX_QUERY_FIELDS)
    except ValueError as error:
        raise BadRequest("the query cannot be read: it must be percent-encoded UTF-8 of not too many fields") from error


def failed(error: OutfitterError, target: RequestPath | None) -> Response:
    if target is None and isinstance(error, auth.ImpersonationRefused):  # of discovery kubectl shows text, and no Status
        return Response(error.message.encode(), error.status, content_type="text/plain")
    body: Object = status.failure(error, target)
    whole = response(body, error.status)
    seconds = body.get("details", {}).get("retryAfterSeconds")
    return Response(whole.data, whole.status, headers=[(b"retry-after", str(seconds).encode())]) if seconds else whole


async def reply(send: Send, result: Response, extra: Headers) -> None:
    headers = [(b"content-type", result.content_type.encode()), (b"content-length", str(len(result.data)).encode()),
               (b"cache-control", b"no-cache, private"), *result.headers, *extra]
    await send({"type": "http.response.start", "status": result.status, "headers": headers})
    await body_transfer.send_parts(send, result.data, more=False)
