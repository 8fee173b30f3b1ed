"""A simulated hypervisor: domains are files (or entries in memory) that outlive the process, as real VMs do. Called by the node
agent on simulated hosts, and by tests."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from outfitter.api.hypervisor import BY_USER, DRIVES, Abilities, Domain, Ended, Paused
from outfitter.errors import HypervisorError
from outfitter.launcher import domain as domains
from outfitter.launcher import iso_image as drives

log = logging.getLogger(__name__)
MAX_NAME = 200  # characters of a domain's name in the name of its file
PHASES = {"Failed": True, "Succeeded": False}  # first line of an ".ended" file -> failed


class Simulated:
    """The VMs of one host. With a folder, every running domain is a file "uid_namespace_name.xml" in it (the name may be
    truncated; the XML has the full name). A domain that ended by itself also has a file with suffix ".ended", a paused one a
    file with suffix ".paused" with the reason. The image of its config drive is "uid.iso"."""

    def __init__(self, folder: Path | None = None, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._folder, self._monotonic = folder, monotonic
        self._domains: dict[str, Domain] = {}
        self._ended: dict[str, tuple[Domain, Ended]] = {}
        self._asked: dict[str, float] = {}  # uid -> time of the shutdown request
        self._callbacks: list[Callable[[str], None]] = []
        self.ignoring_shutdown: set[str] = set()  # VMIs whose guests ignore shutdown requests
        self.pressed: list[tuple[str, str]] = []  # (uid, action) of resets and reboots in this process
        if folder is not None and folder.is_dir():
            for temporary in folder.glob("*.new"):  # left by a crash: that VM did not start
                temporary.unlink()
            for state_file in [*folder.glob("*.paused"), *folder.glob("*.ended")]:  # likewise: these are deleted last
                if not state_file.with_suffix("").exists():
                    state_file.unlink()
            for path in sorted(folder.glob("*.xml")):
                self._adopt(path)
            for path in folder.glob("*.iso"):
                if path.stem not in self._domains and path.stem not in self._ended:
                    drives.remove(path)

    def _adopt(self, path: Path) -> None:
        uid, _, _ = path.stem.partition("_")
        try:
            domain = domains.read(path.read_text(), uid)
        except ValueError as error:
            log.warning("%s is not a domain (%s); it is ignored", path, error)
            return
        try:
            phase, _, reason = path.with_suffix(".xml.ended").read_text().partition("\n")
        except FileNotFoundError:
            self._domains[uid] = replace(domain, paused=_paused(path))
        else:
            self._ended[uid] = domain, Ended(domain.name, PHASES.get(phase, True), reason)

    async def domains(self) -> Mapping[str, Domain]:
        return dict(self._domains)

    async def ended(self) -> Mapping[str, Ended]:
        return {uid: ended for uid, (_, ended) in self._ended.items()}

    async def abilities(self) -> Abilities:
        return Abilities(simulated=True, drives=DRIVES if self._folder is None else str(self._folder))

    async def start(self, domain: Domain) -> None:
        if domain.uid in self._domains:
            return
        if domain.uid in self._ended:
            self._delete(domain.uid)
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
            if domain.drive is not None:
                drives.write(domain.drive)
            self._write_paused(domain)
            self._write(self._path(domain), domain.xml)
        self._domains[domain.uid] = domain
        self._notify(domain.uid)

    async def pause(self, uid: str) -> None:
        self.simulate_pause(uid, BY_USER)

    async def unpause(self, uid: str) -> None:
        self.simulate_pause(uid, None)

    async def reset(self, uid: str) -> None:
        self._pressed(uid, "reset")

    async def reboot(self, uid: str) -> None:
        self._pressed(uid, "reboot")

    async def stop(self, uid: str, grace: float = 0.0) -> float | None:
        if uid in self._domains and grace > 0 and uid in self.ignoring_shutdown and not self._domains[uid].paused:
            left = self._asked.setdefault(uid, self._monotonic()) + grace - self._monotonic()
            if left > 0:
                return left
        ran = uid in self._domains
        self._delete(uid)
        if ran:
            self._notify(uid)
        return None

    def simulate_end(self, uid: str, reason: str, *, failed: bool = True) -> None:
        """Simulate a VM that ends by itself."""
        domain = self._domains.pop(uid)
        if self._folder is not None:
            phase = next(phase for phase, value in PHASES.items() if value == failed)
            self._write(self._path(domain).with_suffix(".xml.ended"), f"{phase}\n{reason}")
        self._ended[uid] = domain, Ended(domain.name, failed, reason)
        self._notify(uid)

    def simulate_all_ended(self, reason: str, *, failed: bool) -> None:
        """The same for every VM: for a launcher, which has one."""
        for uid in list(self._domains):
            self.simulate_end(uid, reason, failed=failed)

    def simulate_pause(self, uid: str, why: Paused | None) -> None:
        """Simulate that a VM is paused for a reason, or resumed (None)."""
        domain = self._running(uid)
        if domain.paused == why:
            return
        self._domains[uid] = replace(domain, paused=why)
        if self._folder is not None:
            self._write_paused(self._domains[uid])
        self._notify(uid)

    def on_change(self, callback: Callable[[str], None]) -> None:
        self._callbacks.append(callback)

    async def close(self) -> None:
        pass

    def _running(self, uid: str) -> Domain:
        if uid not in self._domains:
            raise HypervisorError(f"the VM of VMI {uid} does not run here")
        return self._domains[uid]

    def _pressed(self, uid: str, button: str) -> None:
        self._running(uid)
        self.pressed.append((uid, button))

    def _write_paused(self, domain: Domain) -> None:
        state_file = self._path(domain).with_suffix(".xml.paused")
        if domain.paused is not None:
            self._write(state_file, f"{domain.paused.reason}\n{domain.paused.message}")
        else:
            state_file.unlink(missing_ok=True)

    def _delete(self, uid: str) -> None:
        """Delete all files of a VM. The state files are deleted last, so that a crash in between does not start it again."""
        domain = self._domains.pop(uid, None) or self._ended.pop(uid, (None, None))[0]
        self._asked.pop(uid, None)
        if domain is not None and self._folder is not None:
            self._path(domain).unlink(missing_ok=True)
            for suffix in (".xml.ended", ".xml.paused"):
                self._path(domain).with_suffix(suffix).unlink(missing_ok=True)
            drives.remove(self._folder / f"{uid}.iso")

    def _write(self, path: Path, text: str) -> None:
        temporary = path.with_suffix(".new")
        temporary.write_text(text)
        temporary.replace(path)

    def _notify(self, uid: str) -> None:
        for callback in self._callbacks:
            callback(uid)

    def _path(self, domain: Domain) -> Path:
        assert self._folder is not None
        return self._folder / f"{domain.uid}_{domain.name[:MAX_NAME]}.xml"


def _paused(path: Path) -> Paused | None:
    """The pause reason of the VM of a file; None if it is not paused."""
    try:
        reason, _, message = path.with_suffix(".xml.paused").read_text().partition("\n")
    except FileNotFoundError:
        return None
    return Paused(reason, message)
