"""What the commands do, each a few lines between a question and its answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import click

from outfitter.api import kinds, patch
from outfitter.api.kinds import Kind, Object
from outfitter.errors import BadRequest, NotFound, Unavailable
from outfitter.faces.cli import show
from outfitter.faces.cli.client import Client, documents, kind_named, targets
from outfitter.launcher import domain
from outfitter.scheduling import explain

NIL = "00000000-0000-0000-0000-000000000000"


async def get(client: Client, words: Sequence[str], *, everywhere: bool, how: str, labels: str, fields: str) -> None:
    asked: dict[Kind, list[str]] = {}
    for kind, name in targets(words):
        asked.setdefault(kind, []).extend([name] if name else [])
    objects: list[Object] = []
    for number, (kind, names) in enumerate(asked.items()):
        if how in ("table", "wide"):
            lines = await show.table(client, kind, names, everywhere=everywhere, wide=how == "wide", labels=labels,
                                     fields=fields)
            show.say(([""] if number else []) + (lines if len(lines) > 1 else [_nothing(client, kind, everywhere)]))
            continue
        place = "" if everywhere else client.place(kind)
        objects += [await client.store.get(kind, name, place) for name in names] if names else (
            await client.store.list(kind, place, labels=labels, fields=fields)).items
    if how == "name":
        show.say(_title(obj) for obj in objects)
    elif how in ("yaml", "json"):
        single = len(objects) == 1 and all(names for names in asked.values())
        click.echo(show.dump(objects, how, many=not single))


def _nothing(client: Client, kind: Kind, everywhere: bool) -> str:
    return f"No {kind.plural} found" + (f" in namespace {client.namespace}." if kind.namespaced and not everywhere else ".")


def _title(obj: Object) -> str:
    kind = kinds.of_object(obj)
    name = kind.singular + (f".{kind.group}" if kind.group else "") if kind else str(obj.get("kind"))
    return f"{name}/{obj['metadata']['name']}"


async def apply(client: Client, files: Sequence[str]) -> None:
    for kind, obj, _ in list(documents(files)):
        if kind.namespaced:
            obj["metadata"].setdefault("namespace", client.namespace)
        show.say([await _apply(client, kind, obj)])


async def _apply(client: Client, kind: Kind, obj: Object) -> str:
    meta = obj["metadata"]
    if not meta.get("name"):
        return f"{_title(await client.store.create(kind, obj))} created"
    plain = json.dumps(obj, separators=(",", ":"), sort_keys=True)
    wanted = {**obj, "metadata": {**meta, "annotations": {**(meta.get("annotations") or {}), show.LAST_APPLIED: plain + "\n"}}}
    try:
        live = await client.store.get(kind, meta["name"], meta.get("namespace", ""))
    except NotFound:
        return f"{_title(await client.store.create(kind, wanted))} created"
    last = json.loads((live["metadata"].get("annotations") or {}).get(show.LAST_APPLIED) or "{}")
    change = patch.difference(last, {key: value for key, value in wanted.items() if key != "status"}, live)
    if not change or (last == json.loads(plain) and change == {"metadata": {"annotations": {show.LAST_APPLIED: plain + "\n"}}}):
        return f"{_title(live)} unchanged"
    return f"{_title(await client.store.patch(kind, meta['name'], change, meta.get('namespace', '')))} configured"


async def delete(client: Client, words: Sequence[str], files: Sequence[str], *, wait: bool) -> None:
    going: list[tuple[Kind, str, str]] = []
    for kind, name in targets(words):
        if name is None:
            raise BadRequest(f"which {kind.plural}? Name them: outfit delete {kind.singular} NAME")
        going.append((kind, name, client.place(kind)))
    for kind, obj, _ in documents(files):
        place = obj["metadata"].get("namespace", client.namespace) if kind.namespaced else ""
        going.append((kind, obj["metadata"]["name"], place))
    missing: list[NotFound] = []
    gone: list[tuple[Kind, str, str, str]] = []
    for kind, name, place in going:
        try:
            live = await client.store.get(kind, name, place)
            await client.store.delete(kind, name, place, propagation="Background")
        except NotFound as error:
            missing.append(error)
            continue
        gone.append((kind, name, place, live["metadata"]["uid"]))
        show.say([f"{_title(live)} deleted"])
    if wait:
        await asyncio.gather(*(_until_gone(client, *each) for each in gone))
    if missing:
        raise missing[0]


async def _until_gone(client: Client, kind: Kind, name: str, place: str, uid: str) -> None:
    while True:
        listing = await client.store.list(kind, place, fields=f"metadata.name={name}")
        if not any(obj["metadata"]["uid"] == uid for obj in listing.items):
            return
        try:
            async for event in client.store.watch(kind, place, since=listing.revision, fields=f"metadata.name={name}"):
                if event.type == "DELETED" and event.object["metadata"]["uid"] == uid:
                    return
        except Unavailable:
            return  # the server went away; there is nothing more to see


async def describe(client: Client, words: Sequence[str]) -> None:
    for number, (kind, name) in enumerate(targets(words)):
        if name is None:
            raise BadRequest(f"which of the {kind.plural}? Name one: outfit describe {kind.singular} NAME")
        obj = await client.store.get(kind, name, client.place(kind))
        lines = await show.description(client, kind, obj)
        if kind in EXPLAINED:
            lines += ["Why:", *(f"  {line}" for line in EXPLAINED[kind](await _facts(client), obj))]
        show.say([*([""] if number else []), *lines])


EXPLAINED = {kinds.INSTANCE: explain.instance, kinds.POD: explain.pod, kinds.RESOURCE_CLAIM: explain.claim}
WORDS = {"vm": kinds.INSTANCE, "claim": kinds.RESOURCE_CLAIM}


async def why(client: Client, words: Sequence[str]) -> None:
    for kind, obj in [await _meant(client, word) for word in _questions(words)]:
        show.say(EXPLAINED[kind](await _facts(client), obj))


def _questions(words: Sequence[str]) -> list[str]:
    """`why vmi blue` means `why vmi/blue`."""
    if len(words) == 2 and "/" not in words[0] and (words[0] in WORDS or kinds.named(words[0]) in EXPLAINED):
        return [f"{words[0]}/{words[1]}"]
    return list(words)


async def _meant(client: Client, word: str) -> tuple[Kind, Object]:
    spoken, slash, name = word.rpartition("/")
    if slash:
        kind = WORDS.get(spoken) or kind_named(spoken)
        if kind not in EXPLAINED:
            raise BadRequest(f"why speaks of machines, pods and claims, not of {kind.plural}")
        return kind, await client.store.get(kind, name, client.place(kind))
    for kind in EXPLAINED:
        try:
            return kind, await client.store.get(kind, name, client.namespace)
        except NotFound:
            continue
    raise NotFound(f"there is no machine, pod or claim {name!r} in namespace {client.namespace}")


async def _facts(client: Client) -> explain.Facts:
    async def everything(kind: Kind) -> list[Object]:
        return (await client.store.list(kind)).items

    instances, pods, claims, classes, slices, pages, nodes = await asyncio.gather(*map(everything, (
        kinds.INSTANCE, kinds.POD, kinds.RESOURCE_CLAIM, kinds.DEVICE_CLASS, kinds.RESOURCE_SLICE, kinds.LEDGER_PAGE,
        kinds.NODE)))
    return explain.Facts(instances, pods, claims, classes, slices, pages, nodes)


async def domxml(client: Client, name: str) -> None:
    instance = await client.store.get(kinds.INSTANCE, name, client.namespace)
    click.echo(domain.build(instance).xml, nl=False)


async def domxml_of_file(file: str, namespace: str) -> None:
    found = [obj for kind, obj, _ in documents([file]) if kind.resource == kinds.INSTANCE.resource]
    if not found:
        raise BadRequest(f"{file} has no VirtualMachineInstance")
    for obj in found:
        meta: dict[str, Any] = {"namespace": namespace, "uid": NIL, **obj["metadata"]}
        click.echo(domain.build({**obj, "metadata": meta}).xml, nl=False)


async def version(client: Client) -> None:
    _, _, body = await client.store.raw("GET", "/version")
    click.echo(f"server {json.loads(body).get('gitVersion', 'unknown')}")
