"""The aggregated API as a raw ASGI application: discovery, health, the actions on VMs and VMIs, and PoolStatuses."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import secrets

from outfitter.api import kinds
from outfitter.apiserver import auth, body_transfer, discovery, health, openapi, paths, status, subresources
from outfitter.apiserver.aggregated import pool_status
from outfitter.apiserver.aggregated.access_review import SUBJECT_ACCESS_REVIEW, Review, SubjectAccess
from outfitter.apiserver.aggregated.front_proxy import FrontProxy
from outfitter.apiserver.auth import User
from outfitter.apiserver.body_transfer import InflightBytes, Receive, Send, Transfer
from outfitter.apiserver.paths import ACTIONS, ACTIONS_GROUP, RequestPath
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
from outfitter.errors import MethodNotAllowed, NotFound, OutfitterError
from outfitter.inventory.server_limits import DEFAULT
from outfitter.store.base import Store
from outfitter.store.clock import Clock
from outfitter.store.readable_store import ReadableStore
from outfitter.store.revision_patch import patch_decided

log = logging.getLogger(__name__)
ROOTS = ("apis", "openapi", "version", *health.ENDPOINTS)  # first words of the paths that are served
_warnings: contextvars.ContextVar[list[str] | None] = contextvars.ContextVar("warnings", default=None)


def warn_user(text: str) -> None:
    """Pass a warning of kube-apiserver about a write on to the user whose request it is: for `Kube(warn=...)`."""
    if (warnings := _warnings.get()) is not None:
        warnings.append(text)


class AggregatedApi:
    def __init__(self, store: Store, *, clock: Clock, review: Review | None = None) -> None:
        """`store`: kube-apiserver, with the rights of this process. `review`: asks it whether a user may do something."""
        self.front_proxy = FrontProxy(store, clock=clock)
        self.inflight = InflightBytes(DEFAULT.max_inflight_bytes)  # the server sets its own
        self._store, self._clock = ReadableStore(store), clock
        self._access = SubjectAccess(review or (lambda obj: store.create(SUBJECT_ACCESS_REVIEW, obj)), clock)
        self._pools = pool_status.PoolStatusList(self._store, clock)
        self._paths = paths.Paths((*ACTIONS, kinds.POOL_STATUS))
        self._discovery = discovery.Discovery([kinds.POOL_STATUS], ACTIONS, ["list"])
        self._openapi = openapi.OpenApi(())
        self._health = health.Health({}, {"front-proxy": lambda: self.front_proxy.config is not None})

    async def run(self) -> None:
        """Keep what authenticates requests current, until cancelled."""
        await self.front_proxy.run()

    def stop(self) -> None:
        """No request is of long duration: nothing is ended."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            with self.inflight.transfer() as transfer:
                await self._answer(scope, receive, send, transfer)

    async def _answer(self, scope: Scope, receive: Receive, send: Send, transfer: Transfer) -> None:
        headers = dict(scope["headers"])
        target: RequestPath | None = None
        request: Request | None = None
        close = False
        try:
            words, path = split_path(scope)
            user = None if path in auth.OPEN or words[0] in health.ENDPOINTS else self.front_proxy.authenticate(scope)
            target = self._target(words)
            auth.refuse_impersonation(user, headers)
            if target is None or user is None:
                result = self._fixed(scope, words, path)
            else:
                request = await self._request(scope, target, user)
                close = True  # until the body has been read, the connection cannot be used again
                request.body = await body_transfer.read(headers, receive, transfer)
                close = False
                result = await (self._act(request) if target.subresource else self._list_pools(request))
        except OutfitterError as error:
            result = failed(error, target)
        except asyncio.CancelledError:
            raise
        except Exception:
            id_ = secrets.token_hex(4)
            log.exception("%s: %s %s failed", id_, scope["method"], scope["path"])
            result = response(status.internal(id_), 500)
        extra: Headers = warning_headers(request.warnings) if request else []
        await reply(send, result, [*extra, (b"connection", b"close")] if close else extra)

    # -- actions and PoolStatuses

    def _target(self, words: list[str]) -> RequestPath | None:
        target = self._paths.resolve(words)
        if target is None or target.group == ACTIONS_GROUP or (target.kind == kinds.POOL_STATUS and not target.name):
            return target
        return None

    async def _request(self, scope: Scope, target: RequestPath, user: User) -> Request:
        """The request, if the user may make it."""
        verb = paths.verb(target, scope["method"])
        request = Request(verb or "", target, parse_query(scope), dict(scope["headers"]), user=user.name)
        if verb is None or (not target.subresource and (verb != "list" or request.flag("watch"))):
            raise MethodNotAllowed("the server does not allow this method on the requested resource")
        await self._access.authorize(user, verb, target)
        return request

    async def _act(self, request: Request) -> Response:
        target = request.target
        _warnings.set(request.warnings)
        result = await subresources.perform(request, self._clock, self._write)
        log.info("user %r requested %s of %s %s/%s", request.user, target.subresource, target.kind.singular, target.namespace,
                 target.name)
        return result

    async def _write(self, target: RequestPath, decide: subresources.Decide, *, dry_run: bool) -> None:
        read = (kinds.VM, kinds.VMI) if target.kind == kinds.VM else (kinds.VMI,)
        await patch_decided(self._store, target.name, target.namespace, read, decide, dry_run=dry_run)

    async def _list_pools(self, request: Request) -> Response:
        wanted, listed = request.wanted(), await self._pools.read()
        return response(pool_status.table(listed, wanted.version) if wanted.as_ == "Table" else listed)

    # -- what is not an object

    def _fixed(self, scope: Scope, words: list[str], path: str) -> Response:
        if words[0] in health.ENDPOINTS:
            found = self._health.answer(words, parse_query(scope))
        else:
            found = self._page(words, path, dict(scope["headers"]).get(b"accept", b"").decode("latin-1"))
        if scope["method"] not in ("GET", "HEAD"):
            raise MethodNotAllowed("the server does not allow this method on the requested resource")
        return found

    def _page(self, words: list[str], path: str, accept: str) -> Response:
        if path == "/version":
            return response(discovery.version())
        match words:
            case ["apis"]:
                return self._discovery.root("apis", accept)
            case ["apis", group] if group in self._discovery.groups():
                return response(self._discovery.group(group))
            case ["apis", group, version] if version in self._discovery.versions(group):
                return response(self._discovery.resources(group, version))
            case ["apis", paths.ACTIONS_GROUP, version, "version"] if version in self._discovery.versions(ACTIONS_GROUP):
                return response(discovery.kubevirt_version())
            case ["openapi", "v2"]:
                return response(openapi.v2())
            case ["openapi", "v3"]:
                return response(self._openapi.index())
        raise NotFound(self._paths.unserved(words) or "the server could not find the requested resource")
