"""Output of objects: tables as the server makes them, YAML and JSON, descriptions with events. Used by every command."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

import click
import yaml

from outfitter.api import kinds
from outfitter.api.kinds import Kind, Object
from outfitter.api.validate import readable
from outfitter.cli.client import Client
from outfitter.errors import NotFound, OutfitterError

LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


async def table(client: Client, kind: Kind, names: Sequence[str], *, everywhere: bool, wide: bool, labels: str,
                fields: str, missing: list[NotFound]) -> list[str]:
    """The server's own table of a kind, as lines; empty where it has no rows. NotFound errors for `names` are added to
    `missing`."""
    place = "" if everywhere else client.namespace_for(kind)
    if not names:
        answer = await client.store.table(kind, place, labels=labels, fields=fields)
        return _lines(answer, everywhere=everywhere and kind.namespaced, wide=wide)
    tables = await read_existing(names, lambda name: client.store.table(kind, place, name), missing)
    whole = {**tables[0], "rows": [row for table_ in tables for row in table_["rows"]]} if tables else {"rows": []}
    return _lines(whole, everywhere=False, wide=wide)


async def read_existing(
    names: Sequence[str], read: Callable[[str], Awaitable[Object]], missing: list[NotFound]
) -> list[Object]:
    """The objects that exist; NotFound errors of the others are added to `missing`, to be printed at the end."""
    objects = []
    for name in names:
        try:
            objects.append(await read(name))
        except NotFound as error:
            missing.append(error)
    return objects


def _lines(answer: Any, *, everywhere: bool, wide: bool) -> list[str]:
    if not answer["rows"]:
        return []
    shown = [place for place, column in enumerate(answer["columnDefinitions"]) if wide or not column.get("priority")]
    head = [answer["columnDefinitions"][place]["name"].upper() for place in shown]
    rows = [[str(row["cells"][place]) if row["cells"][place] is not None else "<none>" for place in shown]
            for row in answer["rows"]]
    if everywhere:
        head.insert(0, "NAMESPACE")
        for cells, row in zip(rows, answer["rows"], strict=True):
            cells.insert(0, row["object"]["metadata"].get("namespace", ""))
    return columns([head, *rows])


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    return ["   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def dump(objects: Sequence[Object], how: str, *, many: bool) -> str:
    value: Any = {"apiVersion": "v1", "kind": "List", "items": list(objects)} if many else objects[0]
    if how == "json":
        return json.dumps(value, indent=2)
    return _yaml(value)


def _yaml(value: Any) -> str:
    """Never folds a long line, so that output can be searched with grep."""
    return str(yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=float("inf"))).rstrip()


async def description(client: Client, kind: Kind, obj: Object) -> list[str]:
    meta = obj["metadata"]
    lines = [f"Name:         {meta['name']}"]
    if meta.get("namespace"):
        lines.append(f"Namespace:    {meta['namespace']}")
    lines.append(f"Kind:         {kind.kind} ({kind.api_version})")
    if (found := readable.unreadable(kind, obj)) is not None:
        lines += [f"Unreadable:   {found}; repair or delete it: {found.repair}", *_fields(obj, ("apiVersion", "kind"))]
        return [*lines, *await _events(client, found.reference()["metadata"])]
    lines.append(f"Created:      {meta.get('creationTimestamp')}")
    for owner in meta.get("ownerReferences") or ():
        lines.append(f"Belongs to:   {owner['kind']}/{owner['name']}")
    for title, key in (("Labels", "labels"), ("Annotations", "annotations")):
        pairs = {name: text for name, text in (meta.get(key) or {}).items() if name != LAST_APPLIED}
        if pairs:
            lines.append(f"{title + ':':<14}" + ", ".join(f"{name}={text}" for name, text in sorted(pairs.items())))
    return [*lines, *_fields(obj, ("apiVersion", "kind", "metadata")), *await _events(client, meta)]


def _fields(obj: Object, shown: Sequence[str]) -> list[str]:
    """All of an object but what is shown already."""
    return [line for key in obj if key not in shown
            for line in (f"{key[:1].upper() + key[1:]}:", *(f"  {line}" for line in _yaml(obj[key]).splitlines()))]


async def _events(client: Client, meta: Object) -> list[str]:
    try:
        listing = await client.store.list(kinds.EVENT, meta.get("namespace") or "default",
                                          fields=f"involvedObject.uid={meta.get('uid', '')}")
    except OutfitterError as error:
        return [f"Events:       cannot be read: {error}"]
    if not listing.items:
        return ["Events:       none"]
    rows = [["  TYPE", "REASON", "LAST SEEN", "COUNT", "MESSAGE"]]
    for event in sorted(listing.items, key=lambda event: str(event.get("lastTimestamp") or "")):
        rows.append([f"  {event.get('type', '')}", event.get("reason", ""), str(event.get("lastTimestamp") or ""),
                     str(event.get("count") or 1), event.get("message", "")])
    return ["Events:", *columns(rows)]


def print_lines(lines: Iterable[str]) -> None:
    for line in lines:
        click.echo(line)
