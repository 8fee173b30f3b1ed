"""Metrics as Prometheus reads them: over HTTP, by those who may, with numbers that follow what happens."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from pathlib import Path

import aiohttp
import pytest
from prometheus_client import parser

from outfitter import app
from outfitter.api import kinds
from outfitter.api.rejection import RejectionCode
from outfitter.apiserver.app import App
from outfitter.apiserver.auth import MASTERS, METRICS, MONITORING, User
from outfitter.errors import Conflict, Invalid, Unavailable
from outfitter.ledger import out_of_service
from outfitter.store.memory import Memory
from tests.apiserver.asgi import Client
from tests.controllers.scenario import Scene, embedded

QUEUES = {
    "vm",
    "vmi",
    "pod_claims",
    "claim_deallocation",
    "scheduler",
    "device_taint_eviction",
    "node_taint_eviction",
    "device_status",
    "garbage_collector",
    "namespace_defaults",
    "event_expiry",
    "pod_gc",
    "pool_status_requests",
    "kubevirt",
    "migration",
    "nic_hotplug",
    "workload_update",
    "attachment_pods",
    "host_audit",
    "node",
    "unreadable_objects",
}
KINDS = {
    "workqueue_depth": "gauge", "workqueue_adds": "counter", "workqueue_retries": "counter",
    "workqueue_queue_duration_seconds": "histogram", "workqueue_work_duration_seconds": "histogram",
    "workqueue_unfinished_work_seconds": "gauge", "workqueue_longest_running_processor_seconds": "gauge",
}
BOUNDS = [1e-08, 1e-07, 1e-06, 1e-05, 0.0001, 0.001, 0.01, 0.1, 1.0, 10.0, float("inf")]

DOCS = Path(__file__).parent.parent.parent / "docs" / "metrics.md"
Seen = dict[tuple[str, frozenset[tuple[str, str]]], float]


def read(text: str) -> Seen:
    return {(sample.name, frozenset(sample.labels.items())): sample.value
            for family in parser.text_string_to_metric_families(text) for sample in family.samples}


def value(seen: Seen, name: str, /, **labels: str) -> float | None:
    return seen.get((name, frozenset(labels.items())))


async def scraped(scene: Scene) -> Seen:
    assert isinstance(scene.product, app.Embedded)
    reply = await Client(_with_admin(scene.product)).get(METRICS)
    assert reply.status == 200
    return read(reply.data.decode())


def _with_admin(product: app.Embedded) -> App:
    return App(product.store, tokens={"admin": User("admin", (MASTERS,))}, metrics=product.metrics.text)


async def test_the_port_serves_them_as_prometheus_reads_them(tmp_path: Path) -> None:
    async with app.embedded(data=tmp_path) as product:
        await product.serve(tmp_path, 0)
        assert product.server is not None
        trusted = ssl.create_default_context(cafile=tmp_path / "pki" / "ca.crt")
        head = {"Authorization": f"Bearer {(tmp_path / 'pki' / 'token').read_text()}"}
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trusted)) as session:
            async with session.get(product.server.url, headers={"x": "x" * 70_000}) as reply:
                assert reply.status == 431
            async with session.get(f"{product.server.url}{METRICS}", headers=head) as reply:
                text = await reply.text()
                assert (reply.status, reply.headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
            async with session.get(f"{product.server.url}{METRICS}") as reply:
                assert reply.status == 401
            async with session.get(f"{product.server.url}{METRICS}", headers={
                    **head, "Accept": "application/openmetrics-text;version=1.0.0"}) as reply:
                assert reply.headers["content-type"].startswith("application/openmetrics-text")
                assert (await reply.text()).endswith("# EOF\n")
    families = {family.name: family for family in parser.text_string_to_metric_families(text)}
    assert {name: families[name].type for name in KINDS} == KINDS
    for name in KINDS:
        assert {sample.labels["name"] for sample in families[name].samples} == QUEUES
    buckets = [float(sample.labels["le"]) for sample in families["workqueue_work_duration_seconds"].samples
               if sample.name.endswith("_bucket") and sample.labels["name"] == "device_status"]
    assert buckets == BOUNDS
    assert families["outfitter_http_connections"].samples[0].value >= 1
    assert value(read(text), "outfitter_http_refusals_total", reason="header_bytes") == 1
    told = DOCS.read_text()
    assert [name for name in families if not name.startswith("process_") and f"| `{name}" not in told] == []
    assert {name for name in QUEUES if f"`{name}`" not in told} == set()
    assert families["process_resident_memory_bytes"].samples[0].value > 1_000_000


MAY: Mapping[str, tuple[tuple[str, ...], int]] = {
    "masters": ((MASTERS,), 200), "monitoring": ((MONITORING, "people"), 200), "people": (("people",), 403)}


@pytest.mark.parametrize("who", MAY)
async def test_who_may_read_them(who: str, store: Memory) -> None:
    groups, code = MAY[who]
    client = Client(App(store, tokens={"t": User("eve", groups)}, metrics=lambda accept: (b"x 1\n", "text/plain")), token="t")
    for path in (METRICS, f"{METRICS}/"):
        reply = await client.get(path)
        assert reply.status == code
        if code == 403:
            assert reply.json["reason"] == "Forbidden"
            assert reply.json["message"] == 'forbidden: User "eve" cannot get path "/metrics"'
        else:
            assert reply.data == b"x 1\n"
    assert (await client.call("POST", METRICS, {})).status == (405 if code == 200 else 403)
    assert (await client.get("/apis")).status == 200


async def test_a_server_without_metrics_has_no_such_page(client: Client) -> None:
    assert (await client.get(METRICS)).status == 404


async def test_metrics_follow_the_vmi_lifecycle() -> None:
    async with embedded(2) as scene:
        await scene.classes()
        await scene.template()
        before = await scraped(scene)
        assert value(before, "outfitter_devices", host=scene.host.name, driver=scene.driver) == 2
        assert value(before, "outfitter_instances", phase="Running") is None
        assert value(before, "workqueue_adds_total", name="device_status") == 0
        await scene.machine("blue")
        await scene.running("blue")
        device = (await scene.bookings())[0].device
        await out_of_service.quarantine(
            scene.store, scene.host.name, device, by="ann", reason="hot", now=scene.product.context.now()
        )
        await scene.running("blue")
        await scene.machine("red", nodeSelector={"zone": "none"})
        await scene.rejected("red", RejectionCode.NODE_SELECTOR)
        after = await scraped(scene)
        assert value(after, "outfitter_scheduling_rejections_total", code="NodeSelector") == 1
        assert value(after, "outfitter_instances", phase="Running") == 1
        assert value(after, "outfitter_bookings", page=scene.host.name, state="prepared") == 1
        assert value(after, "outfitter_devices_out_of_service", page=scene.host.name, state="quarantined") == 1
        added = value(after, "workqueue_adds_total", name="device_status")
        assert added
        assert value(after, "workqueue_depth", name="device_status") == 0
        assert value(after, "workqueue_queue_duration_seconds_count", name="device_status") == added
        assert value(after, "workqueue_work_duration_seconds_count", name="device_status") == added
        assert value(after, "workqueue_unfinished_work_seconds", name="device_status") == 0
        assert value(after, "outfitter_build_info", version="0.1.0") == 1


WRONG: Mapping[str, tuple[Exception, str]] = {
    "somebody was faster": (Conflict("late"), "conflict"),
    "the server is away": (Unavailable("away"), "unavailable"),
    "it may not be": (Invalid("no"), "refused"),
    "a fault": (RuntimeError("oops"), "fault"),
}


@pytest.mark.parametrize("name", WRONG)
async def test_what_fails_is_counted_with_its_reason(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    error, reason = WRONG[name]
    async with embedded(1) as scene:
        [loop] = [each for each in scene.product.runner.controllers if each.name == "vm"]
        failures = [error, error]

        async def reconcile(key: str) -> float | None:
            if failures:
                raise failures.pop()
            return None

        monkeypatch.setattr(loop, "reconcile", reconcile)
        await scene.create(kinds.VM, "blue", {"runStrategy": "Halted", "template": {"spec": {"domain": {}}}})

        async def done() -> bool:
            return not failures and loop.queue.idle

        await scene.reach(done, "it was tried until it worked")
        seen = await scraped(scene)
        assert value(seen, "outfitter_reconcile_errors_total", name="vm", reason=reason) == 2
        assert value(seen, "workqueue_retries_total", name="vm") == 2
