"""One of several processes with several clients each that all want the same few devices: `claimer.py KUBECONFIG NAME CLIENTS`.

Each line on standard input is an order in JSON, each line on standard output its answer; all clients of a process carry an
order out at the same time, each through a connection of its own.

- {"book": [host, driver, {device: hardware, ...}]}: every client books one of the devices for a new claim, whichever it gets;
  how that ended for each.
- {"create": [template or "", class]}: every client creates a pod, from the template or else with a claim that it names.
- {"delete": [pod, ...]}: these pods, at the same time."""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from outfitter.api import kinds
from outfitter.api.device import DeviceId
from outfitter.api.kinds import Object
from outfitter.api.ledger_page.page import Booking, Holder
from outfitter.errors import AlreadyExists, AlreadyHeld, Conflict
from outfitter.ledger import book
from outfitter.store import kubeconfig
from outfitter.store.clock import SystemClock
from outfitter.store.kube import Kube

NAMESPACE = "default"


class Client:
    def __init__(self, store: Kube, name: str) -> None:
        self.store, self.name = store, name
        self._claims = 0
        self._dice = random.Random(name)  # each client tries the devices in its own order

    async def book(self, host: str, driver: str, devices: Mapping[str, Sequence[str]]) -> Object:
        """One of the devices: {"won": device, "tries": number} or {"lost": {device: who has it}}. What is raised besides is a
        fault, and ends the process."""
        self._claims += 1
        claim = await self._claim(f"{self.name}-{self._claims}", "any")
        holder = Holder(kinds.RESOURCE_CLAIM.kind, NAMESPACE, claim["metadata"]["name"], claim["metadata"]["uid"])
        lost: dict[str, str] = {}
        tries = 0
        for device in self._dice.sample(list(devices), len(devices)):
            wanted = [Booking(DeviceId(driver, host, device), holder, "nic", "booked", "2026-01-01T00:00:00Z",
                              hardware=tuple(devices[device]))]
            while device not in lost:
                tries += 1
                try:
                    await book.book(self.store, host, wanted)
                except AlreadyHeld as error:
                    lost[device] = error.by
                except (Conflict, AlreadyExists):
                    continue  # another client was faster: read again
                else:
                    return {"client": holder.name, "won": device, "tries": tries}
        await self.store.delete(kinds.RESOURCE_CLAIM, holder.name, NAMESPACE)
        return {"client": holder.name, "lost": lost, "tries": tries}

    async def _claim(self, name: str, class_name: str) -> Object:
        return await self.store.create(kinds.RESOURCE_CLAIM, {
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {"devices": {"requests": [{"name": "nic", "exactly": {"deviceClassName": class_name}}]}}})

    async def create(self, template: str, class_name: str) -> Object:
        source: Object = {"resourceClaimTemplateName": template}
        if not template:
            source = {"resourceClaimName": self.name}
            await self._claim(self.name, class_name)
        await self.store.create(kinds.POD, {
            "metadata": {"name": self.name, "namespace": NAMESPACE},
            "spec": {"containers": [{"name": "main", "image": "main"}], "resourceClaims": [{"name": "network", **source}]}})
        return {"client": self.name}


async def hear() -> Any:
    line = await asyncio.to_thread(sys.stdin.readline)
    return json.loads(line) if line.strip() else None


def say(answer: Any) -> None:
    os.write(1, f"{json.dumps(answer)}\n".encode())


async def main(config: str, name: str, count: str) -> None:
    clock = SystemClock()
    access = kubeconfig.load(config, clock=clock)
    clients = [Client(Kube(access, clock=clock), f"{name}-{number}") for number in range(int(count))]
    await asyncio.gather(*(client.store.list(kinds.LEDGER_PAGE, limit=1) for client in clients))  # connected before the race
    say("ready")
    while order := await hear():
        [(what, words)] = order.items()
        if what == "book":
            say(await asyncio.gather(*(client.book(*words) for client in clients)))
        elif what == "create":
            say(await asyncio.gather(*(client.create(*words) for client in clients)))
        else:
            say(await asyncio.gather(*(client.store.delete(kinds.POD, pod, NAMESPACE) for client, pod in
                                       zip(clients, words, strict=False))))
    await asyncio.gather(*(client.store.close() for client in clients))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
