"""Each namespace has a `default` ServiceAccount and a `kube-root-ca.crt`, until it is deleted."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import pytest

from outfitter import app
from outfitter.api import kinds
from outfitter.api.kinds import Kind
from outfitter.store.clock import ManualClock

CA = "-----BEGIN CERTIFICATE-----\n"


class Namespaces:
    def __init__(self, product: app.Embedded, clock: ManualClock) -> None:
        self.store, self._product, self._clock = product.store, product, clock

    async def settle(self) -> None:
        for _ in range(3):
            await self._product.settle()
            self._clock.advance(1)

    async def names(self, kind: Kind, namespace: str) -> list[str]:
        await self.settle()
        return [obj["metadata"]["name"] for obj in (await self.store.list(kind, namespace)).items]


@contextlib.asynccontextmanager
async def namespaces(ca: str = CA) -> AsyncIterator[Namespaces]:
    clock = ManualClock()
    async with app.embedded(clock=clock) as product:
        if ca:
            product.namespace_defaults.publish(ca)
        await product.store.create(kinds.NAMESPACE, {"metadata": {"name": "team"}})
        yield Namespaces(product, clock)


@pytest.mark.parametrize("namespace", ["default", "kube-system", "team"])
async def test_every_namespace_has_them(namespace: str) -> None:
    async with namespaces() as cluster:
        assert await cluster.names(kinds.SERVICE_ACCOUNT, namespace) == ["default"]
        found = await cluster.store.get(kinds.CONFIG_MAP, "kube-root-ca.crt", namespace)
        assert found["data"] == {"ca.crt": CA}


async def test_without_a_server_there_is_no_certificate() -> None:
    async with namespaces("") as cluster:
        assert await cluster.names(kinds.SERVICE_ACCOUNT, "team") == ["default"]
        assert await cluster.names(kinds.CONFIG_MAP, "team") == []


async def test_they_are_created_again_and_the_certificate_is_restored() -> None:
    async with namespaces() as cluster:
        await cluster.settle()
        await cluster.store.delete(kinds.SERVICE_ACCOUNT, "default", "team")
        await cluster.store.delete(kinds.CONFIG_MAP, "kube-root-ca.crt", "team")
        assert await cluster.names(kinds.SERVICE_ACCOUNT, "team") == ["default"]
        assert await cluster.names(kinds.CONFIG_MAP, "team") == ["kube-root-ca.crt"]
        await cluster.store.patch(kinds.CONFIG_MAP, "kube-root-ca.crt", {"data": {"ca.crt": "no", "x": "y"}}, "team")
        await cluster.settle()
        assert (await cluster.store.get(kinds.CONFIG_MAP, "kube-root-ca.crt", "team"))["data"] == {"ca.crt": CA}


async def test_they_go_with_their_namespace() -> None:
    async with namespaces() as cluster:
        await cluster.settle()
        await cluster.store.delete(kinds.NAMESPACE, "team")
        assert await cluster.names(kinds.SERVICE_ACCOUNT, "team") == []
        assert "team" not in await cluster.names(kinds.NAMESPACE, "")
