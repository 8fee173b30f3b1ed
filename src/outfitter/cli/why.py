"""`outfit why`: why a VM, VMI, pod or claim waits, or which devices it holds. Finds the object, reads what an explanation needs
from the API server (`facts`, which `plan.py` uses too) and prints what `scheduling.explain` answers; decides nothing itself."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Sequence
from datetime import UTC, datetime

import click

from outfitter.api import kinds
from outfitter.api.kinds import Kind, Object
from outfitter.cli import time_format
from outfitter.cli.client import Client, kind_named
from outfitter.cli.device import text
from outfitter.errors import BadRequest, Forbidden, NotFound
from outfitter.scheduling import config, plugins
from outfitter.scheduling.explain import claim, pod, vm
from outfitter.scheduling.explain.cluster_objects import Facts

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
