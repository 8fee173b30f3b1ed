"""What the commands do, each a few lines between a question and its answer."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
from collections.abc import Sequence
from datetime import UTC, datetime

import click

from outfitter.api import kinds, patch
from outfitter.api.kinds import Kind, Object
from outfitter.cli import printers, time_format
from outfitter.cli import wait as deletion_wait
from outfitter.cli.client import Client, documents, kind_named, standing, targets
from outfitter.cli.device import text
from outfitter.errors import BadRequest, Forbidden, NotFound
from outfitter.scheduling import config, plugins
from outfitter.scheduling.explain import claim, pod, vm
from outfitter.scheduling.explain.cluster_objects import Facts

NIL = "00000000-0000-0000-0000-000000000000"


async def get(client: Client, words: Sequence[str], *, everywhere: bool, how: str, labels: str, fields: str) -> None:
    asked: dict[Kind, list[str]] = {}
    for kind, name in targets(words):
        asked.setdefault(kind, []).extend([name] if name else [])
    if any(asked.values()) and (labels or fields):
        raise click.UsageError("names and selectors do not go together: leave one of them out")
    if everywhere and any(names for kind, names in asked.items() if kind.namespaced):
        raise click.UsageError("a name is of one namespace: say which with -n NAMESPACE instead of -A")
    objects: list[Object] = []
    missing: list[NotFound] = []
    apart: list[str] = []
    for kind, names in asked.items():
        if how in ("table", "wide"):
            lines = await printers.table(client, kind, names, everywhere=everywhere, wide=how == "wide", labels=labels,
                                     fields=fields, missing=missing)
            if lines or not names:
                printers.say(apart + (lines or [_nothing(client, kind, everywhere)]))
                apart = [""]
            continue
        place = "" if everywhere else client.place(kind)
        objects += (
            await printers.those_there(names, functools.partial(client.store.get, kind, namespace=place), missing)
            if names
            else (await client.store.list(kind, place, labels=labels, fields=fields)).items
        )
    if how == "name":
        printers.say(_title(obj) for obj in objects)
    elif how in ("yaml", "json") and (objects or not missing):
        click.echo(printers.dump(objects, how, many=[len(names) for names in asked.values()] != [1]))
    _tell_missing(missing)


def _tell_missing(missing: Sequence[NotFound]) -> None:
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
    for kind, obj, where in documents(files):
        if kind.namespaced:
            obj["metadata"].setdefault("namespace", client.namespace)
        with standing(obj, where):
            said = await _apply(client, kind, obj)
        printers.say([said])


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
    # The server may have filled in defaults, which a list cannot show as additions of others: its revision is the judge.
    after = await client.store.patch(kind, meta["name"], change, meta.get("namespace", "")) if change else live
    same = after["metadata"]["resourceVersion"] == live["metadata"]["resourceVersion"]
    return f"{_title(live)} {'unchanged' if same else 'configured'}"


def _last_applied(live: Object) -> Object:
    text = (live["metadata"].get("annotations") or {}).get(printers.LAST_APPLIED) or "{}"
    try:
        return dict(json.loads(text))
    except (ValueError, TypeError) as error:
        raise BadRequest(f"{_title(live)}: the annotation {printers.LAST_APPLIED} is not what an apply has written ({error}); "
                         "remove it and apply again") from error


async def delete(client: Client, words: Sequence[str], files: Sequence[str], *, wait: bool, timeout: float | None) -> None:
    typed, written = _one_by_one("delete", words), documents(files)
    for _, obj, where in written:
        if not obj["metadata"].get("name"):
            raise BadRequest(f"{where}: metadata.name is missing; what was made from generateName has a name of its own")
    going = [(kind, name, client.place(kind)) for kind, name in typed]
    for kind, obj, _ in reversed(written):  # what was made last needs what was made first, and not the other way round
        going.append((kind, obj["metadata"]["name"], obj["metadata"].get("namespace") or client.place(kind)))
    missing: list[NotFound] = []
    leaving: list[deletion_wait.Going] = []
    for kind, name, place in going:
        try:
            live = await client.store.get(kind, name, place)
            await client.store.delete(kind, name, place, propagation="Background")
        except NotFound as error:
            missing.append(error)
            continue
        leaving.append(deletion_wait.Going(kind, name, place, live["metadata"]["uid"]))
        printers.say([f"{_title(live)} deleted"])
    if wait:
        await deletion_wait.until(client, leaving, timeout or 0.0)
    _tell_missing(missing)


def _one_by_one(verb: str, words: Sequence[str]) -> list[tuple[Kind, str]]:
    """What must be called by name."""
    out = []
    for kind, name in targets(words):
        if name is None:
            word = (*kind.short, kind.singular)[0]
            raise click.UsageError(f"which of the {kind.plural}? Write outfit {verb} {word} NAME")
        out.append((kind, name))
    return out


async def describe(client: Client, words: Sequence[str]) -> None:
    for number, (kind, name) in enumerate(_one_by_one("describe", words)):
        obj = await client.store.get(kind, name, client.place(kind))
        lines = await printers.description(client, kind, obj)
        if kind in EXPLAINED:
            lines += ["Why:", *(f"  {line}" for line in EXPLAINED[kind](await facts(client), obj).text())]
        printers.say([*([""] if number else []), *lines])


NEEDED = (kinds.POD, kinds.RESOURCE_CLAIM, kinds.DEVICE_CLASS, kinds.RESOURCE_SLICE, kinds.NODE)  # to tell who fits where
EXPLAINED = {kinds.VMI: vm.instance, kinds.VM: vm.vm, kinds.POD: pod.pod,
             kinds.RESOURCE_CLAIM: claim.claim}
WORDS = {"claim": kinds.RESOURCE_CLAIM}


async def why(client: Client, words: Sequence[str], *, long: bool, how: str) -> None:
    there: Facts | None = None
    answers = []
    for kind, name in _questions(words):
        found, obj = await _find(client, kind, name)
        there = there or await facts(client)
        answers.append(EXPLAINED[found](there, obj))
    if how == "json":
        said = [answer.to_object(long=long) for answer in answers]
        click.echo(json.dumps(said[0] if len(said) == 1 else said, indent=2))
        return
    now = time_format.now()
    text.say(time_format.spoken(line, now) for answer in answers
                  for line in answer.text(long=long, more=f"outfit why {answer.about} --long"))


def _questions(words: Sequence[str]) -> list[tuple[Kind | None, str]]:
    """Which kind and name is asked for; None: whichever kind has that name. `why vmi blue` means `why vmi/blue`."""
    if len(words) > 1 and kind_spoken(words[0]) in EXPLAINED:
        words = [f"{words[0]}/{name}" for name in words[1:]]
    out: list[tuple[Kind | None, str]] = []
    for word in words:
        spoken, slash, name = word.rpartition("/")
        kind = (kind_spoken(spoken) or kind_named(spoken)) if slash else None
        if kind is not None and kind not in EXPLAINED:
            raise BadRequest(f"why speaks of machines, pods and claims, not of {kind.plural}")
        if not name:
            raise click.UsageError(f"{word!r} names nobody; write for example vmi/blue")
        out.append((kind, name))
    return out


def kind_spoken(spoken: str) -> Kind | None:
    return WORDS.get(spoken) or kinds.named(spoken)


async def _find(client: Client, kind: Kind | None, name: str) -> tuple[Kind, Object]:
    if kind is not None and kind != kinds.VM:
        return kind, await client.store.get(kind, name, client.place(kind))
    for each in EXPLAINED if kind is None else (kinds.VM, kinds.VMI):  # people say vm of an instance alone too
        try:
            return each, await client.store.get(each, name, client.namespace)
        except (NotFound, Forbidden):
            continue
    what = "machine, pod or claim" if kind is None else "machine"
    raise NotFound(f"there is no {what} {name!r} in namespace {client.namespace}")


async def facts(client: Client) -> Facts:
    """All that an answer may need. A cluster need not know all of our kinds, and not everybody may read all of them."""
    unread: list[str] = []

    async def those(kind: Kind) -> list[Object]:
        for place in ("", client.namespace) if kind.namespaced else ("",):  # those of others then count as not there
            try:
                return (await client.store.list(kind, place)).items
            except NotFound:
                return []
            except Forbidden:
                continue
        if kind in NEEDED:
            unread.append(kind.plural)
        return []

    instances, pods, claims, classes, slices, pages, nodes, templates, rules, trees, inventories = await asyncio.gather(
        *map(those, (kinds.VMI, kinds.POD, kinds.RESOURCE_CLAIM, kinds.DEVICE_CLASS, kinds.RESOURCE_SLICE,
                     kinds.LEDGER_PAGE, kinds.NODE, kinds.RESOURCE_CLAIM_TEMPLATE, kinds.DEVICE_TAINT_RULE, kinds.PROVIDER_TREE,
                     kinds.HOST_INVENTORY)))
    how = config.SchedulingConfig()
    with contextlib.suppress(NotFound, Forbidden):
        how = config.SchedulingConfig.read(await client.store.get(kinds.CONFIG_MAP, config.NAME, config.NAMESPACE))
    return Facts(instances, pods, claims, classes, slices, pages, nodes, plugins.load(plugins.left_out()), templates,
                 tuple(unread), rules, how.policy, how.features, trees, inventories, datetime.now(UTC))
