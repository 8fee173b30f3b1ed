"""A simulated hypervisor: domains are files (or entries in memory) that outlive the process, as real VMs do. Called by the node
agent on simulated hosts, and by tests."""

from __future__ import annotations

import contextlib
import itertools
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

from outfitter.api.hypervisor import (
    BY_USER,
    DRIVES,
    Abilities,
    Domain,
    Ended,
    MigrationJob,
    MigrationLimits,
    MigrationTarget,
    Paused,
)
from outfitter.errors import HypervisorError
from outfitter.launcher import domain as domains
from outfitter.launcher import hostdev
from outfitter.launcher import iso_image as drives
from outfitter.launcher.migration import simulated_migration as migrations
from outfitter.launcher.migration.simulated_copy import SimulatedCopy
from outfitter.launcher.nics import domain_nics

log = logging.getLogger(__name__)
MAX_NAME = 200  # characters of a domain's name in the name of its file
UNPLUG_AGAIN = 5.0  # seconds after which a guest is asked again for a NIC that it has not released
_numbers = itertools.count(1)  # of hypervisors in memory, for their addresses
PHASES = {"Failed": True, "Succeeded": False}  # first line of an ".ended" file -> failed


class Simulated:
    """The VMs of one host. With a folder, every running domain is a file "uid_namespace_name.xml" in it (the name may be
    truncated; the XML has the full name). A domain that ended by itself also has a file with suffix ".ended", a paused one a
    file with suffix ".paused" with the reason. The image of its config drive is "uid.iso". The tap of a NIC on a bridge is a
    file "uid_alias.tap" with the name of the bridge; the kernel removes a tap that no VM has.
    Migrations: `migration.simulated_migration`."""

    def __init__(self, folder: Path | None = None, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._folder, self._monotonic = folder, monotonic
        self._domains: dict[str, Domain] = {}
        self._ended: dict[str, tuple[Domain, Ended]] = {}
        self._asked: dict[str, float] = {}  # uid -> time of the shutdown request
        self._callbacks: list[Callable[[str], None]] = []
        self.ignoring_shutdown: set[str] = set()  # VMIs whose guests ignore shutdown requests
        self.keeping_nics: set[str] = set()  # VMIs whose guests do not release network interfaces
        self.keeping_devices: set[str] = set()  # VMIs whose guests do not release GPUs and host devices
        self.refusing: dict[str, str] = {}  # bridge, VF or host device -> why nothing can be plugged there
        self.copy = SimulatedCopy()  # how migrations away from here go
        self.refuses_incoming = ""  # why nothing can arrive here; "" if it can
        self._incoming: dict[str, Domain] = {}
        self._outgoing: dict[str, migrations.OutgoingCopy] = {}
        self.address = f"{migrations.SCHEME}{folder.absolute() if folder is not None else f'memory-{next(_numbers)}'}"
        migrations.KNOWN[self.address] = self
        self.pressed: list[tuple[str, str]] = []  # (uid, action) of resets and reboots in this process
        if folder is not None and folder.is_dir():
            for temporary in folder.glob("*.new"):  # left by a crash: that VM did not start
                temporary.unlink()
            for path in folder.glob(f"*{migrations.INCOMING}"):
                self._read_incoming(path)
            for state_file in [*folder.glob("*.paused"), *folder.glob("*.ended"), *folder.glob("*.migrating")]:
                # likewise: these are deleted last
                if not state_file.with_suffix("").exists():
                    state_file.unlink()
            for path in sorted(folder.glob("*.xml")):
                self._adopt(path)
            for path in folder.glob("*.iso"):
                if path.stem not in self._domains and path.stem not in self._ended and path.stem not in self._incoming:
                    drives.remove(path)
            for path in folder.glob("*.tap"):
                if path not in self._taps():
                    path.unlink()
            for domain in self._domains.values():  # one may have arrived just before the end of the last process
                self._write_taps(domain)

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
            with contextlib.suppress(FileNotFoundError):
                copy = migrations.read(path.with_suffix(migrations.MIGRATING).read_text())
                if copy.failed:
                    path.with_suffix(migrations.MIGRATING).unlink()
                else:
                    self._outgoing[uid] = copy
        else:
            self._ended[uid] = domain, Ended(domain.name, PHASES.get(phase, True), reason)

    async def domains(self) -> Mapping[str, Domain]:
        for domain in list(self._incoming.values()):  # another process may have moved one here
            if self._folder is not None and self._path(domain).exists():
                self.arrive(domain)
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
            self._write_taps(domain)
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

    async def attach_device(self, uid: str, element: str) -> None:
        domain = self._running(uid)
        root, plugged = ET.fromstring(domain.xml), ET.fromstring(element)
        alias, nic = domain_nics.alias_of(plugged), domain_nics.read(plugged)
        if domain_nics.find(root, alias) is not None:
            return
        places = (nic.bridge, nic.address) if nic is not None else [device.source for device in hostdev.claimed_in(plugged)]
        for place in filter(None, places):
            if place in self.refusing:
                what = "a network interface" if nic is not None else f"host device {place}"
                raise HypervisorError(f"cannot plug {what} into {domain.name}: {self.refusing[place]}")
        root.find("devices").append(plugged)  # type: ignore[union-attr]  # every domain has devices
        self._change(domain, root)

    async def detach_device(self, uid: str, alias: str) -> float | None:
        domain = self._running(uid)
        root = ET.fromstring(domain.xml)
        if (element := domain_nics.find(root, alias)) is None:
            return None
        keeps = self.keeping_nics if domain_nics.read(element) is not None else self.keeping_devices
        if uid in keeps or domain.paused is not None:
            return UNPLUG_AGAIN
        root.find("devices").remove(element)  # type: ignore[union-attr]
        self._change(domain, root)
        return None

    async def set_link(self, uid: str, alias: str, *, up: bool) -> None:
        domain, root, element = self._nic(uid, alias)
        if domain_nics.set_link(element, up=up):
            self._change(domain, root)

    async def set_bridge(self, uid: str, alias: str, bridge: str) -> None:
        domain, root, element = self._nic(uid, alias)
        try:
            changed = domain_nics.set_bridge(element, bridge)
        except ValueError as error:
            raise HypervisorError(f"{alias} of {domain.name} cannot be changed: {error}") from error
        if bridge in self.refusing:
            raise HypervisorError(f"{alias} of {domain.name} cannot be moved to {bridge}: {self.refusing[bridge]}")
        if changed:
            self._change(domain, root)

    def _nic(self, uid: str, alias: str) -> tuple[Domain, ET.Element, ET.Element]:
        domain = self._running(uid)
        root = ET.fromstring(domain.xml)
        if (element := domain_nics.find(root, alias)) is None:
            raise HypervisorError(f"{domain.name} has no network interface {alias}")
        return domain, root, element

    def _change(self, domain: Domain, root: ET.Element) -> None:
        """The running domain has other devices. Its new taps are there before it, the old ones go after it. As with libvirt,
        a domain is not changed while it is copied."""
        if (copy := self._outgoing.get(domain.uid)) is not None and not copy.failed:
            raise HypervisorError(f"{domain.name} is being migrated")
        fresh = replace(domains.read(domains.text(root), domain.uid), paused=domain.paused)
        if self._folder is not None:
            self._write_taps(fresh)
            self._write(self._path(domain), fresh.xml)
        self._domains[domain.uid] = fresh
        self._remove_taps(domain.uid)
        self._notify(domain.uid)

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

    # -- live migration

    async def prepare_incoming(self, domain: Domain) -> MigrationTarget:
        if self.refuses_incoming:
            raise HypervisorError(self.refuses_incoming)
        if domain.uid not in self._domains:
            if self._folder is not None:
                self._folder.mkdir(parents=True, exist_ok=True)
                if domain.drive is not None:
                    drives.write(domain.drive)
                self._write(self._path(domain).with_suffix(migrations.INCOMING), domain.xml)
            self._incoming[domain.uid] = domain
        return MigrationTarget(self.address, domain.drive.path if domain.drive is not None else "")

    async def incoming(self) -> frozenset[str]:
        await self.domains()
        return frozenset(self._incoming)

    async def cancel_incoming(self, uid: str) -> None:
        if (found := (await self.domains()).get(uid)) is not None and found.migrating:
            self._delete(uid)
        if (domain := self._incoming.pop(uid, None)) is not None and self._folder is not None:
            self._path(domain).with_suffix(migrations.INCOMING).unlink(missing_ok=True)
            drives.remove(self._folder / f"{uid}.iso")

    async def migrate(self, uid: str, target: MigrationTarget, limits: MigrationLimits) -> None:
        domain = self._running(uid)
        if uid in self._outgoing and not self._outgoing[uid].failed:
            return
        self._set_outgoing(domain, migrations.begin(domain, target, limits, self._monotonic()))

    async def migration(self, uid: str) -> MigrationJob | None:
        copy = self._outgoing.get(uid)
        if copy is None or uid not in self._domains:
            return None
        job, done = migrations.look(copy, self.copy, self._monotonic())
        if done:
            if not (failed := self._leave(self._domains[uid], copy)):
                return None
            job = replace(job, failed=failed)
        if job.failed and not copy.failed:
            self._set_outgoing(self._domains[uid], replace(copy, failed=job.failed))
        return job

    async def abort_migration(self, uid: str) -> None:
        copy = self._outgoing.get(uid)
        if copy is None or uid not in self._domains:
            return
        if not copy.failed:
            if not self.copy.ignores_abort:
                self._set_outgoing(self._domains[uid], replace(copy, failed="the migration was aborted"))
            return
        self._domains[uid] = replace(self._domains[uid], migrating=False)
        del self._outgoing[uid]
        if self._folder is not None:
            self._path(self._domains[uid]).with_suffix(migrations.MIGRATING).unlink(missing_ok=True)

    def break_switchover(self, uid: str, why: str, *, arrived: bool) -> None:
        """A copy in memory fails in its last moment: the domain stays stopped here, and the target runs it if it `arrived`."""
        domain, copy = self._domains[uid], self._outgoing[uid]
        self._set_outgoing(domain, replace(copy, failed=why))
        self._domains[uid] = replace(domain, migrating=True)
        self._notify(uid)
        if arrived:
            migrations.KNOWN[copy.address].arrive(migrations.moved(domain, copy))

    def _set_outgoing(self, domain: Domain, copy: migrations.OutgoingCopy) -> None:
        if self._folder is not None:
            self._write(self._path(domain).with_suffix(migrations.MIGRATING), migrations.write(copy))
        self._outgoing[domain.uid] = copy

    def _leave(self, domain: Domain, copy: migrations.OutgoingCopy) -> str:
        """The VM goes on on the target from here on; why it cannot, or ""."""
        target, folder = migrations.KNOWN.get(copy.address), migrations.folder_of(copy.address)
        moved = replace(migrations.moved(domain, copy), paused=domain.paused)
        if self._folder is None or folder is None:
            if target is None or not target.expects(domain.uid):
                return f"the target {copy.address} does not expect it"
        else:
            there = folder / self._path(domain).name
            if not there.with_suffix(migrations.INCOMING).exists():
                return f"the target {copy.address} does not expect it"
            if domain.paused is not None:
                self._write(there.with_suffix(".xml.paused"), f"{domain.paused.reason}\n{domain.paused.message}")
            self._write(there.with_suffix(migrations.INCOMING), moved.xml)
            try:
                self._path(domain).replace(there)
            except OSError as error:
                return f"its files cannot be moved to {folder}: {error}"
        self._gone(domain)
        if target is not None:
            target.arrive(moved)
        self._notify(domain.uid)
        return ""

    def _gone(self, domain: Domain) -> None:
        """The domain runs on the target."""
        self._domains.pop(domain.uid)
        self._outgoing.pop(domain.uid, None)
        if self._folder is not None:
            for suffix in (".xml", ".xml.paused", migrations.MIGRATING):
                self._path(domain).with_suffix(suffix).unlink(missing_ok=True)
            drives.remove(self._folder / f"{domain.uid}.iso")
            self._remove_taps(domain.uid)

    def expects(self, uid: str) -> bool:
        return uid in self._incoming

    def arrive(self, domain: Domain) -> None:
        """A domain runs here now. Of one in a folder its file counts, which the source has written."""
        here = self._incoming.pop(domain.uid, None)
        if here is None:
            return
        if self._folder is not None:
            path = self._path(here)
            with contextlib.suppress(FileNotFoundError):
                path.with_suffix(migrations.INCOMING).replace(path)
            domain = replace(domains.read(path.read_text(), domain.uid), paused=_paused(path))
        self._domains[domain.uid] = replace(domain, guest_metadata=here.guest_metadata, drive=here.drive, skipped=here.skipped)
        if self._folder is not None:
            self._write_taps(domain)
        self._notify(domain.uid)

    def _read_incoming(self, path: Path) -> None:
        """After a restart: what may still arrive, or has arrived and was not read yet."""
        domain_file = path.with_suffix("")
        if domain_file.exists():
            path.replace(domain_file)
            return
        try:
            domain = domains.read(path.read_text(), domain_file.stem.partition("_")[0])
        except ValueError:
            path.unlink()
            return
        self._incoming[domain.uid] = domain

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
        self._outgoing.pop(uid, None)
        if domain is not None and self._folder is not None:
            self._path(domain).unlink(missing_ok=True)
            for suffix in (".xml.ended", ".xml.paused", migrations.MIGRATING):
                self._path(domain).with_suffix(suffix).unlink(missing_ok=True)
            drives.remove(self._folder / f"{uid}.iso")
            self._remove_taps(uid)

    def _taps(self) -> dict[Path, str]:
        """The taps of all running domains, with their bridges."""
        return {path: bridge for domain in self._domains.values() for path, bridge in self._taps_of(domain).items()}

    def _taps_of(self, domain: Domain) -> dict[Path, str]:
        assert self._folder is not None
        return {self._folder / f"{domain.uid}_{nic.alias}.tap": nic.bridge for nic in domain.nics if nic.bridge}

    def _write_taps(self, domain: Domain) -> None:
        for path, bridge in self._taps_of(domain).items():
            if not path.exists() or path.read_text() != bridge:
                self._write(path, bridge)

    def _remove_taps(self, uid: str) -> None:
        if self._folder is not None:
            used = self._taps()
            for path in self._folder.glob(f"{uid}_*.tap"):
                if path not in used:
                    path.unlink()

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
