"""Objects without owners are deleted; objects with an owner stay."""

from __future__ import annotations

import contextlib
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, cast

import pytest

from outfitter import app
from outfitter.api import kinds
from outfitter.api.kinds import Kind, Object
from outfitter.controllers.embedded.garbage_collector import GarbageCollector
from outfitter.errors import Forbidden, NotFound, Terminating
from outfitter.store.base import Listing, Propagation, Store
from outfitter.store.clock import ManualClock
from outfitter.store.id_generator import IdGenerator
from tests.controllers.scenario import Scene, hosts_of


@dataclass
class Yard:
    product: app.Embedded
    clock: ManualClock

    async def make(
        self, name: str, *owners: Object, namespace: str = "default", kind: Kind = kinds.CONFIG_MAP, **meta: Any
    ) -> Object:
        references = [{"apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": owner["metadata"]["name"],
                       "uid": owner["metadata"]["uid"]} for owner in owners]
        return await self.product.store.create(kind, {"metadata": {
            "name": name, **({"namespace": namespace} if kind.namespaced else {}), "ownerReferences": references, **meta}})

    async def delete(self, name: str, how: Propagation | None = None, kind: Kind = kinds.CONFIG_MAP) -> None:
        await self.product.store.delete(kind, name, "default", propagation=how)

    async def settle(self, seconds: int = 3) -> None:
        for _ in range(seconds):
            await self.product.settle()
            self.clock.advance(1)

    async def names(self, kind: Kind = kinds.CONFIG_MAP, namespace: str = "default") -> list[str]:
        await self.settle()
        return [obj["metadata"]["name"] for obj in (await self.product.store.list(kind, namespace)).items]

    async def owners(self, name: str) -> list[str]:
        await self.settle()
        obj = await self.product.store.get(kinds.CONFIG_MAP, name, "default")
        return [reference["name"] for reference in obj["metadata"].get("ownerReferences") or ()]


@contextlib.asynccontextmanager
async def yard() -> AsyncIterator[Yard]:
    clock = ManualClock()
    async with app.embedded(clock=clock, names=IdGenerator(random.Random(1))) as product:
        yield Yard(product, clock)


@pytest.mark.parametrize("how", [None, "Background", "Foreground"])
async def test_dependents_go_with_their_owner_and_theirs_with_them(how: Propagation | None) -> None:
    async with yard() as here:
        root = await here.make("root")
        child = await here.make("child", root)
        await here.make("grandchild", child)
        await here.make("stranger")
        assert await here.names() == ["child", "grandchild", "root", "stranger"]
        await here.delete("root", how)
        assert await here.names() == ["stranger"]


async def test_foreground_waits_for_the_dependents() -> None:
    async with yard() as here:
        root = await here.make("root")
        await here.make("child", root, finalizers=["example.com/busy"])
        await here.settle()
        await here.delete("root", "Foreground")
        assert await here.names() == ["child", "root"]
        child = await here.product.store.get(kinds.CONFIG_MAP, "child", "default")
        assert child["metadata"]["deletionTimestamp"]
        await here.product.store.patch(kinds.CONFIG_MAP, "child", {"metadata": {"finalizers": None}}, "default")
        assert await here.names() == []


async def test_background_does_not_wait() -> None:
    async with yard() as here:
        root = await here.make("root")
        await here.make("child", root, finalizers=["example.com/busy"])
        await here.settle()
        await here.delete("root", "Background")
        assert await here.names() == ["child"]


async def test_orphans_stay_and_forget_their_owner() -> None:
    async with yard() as here:
        root, other = await here.make("root"), await here.make("other")
        await here.make("child", root)
        await here.make("shared", root, other)
        await here.settle()
        await here.delete("root", "Orphan")
        assert await here.names() == ["child", "other", "shared"]
        assert await here.owners("child") == []
        assert await here.owners("shared") == ["other"]


async def test_of_several_owners_one_is_enough() -> None:
    async with yard() as here:
        one, two = await here.make("one"), await here.make("two")
        await here.make("child", one, two)
        await here.settle()
        await here.delete("one")
        assert await here.names() == ["child", "two"]
        assert await here.owners("child") == ["two"]
        await here.delete("two")
        assert await here.names() == []


async def test_foreground_deletion_ends_when_a_shared_dependent_is_gone() -> None:
    async with yard() as here:
        one, two = await here.make("one"), await here.make("two")
        await here.make("child", one, two)
        await here.settle()
        await here.delete("one", "Foreground")
        assert await here.names() == ["child", "two"]


async def test_an_owner_of_another_uid_is_no_owner() -> None:
    async with yard() as here:
        root = await here.make("root")
        namesake = {**root, "metadata": {**root["metadata"], "uid": "00000000-0000-4000-8000-000000000000"}}
        await here.make("child", namesake)
        assert await here.names() == ["root"]


async def test_an_owner_that_was_made_again_is_another() -> None:
    async with yard() as here:
        root = await here.make("root")
        await here.make("child", root)
        await here.settle()
        await here.delete("root")
        await here.make("root")
        assert await here.names() == ["root"]


