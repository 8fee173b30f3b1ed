"""`/pods` over HTTP: the pods of a node with their devices as a PodList, and as a watch (`?watch=true`): JSON lines of watch
events, ADDED for what is there, then a BOOKMARK with `k8s.io/initial-events-end`, then every change. Served on the API
server's port, with its authentication, for all hosts of the process (`?node=NAME`: one of them), and on a unix socket for
local readers."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

import msgspec

from outfitter.api import kinds
from outfitter.api.kinds import Object
from outfitter.errors import BadRequest, NotFound, TooManyRequests
from outfitter.node.readers.node_pods import NodePods, PodWatch
from outfitter.store.base import INITIAL_EVENTS_END

Query = Mapping[str, str]


class PodsPage:
    def __init__(self, nodes: Sequence[NodePods]) -> None:
        self._nodes = {pods.node: pods for pods in nodes}

    def pod_list(self, query: Query) -> bytes:
        """NotFound: there is no such node."""
        items = [_typed(pod) for pods in self._chosen(query) for pod in pods.pods()]
        return msgspec.json.encode({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items})

    def watches(self, query: Query) -> bool:
        text = query.get("watch", "false")
        if text not in ("true", "1", "false", "0", ""):
            raise BadRequest.of("watch", f"{text!r} is neither true nor false")
        return text in ("true", "1")

    async def watch(self, query: Query) -> AsyncGenerator[bytes, None]:
        """Ends when the reader was too slow, after an ERROR event. NotFound, before the first event: there is no such node."""
        chosen, watch = self._chosen(query), PodWatch()
        for pods in chosen:
            pods.watch(watch)
        try:
            yield b"".join(_line("ADDED", _typed(pod)) for pods in chosen for pod in pods.pods()) + _line("BOOKMARK", {
                "kind": "Pod", "apiVersion": "v1", "metadata": {"annotations": {INITIAL_EVENTS_END: "true"}}})
            async for event in watch.events():
                yield _line(event.type, _typed(event.pod))
        except TooManyRequests as error:
            yield _line("ERROR", {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                                  "message": error.message, "reason": "Expired", "code": 410})
        finally:
            watch.close()

    def _chosen(self, query: Query) -> list[NodePods]:
        if (name := query.get("node")) is None:
            return list(self._nodes.values())
        if name not in self._nodes:
            raise NotFound(f"no host of this process is the node {name!r}; there are "
                           f"{', '.join(sorted(self._nodes)) or 'none'}")
        return [self._nodes[name]]


def _typed(pod: Object) -> dict[str, Any]:
    return {"kind": kinds.POD.kind, "apiVersion": kinds.POD.api_version, **pod}


def _line(type_: str, obj: Mapping[str, Any]) -> bytes:
    return msgspec.json.encode({"type": type_, "object": obj}) + b"\n"
