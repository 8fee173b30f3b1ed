"""Remove an installation: everything that carries our label, in the reverse order of installation, with what node agents
published. VMs and bookings are users': while there are any, removal is refused, or with `force` they are ended first."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from outfitter.api import conditions, kinds
from outfitter.api.device import DRIVER
from outfitter.api.kinds import Kind, Object
from outfitter.api.ledger_page.page import Page
from outfitter.errors import CommandFailed, NotFound, TimedOut
from outfitter.install import apply, names, preflight, resources
from outfitter.install.apply import POLL, Report
from outfitter.store.clock import Clock
from outfitter.store.kube import Kube

MOST_SHOWN = 5
RETRY_AFTER = 1.0  # seconds
RETRIED = "outfitter.dev/removal-retried-at"  # annotation: the revision
REMAINING = ("Namespace", "Terminating")  # conditions of what is being deleted
SIMULATED = f"{names.SIMULATED}=true"


@dataclass(frozen=True, slots=True)
class InUse:
    """What users have that would be lost."""

    machines: tuple[tuple[Kind, str, str], ...]  # kind, namespace, name
    bookings: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.machines or self.bookings)

    def __str__(self) -> str:
        parts = (
            _counted(
                [f"{kind.singular}/{name} in {namespace}" for kind, namespace, name in self.machines], "VM and VMI objects"
            ),
            _counted(self.bookings, "bookings of devices"),
        )
        return " and ".join(filter(None, parts))


def _counted(items: list[str] | tuple[str, ...], what: str) -> str:
    more = ", ..." if len(items) > MOST_SHOWN else ""
    return f"{len(items)} {what} ({', '.join(items[:MOST_SHOWN])}{more})" if items else ""


async def remove(kube: Kube, report: Report, *, clock: Clock, timeout: float, force: bool) -> None:
    """CommandFailed: something is in use. An interrupted removal is completed by the next call."""
    await preflight.check_rights(kube)
    if in_use := await _in_use(kube):
        if not force:
            raise CommandFailed(f"there are {in_use}: stop and delete them first, or remove them too with --force")
        report(f"warning: removing {in_use}")
        await _end_machines(kube, report, clock, timeout)
    calls_us = [kind for kind in resources.INSTALLED if kind.kind.endswith("WebhookConfiguration")]
    rest = [kind for kind in reversed(resources.INSTALLED) if kind not in resources.KEPT and kind not in calls_us]
    for kind in (*calls_us, *rest):
        for key in await apply.installed(kube, kind):
            await _delete(kube, key, report)
    slices, nodes = (
        await kube.list(kinds.RESOURCE_SLICE, fields=f"spec.driver={DRIVER}"),
        await kube.list(kinds.NODE, labels=SIMULATED),
    )
    for node in nodes.items:  # no kubelet ends the pods of a simulated one
        for pod in (await kube.list(kinds.POD, fields=f"spec.nodeName={node['metadata']['name']}")).items:
            await _delete(kube, (kinds.POD, pod["metadata"]["namespace"], pod["metadata"]["name"]), report, grace=0)
    for kind, found in ((kinds.RESOURCE_SLICE, slices), (kinds.NODE, nodes)):
        for obj in found.items:
            await _delete(kube, (kind, "", obj["metadata"]["name"]), report)
    for kind in reversed(resources.KEPT):  # the definitions, then the namespace
        keys = await apply.installed(kube, kind)
        for key in keys:
            await _delete(kube, key, report)
        for key in keys:
            await _gone(kube, key, clock, timeout)


async def _in_use(kube: Kube) -> InUse:
    machines = [
        (kind, obj["metadata"]["namespace"], obj["metadata"]["name"])
        for kind in (kinds.VM, kinds.VMI)
        for obj in await _all(kube, kind)
    ]
    bookings = [
        f"{booking.device.device} on {page.host} for {booking.holder.kind} {booking.holder.namespace}/{booking.holder.name}"
        for page in map(Page, await _all(kube, kinds.LEDGER_PAGE))
        for booking in page.bookings
    ]
    return InUse(tuple(machines), tuple(bookings))


async def _all(kube: Kube, kind: Kind) -> list[Object]:
    """Objects of one of our kinds; none where the definition is not ours or is gone."""
    definition = await apply.read(kube, (resources.CRD, "", kind.resource))
    if definition is None or not names.managed(definition):
        return []
    try:
        return (await kube.list(kind)).items
    except NotFound:
        return []


async def _end_machines(kube: Kube, report: Report, clock: Clock, timeout: float) -> None:
    """Delete VMs and VMIs and give the controllers time to stop them; what is left then is deleted without them."""
    for kind in (kinds.VM, kinds.VMI):
        for obj in await _all(kube, kind):
            await _delete(kube, (kind, obj["metadata"]["namespace"], obj["metadata"]["name"]), report)

    async def ended() -> bool:
        return not [obj for kind in (kinds.VM, kinds.VMI) for obj in await _all(kube, kind)]

    if await _waited(ended, clock, timeout):
        return
    for kind in (kinds.VM, kinds.VMI):
        for obj in await _all(kube, kind):
            meta = obj["metadata"]
            report(
                f"warning: {kind.singular}/{meta['name']} in {meta['namespace']} did not end in {timeout:g} s: removed "
                "without its controller; a domain of it may still run on its host"
            )
            try:
                await kube.patch(kind, meta["name"], {"metadata": {"finalizers": None}}, meta["namespace"])
            except NotFound:
                continue


async def _delete(kube: Kube, key: resources.Key, report: Report, *, grace: int | None = None) -> None:
    kind, namespace, name = key
    try:
        await kube.delete(kind, name, namespace, propagation="Background", grace=grace)
    except NotFound:
        return
    report(f"{resources.title(key)} removed")


async def _gone(kube: Kube, key: resources.Key, clock: Clock, timeout: float) -> None:
    retried = clock.monotonic()

    async def gone() -> bool:
        nonlocal retried
        live = await apply.read(kube, key)
        if live is not None and _gave_up(live) and clock.monotonic() - retried >= RETRY_AFTER:
            retried = clock.monotonic()
            await _retry(kube, key, live)
        return live is None

    if not await _waited(gone, clock, timeout):
        why = _remaining(await apply.read(kube, key) or {})
        raise TimedOut(
            f"{resources.title(key)} is still being deleted after {timeout:g} s{why}; the same command goes on from here"
        )


def _gave_up(definition: Object) -> bool:
    """kube-apiserver could not list the objects of a definition ("storage is (re)initializing"), and tries again when the
    definition changes, or after five minutes."""
    return (conditions.find(definition, "Terminating") or {}).get("reason") == "InstanceDeletionFailed"


async def _retry(kube: Kube, key: resources.Key, live: Object) -> None:
    kind, namespace, name = key
    with contextlib.suppress(NotFound):
        await kube.patch(kind, name, {"metadata": {"annotations": {RETRIED: live["metadata"]["resourceVersion"]}}}, namespace)


def _remaining(deleted: Object) -> str:
    """What the API server says it waits for: conditions of a namespace, or of a definition."""
    found = (deleted.get("status") or {}).get("conditions") or ()
    said = [
        entry["message"]
        for entry in found
        if entry.get("status") == "True" and entry.get("type", "").startswith(REMAINING) and entry.get("message")
    ]
    return f": {', '.join(said)}" if said else ""


async def _waited(condition: Callable[[], Awaitable[bool]], clock: Clock, timeout: float) -> bool:
    until = clock.monotonic() + timeout
    while not await condition():
        if clock.monotonic() > until:
            return False
        await clock.sleep(POLL)
    return True
