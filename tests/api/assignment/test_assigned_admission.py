"""Assigned devices of a pod at admission: the field of containers and the annotation together."""

from __future__ import annotations

import json
from typing import Any

import pytest

from outfitter.api import admission, kinds
from outfitter.api.assignment.assigned_devices import ANNOTATION, LONGEST_ID
from outfitter.api.kinds import Object
from outfitter.errors import Invalid
from outfitter.store.clock import ManualClock
from outfitter.store.memory import Memory
from tests.api.objects import meta

GPU = "example.com/gpu"
AT_FIELD, AT_ANNOTATION = "spec.containers[0].assignedDevices", f"metadata.annotations[{ANNOTATION}]"


@pytest.fixture
async def store() -> Memory:
    store = Memory(clock=ManualClock(), rules=admission.AdmissionRules())
    await store.create(kinds.NAMESPACE, {"metadata": {"name": "here"}})
    return store


def entries(*ids: str) -> list[Object]:
    return [{"resourceName": GPU, "deviceIDs": list(ids)}]


def annotation(*ids: str) -> dict[str, str]:
    return {ANNOTATION: json.dumps({"train": entries(*ids)})}


def pod(count: int, *, field: tuple[str, ...] = (), annotated: tuple[str, ...] = (), **spec: Any) -> Object:
    container: Object = {"name": "train", "resources": {"limits": {GPU: str(count)}}}
    if field:
        container["assignedDevices"] = entries(*field)
    annotations = annotation(*annotated) if annotated else {}
    return {"metadata": meta(annotations=annotations), "spec": {"containers": [container], **spec}}


async def causes(store: Memory, obj: Object) -> list[tuple[str, str]]:
    with pytest.raises(Invalid) as caught:
        await store.create(kinds.POD, obj)
    return [(cause.field, cause.message) for cause in caught.value.causes]


async def refused(store: Memory, patch: Object) -> list[tuple[str, str]]:
    with pytest.raises(Invalid) as caught:
        await store.patch(kinds.POD, "x", patch, "here")
    return [(cause.field, cause.message) for cause in caught.value.causes]


async def test_ids_of_both_places_count(store: Memory) -> None:
    [(field, message)] = await causes(store, pod(1, field=("g0",), annotated=("g1",)))
    assert (field, "2 devices" in message) == (f"{AT_ANNOTATION}.train.assignedDevices[0].deviceIDs", True)
    await store.create(kinds.POD, pod(2, field=("g0",), annotated=("g1", "g0")))


async def test_an_id_that_no_device_has(store: Memory) -> None:
    [(field, message)] = await causes(store, pod(1, field=("x" * (LONGEST_ID + 1),)))
    assert (field, message.startswith("Too long")) == (f"{AT_FIELD}[0].deviceIDs[0]", True)
    await store.create(kinds.POD, pod(1, field=("x" * LONGEST_ID,)))


async def test_an_annotation_that_is_nested_without_end_is_refused_as_one(store: Memory) -> None:
    obj = pod(1)
    obj["metadata"]["annotations"] = {ANNOTATION: "[" * 100_000}
    [(field, message)] = await causes(store, obj)
    assert (field, "is not JSON" in message) == (AT_ANNOTATION, True)


@pytest.mark.parametrize(("field", "annotated", "patch", "path"), {
    "an id in the annotation": ((), ("g0",), {"metadata": {"annotations": annotation("g1")}}, AT_ANNOTATION),
    "the annotation": ((), ("g0",), {"metadata": {"annotations": {ANNOTATION: None}}}, AT_ANNOTATION),
    "the field": (("g0",), (), {"spec": {"containers": [{"name": "train", "resources": {"limits": {GPU: "1"}}}]}}, AT_FIELD),
}.values())
async def test_what_a_pod_has_stays_with_it(
    store: Memory, field: tuple[str, ...], annotated: tuple[str, ...], patch: Object, path: str
) -> None:
    await store.create(kinds.POD, pod(1, field=field, annotated=annotated))
    assert await refused(store, patch) == [(path, f"Forbidden: g0 of {GPU} is assigned, and stays with the pod")]


async def test_an_update_adds_no_more_than_is_requested(store: Memory) -> None:
    await store.create(kinds.POD, pod(2, field=("g0",)))
    await store.patch(kinds.POD, "x", {"metadata": {"annotations": annotation("g1")}}, "here")
    [(field, _)] = await refused(store, {"metadata": {"annotations": annotation("g1", "g2")}})
    assert field.startswith(AT_ANNOTATION)


async def test_ids_may_go_from_the_annotation_to_the_field(store: Memory) -> None:
    made = await store.create(kinds.POD, pod(1, annotated=("g0",)))
    container = {**made["spec"]["containers"][0], "assignedDevices": entries("g0")}
    await store.patch(kinds.POD, "x", {"metadata": {"annotations": {ANNOTATION: None}}, "spec": {"containers": [container]}},
                      "here")


@pytest.mark.parametrize(("name", "says"), [
    ("train", "Duplicate value"), ("Train_1", "Invalid value"), (None, "Required value"), ("other", ""),
])
async def test_names_of_init_containers(store: Memory, name: str | None, says: str) -> None:
    """Devices are assigned by the name of a container: all containers of a pod have different ones."""
    init = {"name": name} if name else {}
    obj = pod(1, initContainers=[{"name": "first"}, init])
    if says:
        [(field, message)] = await causes(store, obj)
        assert (field, message.startswith(says)) == ("spec.initContainers[1].name", True)
    else:
        await store.create(kinds.POD, obj)
