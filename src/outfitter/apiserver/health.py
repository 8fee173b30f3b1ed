"""/healthz, /livez and /readyz as kube-apiserver answers them: "ok", with `?verbose` a line per check, without those named in
`?exclude=`, and each check below its own path (/readyz/ping)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus

from outfitter.apiserver.request import Response
from outfitter.errors import NotFound

Check = Callable[[], bool]
TEXT = "text/plain; charset=utf-8"
ENDPOINTS = ("healthz", "livez", "readyz")


class Health:
    """`live` are the checks of all three endpoints, in the order in which they are listed; `ready` those of /readyz alone."""

    def __init__(self, live: Mapping[str, Check], ready: Mapping[str, Check]) -> None:
        live = {"ping": lambda: True, **live}
        self._checks = {"healthz": live, "livez": live, "readyz": {**live, **ready}}

    def answer(self, words: Sequence[str], query: Mapping[str, Sequence[str]]) -> Response:
        """`words`: the path; NotFound when there is no such check."""
        endpoint, *names = words
        checks = self._checks[endpoint]
        if names:
            if len(names) > 1 or names[0] not in checks:
                raise NotFound("the server could not find the requested resource")
            return _ok() if checks[names[0]]() else _failed(f"internal server error: {names[0]} failed\n")
        excluded = set(query.get("exclude", ()))
        lines = [_line(name, check, name in excluded) for name, check in checks.items()]
        if unknown := sorted(name for name in excluded if name not in checks):
            names = [f'"{name}"' for name in unknown]
            lines.append(f"warn: some health checks cannot be excluded: no matches for {','.join(names)}")
        if any(line.startswith("[-]") for line in lines):
            return _failed("\n".join([*lines, f"{endpoint} check failed\n"]))
        return _ok("\n".join([*lines, f"{endpoint} check passed\n"])) if "verbose" in query else _ok()


def _line(name: str, check: Check, excluded: bool) -> str:
    if excluded:
        return f"[+]{name} excluded: ok"
    return f"[+]{name} ok" if check() else f"[-]{name} failed: reason withheld"


def _ok(text: str = "ok") -> Response:
    return Response(text.encode(), content_type=TEXT)


def _failed(text: str) -> Response:
    return Response(text.encode(), HTTPStatus.INTERNAL_SERVER_ERROR, TEXT)
