"""A hypervisor that plays: domains are files (or entries in memory), and they outlive this process as real machines do."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path

from outfitter.api.hypervisor import Domain
from outfitter.launcher import domain as domains

log = logging.getLogger(__name__)
ROOM = 200  # characters of a domain's name in the name of its file


class Simulated:
    """One host's machines. With a folder, every running domain is a file "uid_namespace_name.xml" in it (as much of the name as
    a file's name has room for; the whole of it is in the XML)."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._domains: dict[str, Domain] = {}
        if folder is not None and folder.is_dir():
            for draft in folder.glob("*.new"):  # left by a crash: that machine did not start
                draft.unlink()
            for path in sorted(folder.glob("*.xml")):
                self._adopt(path)

    def _adopt(self, path: Path) -> None:
        uid, _, _ = path.stem.partition("_")
        try:
            self._domains[uid] = domains.read(path.read_text(), uid)
        except ValueError as error:
            log.warning("%s is not a domain (%s); it is left alone", path, error)

    async def domains(self) -> Mapping[str, Domain]:
        return dict(self._domains)

    async def start(self, domain: Domain) -> None:
        if domain.uid in self._domains:
            return
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
            path = self._path(domain)
            draft = path.with_suffix(".new")
            draft.write_text(domain.xml)
            os.replace(draft, path)
        self._domains[domain.uid] = domain

    async def stop(self, uid: str) -> None:
        domain = self._domains.pop(uid, None)
        if domain is not None and self._folder is not None:
            self._path(domain).unlink(missing_ok=True)

    def _path(self, domain: Domain) -> Path:
        assert self._folder is not None
        return self._folder / f"{domain.uid}_{domain.name[:ROOM]}.xml"
