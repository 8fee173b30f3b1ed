"""Leader election by a Lease object: one holder at a time, which loses the lease when it does not renew it in time.

Writes the fields that client-go's leader election writes: holderIdentity, leaseDurationSeconds, acquireTime, renewTime,
leaseTransitions. For replicas of the controllers in a cluster; the embedded product is one process and needs no lease."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from outfitter.api.kinds import Kind, Object
from outfitter.errors import AlreadyExists, Conflict, NotFound, OutfitterError
from outfitter.store.base import Store
from outfitter.store.clock import Clock, rfc3339_micro

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Terms:
    duration: float = 15.0  # seconds after which another candidate may take a lease that was not renewed
    renew: float = 10.0  # seconds after which a holder that could not renew stops its work
    every: float = 2.0  # seconds between two attempts


class LeaderElection:
    """One candidate for one lease. Clocks of others are not trusted: the age of a lease is measured from when this candidate
    saw it change."""

    def __init__(self, store: Store, kind: Kind, namespace: str, name: str, holder: str, *, clock: Clock,
                 terms: Terms = Terms()) -> None:  # noqa: B008  # frozen
        self._store, self._kind, self._namespace, self._name = store, kind, namespace, name
        self.holder = holder
        self._clock, self._terms = clock, terms
        self._seen: tuple[str, float] = ("", 0.0)  # revision of the lease, when we first saw it
        self.renewed_by_other = ""  # the other candidate that has renewed or taken the lease since our first look

    async def acquire(self) -> bool:
        """Take or renew the lease; False while another candidate holds it."""
        now = rfc3339_micro(self._clock.now())
        try:
            lease = await self._store.get(self._kind, self._name, self._namespace)
        except NotFound:
            return await self._create(now)
        spec = dict(lease.get("spec") or {})
        revision = lease["metadata"]["resourceVersion"]
        if self._seen[0] != revision:
            if self._seen[0] and spec.get("holderIdentity") not in (self.holder, "", None):
                self.renewed_by_other = str(spec["holderIdentity"])
            self._seen = (revision, self._clock.monotonic())
        if spec.get("holderIdentity") not in (self.holder, "", None):
            if self._clock.monotonic() - self._seen[1] < float(spec.get("leaseDurationSeconds") or 0):
                return False
            spec["leaseTransitions"] = int(spec.get("leaseTransitions") or 0) + 1
            spec["acquireTime"] = now
        elif spec.get("holderIdentity") != self.holder:
            spec["acquireTime"] = now
        spec |= {"holderIdentity": self.holder, "leaseDurationSeconds": math.ceil(self._terms.duration), "renewTime": now}
        lease["spec"] = spec
        return await self._replace(lease)

    async def release(self) -> None:
        """Give up the lease, so that another candidate can take it at once."""
        try:
            lease = await self._store.get(self._kind, self._name, self._namespace)
            if lease["spec"].get("holderIdentity") == self.holder:
                lease["spec"] |= {"holderIdentity": "", "leaseDurationSeconds": 1}
                await self._replace(lease)
        except NotFound:
            pass
        except OutfitterError as error:
            log.warning("lease %s was not released: %s", self._name, error)

    async def _create(self, now: str) -> bool:
        spec = {"holderIdentity": self.holder, "leaseDurationSeconds": math.ceil(self._terms.duration), "acquireTime": now,
                "renewTime": now, "leaseTransitions": 0}
        meta = {"name": self._name, "namespace": self._namespace}
        try:
            await self._store.create(self._kind, {"metadata": meta, "spec": spec})
        except AlreadyExists:
            return False
        return True

    async def _replace(self, lease: Object) -> bool:
        try:
            await self._store.replace(self._kind, lease)
        except Conflict:
            return False
        return True

    async def hold(self, work: Callable[[], Awaitable[None]]) -> None:
        """Wait for the lease and run `work` while it is held; cancel `work` and return when the lease is lost."""
        held = self._clock.monotonic()
        while not await self._try():
            await self._clock.sleep(self._terms.every)
            held = self._clock.monotonic()
        log.info("%s holds %s/%s", self.holder, self._namespace, self._name)
        task, renewing = asyncio.ensure_future(work()), asyncio.ensure_future(self._renew(held))
        try:
            await asyncio.wait({task, renewing}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                await task
            else:
                log.warning("%s lost %s/%s", self.holder, self._namespace, self._name)
        finally:
            task.cancel()
            renewing.cancel()
            await asyncio.gather(task, renewing, return_exceptions=True)

    async def _renew(self, held: float) -> None:
        """Renew until every attempt of the last `renew` seconds failed or was not answered. `held` is when the last successful
        attempt began: other candidates may measure from then."""
        while (left := held + self._terms.renew - self._clock.monotonic()) > 0:
            await self._clock.sleep(min(self._terms.every, left))
            begun = self._clock.monotonic()
            attempt = asyncio.ensure_future(self._try())
            limit_seconds = min(
                held + self._terms.renew - begun, self._terms.renew / 3
            )  # a request that is not answered is sent again
            limit = asyncio.ensure_future(self._clock.sleep(limit_seconds))
            try:
                await asyncio.wait({attempt, limit}, return_when=asyncio.FIRST_COMPLETED)
                if attempt.done() and attempt.result():
                    held = begun
            finally:
                attempt.cancel()
                limit.cancel()
                await asyncio.gather(attempt, limit, return_exceptions=True)

    async def _try(self) -> bool:
        try:
            return await self.acquire()
        except OutfitterError as error:
            log.warning("lease %s: %s", self._name, error)
            return False
