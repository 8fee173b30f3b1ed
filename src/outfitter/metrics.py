"""Prometheus metrics of a process: its work queues under the names of Kubernetes' own, and a few of ours. Nothing is counted
for them: everything is read when they are scraped. docs/metrics.md lists it all."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from outfitter import __version__
from outfitter.api import kinds
from outfitter.api.kubevirt import migration
from outfitter.api.ledger_page.page import OUT_OF_SERVICE_STATES
from outfitter.api.ledger_page.page_entries import raw_entries, well_formed
from outfitter.controllers.manager import Controller, ControllerContext, ControllerManager
from outfitter.ledger.out_of_service import HEALTH
from outfitter.store.queue_metrics import Durations
from outfitter.store.request_limiter import RequestLimiter

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Metric

    from outfitter.apiserver.listener import Listener  # a web server, which a controller does not run
    from outfitter.node.readers.node_pods import NodePods

WAITS = "How long keys waited in the queue until a worker took them, in seconds."
WORKS = "How long the work on a key took, in seconds."
UNFINISHED = "The seconds for which all keys in work have been so. If it grows steadily, a worker is stuck."
PROGRESS = {"total_bytes": "The memory", "remaining_bytes": "Memory still to be copied", "iteration": "Iterations",
            "processed_bytes": "Memory that was copied, repetitions included,"}  # of status.migrationState.progress
LONGEST = "The seconds for which the key that has been in work longest has been so."


class Metrics:
    """Of the controllers and the node agent that one runner runs."""

    def __init__(self, runner: ControllerManager, context: ControllerContext, repairs: Mapping[tuple[str, str], int], *,
                 leader: Callable[[], bool] | None = None, limiter: RequestLimiter | None = None,
                 readers: Sequence[NodePods] = ()) -> None:
        """`repairs`: (host, code) -> how often its slices were published again. `leader`: whether it holds the Lease, of one of
        several replicas. `limiter`: of the client of a Kubernetes API server. `readers`: of hosts whose pods the agent runs."""
        self._runner, self._context, self._repairs, self._leader = runner, context, repairs, leader
        self._limiter, self._readers = limiter, readers
        self.listener: Listener | None = None  # of the API server, once it listens

    def text(self, accept: str = "") -> tuple[bytes, str]:
        """The numbers of this moment, and their media type: the newest form that the client accepts."""
        return _encoded(self._registry, accept)

    @functools.cached_property
    def _registry(self) -> CollectorRegistry:
        registry = _process_registry()
        registry.register(self)
        return registry

    def describe(self) -> Iterable[Metric]:
        return ()  # else it would be collected once when it is registered

    def collect(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily  # noqa: PLC0415

        gauge, count = GaugeMetricFamily, CounterMetricFamily
        controllers = self._runner.controllers
        yield _one(gauge, "workqueue_depth", "How many keys wait.", controllers, lambda each: len(each.queue))
        yield _one(count, "workqueue_adds", "How often a key was added.", controllers, lambda each: each.queue.added)
        yield _one(count, "workqueue_retries", "How often a key came back after a failure.", controllers,
                   lambda each: each.queue.retried)
        yield _durations("workqueue_queue_duration_seconds", WAITS, controllers, lambda each: each.queue.metrics.waits)
        yield _durations("workqueue_work_duration_seconds", WORKS, controllers, lambda each: each.queue.metrics.works)
        yield _one(
            gauge, "workqueue_unfinished_work_seconds", UNFINISHED, controllers, lambda each: sum(each.queue.metrics.in_work())
        )
        yield _one(gauge, "workqueue_longest_running_processor_seconds", LONGEST, controllers,
                   lambda each: max(each.queue.metrics.in_work(), default=0.0))
        yield _many(count, "outfitter_reconcile_errors", "Failed reconciles, by controller and reason.",
                    ("name", "reason"), self._runner.errors)
        yield _many(count, "outfitter_scheduling_rejections", "How often the scheduler reported a pod rejected, by code.",
                    ("code",), self._context.rejections)
        yield _many(count, "outfitter_slice_repairs",
                    "How often slices that another writer had changed were published again, by host and code.",
                    ("host", "code"), self._repairs)
        if self.listener is not None:
            yield _many(gauge, "outfitter_http_connections", "Open connections to the API server.", (),
                        {(): self.listener.open})
            yield _many(count, "outfitter_http_refusals", "Requests and connections that the API server refused, by reason.",
                        ("reason",), self.listener.refusals.counts)
        if (limiter := self._limiter) is not None:
            yield _many(count, "rest_client_requests", "Requests to the API server, by the status of its answer and method.",
                        ("code", "method"), limiter.requests)
            yield _many(count, "outfitter_api_held_back_seconds", "Seconds that requests waited because the API server had "
                        "answered 429 or 503.", (), {(): limiter.held_back})
            yield _many(gauge, "outfitter_api_request_limit", "How many requests may run at once: less while the API server "
                        "is too busy.", (), {(): limiter.limit})
        if self._leader is not None:
            yield _many(gauge, "outfitter_leader", "1 in the replica that holds the Lease, 0 in the others.", (),
                        {(): int(self._leader())})
        yield _many(gauge, "outfitter_build_info", "What runs.", ("version",), {(__version__,): 1})
        yield _many(gauge, "outfitter_unreadable_objects", "Stored objects that cannot be read and are skipped.", ("kind",), {
            (kind.kind,): len(informer.unreadable) for kind, informer in self._context.informers.items()})
        yield _many(gauge, "outfitter_instances", "VirtualMachineInstances.", ("phase",), Counter(
            ((instance.get("status") or {}).get("phase") or "Pending",) for instance in self._items(kinds.VMI)))
        yield _many(gauge, "outfitter_migrations", "VirtualMachineInstanceMigrations.", ("phase",), Counter(
            (migration.phase_of(job) or "Pending",) for job in self._items(kinds.MIGRATION)))
        for field, what in PROGRESS.items():
            yield _many(gauge, f"outfitter_migration_{field}", f"{what} of a migration under way.", ("namespace", "name"),
                        self._progress(field))
        yield _many(gauge, "outfitter_devices", "Published devices, by host and driver.", ("host", "driver"),
                    self._devices())
        yield _many(gauge, "outfitter_bookings", "Bookings on a page of the ledger.", ("page", "state"), Counter(
            (page["metadata"]["name"], booking.state) for page in self._items(kinds.LEDGER_PAGE)
            for bookings in well_formed(page) for booking in bookings))
        if self._readers:
            yield from self._of_readers()
        yield _many(gauge, "outfitter_devices_out_of_service", "Devices that are out of service, by page and state.",
                    ("page", "state"), self._out_of_service())

    def _of_readers(self) -> Iterator[Metric]:
        """Devices that pods on our hosts have."""
        from prometheus_client.core import GaugeMetricFamily as gauge  # noqa: PLC0415

        from outfitter.node.readers import device_metrics  # noqa: PLC0415  # a controller has no node

        pods = device_metrics.readable(self._readers)
        yield _many(gauge, "outfitter_assigned_device", "1 for each device that a container has.",
                    device_metrics.HOLDER_LABELS, device_metrics.holders(pods))
        yield _many(gauge, "outfitter_plugin_devices", "Devices of device plugins, by state.", device_metrics.STATE_LABELS,
                    device_metrics.states(self._readers, pods))
        yield _histogram("outfitter_device_wait_seconds", "From the binding of a pod with devices to its admission.", "node",
                         {each.node: each.waits for each in self._readers if each.waits.count})
        yield _histogram("outfitter_device_prepare_seconds", "How long the preparation of a pod's claims took.", "node",
                         {each.node: each.prepares for each in self._readers if each.prepares.count})

    def _items(self, kind: kinds.Kind) -> Iterable[Mapping[str, Any]]:
        informer = self._context.informers.get(kind)
        return informer.items() if informer is not None else ()

    def _progress(self, field: str) -> dict[tuple[str, ...], float]:
        """Of each VMI that migrates: a number of the progress that its status contains."""
        words = field.split("_")
        name = words[0] + "".join(word.title() for word in words[1:])
        return {(vmi["metadata"]["namespace"], vmi["metadata"]["name"]): progress[name] for vmi in self._items(kinds.VMI)
                if migration.under_way(vmi) and name in (progress := migration.state(vmi).get("progress") or {})}

    def _devices(self) -> Counter[tuple[str, ...]]:
        out: Counter[tuple[str, ...]] = Counter()
        for part in self._items(kinds.RESOURCE_SLICE):
            spec = part["spec"]
            out[spec.get("nodeName") or "", spec["driver"]] += len(spec.get("devices") or ())
        return out

    def _out_of_service(self) -> Counter[tuple[str, ...]]:
        out: Counter[tuple[str, ...]] = Counter()
        for page in self._items(kinds.LEDGER_PAGE):
            for state in OUT_OF_SERVICE_STATES:
                for record in raw_entries(page, state):
                    unhealthy = isinstance(record, dict) and record.get("origin") == HEALTH
                    out[page["metadata"]["name"], "unhealthy" if unhealthy else state] += 1
        return out


def process_metrics(accept: str = "") -> tuple[bytes, str]:
    """What every process has, for one without controllers."""
    return _encoded(_process_registry(), accept)


def _process_registry() -> CollectorRegistry:
    # Not scraped in most runs, and slow to import: a tenth of the start of `outfit up`.
    from prometheus_client import CollectorRegistry, ProcessCollector  # noqa: PLC0415

    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    return registry


def _encoded(registry: CollectorRegistry, accept: str) -> tuple[bytes, str]:
    from prometheus_client import exposition  # noqa: PLC0415

    encode, media = exposition.choose_encoder(accept)
    return encode(registry), media


Gauges = Callable[..., Any]  # a family of the library: name, help text, labels
Place = TypeVar("Place", bound=tuple[str, ...])  # the values of the labels


def _one(
    family: Gauges, name: str, text: str, controllers: Iterable[Controller], read: Callable[[Controller], float]
) -> Metric:
    return _many(family, name, text, ("name",), {(each.name,): read(each) for each in controllers})


def _many(family: Gauges, name: str, text: str, labels: tuple[str, ...], values: Mapping[Place, float]) -> Metric:
    out = family(name, text, labels=labels)
    for place in sorted(values):
        out.add_metric(place, values[place])
    return out  # type: ignore[no-any-return]  # both families are of one kind


def _durations(name: str, text: str, controllers: Iterable[Controller], read: Callable[[Controller], Durations]) -> Metric:
    return _histogram(name, text, "name", {each.name: read(each) for each in controllers})


def _histogram(name: str, text: str, label: str, values: Mapping[str, Durations]) -> Metric:
    from prometheus_client.core import HistogramMetricFamily  # noqa: PLC0415

    out = HistogramMetricFamily(name, text, labels=(label,))
    for place, seen in values.items():
        out.add_metric((place,), [(_bound(bound), count) for bound, count in seen.up_to()], seen.total)
    return out


def _bound(seconds: float) -> str:
    return "+Inf" if math.isinf(seconds) else str(seconds)
