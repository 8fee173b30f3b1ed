"""`outfit plan`: where machines and pods of a file would go and what they would get, without doing it."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from outfitter.api import kinds, machine
from outfitter.api.device import text_attribute
from outfitter.api.kinds import Kind, Object
from outfitter.api.page import Page
from outfitter.controllers import render
from outfitter.errors import BadRequest
from outfitter.faces.cli import show
from outfitter.faces.cli.client import Client, documents
from outfitter.faces.cli.verbs import NIL, facts
from outfitter.scheduling import explain
from outfitter.scheduling.fit import Used
from outfitter.scheduling.index import Index
from outfitter.scheduling.place import Placement, place, results

PLANNED = (kinds.INSTANCE, kinds.POD)
BROUGHT = (kinds.RESOURCE_CLAIM, kinds.DEVICE_CLASS, kinds.RESOURCE_CLAIM_TEMPLATE)


async def plan(client: Client, files: Sequence[str]) -> None:
    found = [(named(kind), _whole(client, kind, obj)) for kind, obj, _ in documents(files)]
    wanted = [(kind, obj) for kind, obj in found if kind in PLANNED]
    if not wanted:
        raise BadRequest(f"{', '.join(files)}: there is neither a VirtualMachineInstance nor a Pod to plan for")
    brought = {kind: [obj for each, obj in found if each == kind] for kind in BROUGHT}  # counts as if it were there
    there = await facts(client)
    everything = replace(there, claims=[*brought[kinds.RESOURCE_CLAIM], *there.claims],
                         classes=[*brought[kinds.DEVICE_CLASS], *there.classes])
    templates = [*brought[kinds.RESOURCE_CLAIM_TEMPLATE], *(await client.store.list(kinds.RESOURCE_CLAIM_TEMPLATE)).items]
    for kind, obj in wanted:
        show.say(_lines(kind, obj, everything, templates))


def named(kind: Kind) -> Kind:
    return next(each for each in kinds.ALL if each.resource == kind.resource)


def _whole(client: Client, kind: Kind, obj: Object) -> Object:
    meta = {"uid": NIL, **obj["metadata"]}
    meta.setdefault("name", meta.get("generateName", "unnamed") + "x")
    if kind.namespaced:
        meta.setdefault("namespace", client.namespace)
    return {**obj, "metadata": meta}


def _lines(kind: Kind, obj: Object, everything: explain.Facts, templates: Sequence[Object]) -> Iterator[str]:
    title = f"{'vmi' if kind == kinds.INSTANCE else 'pod'}/{obj['metadata']['name']}"
    pod = render.launcher_pod(obj) if kind == kinds.INSTANCE else copy.deepcopy(obj)
    made = _claims(pod, templates)
    statuses = [{"name": entry, "resourceClaimName": claim["metadata"]["name"]} for entry, claim in made.items()]
    pod["status"] = {**(pod.get("status") or {}), "resourceClaimStatuses": statuses}
    by_name = {claim["metadata"]["name"]: claim for claim in made.values()}
    verdict = place(pod, lambda namespace, name: by_name.get(name) or everything.claim(namespace, name), everything.class_,
                    Index.of(everything.slices, map(Page, everything.pages), everything.nodes), Used(everything.pods),
                    plugins=everything.plugins, everybody=True)
    if not isinstance(verdict, Placement):
        first, *rest = verdict.lines()
        yield f"{title} would wait: {first}"
        yield from rest
        return
    yield f"{title} would go to {verdict.host} ({verdict.why})"
    entries = {claim["metadata"]["name"]: entry for entry, claim in made.items()}
    for claim, given in verdict.claims:
        name = claim["metadata"]["name"]
        for device, result in results(given):
            raw = _published(everything, device.driver, device.pool, device.device)
            where = text_attribute(raw, device.driver, ("resource.kubernetes.io/pciBusID", "mdevUUID"))
            product = text_attribute(raw, device.driver, ("productName", "product"))
            about = ", ".join(text for text in (where, product) if text)
            yield (f"  {entries.get(name, f'claim {name}')}/{result['request']}: {device.device}"
                   + (f" ({about})" if about else ""))


def _claims(pod: Object, templates: Sequence[Object]) -> dict[str, Object]:
    """The claims that would be made for a pod: entry -> claim."""
    namespace, out = pod["metadata"]["namespace"], {}
    for entry in pod["spec"].get("resourceClaims") or ():
        name = entry.get("resourceClaimTemplateName")
        template = next((each for each in templates if name and (each["metadata"]["namespace"], each["metadata"]["name"]) ==
                         (namespace, name)), None)
        if template is not None and not dict(machine.claim_names(pod)).get(entry["name"]):
            out[entry["name"]] = {"metadata": {"name": f"{pod['metadata']['name']}-{entry['name']}", "namespace": namespace,
                                               "uid": f"{NIL}-{entry['name']}"}, "spec": template["spec"]["spec"]}
    return out


def _published(everything: explain.Facts, driver: str, pool: str, name: str) -> Mapping[str, object]:
    for part in everything.slices:
        spec = part["spec"]
        if (spec["driver"], spec["pool"]["name"]) == (driver, pool):
            for device in spec.get("devices") or ():
                if device["name"] == name:
                    return dict(device)
    return {}
