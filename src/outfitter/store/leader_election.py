"""Leader election by a Lease object: one holder at a time, which loses the lease when it does not renew it in time.

Writes the fields that client-go's leader election writes: holderIdentity, leaseDurationSeconds, acquireTime, renewTime,
leaseTransitions. For replicas of the controllers in a cluster; the embedded product is one process and needs no lease."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Mapping
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
                 terms: Terms = Terms(), annotations: Mapping[str, str] | None = None) -> None:  # noqa: B008  # frozen
        """`annotations`: of the lease while this candidate holds it."""
        self._store, self._kind, self._namespace, self._name = store, kind, namespace, name
        self.holder, self._annotations = holder, dict(annotations or {})
        self._clock, self._terms = clock, terms
        self._seen: tuple[str, float] = ("", 0.0)  # revision of the lease, when we first saw it
        self._held: Object | None = None  # the lease as this candidate wrote it last
        self._free_at = 0.0  # when the lease of another candidate may be taken, unless it is renewed
        self.renewed_by_other = ""  # the other candidate that has renewed or taken the lease since our first look

    async def acquire(self) -> bool:
        """Take or renew the lease; False while another candidate holds it. Who holds it renews it as it wrote it last, without
        reading it: at its revision, which no other has changed then."""
        now = rfc3339_micro(self._clock.now())
        if self._held is not None and await self._replace({**self._held, "spec": {**self._held["spec"], "renewTime": now}}):
            return True
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
            self._free_at = self._seen[1] + float(spec.get("leaseDurationSeconds") or 0)
            if self._clock.monotonic() < self._free_at:
                return False
            spec["leaseTransitions"] = int(spec.get("leaseTransitions") or 0) + 1
            spec["acquireTime"] = now
        elif spec.get("holderIdentity") != self.holder:
            spec["acquireTime"] = now
        spec |= {"holderIdentity": self.holder, "leaseDurationSeconds": math.ceil(self._terms.duration), "renewTime": now}
        lease["spec"] = spec
        if self._annotations:
            lease["metadata"]["annotations"] = {**(lease["metadata"].get("annotations") or {}), **self._annotations}
        return await self._replace(lease)

    async def release(self) -> None:
        """Give up the lease, so that another candidate can take it at once."""
        try:
            lease = await self._store.get(self._kind, self._name, self._namespace)
            if lease["spec"].get("holderIdentity") == self.holder:
                lease["spec"] |= {"holderIdentity": "", "leaseDurationSeconds": 1}
                await self._replace(lease)
                self._held = None
        except NotFound:
            pass
        except OutfitterError as error:
            log.warning("lease %s was not released: %s", self._name, error)

    async def _create(self, now: str) -> bool:
        spec = {"holderIdentity": self.holder, "leaseDurationSeconds": math.ceil(self._terms.duration), "acquireTime": now,
                "renewTime": now, "leaseTransitions": 0}
        meta = {"name": self._name, "namespace": self._namespace,
                **({"annotations": self._annotations} if self._annotations else {})}
        try:
            self._held = await self._store.create(self._kind, {"metadata": meta, "spec": spec})
        except AlreadyExists:
            return False
        return True

    async def _replace(self, lease: Object) -> bool:
        self._held = None  # until it is answered
        try:
            self._held = await self._store.replace(self._kind, lease)
        except (Conflict, NotFound):
            return False
        return True

    async def hold(self, work: Callable[[], Awaitable[None]]) -> None:
        """Wait for the lease and run `work` while it is held; cancel `work` and return when the lease is lost."""
        held = self._clock.monotonic()
        while not await self._try():
            left = self._free_at - self._clock.monotonic()
            await self._clock.sleep(min(self._terms.every, left) if left > 0 else self._terms.every)
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
        begun = self._clock.monotonic()
        while (left := held + self._terms.renew - self._clock.monotonic()) > 0:
            # One that took long is followed by the next at once.
            await self._clock.sleep(min(max(0.0, begun + self._terms.every - self._clock.monotonic()), left))
            begun = self._clock.monotonic()
            attempt = asyncio.ensure_future(self._try())
            limit_seconds = min(
                held + self._terms.renew - begun, self._terms.renew / 2
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
