"""How the host in a VM reports what it does: one line a step, with the time it took, as soon as it has ended."""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Report:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._path.write_text("")
        self.failed = False

    def say(self, line: str) -> None:
        with self._path.open("a") as file:
            file.write(line + "\n")
        print(line, flush=True)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """What fails is reported and ends the run; its trace is in the output."""
        start = time.monotonic()
        try:
            yield
        except BaseException as error:
            traceback.print_exc()
            self.failed = True
            self.say(f"FAILED {name}: {str(error).splitlines()[0] if str(error) else type(error).__name__}")
            raise
        self.say(f"ok {name} ({time.monotonic() - start:.1f} s)")


def expect(got: object, wanted: object, what: str) -> None:
    if got != wanted:
        raise AssertionError(f"{what}: {got!r}, not {wanted!r}")
