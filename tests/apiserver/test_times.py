"""Times of any form that RFC 3339 allows are stored, compared and answered as Kubernetes writes them, for every kind."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from outfitter.api import kinds
from outfitter.api.kinds import Kind, Object
from outfitter.api.validate import time_fields
from tests.apiserver.asgi import CONFIG_MAPS, JSON_PATCH, MERGE, A, Client, config_map

FORMS = {
    "as Python writes it": lambda text: text.replace("Z", "+00:00"),
    "as JavaScript writes it": lambda text: text.replace("Z", ".000Z"),
    "in another zone": lambda text: text.replace("T00:00:00Z", "T02:30:00.999999999+02:30"),
}
EVENTS, LEASES = "/api/v1/namespaces/default/events", "/apis/coordination.k8s.io/v1/namespaces/default/leases"
WRITTEN, MICRO = "2026-01-01T00:00:00Z", "2026-01-01T00:00:00.123456Z"


@pytest.mark.parametrize("form", [name for name in FORMS if name != "in another zone"])
async def test_an_object_is_replaced_with_its_own_times_in_another_form(client: Client, form: str) -> None:
    await client.post(CONFIG_MAPS, {**config_map("a"), "metadata": {"name": "a", "finalizers": ["example.com/wait"]}})
    await client.delete(A)
    read = (await client.get(A)).json
    sent = copy.deepcopy(read)
    for field in ("creationTimestamp", "deletionTimestamp"):
        sent["metadata"][field] = FORMS[form](read["metadata"][field])
    sent["data"] = {"k": "w"}
    for reply in (await client.put(A, sent), await client.patch(A, {"metadata": {"creationTimestamp": sent["metadata"][
            "creationTimestamp"]}}, type=MERGE)):
        assert reply.status == 200, reply.json
        assert {field: reply.json["metadata"][field] for field in ("creationTimestamp", "deletionTimestamp")} == {
            field: read["metadata"][field] for field in ("creationTimestamp", "deletionTimestamp")}


async def test_another_creation_time_is_refused(client: Client) -> None:
    read = (await client.post(CONFIG_MAPS, config_map("a"))).json
    read["metadata"]["creationTimestamp"] = "2020-01-01T00:00:00Z"
    reply = await client.put(A, read)
    assert (reply.status, reply.json["details"]["causes"][0]["field"]) == (422, "metadata.creationTimestamp")


@pytest.mark.parametrize("form", FORMS)
async def test_times_are_stored_as_kubernetes_writes_them(client: Client, form: str) -> None:
    event = {"metadata": {"name": "e"}, "involvedObject": {"name": "x", "namespace": "default"},
             "firstTimestamp": FORMS[form](WRITTEN), "eventTime": FORMS[form](WRITTEN)}
    made = (await client.post(EVENTS, event)).json
    assert made["firstTimestamp"] == WRITTEN
    assert made["eventTime"] == ("2026-01-01T00:00:00.999999Z" if form == "in another zone" else "2026-01-01T00:00:00.000000Z")
    lease = (await client.post(LEASES, {"metadata": {"name": "l"}, "spec": {"renewTime": MICRO.replace("Z", "+00:00")}})).json
    assert lease["spec"]["renewTime"] == MICRO
    patched = await client.patch(f"{LEASES}/l", [{"op": "add", "path": "/spec/acquireTime", "value": FORMS[form](WRITTEN)}],
                                 type=JSON_PATCH)
    assert patched.json["spec"]["acquireTime"].startswith("2026-01-01T00:00:00.")


def _paths(tree: time_fields.TimeTree, path: str = "") -> list[str]:
    return [found for name, below in tree.items()
            for found in ([f"{path}{name}"] if callable(below) else _paths(below, f"{path}{name}."))]


def _with(path: str, value: Any) -> Object:
    obj: Any = value
    for name in reversed(path.split(".")):
        obj = {name: obj}
    return obj if path.startswith("metadata.") else {"metadata": {"name": "a"}, **obj}


@pytest.mark.parametrize("kind", kinds.ALL, ids=lambda kind: kind.plural)
@pytest.mark.parametrize("wrong", ["yesterday", "2026-01-01", "2026-13-01T00:00:00Z", "2026-01-01T00:00:00", "", 5, {}])
async def test_a_time_that_is_none_is_refused_with_its_field(client: Client, kind: Kind, wrong: Any) -> None:
    tree = {"metadata": time_fields.METADATA, **time_fields.FIELDS.get(kind, {})}
    for field in _paths(tree):
        reply = await client.post(kind.path("default"), _with(field, wrong))
        assert (reply.status, reply.json["reason"]) == (400, "BadRequest"), field
        assert f": {field}: " in reply.json["message"]


async def test_a_zero_time_is_none(client: Client) -> None:
    made = await client.post(CONFIG_MAPS, {**config_map("a"), "metadata": {
        "name": "a", "creationTimestamp": "0001-01-01T00:00:00Z", "deletionTimestamp": None}})
    assert made.status == 201
    assert made.json["metadata"]["creationTimestamp"] > "2026"
