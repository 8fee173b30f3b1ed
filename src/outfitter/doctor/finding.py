"""The result of one check. Values only; `cli/doctor.py` prints them."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass


class Level(enum.StrEnum):
    OK = "ok"
    WARNING = "warning"  # something does not work, or will not for long
    ERROR = "error"  # VMs cannot get devices, or the product does not run


@dataclass(frozen=True, slots=True)
class Finding:
    code: str  # of `codes.CODES`; stable
    level: Level
    message: str  # one sentence: what was found
    missing: str = ""  # what is missing or wrong, and what would be right; empty when all is well
    command: str = ""  # what to type; empty where no command mends it
    subject: str = ""  # what it is about: "node/a", "0000:65:00.0"; empty: the host or cluster as a whole

    def to_object(self) -> dict[str, str]:
        return {"code": self.code, "level": self.level.value, "subject": self.subject, "message": self.message,
                "missing": self.missing, "command": self.command}


def ok(code: str, message: str) -> Finding:
    return Finding(code, Level.OK, message)


def warning(code: str, message: str, missing: str, command: str = "", *, subject: str = "") -> Finding:
    return Finding(code, Level.WARNING, message, missing, command, subject)


def error(code: str, message: str, missing: str, command: str = "", *, subject: str = "") -> Finding:
    return Finding(code, Level.ERROR, message, missing, command, subject)


def some(names: Iterable[str], most: int = 5) -> str:
    """The first names of a list, and how many more there are."""
    listed = list(names)
    return ", ".join(listed[:most]) + (f" and {len(listed) - most} more" if len(listed) > most else "")


def count(number: int, noun: str, plural: str = "") -> str:
    return f"{number} {noun if number == 1 else plural or noun + 's'}"