async def test_owners_of_unknown_kinds_and_places_are_left_alone() -> None:
    async with yard() as here:
        await here.make("child", {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "uid": "u"}})
        await here.make("class", {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "root", "uid": "u"}},
                        kind=kinds.DEVICE_CLASS)
        assert await here.names() == ["child"]
        assert await here.names(kinds.DEVICE_CLASS, "") == ["class"]


async def test_a_cluster_wide_owner_of_something_in_a_namespace() -> None:
    async with yard() as here:
        node = await here.make("far", kind=kinds.NODE)
        await here.make("child", node)
        assert await here.names() == ["child"]
        await here.product.store.delete(kinds.NODE, "far")
        assert await here.names() == []


async def test_a_namespace_goes_with_its_content() -> None:
    async with yard() as here:
        store = here.product.store
        await store.create(kinds.NAMESPACE, {"metadata": {"name": "team"}})
        await here.make("plain", namespace="team")
        await here.make("held", namespace="team", finalizers=["example.com/busy"])
        await here.make("elsewhere")
        await here.settle()
        await store.delete(kinds.NAMESPACE, "team")
        assert await here.names(namespace="team") == ["held"]
        namespace = await store.get(kinds.NAMESPACE, "team")
        assert namespace["status"]["phase"] == "Terminating"
        with pytest.raises(Terminating, match="because it is being terminated"):
            await here.make("late", namespace="team")
        await store.patch(kinds.CONFIG_MAP, "held", {"metadata": {"finalizers": None}}, "team")
        await here.settle()
        with pytest.raises(NotFound):
            await store.get(kinds.NAMESPACE, "team")
        assert await here.names() == ["elsewhere"]


async def test_a_namespace_that_came_again_is_not_emptied() -> None:
    """While one looks through a namespace that is going it is gone, and another one of the same name is there."""
    async with yard() as here:
        store, seen = here.product.store, list[str]()

        class Slow:
            """The store, in which others are faster."""

            async def list(self, kind: Kind, namespace: str = "") -> Listing:
                if kind == kinds.CONFIG_MAP and not seen:
                    seen.append((await store.get(kinds.NAMESPACE, "team"))["metadata"]["uid"])
                    for one in (await store.list(kind, namespace)).items:
                        await store.delete(kind, one["metadata"]["name"], namespace)
                    gone = await store.get(kinds.NAMESPACE, "team")
                    gone["spec"]["finalizers"] = []
                    await store.replace(kinds.NAMESPACE, gone, subresource="finalize")
                    await store.create(kinds.NAMESPACE, {"metadata": {"name": "team"}})
                    await here.make("new", namespace="team")
                return await store.list(kind, namespace)

            def __getattr__(self, name: str) -> object:
                return getattr(store, name)

        await store.create(kinds.NAMESPACE, {"metadata": {"name": "team"}})
        await here.make("old", namespace="team")
        await here.settle()
        [garbage] = [each for each in here.product.runner.controllers if isinstance(each, GarbageCollector)]
        garbage._store = cast("Store", Slow())
        await store.delete(kinds.NAMESPACE, "team")
        assert await here.names(namespace="team") == ["new"]
        assert (await store.get(kinds.NAMESPACE, "team"))["metadata"]["uid"] not in seen != []


async def test_deleting_a_namespace_releases_the_devices_of_its_vms() -> None:
    clock = ManualClock()
    async with app.embedded(hosts=hosts_of("node", 2), clock=clock, names=IdGenerator(random.Random(1))) as product:
        await product.store.create(kinds.NAMESPACE, {"metadata": {"name": "team"}})
        scene = Scene(product, "team", clock)
        await scene.classes()
        await scene.template()
        await scene.claim("mine")
        await scene.machine("blue")
        await scene.machine("green", claim="mine")
        await scene.running("blue")
        await scene.running("green")
        await product.store.delete(kinds.NAMESPACE, "team")

        async def gone() -> bool:
            left = await scene.bookings() or await scene.domains()
            return not left and product.store.committed_record(kinds.NAMESPACE, "team") is None

        await scene.reach(gone, "the namespace is gone")
        assert not [kind.plural for kind in kinds.ALL if kind.namespaced and (await product.store.list(kind, "team")).items]


async def test_two_namespaces_cannot_go() -> None:
    async with yard() as here:
        for name in ("default", "kube-system"):
            with pytest.raises(Forbidden, match="may not be deleted"):
                await here.product.store.delete(kinds.NAMESPACE, name)


@pytest.mark.parametrize("ring", [1, 2, 3])
async def test_foreground_deletion_of_objects_that_own_each_other_ends(ring: int) -> None:
    async with yard() as here:
        made = [await here.make(f"ring-{number}") for number in range(ring)]
        await here.make("child", made[0], finalizers=["example.com/busy"])
        for number, owner in enumerate(made):
            reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": owner["metadata"]["name"],
                         "uid": owner["metadata"]["uid"], "blockOwnerDeletion": True}
            await here.product.store.patch(kinds.CONFIG_MAP, f"ring-{(number + 1) % ring}",
                                           {"metadata": {"ownerReferences": [reference]}}, "default")
        for number in range(ring):
            await here.delete(f"ring-{number}", "Foreground")
        assert "ring-0" in await here.names()  # a dependent that is in no ring is still waited for
        await here.product.store.patch(kinds.CONFIG_MAP, "child", {"metadata": {"finalizers": None}}, "default")
        assert await here.names() == []
