"""Why a pod waits, in the one sentence of its condition PodScheduled and its event FailedScheduling. Its golden file is
tests/scheduling/explain/golden/summary.txt. Pure; called by the scheduler controller."""

from __future__ import annotations

from collections.abc import Iterator

from outfitter.api.rejection import Rejection, RejectionCode
from outfitter.api.rejection_text import EXACT, render, render_all
from outfitter.scheduling.explain import grouping
from outfitter.scheduling.placement import COUNTS_FREE, HostRejection, Waiting

LONGEST = 1000  # letters: it is written into conditions and events
SKIPPED = 3  # unreadable objects that are named


def summary(waiting: Waiting) -> str:
    """Hosts that reject for the same reason stand together."""
    if not waiting.hosts:
        own = _own(waiting)
        own = f"0/0 hosts are available: {own}" if RejectionCode.NO_HOST in waiting.codes else own
        return "; ".join([own, *skipped(waiting)])[:LONGEST]
    head = f"{_own(waiting)}. " if waiting.rejections else ""
    head += f"0/{waiting.total} hosts are available: "
    tail, body = "".join(f"; {rest}" for rest in (*_rest(waiting), *skipped(waiting))), "; ".join(_lines(waiting))
    room = LONGEST - len(head) - len(tail)
    return head + (body if len(body) <= room else f"{body[:room - 3]}...") + tail


def _own(waiting: Waiting) -> str:
    """Of the pod, its group and its claims; then of its pre-assigned devices, which have an id."""
    assigned = [rejection for rejection in waiting.rejections if "id" in rejection.detail]
    others = render_all(rejection for rejection in waiting.rejections if "id" not in rejection.detail)
    return "; ".join(filter(None, [others, f"pre-assigned devices: {render_all(assigned)}" if assigned else ""]))


def by_code(waiting: Waiting) -> dict[RejectionCode, str]:
    """For each code the hosts that are rejected for it, with the words of the first."""
    out = {rejection.code: render(rejection) for rejection in reversed((*waiting.rejections, *waiting.skipped))}
    hosts: dict[RejectionCode, list[tuple[str, Rejection, HostRejection]]] = {}
    for host, rejected in grouping.by_distance(waiting.hosts):
        for rejection in rejected.rejections:
            hosts.setdefault(rejection.code, []).append((host, rejection, rejected))
    for code, those in hosts.items():
        names, (first, rejection, rejected) = list(dict.fromkeys(host for host, *_ in those)), those[0]
        text = f"{grouping.few(names)}: {render(rejection)}"
        if code in COUNTS_FREE and (why := grouping.causes(rejected, EXACT)):
            text += f" ({why})" if len(names) == 1 else f"; on {first}: {why}"
        out.setdefault(code, text[:LONGEST])
    return {code: out[code] for code in waiting.codes}


def _lines(waiting: Waiting) -> list[str]:
    same: dict[str, list[str]] = {}
    for host, rejection in waiting.hosts:
        if host in waiting.named:
            same.setdefault(grouping.with_causes(rejection, EXACT), []).append(host)
    return [f"{', '.join(names)}: {text}" for text, names in same.items()]


def skipped(waiting: Waiting) -> list[str]:
    """What the pod may wait for and what cannot be read."""
    more = len(waiting.skipped) - SKIPPED
    return [*(f"skipped: {render(each)}" for each in waiting.skipped[:SKIPPED]), *([f"and {more} more"] if more > 0 else ())]


def _rest(waiting: Waiting) -> Iterator[str]:
    more = waiting.total - len(waiting.named) - waiting.unlike
    if more > 0:
        yield f"and {more} more"
    if waiting.unlike > 0:
        yield f"{waiting.unlike} have no such devices"
