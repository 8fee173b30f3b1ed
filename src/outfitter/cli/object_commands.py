"""`outfit get`, `apply`, `delete`, `describe` and `version`: commands for objects of any kind. Called by `main.py`, which
parses the arguments; `why` has a module of its own."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence

import click

from outfitter.api import kinds, patch
from outfitter.api.kinds import Kind, Object
from outfitter.cli import printers, why
from outfitter.cli import wait as deletion_wait
from outfitter.cli.client import Client, documents, located_errors, targets
from outfitter.cli.served_version import ServedVersions
from outfitter.errors import BadRequest, NotFound


async def get(client: Client, words: Sequence[str], *, everywhere: bool, how: str, labels: str, fields: str) -> None:
    requested: dict[Kind, list[str]] = {}
    for kind, name in targets(words):
        requested.setdefault(kind, []).extend([name] if name else [])
    if any(requested.values()) and (labels or fields):
        raise click.UsageError("names and selectors cannot be combined: omit one of them")
    if everywhere and any(names for kind, names in requested.items() if kind.namespaced):
        raise click.UsageError("a name needs one namespace: write -n NAMESPACE instead of -A")
    objects: list[Object] = []
    missing: list[NotFound] = []
    separator: list[str] = []
    for kind, names in requested.items():
        if how in ("table", "wide"):
            lines = await printers.table(client, kind, names, everywhere=everywhere, wide=how == "wide", labels=labels,
                                     fields=fields, missing=missing)
            if lines or not names:
                printers.print_lines(separator + (lines or [_nothing(client, kind, everywhere)]))
                separator = [""]
            continue
        place = "" if everywhere else client.namespace_for(kind)
        objects += (
            await printers.read_existing(names, functools.partial(client.store.get, kind, namespace=place), missing)
            if names
            else (await client.store.list(kind, place, labels=labels, fields=fields)).items
        )
    if how == "name":
        printers.print_lines(_title(obj) for obj in objects)
    elif how in ("yaml", "json") and (objects or not missing):
        click.echo(printers.dump(objects, how, many=[len(names) for names in requested.values()] != [1]))
    _raise_missing(missing)


def _raise_missing(missing: Sequence[NotFound]) -> None:
    for error in missing[:-1]:
        click.echo(f"error: {error}", err=True)
    if missing:
        raise missing[-1]


def _nothing(client: Client, kind: Kind, everywhere: bool) -> str:
    return f"No {kind.plural} found" + (f" in namespace {client.namespace}." if kind.namespaced and not everywhere else ".")


def _title(obj: Object) -> str:
    kind = kinds.of_object(obj)
    name = kind.singular + (f".{kind.group}" if kind.group else "") if kind else str(obj.get("kind"))
    return f"{name}/{obj['metadata']['name']}"


async def apply(client: Client, files: Sequence[str]) -> None:
    served = ServedVersions(client)
    for written_kind, written, where in documents(files):
        kind, obj = await served.as_served(written_kind, written, where)
        if kind.namespaced:
            obj["metadata"].setdefault("namespace", client.namespace)
        with located_errors(obj, where):
            outcome = await _apply(client, kind, obj)
        printers.print_lines([outcome])


async def _apply(client: Client, kind: Kind, obj: Object) -> str:
    meta = obj["metadata"]
    if not meta.get("name"):
        return f"{_title(await client.store.create(kind, obj))} created"
    plain = json.dumps(obj, separators=(",", ":"), sort_keys=True)
    wanted = {
        **obj,
        "metadata": {**meta, "annotations": {**(meta.get("annotations") or {}), printers.LAST_APPLIED: plain + "\n"}},
    }
    try:
        live = await client.store.get(kind, meta["name"], meta.get("namespace", ""))
    except NotFound:
        return f"{_title(await client.store.create(kind, wanted))} created"
    last = _last_applied(live)
    change = patch.difference(last, {key: value for key, value in wanted.items() if key != "status"}, live)
    # Defaults of the server inside lists look like a difference; only the resourceVersion shows whether anything changed.
    after = await client.store.patch(kind, meta["name"], change, meta.get("namespace", "")) if change else live
    same = after["metadata"]["resourceVersion"] == live["metadata"]["resourceVersion"]
    return f"{_title(live)} {'unchanged' if same else 'configured'}"


def _last_applied(live: Object) -> Object:
    text = (live["metadata"].get("annotations") or {}).get(printers.LAST_APPLIED) or "{}"
    try:
        return dict(json.loads(text))
    except (ValueError, TypeError) as error:
        raise BadRequest(f"{_title(live)}: the annotation {printers.LAST_APPLIED} is not JSON that apply wrote ({error}); "
                         "remove it and apply again") from error


async def delete(client: Client, words: Sequence[str], files: Sequence[str], *, wait: bool, timeout: float | None) -> None:
    typed, written = _named_targets("delete", words), documents(files)
    for _, obj, where in written:
        if not obj["metadata"].get("name"):
            raise BadRequest(f"{where}: metadata.name is missing; delete an object made from generateName by its name")
    to_delete = [(kind, name, client.namespace_for(kind)) for kind, name in typed]
    served = ServedVersions(client)
    for written_kind, manifest, where in reversed(written):  # in reverse: later objects may depend on earlier ones
        kind, obj = await served.as_served(written_kind, manifest, where)
        to_delete.append((kind, obj["metadata"]["name"], obj["metadata"].get("namespace") or client.namespace_for(kind)))
    missing: list[NotFound] = []
    deleted: list[deletion_wait.DeletedObject] = []
    for kind, name, place in to_delete:
        try:
            live = await client.store.get(kind, name, place)
            await client.store.delete(kind, name, place, propagation="Background")
        except NotFound as error:
            missing.append(error)
            continue
        deleted.append(deletion_wait.DeletedObject(kind, name, place, str(live["metadata"].get("uid", ""))))
        printers.print_lines([f"{_title(live)} deleted"])
    if wait:
        await deletion_wait.until_gone(client, deleted, timeout or 0.0)
    _raise_missing(missing)


def _named_targets(verb: str, words: Sequence[str]) -> list[tuple[Kind, str]]:
    """Targets that must be named; a kind alone is a usage error."""
    out = []
    for kind, name in targets(words):
        if name is None:
            word = (*kind.short, kind.singular)[0]
            raise click.UsageError(f"name one of the {kind.plural}: outfit {verb} {word} NAME")
        out.append((kind, name))
    return out


async def describe(client: Client, words: Sequence[str]) -> None:
    for number, (kind, name) in enumerate(_named_targets("describe", words)):
        obj = await client.store.get(kind, name, client.namespace_for(kind))
        lines = await printers.description(client, kind, obj)
        if kind in why.EXPLAINED:
            lines += ["Why:", *(f"  {line}" for line in why.explained(await why.cluster_objects(client), kind, obj).text())]
        printers.print_lines([*([""] if number else []), *lines])
