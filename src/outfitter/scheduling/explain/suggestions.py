"""What would help somebody who waits: tried out on the nearest hosts, as if others had let go, and told only if it is true."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from outfitter.api import kinds
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import vm as vm_api
from outfitter.api.page import MARKS, Page, is_pool_page
from outfitter.scheduling.dra.claim_request import Classes
from outfitter.scheduling.dra.device_index import DeviceIndex
from outfitter.scheduling.dra.extended_resources import Resources, nothing
from outfitter.scheduling.explain import grouping
from outfitter.scheduling.filter.node_usage import NodeUsage
from outfitter.scheduling.nova.host_state import SAID_BY_PAGE
from outfitter.scheduling.nova.host_state_cache import HostStateCache
from outfitter.scheduling.scheduler import TAKEN, Claims, Placement, Waiting, place

HOSTS = 5  # the nearest, that are tried
HOLDERS = 8  # of a host
MOST = 3  # ways that are told
UNDONE = {"reserved": "unreserve", "quarantined": "restore", "unclean": "clear"}  # a mark -> what takes it away
Fits = Callable[..., bool]  # with these pages in the place of their namesakes


def ways(
    pod: Mapping[str, Any],
    claims: Claims,
    classes: Classes,
    waiting: Waiting,
    *,
    slices: Sequence[Object],
    pages: Sequence[Object],
    index: DeviceIndex,
    used: NodeUsage,
    roster: HostStateCache | None = None,
    resources: Resources = nothing,
) -> list[str]:
    """At most a few, on the nearest hosts first."""
    by_host = {page["metadata"]["name"]: page for page in pages}
    shared = [_bare(part) for part in slices if not part["spec"].get("nodeName")]
    pools = [Page(page) for page in pages if is_pool_page(page["metadata"]["name"])] if shared else []
    out: list[str] = []
    for host, refusal in grouping.by_distance(waiting.hosts)[:HOSTS]:
        if refusal.far[0] != 1:
            continue
        node = index.node(host)
        opened = {**node, "spec": {**(node.get("spec") or {}), "unschedulable": False}}
        here = [*(_bare(part) for part in slices if part["spec"].get("nodeName") == host), *shared]
        page = Page(by_host.get(host) or Page.blank(host))

        def fits(*changed: Page, here: Sequence[Object] = here, node: Object = opened, page: Page = page) -> bool:
            books = {one.host: one for one in (page, *pools, *changed)}
            alone = DeviceIndex.of(here, books.values(), [node])
            verdict = place(dict(pod), claims, classes, alone, used, roster=roster, resources=resources)
            return isinstance(verdict, Placement)

        if refusal.seek is None:
            out += [f"{host} could take it after: kubectl uncordon {host}"] if _closed(node) and fits() else []
            continue
        taken = refusal.found.blocking if refusal.found is not None else ()
        wanted = {one.device for one in taken if one.code in TAKEN}
        books = [page, *(pool for pool in pools if any(booking.device.device in wanted for booking in pool.bookings))]
        found = [*_unmarked(page, wanted, fits), *(way for book in books for way in _let_go(host, book, fits, claims))]
        if not found and not fits(*(Page(Page.blank(one.host)) for one in (page, *pools))):
            found = [f"{host} could not take it even if nobody held anything there: ask for less"]
        out += found
        if len(out) >= MOST:
            break
    return out[:MOST]


def _closed(node: Object) -> bool:
    return bool((node.get("spec") or {}).get("unschedulable"))


def _bare(part: Object) -> Object:
    """A slice without the taints that repeat what a page says: they go with what they repeat."""
    spec = part["spec"]
    devices = [{**device, "taints": [taint for taint in device["taints"] if taint["key"] not in SAID_BY_PAGE]}
               if device.get("taints") else device for device in spec.get("devices") or ()]
    return {**part, "spec": {**spec, "devices": devices}}


def _unmarked(page: Page, wanted: set[str], fits: Fits) -> Iterator[str]:
    for which in MARKS:
        for mark in page.marks(which):
            if mark.device.device in wanted and fits(Page(page.without_marks(which, {mark.device}))):
                yield f"{page.host} could take it after: outfit device {UNDONE[which]} {page.host}/{mark.device.device}"
                return


def _let_go(host: str, page: Page, fits: Fits, claims: Claims) -> Iterator[str]:
    """Those on the page, of the host or of a pool that it reaches, whose end alone would do, else some whose end together
    would."""
    who: dict[str, set[str]] = {}
    kept: dict[str, str] = {}  # who has ended and keeps it all the same -> what makes it let go
    for booking in page.bookings:
        if booking.counted or booking.amount.get("cells"):  # a device, or CPUs of the host
            holder = booking.holder
            name = (holder.purpose or f"{holder.kind} {holder.name}") + (f" in {holder.namespace}" if holder.namespace else "")
            if vm := _stopped(claims(holder.namespace, holder.name)):
                name = f"vm/{vm} in {holder.namespace}"
                kept[name] = f"kubectl delete resourceclaim {holder.name} -n {holder.namespace}"
            who.setdefault(name, set()).add(holder.uid)
    tried = list(who)[:HOLDERS]
    alone = [name for name in tried if fits(_without(page, who[name]))]
    for name in [name for name in alone if name in kept][:1]:
        yield f"{host} could take it after: {kept[name]}; or delete {name}, which is stopped and keeps its devices"
    if ending := [name for name in alone if name not in kept]:
        more = [f"one of {len(ending) - grouping.NAMED} more"] if len(ending) > grouping.NAMED else []
        yield f"{host} could take it once {' or '.join([*ending[:grouping.NAMED], *more])} ends"
    for last in range(2, len(tried) + 1) if not alone else ():
        if fits(_without(page, {uid for name in tried[:last] for uid in who[name]})):
            those = [f"{name} (stopped: delete it)" if name in kept else name for name in tried[:last]]
            yield f"{host} could take it once {' and '.join(those)} end"
            return


def _stopped(claim: Object | None) -> str:
    """The machine that keeps devices in a claim while it does not run; "" if there is none."""
    reference = vm_api.owner(claim, kinds.VM.kind) if claim is not None else None
    users = ((claim or {}).get("status") or {}).get("reservedFor") or ()
    used = any(user.get("resource", "pods") == "pods" for user in users)
    return str(reference["name"]) if reference is not None and not used else ""


def _without(page: Page, uids: set[str]) -> Page:
    return Page(page.leaving(booking.key for booking in page.bookings if booking.holder.uid in uids))
