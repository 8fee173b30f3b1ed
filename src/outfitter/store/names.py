"""Names and identities that nobody chose, from a source of randomness that is handed in."""

from __future__ import annotations

import random
import uuid

_LETTERS = "bcdfghjklmnpqrstvwxz2456789"  # no vowels: a random suffix never spells a word


class Names:
    def __init__(self, source: random.Random | None = None) -> None:
        self._random = source or random.SystemRandom()

    def uid(self) -> str:
        return str(uuid.UUID(int=self._random.getrandbits(128), version=4))

    def suffix(self, length: int = 5) -> str:
        return "".join(self._random.choices(_LETTERS, k=length))
