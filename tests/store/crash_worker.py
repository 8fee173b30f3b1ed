"""A process to be killed: writes to a store and says on its standard output what was acknowledged.

    crash_worker.py FOLDER FIRST                  many writers, until killed; numbers count from FIRST
    crash_worker.py FOLDER FIRST ask FULL|OFF     one write for each line on standard input

A line is printed for each acknowledged step: "pair N" (two objects of one commit), "gone N" (a pair deleted)."""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from outfitter.api import kinds
from outfitter.store.base import Create, Delete, Replace
from outfitter.store.sqlite import SQLite

WRITERS = 8


def config(number: int, side: str) -> kinds.Object:
    return {"metadata": {"name": f"{side}{number:06}", "namespace": "default"}, "data": {"n": str(number), "pad": "x" * 700}}


def say(line: str) -> None:
    os.write(1, f"{line}\n".encode())


async def pair(store: SQLite, number: int) -> None:
    """Both objects or none, and a page that counts as many as there are."""
    page = await store.get(kinds.LEDGER_PAGE, "count") if store.committed_record(kinds.LEDGER_PAGE, "count") else None
    count = Replace(kinds.LEDGER_PAGE, page | {"spec": {"n": page["spec"]["n"] + 1}}) if page else Create(
        kinds.LEDGER_PAGE, {"metadata": {"name": "count"}, "spec": {"n": 1}})
    writes = [Create(kinds.CONFIG_MAP, config(number, "a")), Create(kinds.CONFIG_MAP, config(number, "b")), count]
    await store.commit(writes)
    say(f"pair {number}")


async def unpair(store: SQLite, number: int) -> None:
    await store.commit([Delete(kinds.CONFIG_MAP, f"{side}{number:06}", "default") for side in "ab"])
    say(f"gone {number}")


async def writer(store: SQLite, numbers: Iterator[int]) -> None:
    for number in numbers:
        try:
            await pair(store, number)
        except Exception as error:  # another writer moved the page first: the number is skipped
            if type(error).__name__ not in ("Conflict", "AlreadyExists"):
                raise
            continue
        if number % 5 == 0:
            await unpair(store, number)


async def run(folder: Path, first: int) -> None:
    store, numbers = SQLite(folder, kinds.ALL), itertools.count(first)
    say("ready")
    await asyncio.gather(*(writer(store, numbers) for _ in range(WRITERS)))


async def answer(folder: Path, first: int, synchronous: str) -> None:
    store, numbers = SQLite(folder, kinds.ALL, synchronous=synchronous), itertools.count(first)
    say("ready")
    while os.read(0, 1):
        await pair(store, next(numbers))
    await store.close()


if __name__ == "__main__":
    place, start, *mode = sys.argv[1:]
    asyncio.run(answer(Path(place), int(start), mode[1]) if mode else run(Path(place), int(start)))
