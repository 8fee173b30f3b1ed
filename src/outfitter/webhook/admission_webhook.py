"""Answers AdmissionReviews with the rules of `api.admission`: `/validate` refuses with the causes that the embedded API server
gives, `/mutate` fills in the same defaults as a JSON patch. Reads other objects, and writes none: a dry run is like any other
request. Called by `roles.webhook`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import AsyncIterator
from typing import Literal

import msgspec

from outfitter.api.admission import AdmissionRules
from outfitter.api.kinds import Kind, Object
from outfitter.api.write_request import Writer, WriteRequest
from outfitter.errors import BadRequest, OutfitterError, Unavailable
from outfitter.store import failure_status
from outfitter.store.base import Store
from outfitter.store.clock import Clock
from outfitter.store.informer import Informer
from outfitter.webhook import review, rules
from outfitter.webhook.reads import CACHED, AdmissionReads
from outfitter.webhook.review import AdmissionRequest

log = logging.getLogger(__name__)
VERBS: dict[str, Literal["create", "update", "delete"]] = {"CREATE": "create", "UPDATE": "update", "DELETE": "delete"}
SENT = frozenset(kind for rule in rules.RULES for kind in rule.kinds)


class AdmissionWebhook:
    def __init__(self, store: Store, *, admission: AdmissionRules, clock: Clock, namespace: str) -> None:
        """`namespace`: that of the installation, whose service accounts are our own."""
        self._store, self._admission = store, admission
        self._own = frozenset(rules.own_accounts(namespace))
        self._caches: dict[Kind, Informer[Object]] = {kind: Informer(store, kind, clock=clock) for kind in CACHED}
        self._filled = False  # until then every review is refused: the rules would not see the configuration

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Keeps the caches current; `synced` waits until they are filled."""
        tasks = [asyncio.create_task(informer.run(), name=f"informer-{kind.plural}") for kind, informer in self._caches.items()]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def synced(self) -> None:
        for informer in self._caches.values():
            await informer.synced()
        self._filled = True

    async def answer(self, path: str, posted: bytes) -> tuple[int, Object]:
        """HTTP status and JSON body. All that is wrong with the write itself is in the AdmissionReview; another status than 200
        means that the API server decides by the failure policy."""
        try:
            request = review.read(posted)
        except BadRequest as error:
            return error.status, failure_status.failure(error)
        try:
            return 200, await self._review(path, request)
        except OutfitterError as error:
            return 200, review.denied(request.uid, failure_status.failure(error, request.kind, request.name))
        except Exception:
            id_ = secrets.token_hex(4)
            log.exception("%s: %s of %s %s failed", id_, request.operation, request.resource, request.name)
            failed = OutfitterError(f"Internal error occurred: the log of the webhook has the details under {id_}")
            return failed.status, failure_status.failure(failed)

    async def _review(self, path: str, request: AdmissionRequest) -> Object:
        verb, kind = VERBS.get(request.operation), request.kind
        if verb is None or kind not in SENT:  # a webhook configuration was edited: what we have no rules for is not held up
            what = f"{request.operation} of {request.resource}"
            return review.allowed(request.uid, warnings=[
                f"outfitter has no rules for {what}: remove it from the webhook configuration"])
        new = request.old if verb == "delete" else request.object
        if new is None or (verb == "update" and request.old is None):
            raise BadRequest(f"the AdmissionReview of a {verb} lacks {'oldObject' if request.old is None else 'object'}")
        if path == rules.MUTATE:
            change = WriteRequest(verb, kind, _copied(new), request.old, request.subresource)
            return review.allowed(request.uid, patch=review.difference(new, self._admission.with_defaults(change)))
        if not self._filled:
            raise Unavailable("the webhook has not read the configuration of the cluster yet: retry")
        warnings = await self._admit(verb, kind, new, request)
        return review.allowed(request.uid, warnings=warnings)

    async def _admit(
        self, verb: Literal["create", "update", "delete"], kind: Kind, new: Object, request: AdmissionRequest
    ) -> list[str]:
        """The warnings about a write; raises why it is refused."""
        reads = AdmissionReads(self._store, self._caches, kind)
        own = request.user in self._own

        def decide() -> list[str]:
            warnings: list[str] = []
            by = Writer() if own else Writer(request.user, warnings.append)
            old = new if verb == "delete" else request.old
            self._admission.admit(WriteRequest(
                verb, kind, _copied(new), old, request.subresource, reads.look, reads.every, reads.indexed, by))
            return warnings

        return await reads.settled(decide)


def _copied(obj: Object) -> Object:
    """Rules fill in defaults in place."""
    copied: Object = msgspec.json.decode(msgspec.json.encode(obj))
    return copied
