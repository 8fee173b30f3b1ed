"""Asks device plugins which devices they prefer for a pod (GetPreferredAllocation) while the host's lock is free: a plugin that
does not answer keeps only pods with devices of its own waiting.

What a plugin chose is reserved for the pod at once. The admission that goes on with it, under the lock, confirms it: a choice
that is gone by then, as when an older pod has these ids, is asked for again. Pods of one resource ask one after the other, so
that no two of them are offered the same devices; younger pods get no device of any resource of a pod that is asked for, which
would be rejected for it. Called by `DeviceAssignment`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from outfitter.api.assignment.assigned_devices import PodDevices
from outfitter.api.rejection import Rejection
from outfitter.errors import Unavailable
from outfitter.node.device_manager.device_admission import AssignSteps, Preference
from outfitter.node.device_manager.device_manager import DeviceManager
from outfitter.node.pods.held_devices import HeldDevices
from outfitter.scheduling.topology.device_choice import finish_choice


class DevicePreferences:
    def __init__(self, held: HeldDevices) -> None:
        self._held = held
        self._choices: dict[str, dict[tuple[str, str], tuple[str, ...]]] = {}  # pod -> container and resource -> ids
        self._turns: dict[tuple[str, str], asyncio.Lock] = {}  # by host and resource
        self._asked: dict[str, tuple[str, Collection[str]]] = {}  # pod that is asked for -> host, and the resources it wants

    def decide(self, uid: str, steps: AssignSteps) -> PodDevices | Rejection | Preference:
        """The devices of a pod with what plugins have chosen so far; a Preference: what a plugin has to be asked next."""
        chosen = self._choices.get(uid, {})
        answer: tuple[str, ...] | None = None
        while True:
            try:
                needed = next(steps) if answer is None else steps.send(answer)
            except StopIteration as done:
                result: PodDevices | Rejection = done.value
                return result
            answer = chosen.get((needed.container, needed.resource))
            if answer is None or set(finish_choice(needed.request, answer).ids) != set(answer):
                return needed

    def begin(self, host: str, uid: str, resources: Collection[str]) -> None:
        """Plugins are asked for a pod until `end`."""
        self._asked[uid] = host, resources

    def end(self, uid: str) -> bool:
        """Whether they were asked."""
        return self._asked.pop(uid, None) is not None

    def asked_before(self, host: str, uid: str, resources: Collection[str]) -> str | None:
        """An older pod for which plugins are asked, and which wants one of these resources."""
        return next((other for other, (place, wanted) in self._asked.items() if place == host
                     and not set(wanted).isdisjoint(resources) and self._held.is_older(other, uid)), None)

    async def ask(self, manager: DeviceManager, uid: str, decide: Callable[[], PodDevices | Rejection | Preference]) -> None:
        """Until every plugin has chosen. NotReady: why one did not; Unavailable: it is gone."""
        while isinstance(needed := decide(), Preference):
            async with self._turns.setdefault((manager.host, needed.resource), asyncio.Lock()):
                current = decide()  # other pods may have been given devices meanwhile
                if not isinstance(current, Preference) or current.resource != needed.resource:
                    continue
                request = current.request
                if (plugin := manager.resources[current.resource].plugin) is None:
                    raise Unavailable(f"the device plugin of {current.resource} is gone")
                preferred = await manager.answer("GetPreferredAllocation", plugin.preferred(
                    sorted(request.available), request.must_include, request.size))
                choices = self._choices.setdefault(uid, {})
                choices[current.container, current.resource] = finish_choice(request, preferred).ids
                self._held.reserve(uid, {(resource, each) for (_, resource), ids in choices.items() for each in ids})

    def drop(self, uid: str) -> None:
        """What was chosen for a pod is written, or not needed any more."""
        self._choices.pop(uid, None)
        self._asked.pop(uid, None)
