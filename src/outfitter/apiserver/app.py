"""The API server as a raw ASGI application: who asks, what about, may they, and the answer.

Every path ends here in one of three ways: an answer in one piece, a watch, or a Status that says what is wrong. Users and
roles, and server-side apply have their places in `auth.authorize` and `verbs.patch_`."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from outfitter.api import kinds as table
from outfitter.api.kinds import Kind
from outfitter.apiserver import auth, body_transfer, discovery, health, negotiate, openapi, paths, status, verbs, watch
from outfitter.apiserver.body_transfer import InflightBytes, Receive, Send, Transfer
from outfitter.apiserver.paths import RequestPath
from outfitter.apiserver.piece_stream import PieceStream
from outfitter.apiserver.request import (
    Headers,
    Request,
    Response,
    Scope,
    failed,
    parse_query,
    reply,
    response,
    split_path,
    warning_headers,
)
from outfitter.errors import MethodNotAllowed, NotFound, OutfitterError, TooManyRequests, Unavailable
from outfitter.inventory.server_limits import DEFAULT
from outfitter.store.memory import Memory

if TYPE_CHECKING:
    from outfitter.node.readers.pods_page import PodsPage

Metrics = Callable[[str], tuple[bytes, str]]

log = logging.getLogger(__name__)


class App:
    """One store, served."""

    def __init__(
        self,
        store: Memory,
        *,
        tokens: Mapping[str, auth.User] | None = None,
        kinds: Iterable[Kind] = table.ALL,
        ready: Callable[[], bool] = lambda: True,
        metrics: Metrics | None = None,
        pods: PodsPage | None = None,
    ) -> None:
        """`metrics`: gives what `/metrics` shows and its media type, for what the client accepts. `pods`: what `/pods`
        shows."""
        self.store = store
        self._door = auth.Door(tokens)
        self._paths = paths.Paths(kinds)
        self._discovery = discovery.Discovery(self._paths.kinds, self._paths.actions)
        self._openapi = openapi.OpenApi(self._paths.kinds)
        self._health = health.Health({"store": lambda: not store.closed},
                                     {"controllers": ready, "shutdown": lambda: not self._stopping})
        self._metrics, self._pods = metrics, pods
        self._watches: set[watch.Watch | PieceStream] = set()
        self._stopping = False
        self.inflight = InflightBytes(DEFAULT.max_inflight_bytes)  # the server sets its own

    def stop(self) -> None:
        """End every watch; new ones are refused."""
        self._stopping = True
        for each in list(self._watches):
            each.stop()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            with self.inflight.transfer() as transfer:
                await self._answer(scope, receive, send, transfer)

    async def _answer(self, scope: Scope, receive: Receive, send: Send, transfer: Transfer) -> None:
        headers = dict(scope["headers"])
        target: RequestPath | None = None
        close = False
        request: Request | None = None
        try:
            words, path = split_path(scope)
            target = self._paths.resolve(words)
            user = None if path in auth.OPEN else self._door.authenticate(scope, headers)
            auth.refuse_impersonation(user, headers)
            if target is None:
                if user:
                    auth.authorize(user, scope["method"].lower(), None, path)
                if path == auth.PODS and self._pods is not None and scope["method"] == "GET":
                    asked = {name: values[0] for name, values in parse_query(scope).items()}
                    if self._pods.watches(asked):
                        events = self._pods.watch(asked)
                        await self._stream(PieceStream(await anext(events), events), path, receive, send)
                        return
                    result = Response(self._pods.pod_list(asked))
                else:
                    result = self._fixed(scope, words, path, headers)
            else:
                verb = paths.verb(target, scope["method"])
                if verb is None:
                    raise MethodNotAllowed("the server does not allow this method on the requested resource")
                query = parse_query(scope)
                request = Request(verb, target, query, headers)
                if verb == "list" and request.flag("watch"):
                    request.verb = "watch"
                if user:
                    request.user = user.name
                    auth.authorize(user, request.verb, target, path)
                close = True  # until the body has been read, the connection cannot be used again
                request.body = await body_transfer.read(headers, receive, transfer)
                close = False
                if request.verb == "watch":
                    await self._stream(watch.Watch(self.store, request), target.kind.resource, receive, send)
                    return
                result = await verbs.VERBS[verb](self.store, request)
        except OutfitterError as error:
            result = failed(error, target)
        except asyncio.CancelledError:
            raise
        except Exception:
            id_ = secrets.token_hex(4)
            log.exception("%s: %s %s failed", id_, scope["method"], scope["path"])
            result = response(status.internal(id_), 500)
        extra: Headers = warning_headers(request.warnings) if request else []
        if close:
            extra.append((b"connection", b"close"))
        try:
            transfer.grow(len(result.data))
        except TooManyRequests as error:
            result = failed(error, target)
        await reply(send, result, extra)

    # -- what is not an object

    def _fixed(self, scope: Scope, words: list[str], path: str, headers: Mapping[bytes, bytes]) -> Response:
        """Discovery, OpenAPI, version, health and metrics."""
        if words[0] in health.ENDPOINTS:
            found = self._health.answer(words, parse_query(scope))
        else:
            found = self._page(words, path, headers)
        if scope["method"] not in ("GET", "HEAD"):
            raise MethodNotAllowed("the server does not allow this method on the requested resource")
        return found

    def _page(self, words: list[str], path: str, headers: Mapping[bytes, bytes]) -> Response:
        if path == "/version":
            return response(discovery.version())
        if path == auth.METRICS and self._metrics is not None:
            text, media = self._metrics(headers.get(b"accept", b"").decode("latin-1"))
            return Response(text, content_type=media)
        match words:
            case [("api" | "apis") as root]:
                return self._discovery.root(root, headers.get(b"accept", b"").decode("latin-1"))
            case ["api", version] if self._paths.served("", version):
                return response(self._discovery.resources("", version))
            case ["apis", group] if group in self._discovery.groups():
                return response(self._discovery.group(group))
            case ["apis", group, version] if group and version in self._discovery.versions(group):
                return response(self._discovery.resources(group, version))
            case ["apis", paths.ACTIONS_GROUP, version, "version"] if version in self._discovery.versions(paths.ACTIONS_GROUP):
                return response(discovery.kubevirt_version())
            case ["openapi", "v2"]:
                if openapi.V2_ASKED.encode() in headers.get(b"accept", b""):
                    return Response(openapi.v2_protobuf(), content_type=openapi.V2_MEDIA)
                return response(openapi.v2())
            case ["openapi", "v3"]:
                return response(self._openapi.index())
            case ["openapi", "v3", *place] if document := self._openapi.document("/".join(place)):
                return response(document)
        raise NotFound(self._paths.unserved(words) or "the server could not find the requested resource")

    # -- watching

    async def _stream(self, current: watch.Watch | PieceStream, name: str, receive: Receive, send: Send) -> None:
        if self._stopping:
            raise Unavailable("the server is stopping")
        gone = asyncio.create_task(_until_gone(receive, current))
        self._watches.add(current)
        try:
            headers = [(b"content-type", negotiate.JSON.encode()), (b"cache-control", b"no-cache, private")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})

            async def more(piece: bytes) -> None:
                await body_transfer.send_parts(send, piece, more=True)

            await current.run(more)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except Exception:
            # The answer has begun: all that can be said now is that it ends early.
            log.exception("a watch of %s failed", name)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            self._watches.discard(current)
            gone.cancel()


async def _until_gone(receive: Receive, current: watch.Watch | PieceStream) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    current.stop()
