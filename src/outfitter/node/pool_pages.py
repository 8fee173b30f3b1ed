"""The pages of pools that no host owns, which a host has to know when it prepares a claim: hardware of the host may be held
under the name of such a pool. Read-only; called by `ClaimBookings`.

An agent of one host asks for them when it prepares or releases a claim, and does not watch them: every booking of such a pool
would be sent to every host of the cluster."""

from __future__ import annotations

from outfitter.api import kinds
from outfitter.api.kinds import Object
from outfitter.api.ledger_page.page import is_pool_page
from outfitter.store.base import Store
from outfitter.store.informer import Informer

WITHOUT_HOST = "spec.host="  # field selector of these pages
INDEX = "pools"


class PoolPages:
    def __init__(self, store: Store, pages: Informer[Object] | None = None) -> None:
        """`pages`: where all pages are watched anyway, as by the agent of several simulated hosts."""
        self._store, self._pages = store, pages
        if pages is not None:
            pages.add_index(INDEX, lambda page: [""] if is_pool_page(page["metadata"]["name"]) else [])

    async def all(self) -> list[Object]:
        if self._pages is not None:
            return self._pages.by(INDEX, "")
        return (await self._store.list(kinds.LEDGER_PAGE, fields=WITHOUT_HOST)).items
