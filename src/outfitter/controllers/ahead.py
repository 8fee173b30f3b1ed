"""Objects as an informer tells them, or as we wrote them ourselves when the informer has not heard of that yet."""

from __future__ import annotations

from outfitter.api.kinds import Object
from outfitter.store.informer import Informer, key_of


class Ahead:
    def __init__(self, informer: Informer[Object]) -> None:
        self._informer = informer
        self._mine: dict[str, Object] = {}  # what the informer does not know yet
        informer.on_change(self._changed)

    def get(self, key: str) -> Object | None:
        return self._mine.get(key) or self._informer.get(key)

    def put(self, obj: Object) -> None:
        """The answer to a write of ours."""
        key = key_of(obj)
        known = self._informer.get(key)
        if known is None or _revision(known) < _revision(obj):
            self._mine[key] = obj

    def _changed(self, old: Object | None, new: Object | None) -> None:
        key = key_of(new or old or {})
        mine = self._mine.get(key)
        if mine is not None and (new is None or _revision(new) >= _revision(mine)):
            del self._mine[key]


def _revision(obj: Object) -> int:
    return int(obj["metadata"]["resourceVersion"])
