"""Objects that the readers of a process share are what the store has: no reader has changed one. Checked of every embedded
store that a test closes."""

from __future__ import annotations

from outfitter.store.memory import Memory

_close = Memory.close


def pytest_configure() -> None:
    Memory.close = _close_unchanged  # type: ignore[method-assign,assignment]


async def _close_unchanged(store: Memory) -> None:
    await _close(store)
    changed = [f"{record.kind.plural} {'/'.join(filter(None, record.key))}" for cache in store._caches.values()
               for record in cache.records.values() if record.shared() != record.object()]
    assert not changed, f"readers share these objects, and one has changed them: {changed}"
