"""What `outfit webhook` serves on its TLS port, as one ASGI application: `/validate` and `/mutate` for admission, every other
path for the aggregated API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from outfitter.api.kinds import Object
from outfitter.apiserver import body_transfer
from outfitter.apiserver.body_transfer import InflightBytes, Receive, Send
from outfitter.apiserver.server import ServedApp
from outfitter.errors import MethodNotAllowed, NotFound, OutfitterError
from outfitter.inventory.server_limits import DEFAULT
from outfitter.store import failure_status
from outfitter.webhook import rules
from outfitter.webhook.admission_webhook import AdmissionWebhook

MAX_REVIEW = 8 << 20  # bytes: the object and the old one, each no larger than the API server takes, and a frame
JSON = b"application/json"


class WebhookApp:
    def __init__(self, webhook: AdmissionWebhook, aggregated: ServedApp | None = None) -> None:
        """`aggregated`: None beside KubeVirt, which has its own."""
        self._webhook, self._aggregated = webhook, aggregated
        self._inflight = InflightBytes(DEFAULT.max_inflight_bytes)

    @property
    def inflight(self) -> InflightBytes:
        return self._inflight

    @inflight.setter
    def inflight(self, counted: InflightBytes) -> None:
        """One count for both: the server sets its own."""
        self._inflight = counted
        if self._aggregated is not None:
            self._aggregated.inflight = counted

    def stop(self) -> None:
        if self._aggregated is not None:
            self._aggregated.stop()

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        if scope["path"] not in (rules.VALIDATE, rules.MUTATE) and self._aggregated is not None:
            await self._aggregated(scope, receive, send)
            return
        with self._inflight.transfer() as transfer:
            close = b""
            try:
                if scope["path"] not in (rules.VALIDATE, rules.MUTATE):
                    raise NotFound("the server could not find the requested resource")
                if scope["method"] != "POST":
                    raise MethodNotAllowed(f"{scope['path']} takes an AdmissionReview by POST")
                posted = await body_transfer.read(dict(scope["headers"]), receive, transfer, MAX_REVIEW)
                status, body = await self._webhook.answer(scope["path"], posted)
            except OutfitterError as error:
                status, body, close = error.status, failure_status.failure(error), b"close"  # the body was not read to its end
            await _reply(send, status, body, close)


async def _reply(send: Send, status: int, body: Object, close: bytes) -> None:
    data = msgspec.json.encode(body)
    headers = [(b"content-type", JSON), (b"content-length", str(len(data)).encode()), (b"cache-control", b"no-store")]
    await send({"type": "http.response.start", "status": status,
                "headers": [*headers, (b"connection", close)] if close else headers})
    await body_transfer.send_parts(send, data, more=False)
