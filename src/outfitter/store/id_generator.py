"""Generates uids and the random suffixes of generateName, from a random source that tests can seed."""

from __future__ import annotations

import random
import uuid

_LETTERS = "bcdfghjklmnpqrstvwxz2456789"  # no vowels: a random suffix never spells a word


class IdGenerator:
    def __init__(self, source: random.Random | None = None) -> None:
        # Seeded once by the system. Nothing here is a secret, and os.urandom for each write costs more than the rest of it: it
        # releases the GIL, so that writes that could share a transaction do not.
        self._random = source or random.Random()

    def uid(self) -> str:
        return str(uuid.UUID(int=self._random.getrandbits(128), version=4))

    def suffix(self, length: int = 5) -> str:
        return "".join(self._random.choices(_LETTERS, k=length))
