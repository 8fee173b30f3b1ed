"""The health of our devices for the kubelet: DRAResourceHealth v1 and v1alpha1. A device is unhealthy while it is quarantined,
or booked and no longer on the bus; unknown while the host is refused. Each stream gets everything at its start, then whatever
changes, and everything again before the kubelet would call it outdated."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import grpc

from outfitter.api.kinds import Object
from outfitter.api.ledger_page.page import Page
from outfitter.node.agent_host import AgentHost
from outfitter.node.kubelet.proto import dra_health_v1_pb2, dra_health_v1alpha1_pb2
from outfitter.store.clock import Clock

SERVICES = {"v1.DRAResourceHealth": dra_health_v1_pb2, "v1alpha1.DRAResourceHealth": dra_health_v1alpha1_pb2}
LOOK_EVERY = 1.0  # seconds between two looks for changes, which read nothing but memory
AGAIN_AFTER = 20.0  # seconds after which everything is sent again
TIMEOUT = 60  # seconds after which the kubelet calls a report outdated
LONGEST_MESSAGE = 1024  # characters that the kubelet keeps


@dataclass(frozen=True, slots=True)
class OwnHealth:
    """Of one of our devices, in the words of the API."""

    status: str  # of the enum HealthStatus
    message: str = ""


def own_health(host: AgentHost, page: Object | None) -> dict[str, OwnHealth]:
    """Device -> its health. `page`: the host's, None while it is not known."""
    if host.refusal is not None:
        return {name: OwnHealth("UNKNOWN", host.refusal.message[:LONGEST_MESSAGE]) for name in sorted(host.devices)}
    out = {name: OwnHealth("HEALTHY") for name in sorted(host.devices)}
    known = Page(page) if page is not None else None
    for booking in known.bookings if known is not None else ():
        if (booking.device.driver, booking.device.pool) == (host.driver, host.name) and booking.device.device not in out:
            out[booking.device.device] = OwnHealth("UNHEALTHY", f"no longer on the bus of {host.name}")
    for record in known.quarantined if known is not None else ():
        if (record.device.driver, record.device.pool) == (host.driver, host.name):
            why = f"quarantined{f': {record.reason}' if record.reason else ''}"
            out[record.device.device] = OwnHealth("UNHEALTHY", why[:LONGEST_MESSAGE])
    return out


class HealthService:
    def __init__(self, host: AgentHost, page: Callable[[], Object | None], *, clock: Clock) -> None:
        self._host, self._page, self._clock = host, page, clock

    def handlers(self) -> list[grpc.GenericRpcHandler]:
        return [grpc.method_handlers_generic_handler(service, {"NodeWatchResources": grpc.unary_stream_rpc_method_handler(
            self._watch(pb), request_deserializer=pb.NodeWatchResourcesRequest.FromString,
            response_serializer=lambda answer: answer.SerializeToString())}) for service, pb in SERVICES.items()]

    def _watch(self, pb: Any) -> Any:
        async def watch(request: Any, context: Any) -> AsyncIterator[Any]:
            sent: Mapping[str, OwnHealth] = {}
            due = self._clock.monotonic()
            while True:
                health = own_health(self._host, self._page())
                whole = self._clock.monotonic() >= due
                if changed := {name: each for name, each in health.items() if whole or sent.get(name) != each}:
                    yield self._message(pb, changed)
                if whole:
                    due = self._clock.monotonic() + AGAIN_AFTER
                sent = health
                await self._clock.sleep(LOOK_EVERY)

        return watch

    def _message(self, pb: Any, health: Mapping[str, OwnHealth]) -> Any:
        now = int(self._clock.now().timestamp())
        return pb.NodeWatchResourcesResponse(devices=[pb.DeviceHealth(
            device=pb.DeviceIdentifier(pool_name=self._host.name, device_name=name), health=pb.HealthStatus.Value(each.status),
            last_updated_time=now, health_check_timeout_seconds=TIMEOUT, message=each.message)
            for name, each in health.items()])
