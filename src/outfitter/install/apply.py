"""Bring a cluster to a list of objects: server-side apply of each, in order, then removal of what an earlier version installed
and this one does not. Once the definitions are served, objects that are stored in an older version are written again. Every
step may be repeated, so an installation that was interrupted is completed by the next."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from outfitter.api import conditions, kinds
from outfitter.api.kinds import Object
from outfitter.errors import NotFound, TimedOut
from outfitter.install import names, preflight, resources, stored_versions
from outfitter.install.resources import Key
from outfitter.store.clock import Clock
from outfitter.store.kube import Kube

Report = Callable[[str], None]
POLL = 0.2  # seconds between two looks at something that is waited for


async def apply(kube: Kube, objects: Sequence[Object], namespace: str, report: Report, *, clock: Clock, timeout: float) -> None:
    """CommandFailed before anything is written; later errors leave what was written, for the next call."""
    await preflight.check(kube, objects, namespace)
    definitions = [obj for obj in objects if resources.kind_of(obj) == resources.CRD]
    for obj in objects:
        await _apply(kube, obj, report)
        if definitions and obj is definitions[-1]:
            for definition in definitions:
                await _established(kube, definition["metadata"]["name"], clock, timeout)
            await stored_versions.migrate(kube, definitions, report)
    for kind, place, name in await superfluous(kube, objects):
        await kube.delete(kind, name, place)
        report(f"{resources.title((kind, place, name))} pruned")


async def _apply(kube: Kube, obj: Object, report: Report) -> None:
    kind, namespace, name = key = resources.key_of(obj)
    live = await read(kube, key)
    if unmanaged_namespace(key, live):
        report(f"{resources.title(key)} exists and is left as it is")
        return
    after = await kube.apply(kind, obj, field_manager=names.FIELD_MANAGER)
    if live is None:
        outcome = "created"
    else:
        same = live["metadata"]["resourceVersion"] == after["metadata"]["resourceVersion"]
        outcome = "unchanged" if same else "configured"
    report(f"{resources.title((kind, namespace, name))} {outcome}")


async def read(kube: Kube, key: Key) -> Object | None:
    kind, namespace, name = key
    try:
        return await kube.get(kind, name, namespace)
    except NotFound:
        return None


def unmanaged_namespace(key: Key, live: Object | None) -> bool:
    """A namespace that the user created is used as it is, and stays when we are removed."""
    return key[0] == kinds.NAMESPACE and live is not None and not names.managed(live)


async def superfluous(kube: Kube, objects: Sequence[Object]) -> list[Key]:
    """What we installed and these objects do not contain, but for kinds whose removal would remove users' objects."""
    wanted = {resources.key_of(obj) for obj in objects}
    return [
        key
        for kind in reversed(resources.INSTALLED)
        if kind not in resources.KEPT
        for key in await installed(kube, kind)
        if key not in wanted
    ]


async def installed(kube: Kube, kind: kinds.Kind) -> list[Key]:
    """Objects of a kind that we installed."""
    found = await kube.list(kind, labels=f"{names.MANAGED_BY}={names.MANAGER}")
    return [(kind, obj["metadata"].get("namespace", ""), obj["metadata"]["name"]) for obj in found.items]


async def _established(kube: Kube, name: str, clock: Clock, timeout: float) -> None:
    """Until the API server serves a definition."""
    until = clock.monotonic() + timeout
    while not conditions.is_true(found := await kube.get(resources.CRD, name), "Established"):
        refused = conditions.find(found, "NamesAccepted")
        if clock.monotonic() > until:
            why = f": {refused['message']}" if refused and refused.get("message") else ""
            raise TimedOut(
                f"customresourcedefinition {name} is not served after {timeout:g} s{why}; the same command goes on from here"
            )
        await clock.sleep(POLL)
