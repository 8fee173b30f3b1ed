"""A client of the aggregated API that is kube-apiserver's front proxy: it has its certificate, and names users in headers."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from outfitter.api.kinds import Kind, Object
from outfitter.apiserver.auth import PEER
from outfitter.errors import NotFound, OutfitterError
from outfitter.store.base import Listing
from outfitter.store.memory import Memory
from tests.apiserver.asgi import Client

CONFIG: Mapping[str, str] = {
    "client-ca-file": "CA of users",
    "requestheader-client-ca-file": "CA of the front proxy",
    "requestheader-allowed-names": '["front-proxy"]',
    "requestheader-username-headers": '["X-Remote-User"]',
    "requestheader-uid-headers": '["X-Remote-Uid"]',
    "requestheader-group-headers": '["X-Remote-Group"]',
    "requestheader-extra-headers-prefix": '["X-Remote-Extra-"]',
}


def config_map(**changed: str | None) -> Object:
    """As kube-apiserver writes it; `None` leaves a key out."""
    data = {**CONFIG, **{f"requestheader-{key.replace('_', '-')}": value for key, value in changed.items()}}
    return {"metadata": {"name": "extension-apiserver-authentication", "namespace": "kube-system"},
            "data": {key: value for key, value in data.items() if value is not None}}


def certificate(name: str) -> Object:
    """A client certificate that the TLS layer has verified, as the server passes it on."""
    return {PEER: {"subject": ((("commonName", name),),)}}


@dataclass
class ProxiedClient(Client):
    user: Sequence[tuple[str, str]] = (("X-Remote-User", "bob"), ("X-Remote-Group", "people"), ("X-Remote-Group", "system:all"))
    extensions: Object = field(default_factory=lambda: certificate("front-proxy"))
    token: str = ""

    def scope(self, method: str, path: str, headers: dict[str, str], query: dict[str, str]) -> Object:
        scope = super().scope(method, path, headers, query)
        scope["headers"] += [(name.lower().encode(), value.encode()) for name, value in self.user]
        return scope


@dataclass
class Reviews:
    """Answers SubjectAccessReviews as kube-apiserver does."""

    allowed: bool = True
    reason: str = ""
    fails: OutfitterError | None = None
    asked: list[Object] = field(default_factory=list)

    async def __call__(self, review: Object) -> Object:
        self.asked.append(json.loads(json.dumps(review["spec"])))
        if self.fails:
            raise self.fails
        return {**review, "status": {"allowed": self.allowed, "reason": self.reason}}


class SeamStore(Memory):
    """A store where a test comes between our reads and writes."""

    as_read: Callable[[Kind, Object], Object] | None = None  # what is read instead of an object
    before_write: Callable[[], Awaitable[object]] | None = None  # called before a patch at a revision

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.listed: dict[Kind, list[Object]] = {}  # what a list of a kind has instead
        self.unknown: set[Kind] = set()  # kinds that this cluster does not serve

    async def list(self, kind: Kind, namespace: str = "", **options: Any) -> Listing:
        if kind in self.unknown:
            raise NotFound("the server could not find the requested resource")
        whole = await super().list(kind, namespace, **options)
        return Listing(self.listed[kind], whole.revision) if kind in self.listed else whole

    async def get(self, kind: Kind, name: str, namespace: str = "") -> Object:
        obj = await super().get(kind, name, namespace)
        return self.as_read(kind, obj) if self.as_read else obj

    async def patch(self, kind: Kind, name: str, patch: Any, namespace: str = "", **options: Any) -> Object:
        if self.before_write is not None and "resourceVersion" in (patch.get("metadata") or {}):
            await self.before_write()
        return await super().patch(kind, name, patch, namespace, **options)
