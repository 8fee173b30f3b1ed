"""Every field of every served kind has a type, and a value of another type is refused at the API with the field's path, however
it is written. Free-form are only the insides of fields that a shape gives as `dict` (opaque parameters, fieldsV1, what KubeVirt
has and Outfitter does not act on)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from outfitter.api import admission, kinds
from outfitter.api.kinds import Kind, Object
from outfitter.api.validate.shapes import SHAPES, Time
from outfitter.apiserver.app import App
from outfitter.apiserver.auth import MASTERS, User
from outfitter.store.clock import ManualClock
from outfitter.store.memory import Memory
from tests.apiserver.asgi import MERGE, Client

NOW = "2026-01-01T00:00:00Z"
# A type -> a value that is not of it; but for times, which have a test of their own.
WRONG = {str: 5, int: "5", bool: "yes", dict: ["x"], list: {"x": 1}, Time: NOW}
CONTAINERS = [{"name": "c"}]
# The least that a kind needs; others need nothing.
LEAST: dict[Kind, Object] = {
    kinds.POD: {"spec": {"containers": CONTAINERS}},
    kinds.RESOURCE_CLAIM: {"spec": {"devices": {}}},
    kinds.RESOURCE_CLAIM_TEMPLATE: {"spec": {"spec": {"devices": {}}}},
    kinds.DEVICE_TAINT_RULE: {"spec": {"taint": {"key": "a", "effect": "NoSchedule"}}},
    kinds.POOL_STATUS_REQUEST: {"spec": {"driver": "d"}},
    kinds.RESOURCE_SLICE: {"spec": {"driver": "d", "allNodes": True, "pool": {"name": "p", "resourceSliceCount": 1}}},
    kinds.VMI: {"spec": {"domain": {}}},
    kinds.VM: {"spec": {"runStrategy": "Halted", "template": {"spec": {"domain": {}}}}},
    kinds.PAST_BOOKING: {"spec": {
        "host": "a", "booked": NOW, "device": {"driver": "d", "pool": "p", "device": "v"},
        "holder": {"kind": "ResourceClaim", "name": "c", "uid": "u"}}},
    kinds.PROVIDER_TREE: {"spec": {}}, kinds.HOST_INVENTORY: {"spec": {}},
    kinds.FLAVOR: {"spec": {"vcpus": 1, "memory": "1Gi"}},
}


@pytest.fixture
async def client(clock: ManualClock) -> AsyncIterator[Client]:
    store = Memory(clock=clock, rules=admission.AdmissionRules())
    await store.create(kinds.NAMESPACE, {"metadata": {"name": "default"}})
    yield Client(App(store, tokens={"admin": User("admin", (MASTERS,))}))
    await store.close()


def url(kind: Kind) -> str:
    group = f"apis/{kind.group}/{kind.version}" if kind.group else f"api/{kind.version}"
    return f"/{group}/{'namespaces/default/' if kind.namespaced else ''}{kind.plural}"


def wrong_type(wanted: Any) -> Any:
    return WRONG.get(type(wanted) if isinstance(wanted, dict | list) else wanted, ["x"])  # no amount is a list


def nodes(wanted: Any, *path: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The path of every field and item of a shape, and its type."""
    yield path, wanted
    inner = wanted.items() if isinstance(wanted, dict) else [("[0]", wanted[0])] if isinstance(wanted, list) else ()
    for name, below in inner:
        yield from nodes(below, *path, "any" if name == "*" else name.rstrip("!"))


def nested(fields: list[tuple[tuple[str, ...], Any]]) -> Any:
    """The object that has these values at these paths, which are equally long."""
    if not fields[0][0]:
        return fields[0][1]
    below: dict[str, list[tuple[tuple[str, ...], Any]]] = {}
    for path, value in fields:
        below.setdefault(path[0], []).append((path[1:], value))
    inner = {name: nested(rest) for name, rest in below.items()}
    return [inner["[0]"]] if "[0]" in inner else inner


