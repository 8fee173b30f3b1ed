"""What `outfit config flavor` prints: a flavor's extra specs as device requests, as Placement's request groups and as the query
of GET /allocation_candidates. Called by `cli/config.py`; asks no server."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from outfitter.scheduling.nova import extra_specs, request_groups
from outfitter.scheduling.nova.flavor_claim import AliasSet

if TYPE_CHECKING:
    from outfitter.inventory.config import Config
    from outfitter.scheduling.nova.alias import Alias, Spec
    from outfitter.scheduling.nova.extra_specs import AliasRequest, FlavorRequest
    from outfitter.scheduling.nova.request_groups import Query, RequestGroup


def lines(settings: Config, specs: Mapping[str, str], *, vcpus: int, how: str) -> Iterator[str]:
    """The answer, line by line. Invalid: an alias is wrong; BadRequest: an extra spec is."""
    aliases = AliasSet.of(settings.default)
    flavor = extra_specs.read(specs, aliases.by_name, new_id=lambda: str(uuid.uuid4()), in_placement=aliases.in_placement,
                              vcpus=vcpus)
    query = request_groups.query(flavor)
    if how == "json":
        yield json.dumps(as_json(aliases, flavor, query), indent=2)
    else:
        yield from _text(flavor, query)


def as_json(aliases: AliasSet, flavor: FlavorRequest, query: Query) -> dict[str, Any]:
    """docs/commands.md lists the keys."""
    return {
        "aliases": {name: _alias(each) for name, each in aliases.by_name.items()},
        "requests": [_request(each) for each in flavor.requests],
        "groups": [_group(each) for each in query.groups],
        "query": [list(pair) for pair in query.parameters()],
    }


def _alias(alias: Alias) -> dict[str, Any]:
    return {"numa_policy": alias.numa_policy, "specs": _written(alias.specs)}


def _request(request: AliasRequest) -> dict[str, Any]:
    return {"request_id": request.request_id, "alias": request.alias, "count": request.count,
            "numa_policy": request.numa_policy, "specs": _written(request.specs)}


def _group(group: RequestGroup) -> dict[str, Any]:
    traits = group.traits
    return {"suffix": group.suffix, "request_id": group.request_id, "index": group.index, "resources": dict(group.resources),
            "required": sorted(traits.required), "forbidden": sorted(traits.forbidden),
            "any_of": [sorted(some) for some in traits.any_of]}


def _written(specs: Sequence[Spec]) -> list[dict[str, str]]:
    return [dict(spec.written) for spec in specs]


def _text(flavor: FlavorRequest, query: Query) -> Iterator[str]:
    if not flavor.requests:
        yield "the flavor requests no devices"
    for request in flavor.requests:
        yield f"{request.alias}: {request.count}, NUMA policy {request.numa_policy}"
        for spec in request.specs:
            yield f"  {', '.join(f'{key} {text}' for key, text in spec.written.items())}"
    yield ""
    yield "GET /allocation_candidates"
    yield from (f"  {name}={value}" for name, value in query.parameters())
