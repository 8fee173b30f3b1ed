"""Definitions of the previous release, with objects of it, become those of this one: nothing of an object changes, and none is
left in a version that is not stored any more."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import pytest

from outfitter.api import kinds
from outfitter.api.kinds import Kind, Object
from outfitter.install import apply, crds, manifests, names, resources
from outfitter.store.clock import SystemClock
from outfitter.store.kube import Kube
from tests import kubernetes
from tests.install import previous_release
from tests.install.sample_objects import SAMPLES
from tests.kubernetes import Cluster

pytestmark = pytest.mark.cluster
KINDS = (*crds.KUBEVIRT, *crds.OURS)
# What the previous release's schemas let in, and admission does not: it must not stand in the way.
MALFORMED: dict[str, tuple[Kind, Object]] = {
    "page-of-odd-entries": (kinds.LEDGER_PAGE, {"spec": {"bookings": ["x", {"device": 5, "holder": {"kind": 1}}]}}),
    "odd-strategy": (kinds.VM, {"spec": {"runStrategy": 5, "running": True, "template": {"spec": {"domain": {}}}}}),
    "odd-names": (kinds.VMI, {"spec": {"domain": {}, "networks": [{"name": "a", "pod": {}}, {"name": "a", "pod": {}}]}}),
    "no-spec": (kinds.PAST_BOOKING, {}),
}


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if kubernetes.assets() is None:
        pytest.skip(kubernetes.MISSING)
    with Cluster(tmp_path_factory.mktemp("previous"), learn=()) as running:
        yield running


@pytest.fixture
async def kube(plane: Cluster) -> AsyncIterator[Kube]:
    store = Kube(plane.access(), clock=SystemClock())
    yield store
    await store.close()


def _object(kind: Kind, name: str, obj: Object) -> Object:
    place = {"namespace": "default"} if kind.namespaced else {}
    return {**obj, "apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": name, **place}}


async def _stored(kube: Kube) -> dict[tuple[str, str], Object]:
    """All objects, without what every write changes."""
    out = {}
    for kind in KINDS:
        for obj in (await kube.list(kind)).items:
            for field in ("resourceVersion", "managedFields", "generation"):
                obj["metadata"].pop(field, None)
            out[kind.kind, obj["metadata"]["name"]] = obj
    return out


async def _apply(kube: Kube, plane: Cluster, definitions: Sequence[Object]) -> None:
    for definition in definitions:
        await kube.apply(resources.CRD, definition, field_manager=names.FIELD_MANAGER)
    for kind in KINDS:
        plane.until(functools.partial(_served, plane, kind))


async def _install(kube: Kube, plane: Cluster) -> list[str]:
    """The definitions of this release; what the command prints."""
    reports: list[str] = []
    definitions = [obj for obj in manifests.objects(names.InstallOptions()) if obj["kind"] == crds.KIND]
    await apply.apply(kube, definitions, "outfitter-system", reports.append, clock=SystemClock(), timeout=120)
    for kind in KINDS:
        plane.until(functools.partial(_served, plane, kind))
    return reports


def _served(plane: Cluster, kind: Kind) -> bool:
    return all(plane.request("GET", f"/apis/{kind.group}/{version}/{kind.plural}") for version in kind.versions)


async def _versions(kube: Kube, kind: Kind) -> Any:
    return (await kube.get(resources.CRD, kind.resource))["status"]["storedVersions"]


async def test_objects_of_the_previous_release_outlive_the_change_of_definitions(kube: Kube, plane: Cluster) -> None:
    storage = {kind: "v1alpha3" if kind in crds.KUBEVIRT else kind.version for kind in KINDS}
    await _apply(kube, plane, [previous_release.definition(kind, storage[kind]) for kind in KINDS])
    for name, (kind, obj) in {**SAMPLES, **MALFORMED}.items():
        later = {**obj, "spec": {**obj["spec"], "ofALaterVersion": {"any": ["thing", 1, None]}}} if "spec" in obj else obj
        await kube.create(kind, _object(kind, name, later))
        if "status" in obj and kind.has_status:
            await kube.patch(kind, name, {"status": obj["status"]}, "default", subresource="status")
    before = await _stored(kube)

    assert await _versions(kube, kinds.VM) == ["v1alpha3"]
    migrated = [f"{kind.resource}: all objects are stored as v1, none as v1alpha3" for kind in crds.KUBEVIRT]
    assert [line for line in await _install(kube, plane) if "stored" in line] == migrated
    assert await _stored(kube) == before
    for kind in KINDS:
        assert await _versions(kube, kind) == [kind.version]
    assert all(line.endswith(" unchanged") for line in await _install(kube, plane)), "nothing is left to do"

    for name, (kind, obj) in {**SAMPLES, **MALFORMED}.items():  # each can still be written, by users and by controllers
        place = "default" if kind.namespaced else ""
        await kube.patch(kind, name, {"metadata": {"labels": {"a": "b"}}}, place)
        if "status" in obj and kind.has_status:
            await kube.patch(kind, name, {"status": {"phase": "Pending"}}, place, subresource="status")
    await kube.patch(kinds.LEDGER_PAGE, "page-of-odd-entries", {"spec": {"bookings": [
        *MALFORMED["page-of-odd-entries"][1]["spec"]["bookings"], SAMPLES["page"][1]["spec"]["bookings"][0]]}})


async def test_an_older_version_can_be_removed_after_the_migration(kube: Kube) -> None:
    """Nothing in etcd needs it any more: the API server would refuse to remove it, or to read what is left of it."""
    kind = kinds.VM
    newest = crds.definition(kind)["spec"]["versions"][:1]
    await kube.patch(resources.CRD, kind.resource, {"spec": {"versions": newest}})
    assert (await kube.get(kind, "owner", "default"))["spec"]["runStrategy"] == "Always"


async def test_the_previous_definitions_can_be_restored(kube: Kube, plane: Cluster) -> None:
    await _install(kube, plane)
    before = await _stored(kube)
    for kind in KINDS:
        versions = previous_release.definition(kind, kind.version)["spec"]["versions"]
        await kube.patch(resources.CRD, kind.resource, {"spec": {"versions": versions}})
    assert await _stored(kube) == before
    await _install(kube, plane)
    assert await _stored(kube) == before
