"""The calls to device plugins that one stage of a pod's admission makes: they run while the host's lock is free, and the pod is
looked at again when they are done. A stage that failed is not called again before `RETRY_AFTER`, whatever wakes the pod
meanwhile, unless its plugin was replaced. Called by `DeviceAssignment`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from outfitter.api.kinds import Object
from outfitter.errors import OutfitterError
from outfitter.node.device_manager.plugin_resource import DevicePlugin, PluginResource
from outfitter.store.clock import Clock
from outfitter.store.informer import key_of

REPORT_AFTER = 10.0  # seconds after which a plugin that has not answered is reported
RETRY_AFTER = 5.0  # seconds until a plugin that failed is called again
Plugins = tuple[DevicePlugin | None, ...]  # those that a stage calls


@dataclass(frozen=True, slots=True)
class NotYet:
    """The pod does not start now; a number: look again after so many seconds, otherwise a change wakes it."""

    again: float | None = None
    unanswered: bool = False  # the plugin has had its time, and is to be reported


@dataclass(frozen=True, slots=True)
class _StageCall:
    task: asyncio.Task[None]
    since: float  # monotonic


@dataclass(frozen=True, slots=True)
class _FailedCall:
    plugins: Plugins
    until: float  # monotonic; these plugins are not called before


def plugins_of(resources: Mapping[str, PluginResource], names: Iterable[str]) -> Plugins:
    return tuple(resources[name].plugin for name in sorted(names) if name in resources)


class PluginCalls:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.wake: Callable[[str], None] = lambda key: None  # set by the agent: has a pod looked at again
        self._calls: dict[tuple[str, str], _StageCall] = {}  # pod and method -> calls to its plugins
        self._failed: dict[tuple[str, str], _FailedCall] = {}

    def make(
        self, pod: Object, method: str, plugins: Plugins, begin: Callable[[], Coroutine[Any, Any, None]]
    ) -> NotYet | OutfitterError | None:
        """None, once: the calls of this stage are done; an error: why they failed. It is returned until it is reported
        (`failed`, or the pod is rejected), and nothing is called before."""
        place, key = (pod["metadata"]["uid"], method), key_of(pod)
        now, call, failed = self._clock.monotonic(), self._calls.get(place), self._failed.get(place)
        if call is None:
            if failed is not None and failed.plugins == plugins and now < failed.until:
                return NotYet(failed.until - now)
            task = asyncio.create_task(begin())
            self._calls[place] = _StageCall(task, now)

            def ended(done: asyncio.Task[None]) -> None:
                if not done.cancelled():
                    done.exception()  # seen, also if the pod is deleted before it is looked at again
                    self.wake(key)

            task.add_done_callback(ended)
            return NotYet(REPORT_AFTER)
        if not call.task.done():
            left = call.since + REPORT_AFTER - now
            return NotYet(left) if left > 0 else NotYet(unanswered=True)
        error = call.task.exception()
        if not isinstance(error, OutfitterError):
            self.drop(*place)
            if error is not None:
                raise error
        return error

    def begun(self, uid: str, method: str) -> bool:
        return (uid, method) in self._calls

    def failed(self, uid: str, method: str, plugins: Plugins) -> NotYet:
        """That is reported, and the stage is to be tried again."""
        self._calls.pop((uid, method), None)
        self._failed[uid, method] = _FailedCall(plugins, self._clock.monotonic() + RETRY_AFTER)
        return NotYet(RETRY_AFTER)

    def drop(self, uid: str, method: str) -> None:
        self._failed.pop((uid, method), None)
        if (call := self._calls.pop((uid, method), None)) is not None:
            call.task.cancel()
