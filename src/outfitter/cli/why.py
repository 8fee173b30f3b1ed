"""`outfit why`: why a VM, VMI, pod, claim or migration waits, or which devices it holds. Finds the object, reads what an
explanation needs from the API server (`cluster_objects`, which `plan.py` uses too) and prints what `scheduling.explain`
answers; decides nothing itself."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

import click

from outfitter.api import kinds
from outfitter.api.kinds import Kind, Object
from outfitter.api.validate import readable
from outfitter.cli import time_format
from outfitter.cli.client import Client, kind_named
from outfitter.cli.device import text
from outfitter.cli.device.page_warnings import warn_malformed
from outfitter.errors import BadRequest, Forbidden, Invalid, NotFound, Unreadable
from outfitter.scheduling import config, plugins
from outfitter.scheduling.explain import claim, migration, pod, vm
from outfitter.scheduling.explain.cluster_objects import ClusterObjects
from outfitter.scheduling.explain.explanation import Explanation
from outfitter.scheduling.explain.unreadable import needs_unreadable, unreadable_object
from outfitter.scheduling.nova import flavor_claim

NEEDED = (
    kinds.POD,
    kinds.RESOURCE_CLAIM,
    kinds.DEVICE_CLASS,
    kinds.RESOURCE_SLICE,
    kinds.NODE,
)  # without these an explanation is incomplete
EXPLAINED = {kinds.VMI: vm.instance, kinds.VM: vm.vm, kinds.POD: pod.pod,
             kinds.RESOURCE_CLAIM: claim.claim, kinds.MIGRATION: migration.migration}
WORDS = {"claim": kinds.RESOURCE_CLAIM}


async def why(client: Client, words: Sequence[str], *, long: bool, how: str) -> None:
    there: ClusterObjects | None = None
    answers, time = [], str if how == "json" else time_format.local_clock()
    for kind, name in _requested(words):
        actual_kind, obj = await _read_object(client, kind, name)
        if there is None:
            there = replace(await cluster_objects(client), time=time)
            warn_malformed(there.malformed)
        answers.append(explained(there, actual_kind, obj))
    if how == "json":
        objects = [answer.to_object(long=long) for answer in answers]
        click.echo(json.dumps(objects[0] if len(objects) == 1 else objects, indent=2))
        return
    text.print_lines(line for answer in answers
                     for line in answer.text(long=long, more=f"outfit why {answer.about} --long", time=time))


def explained(cluster: ClusterObjects, kind: Kind, obj: Object) -> Explanation:
    if (found := readable.unreadable(kind, obj)) is not None:
        return unreadable_object(found)
    try:
        return EXPLAINED[kind](cluster, obj)
    except Unreadable as error:
        return needs_unreadable(kind, obj, error)


def _requested(words: Sequence[str]) -> list[tuple[Kind | None, str]]:
    """Kinds and names to explain; kind None: any kind with an object of that name. `why vmi blue` means `why vmi/blue`."""
    if len(words) > 1 and explained_kind(words[0]) in EXPLAINED:
        words = [f"{words[0]}/{name}" for name in words[1:]]
    out: list[tuple[Kind | None, str]] = []
    for word in words:
        kind_word, slash, name = word.rpartition("/")
        kind = (explained_kind(kind_word) or kind_named(kind_word)) if slash else None
        if kind is not None and kind not in EXPLAINED:
            raise BadRequest(f"why explains VMs, VMIs, pods, claims and migrations, not {kind.plural}")
        if not name:
            raise click.UsageError(f"{word!r} has no name; write for example vmi/blue")
        out.append((kind, name))
    return out


def explained_kind(word: str) -> Kind | None:
    """The kind of a typed word; "claim" is accepted too."""
    return WORDS.get(word) or kinds.named(word)


async def _read_object(client: Client, kind: Kind | None, name: str) -> tuple[Kind, Object]:
    if kind is not None and kind != kinds.VM:
        return kind, await client.store.get(kind, name, client.namespace_for(kind))
    refused: Forbidden | None = None
    for candidate in EXPLAINED if kind is None else (kinds.VM, kinds.VMI):  # vm/NAME also finds a VMI without a VM
        try:
            return candidate, await client.store.get(candidate, name, client.namespace)
        except NotFound:
            continue
        except Forbidden as error:
            refused = refused or error
    if refused is not None:  # it may be there
        raise refused
    what = "VM, VMI, pod, claim or migration" if kind is None else "VM or VMI"
    raise NotFound(f"there is no {what} {name!r} in namespace {client.namespace}")


async def cluster_objects(client: Client) -> ClusterObjects:
    """All objects that an explanation may need. A cluster may lack some of our kinds, and the user may lack permission for
    some."""
    unread: list[str] = []

    async def those(kind: Kind) -> list[Object]:
        for place in (
            ("", client.namespace) if kind.namespaced else ("",)
        ):  # without permission for all namespaces, only this one is seen
            try:
                return (await client.readable.list(kind, place)).items
            except NotFound:
                return []
            except Forbidden:
                continue
        if kind in NEEDED:
            unread.append(kind.plural)
        return []

    (instances, pods, claims, classes, slices, pages, nodes, templates, rules, trees, inventories, migrations,
     kubevirts) = await asyncio.gather(
        *map(those, (kinds.VMI, kinds.POD, kinds.RESOURCE_CLAIM, kinds.DEVICE_CLASS, kinds.RESOURCE_SLICE,
                     kinds.LEDGER_PAGE, kinds.NODE, kinds.RESOURCE_CLAIM_TEMPLATE, kinds.DEVICE_TAINT_RULE, kinds.PROVIDER_TREE,
                     kinds.HOST_INVENTORY, kinds.MIGRATION, kinds.KUBEVIRT)))
    how = config.SchedulingConfig()
    with contextlib.suppress(NotFound, Forbidden, Unreadable):
        how = config.SchedulingConfig.read(await client.readable.get(kinds.CONFIG_MAP, config.NAME, config.NAMESPACE))
    aliases: flavor_claim.AliasSet | None = None
    with contextlib.suppress(NotFound, Forbidden, Invalid, Unreadable, json.JSONDecodeError):
        aliases = flavor_claim.read_aliases(await client.readable.get(
            kinds.CONFIG_MAP, flavor_claim.ALIASES_CONFIG_MAP, flavor_claim.ALIASES_NAMESPACE))
    return ClusterObjects(instances, pods, claims, classes, slices, pages, nodes, plugins.load(plugins.skipped()), templates,
                 tuple(unread), rules, how.policy, how.features, trees, inventories, aliases, datetime.now(UTC),
                 migrations=migrations, kubevirts=kubevirts, unreadable=tuple(client.unreadable.values()))
