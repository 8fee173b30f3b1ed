"""Pages that nothing checks: as a cluster keeps them without an admission webhook, and as a test damages them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from outfitter.api import admission, kinds
from outfitter.api.kinds import Object
from outfitter.api.write_request import WriteRequest
from outfitter.store.base import Store
from outfitter.store.memory import Memory


class UncheckedPages(admission.AdmissionRules):
    """A cluster keeps whatever a page contains."""

    def admit(self, change: WriteRequest) -> Object:
        return change.new if change.kind == kinds.LEDGER_PAGE else super().admit(change)


@contextlib.contextmanager
def unchecked(store: Store) -> Iterator[None]:
    """Anything can be written to pages meanwhile, if the store is an embedded one."""
    if not isinstance(store, Memory):
        yield
        return
    rules, store.rules = store.rules, UncheckedPages()
    try:
        yield
    finally:
        store.rules = rules
