"""One of several processes that want the same device for a claim: `race_worker.py KUBECONFIG CLAIM UID`.

For each line "PAGE POOL DEVICE fenced|careless" on standard input (a number is a CPU of the host) it reads the page, says
"read", waits for a line, books, and says how that ended: "won", "lost" and the name of who has it, or "refused" by the rules of
pages. So a test that starts several of them can let all read before any writes. A careless one writes whatever revision the
page has by then: what would happen if that were not checked."""

from __future__ import annotations

import asyncio
import os
import sys

from outfitter.api import kinds
from outfitter.api.device import DeviceId
from outfitter.api.kinds import Kind, Object
from outfitter.api.ledger_page.page import Booking, Holder
from outfitter.errors import AlreadyExists, AlreadyHeld, Conflict, Invalid
from outfitter.ledger import book
from outfitter.store import kubeconfig
from outfitter.store.clock import SystemClock
from outfitter.store.kube import Kube


async def hear() -> str:
    line: str = await asyncio.to_thread(sys.stdin.readline)
    return line.strip()


def say(line: str) -> None:
    os.write(1, f"{line}\n".encode())


class Held(Kube):
    """The first reading of a page in each round waits for the others."""

    wait = False
    careless = False

    async def get(self, kind: Kind, name: str, namespace: str = "") -> Object:
        try:
            return await super().get(kind, name, namespace)
        finally:
            if self.wait:
                self.wait = False
                say("read")
                await hear()

    async def replace(self, kind: Kind, obj: Object, *, subresource: str = "", dry_run: bool = False) -> Object:
        while self.careless:
            present = await Kube.get(self, kind, obj["metadata"]["name"])
            meta = {**obj["metadata"], "resourceVersion": present["metadata"]["resourceVersion"]}
            try:
                return await super().replace(kind, {**obj, "metadata": meta})
            except Conflict:
                continue  # it cares for nothing
        return await super().replace(kind, obj, subresource=subresource, dry_run=dry_run)


async def attempt(store: Held, page: str, wanted: Booking) -> str:
    while True:
        try:
            await book.book(store, page, [wanted])
        except AlreadyHeld as error:
            return f"lost {error.by.split()[1]}"
        except (Conflict, AlreadyExists):
            continue  # another writer was faster: now the page says who
        except Invalid:
            return "refused"
        return "won"


async def main(config: str, name: str, uid: str) -> None:
    clock = SystemClock()
    store = Held(kubeconfig.load(config, clock=clock), clock=clock)
    await store.list(kinds.LEDGER_PAGE, limit=1)  # the connection is there before the race begins
    say("ready")
    while line := await hear():
        page, pool, device, manner = line.split()
        store.careless = manner == "careless"
        amount = {"whole": True} if not device.isdigit() else {"resources": {"PCPU": 1}, "cpus": {"0": [int(device)]}}
        store.wait = True
        say(await attempt(store, page, Booking(
            DeviceId("pci.example.com", pool, device), Holder(kinds.RESOURCE_CLAIM.kind, "default", name, uid), "nic", "booked",
            "2026-01-01T00:00:00Z", amount)))
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
