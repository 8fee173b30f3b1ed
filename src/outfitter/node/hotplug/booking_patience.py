"""How long it is not reported of a NIC or a device that is to be plugged that it is not booked yet: the scheduler and the node
have only just got to know of it. Called by the plugging of NICs and of devices."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from typing import Generic, TypeVar

from outfitter.node.pods.pod_preparation import BOOKING_PATIENCE
from outfitter.store.clock import Clock

Key = TypeVar("Key", bound=Hashable)  # of a NIC or a device of a VMI
Wait = TypeVar("Wait")


class BookingPatience(Generic[Key]):
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since: dict[tuple[str, Key], float] = {}  # VMI and device -> since when it waits for its booking, monotonic

    def reported(
        self, uid: str, waits: Mapping[Key, Wait], unbooked: Collection[Key]
    ) -> tuple[dict[Key, Wait], float | None]:
        """What is reported of what waits, where `unbooked` may pass soon; and the seconds after which that is reported too."""
        now, again, out = self._clock.monotonic(), None, dict[Key, Wait]()
        self._since = {key: since for key, since in self._since.items() if key[0] != uid or key[1] in unbooked}
        for key, wait in waits.items():
            left = self._since.setdefault((uid, key), now) + BOOKING_PATIENCE - now if key in unbooked else 0.0
            if left > 0:
                again = left if again is None else min(again, left)
            else:
                out[key] = wait
        return out, again

    def forget(self, uid: str) -> None:
        """A VMI is gone."""
        self._since = {key: since for key, since in self._since.items() if key[0] != uid}
