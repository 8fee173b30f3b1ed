"""The checkpoint of a host: for each claim the devices that were prepared for it, and how their functions were bound before.

Written before a device is touched and removed when everything is restored, so that a start after a crash knows what to finish
or undo. The ledger's page contains who holds a device; this file contains what was done to it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from outfitter.errors import StartupRefused
from outfitter.node.atomic_files import Files

FILE = "checkpoint.json"
VERSION = 1


@dataclass(frozen=True, slots=True)
class Before:
    """A function as it was before it was prepared."""

    address: str
    ids: str  # "8086:1889": another card may be at the address later
    driver: str | None  # None: no driver was bound
    override: str | None  # content of driver_override; None: empty


@dataclass(frozen=True, slots=True)
class Taken:
    """One prepared device of one claim."""

    uid: str  # of the claim
    namespace: str
    claim: str
    device: str  # its name in slices and on the page
    functions: tuple[Before, ...] = ()  # none for a mediated device, and with admin access
    uuid: str | None = None  # of a mediated device; None with admin access
    files: tuple[str, ...] = ()  # metadata files of the claim

    @property
    def places(self) -> frozenset[str]:
        """Addresses and UUIDs that are this claim's until they are restored."""
        return frozenset((*(before.address for before in self.functions), *([self.uuid] if self.uuid else [])))


@dataclass(frozen=True, slots=True)
class Made:
    """A mediated device that was created because a setting asks for it."""

    uuid: str
    parent: str
    type: str


class Checkpoint:
    """The file of one host, written by this class alone; each change is durable when the call returns."""

    def __init__(self, files: Files, host: str) -> None:
        self._files, self._host = files, host
        self.taken: tuple[Taken, ...] = ()
        self.vfs: Mapping[str, int] = {}  # address of a PF -> VFs that this host created
        self.made: tuple[Made, ...] = ()
        text = files.read(FILE)
        if text is not None:
            self._load(text)

    def of(self, uid: str) -> tuple[Taken, ...]:
        return tuple(one for one in self.taken if one.uid == uid)

    def take(self, taken: Iterable[Taken]) -> None:
        """Record what is about to be done. A device that is recorded for its claim already stays as it was recorded."""
        known = {(one.uid, one.device) for one in self.taken}
        self._save(taken=(*self.taken, *(one for one in taken if (one.uid, one.device) not in known)))

    def forget(self, uid: str) -> None:
        self._save(taken=tuple(one for one in self.taken if one.uid != uid))

    def set_vfs(self, vfs: Mapping[str, int]) -> None:
        self._save(vfs=vfs)

    def set_made(self, made: Iterable[Made]) -> None:
        self._save(made=tuple(made))

    def _save(
        self, *, taken: Sequence[Taken] | None = None, vfs: Mapping[str, int] | None = None, made: Sequence[Made] | None = None
    ) -> None:
        new = (self.taken if taken is None else tuple(taken), self.vfs if vfs is None else dict(vfs),
               self.made if made is None else tuple(made))
        if new == (self.taken, self.vfs, self.made):
            return
        body = {"version": VERSION, "host": self._host, "taken": new[0], "vfs": new[1], "made": new[2]}
        self._files.write(FILE, msgspec.json.format(msgspec.json.encode(body), indent=1).decode() + "\n")
        self.taken, self.vfs, self.made = new

    def _load(self, text: str) -> None:
        where = self._files.at(FILE)
        try:
            raw: dict[str, Any] = json.loads(text)
            version = raw["version"]
            if version == VERSION:
                if raw["host"] != self._host:
                    raise StartupRefused(f"{where} is of host {raw['host']}, not of {self._host}: give each host a folder of "
                                         "its own")
                self.taken = tuple(_taken(one) for one in raw["taken"])
                self.vfs = {str(pf): int(count) for pf, count in raw["vfs"].items()}
                self.made = tuple(Made(**one) for one in raw["made"])
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise StartupRefused(f"{where} cannot be read as a checkpoint ({type(error).__name__}: {error}); docs/prepare.md "
                                 "says how to bring a host in order without it") from error
        if version != VERSION:
            raise StartupRefused(f"{where} has version {version}, and this outfitter knows {VERSION}: use the one that wrote "
                                 "it, or stop all VMs with it first")


def _taken(raw: dict[str, Any]) -> Taken:
    return Taken(**{**raw, "functions": tuple(Before(**one) for one in raw["functions"]), "files": tuple(raw["files"])})
