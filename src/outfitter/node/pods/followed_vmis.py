"""VMIs of other nodes that a pod of this node is about: it is the target of their migration, or they have left it by one. The
agent's own watch has the VMIs of its node alone (docs/large-clusters.md); each of these is watched by its name while its pod
needs it, so that an agent reads as much as there is going on on its node. Called by `kubelet_pods.py`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from outfitter.api import kinds
from outfitter.api.kinds import Object
from outfitter.store.base import Store
from outfitter.store.clock import Clock
from outfitter.store.informer import Informer, key_of, split_key

log = logging.getLogger(__name__)
VmiHandler = Callable[[Object | None, Object | None], None]  # the old and the new object


class FollowedVmis:
    def __init__(self, store: Store, node: str, *, clock: Clock) -> None:
        """`node`: VMIs that run there are not followed: the agent's own watch has them."""
        self._store, self._node, self._clock = store, node, clock
        self._informers: dict[str, tuple[Informer[Object], asyncio.Task[None]]] = {}  # by the VMI's key
        self._pods: dict[str, str] = {}  # pod's uid -> key of the VMI that it needs
        self._handlers: list[VmiHandler] = []

    def on_change(self, handler: VmiHandler) -> None:
        self._handlers.append(handler)

    def follow(self, pod: str, key: str) -> None:
        """Until `release`. Repeated calls change nothing."""
        self._pods[pod] = key
        if key in self._informers:
            return
        namespace, name = split_key(key)
        informer: Informer[Object] = Informer(
            self._store, kinds.VMI, clock=self._clock, namespace=namespace, fields=f"metadata.name={name}")
        for handler in self._handlers:
            informer.on_change(handler)
        self._informers[key] = informer, asyncio.ensure_future(informer.run())

    def release(self, pod: str) -> None:
        key = self._pods.pop(pod, None)
        if key is not None and key not in self._pods.values():
            self._informers.pop(key)[1].cancel()

    def get(self, key: str) -> Object | None:
        found = self._informers.get(key)
        return found[0].readable(key) if found is not None else None

    def put(self, vmi: Object) -> bool:
        """The answer to a write of this process. False: the agent's own watch has this VMI."""
        found = self._informers.get(key_of(vmi))
        if found is None or (vmi.get("status") or {}).get("nodeName") == self._node:
            return False
        found[0].put(vmi)
        return True

    async def close(self) -> None:
        tasks = [task for _, task in self._informers.values()]
        self._informers.clear()
        self._pods.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
