"""A real kube-apiserver with two places for requests: it answers 429, and everything that was asked for is done in the end.
And what it does with streamed lists, with and without its feature gate."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from outfitter.api import kinds
from outfitter.errors import AlreadyExists, Unavailable
from outfitter.store import kube, kubeconfig
from outfitter.store.clock import SystemClock
from outfitter.store.informer import Informer
from tests import control_planes, kubernetes
from tests.store.backends import config, soon
from tests.store.kube.simulated_server import until

pytestmark = pytest.mark.cluster
OBJECTS, CLIENTS = 40, 4
# Members of system:masters are never refused, so that the setting up is not; everyone else is.
TINY = ("--enable-priority-and-fairness=false", "--max-requests-inflight=1", "--max-mutating-requests-inflight=1",
        "--authorization-mode=AlwaysAllow", "--feature-gates=WatchList=false")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[kubernetes.Cluster]:
    with control_planes.started(tmp_path_factory.mktemp("tiny"), learn=(), apiserver_flags=TINY) as running:
        yield running


async def test_everything_is_done_though_many_requests_are_refused(tiny: kubernetes.Cluster) -> None:
    clock = SystemClock()
    access = kubeconfig.load(tiny.folder / "kube-scheduler.kubeconfig", clock=clock)  # a user like others
    stores = [kube.Kube(access, clock=clock) for _ in range(CLIENTS)]
    informer = Informer[kinds.Object](stores[0], kinds.CONFIG_MAP, clock=clock, namespace="default", labels="of=test")
    watching = asyncio.ensure_future(informer.run())
    try:
        async def write(number: int) -> None:
            """As a controller does: what was refused too often is tried again later."""
            store, wanted = stores[number % CLIENTS], {**config(f"busy-{number}"), "data": {"v": str(number)}}
            wanted["metadata"]["labels"] = {"of": "test"}
            while True:
                try:
                    await store.create(kinds.CONFIG_MAP, wanted)
                    return
                except AlreadyExists:
                    return
                except Unavailable:
                    continue

        async with asyncio.timeout(600):
            await asyncio.gather(*(write(number) for number in range(OBJECTS)))
            await informer.synced()
            wanted = sorted(map(str, range(OBJECTS)))
            await until(lambda: sorted(obj["data"]["v"] for obj in informer.items()) == wanted)
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        for store in stores:
            await store.close()
    refused = sum(store.limiter.requests["429", method] for store in stores for method in ("GET", "POST", "PATCH"))
    assert 0 < refused < 10 * OBJECTS, "the server is busy; who does not back off is refused thousands of times"
    assert any(store.limiter.held_back > 0 for store in stores)


async def test_a_server_without_the_gate_refuses_to_stream(tiny: kubernetes.Cluster) -> None:
    store = kube.Kube(tiny.access(), clock=SystemClock())
    try:
        assert await store.stream_list(kinds.NAMESPACE) is None
        informer = Informer[kinds.Object](store, kinds.NAMESPACE, clock=SystemClock())
        watching = asyncio.ensure_future(informer.run())
        await soon(informer.synced())
        assert informer.get("default") is not None
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
    finally:
        await store.close()


@pytest.mark.parametrize("kind", [kinds.CONFIG_MAP, kinds.LEDGER_PAGE], ids=str)
async def test_a_list_is_streamed(cluster: kubernetes.Cluster, kind: kinds.Kind) -> None:
    """With a selector; nothing is lost between the list and the changes."""
    store, namespace = kube.Kube(cluster.access(), clock=SystemClock()), "default" if kind.namespaced else ""
    try:
        await store.create(kind, config("streamed") if kind.namespaced else {
            "metadata": {"name": "streamed"}, "spec": {"host": "streamed", "bookings": []}})
        stream = await store.stream_list(kind, fields="metadata.name=streamed")
        assert stream is not None
        seen = [(await soon(anext(stream))) for _ in range(2)]
        assert [event.type for event in seen] == ["ADDED", "BOOKMARK"]
        assert seen[1].object["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
        await store.patch(kind, "streamed", {"metadata": {"labels": {"a": "b"}}}, namespace)
        assert (await soon(anext(stream))).type == "MODIFIED"
        await stream.aclose()
        await store.delete(kind, "streamed", namespace)
    finally:
        await store.close()
