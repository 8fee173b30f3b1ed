"""Names and identities that nobody chose, from a source of randomness that is handed in."""

from __future__ import annotations

import random
import uuid

_LETTERS = "bcdfghjklmnpqrstvwxz2456789"  # no vowels: a random suffix never spells a word


class IdGenerator:
    def __init__(self, source: random.Random | None = None) -> None:
        # Seeded by the system once. Nothing here is a secret, and asking the system each time costs more than the rest of a
        # write: it lets other threads in, and writes that could share a transaction do not.
        self._random = source or random.Random()

    def uid(self) -> str:
        return str(uuid.UUID(int=self._random.getrandbits(128), version=4))

    def suffix(self, length: int = 5) -> str:
        return "".join(self._random.choices(_LETTERS, k=length))
