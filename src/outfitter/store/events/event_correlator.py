"""Bounds the events about one object, as client-go's EventCorrelator does: from the tenth message of one type and reason within
ten minutes, further ones become one combined event, and one object gets at most a burst of events and then one in five minutes.
Pure: the time is an argument. Called by `event_recorder`."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

MAX_REMEMBERED = 4096  # objects, and groups of similar events
MAX_SIMILAR = 10  # messages of one type and reason about one object, before they are combined
SIMILAR_WITHIN = 600.0  # seconds without another message after which a group is forgotten
BURST = 25  # events about one object at once
REFILL = 1 / 300  # events per second about one object after that
COMBINED = "(combined from similar events): "

ObjectRef = tuple[str, ...]  # apiVersion, kind, namespace, name and uid of the involved object
K = TypeVar("K")
T = TypeVar("T")


class EventKey(NamedTuple):
    """Equal for events that are counted in one Event object."""

    about: ObjectRef
    type: str
    reason: str
    message: str  # "" for the combined event of a group


@dataclass(slots=True)
class _Similar:
    """Messages of one type and reason about one object."""

    last: float
    messages: set[str] = field(default_factory=set)


@dataclass(slots=True)
class _TokenBucket:
    filled: float
    tokens: float = BURST


class EventCorrelator:
    def __init__(self) -> None:
        self._similar: OrderedDict[tuple[ObjectRef, str, str], _Similar] = OrderedDict()
        self._buckets: OrderedDict[ObjectRef, _TokenBucket] = OrderedDict()

    def combine(self, event: EventKey, now: float) -> tuple[EventKey, str]:
        """The key under which an event is counted, and its message."""
        group = remember(self._similar, event[:3], _Similar(now))
        if now - group.last > SIMILAR_WITHIN:
            group.messages.clear()
        group.last = now
        if event.message in group.messages or len(group.messages) < MAX_SIMILAR - 1:
            group.messages.add(event.message)
            return event, event.message
        return event._replace(message=""), COMBINED + event.message

    def admits(self, about: ObjectRef, now: float) -> bool:
        """Whether another event about the object is written; takes its token."""
        bucket = remember(self._buckets, about, _TokenBucket(now))
        bucket.tokens = min(BURST, bucket.tokens + (now - bucket.filled) * REFILL)
        bucket.filled = now
        if bucket.tokens < 1:
            return False
        bucket.tokens -= 1
        return True


def remember(cache: OrderedDict[K, T], key: K, new: T) -> T:
    """The value of a key, which becomes the newest; `new` where there is none. The oldest key is dropped from a full cache."""
    value = cache.setdefault(key, new)
    cache.move_to_end(key)
    if len(cache) > MAX_REMEMBERED:
        cache.popitem(last=False)
    return value