def written(*path: str) -> str:
    return ".".join(path).replace(".[0]", "[0]")


SERVED = [kind for kind in kinds.ALL if kind != kinds.MIGRATION]  # which can only be rejected
AT_ONCE = 40  # wrong fields in one request: an answer has at most 100 causes, missing fields among them


@pytest.mark.parametrize("kind", SERVED, ids=lambda kind: kind.kind)
async def test_a_wrong_type_is_refused_in_every_field(client: Client, kind: Kind) -> None:
    name = "odd" if kind != kinds.NAMESPACE else "team"
    made = await client.post(url(kind), {"metadata": {"name": name}, **LEAST.get(kind, {})})
    assert made.status == 201, made.json
    by_depth: dict[tuple[str, int], list[tuple[tuple[str, ...], Any]]] = {}
    for path, wanted in nodes(SHAPES[kind.kind]):
        if path and wanted is not Time:
            by_depth.setdefault((path[0], len(path)), []).append((path[1:], wrong_type(wanted)))
    for (part, _), fields in by_depth.items():
        status = part == "status" and kind.has_status
        place = f"{url(kind)}/{name}/status" if status else f"{url(kind)}/{name}"
        for start in range(0, len(fields), AT_ONCE):
            some = fields[start:start + AT_ONCE]
            body = {**made.json, part: nested(some)}
            ways: list[tuple[str, str, Object, str]] = [
                ("PUT", place, body, "application/json"), ("PATCH", place, {part: body[part]}, MERGE)]
            if not status or kind.status_at_create:
                ways.append(("POST", url(kind), {**body, "metadata": {"name": "other"}}, "application/json"))
            for method, where, sent, type_ in ways:
                reply = await client.call(method, where, sent, type=type_)
                assert reply.status in (400, 422), (part, some[0], reply.json)
                causes = {cause["field"] for cause in reply.json.get("details", {}).get("causes", ())}
                missed = {written(part, *path) for path, _ in some} - causes
                assert not missed or (reply.status == 400 and part in reply.json["message"]), sorted(missed)[:5]
    again = await client.get(f"{url(kind)}/{name}")
    assert again.json["metadata"]["resourceVersion"] == made.json["metadata"]["resourceVersion"]


def times(kind: Kind) -> list[tuple[str, ...]]:
    return [path for path, wanted in nodes(SHAPES[kind.kind]) if wanted is Time]


@pytest.mark.parametrize("kind", [kind for kind in SERVED if times(kind)], ids=lambda kind: kind.kind)
async def test_what_is_no_time_is_refused_in_every_field_of_times(client: Client, kind: Kind) -> None:
    least = {"metadata": {"name": "odd"}, **LEAST.get(kind, {})}
    made = await client.post(url(kind), least)
    for part, *rest in times(kind):
        place = f"{url(kind)}/odd/status" if part == "status" and kind.has_status else f"{url(kind)}/odd"
        reply = await client.put(place, {**made.json, part: nested([(tuple(rest), "now")])})
        assert reply.status in (400, 422), (rest, reply.json)
        assert written(part, *rest) in reply.json["message"]


@pytest.mark.parametrize(("field", "value"), [
    ("name", 1), ("labels", ["a"]), ("labels", {"a": 1}), ("annotations", {"a": {}}), ("finalizers", "x"), ("finalizers", [1]),
    ("ownerReferences", {}), ("ownerReferences", [{"apiVersion": 1}]), ("ownerReferences", [{"controller": "yes"}]),
    ("managedFields", {"a": 1}), ("managedFields", [{"time": "now"}]), ("generateName", [])])
async def test_a_wrong_type_in_metadata_is_refused(client: Client, field: str, value: Any) -> None:
    reply = await client.post(url(kinds.CONFIG_MAP), {"metadata": {"name": "a", field: value}})
    assert reply.status in (400, 422), reply.json
    assert f"metadata.{field}" in reply.json["message"]
