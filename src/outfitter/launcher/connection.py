"""One connection to libvirt. Every method blocks and is called from a thread; `libvirt.py` is the asynchronous interface.

The library libvirt-python is optional and imported on first use. Its events come from a thread of this process that must run
before the first connection is opened."""

from __future__ import annotations

import functools
import importlib
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from outfitter.api.hypervisor import BY_USER, IO_ERROR, Domain, Ended, Paused
from outfitter.errors import HypervisorAway, HypervisorError, StartFailed, StartupRefused
from outfitter.launcher import capabilities as host_capabilities
from outfitter.launcher import domain as domains
from outfitter.launcher import iso_image as drives
from outfitter.launcher.nics import libvirt_nics, plug_remains

log = logging.getLogger(__name__)
MISSING = ("libvirt is used through the Python library libvirt-python, which is not installed here: pip install "
           "'outfitter[libvirt]' (it is compiled on this host; on Debian: apt install libvirt-dev python3-dev gcc pkg-config)")
KEEPALIVE = (5, 3)  # interval in seconds and count of libvirt's keepalive messages

# Reasons of a domain that is shut off (virDomainShutoffReason), as (failed, message for the VMI).
ENDS: Mapping[int, tuple[bool, str]] = {
    1: (False, "the guest shut down"),
    2: (True, "the VM was destroyed, not by outfitter (libvirt: destroyed)"),
    3: (True, "the VM ended without shutting down: QEMU died or its guest crashed (libvirt: crashed)"),
    4: (True, "the VM was migrated to another host, not by outfitter (libvirt: migrated)"),
    5: (True, "the VM was saved to disk, not by outfitter (libvirt: saved)"),
    6: (True, "QEMU could not run the VM (libvirt: failed)"),
    7: (True, "the VM was reverted to a snapshot that was not running (libvirt: from snapshot)"),
    8: (True, "libvirt ended the VM when the daemon was restarted, because it could not reconnect to it (libvirt: daemon)"),
}
UNKNOWN = (True, "the VM ended while libvirt was not running or the host was restarted (libvirt: unknown)")

# Reasons of a domain that is paused (virDomainPausedReason). Reasons that are not listed are transient: a start, a snapshot, a
# shutdown in progress.
PAUSES: Mapping[int, Paused] = {
    0: Paused("Paused", "VMI was paused, and libvirt does not report why"),
    1: BY_USER,
    5: IO_ERROR,
    6: Paused("PausedByWatchdog", "VMI was paused by its watchdog"),
    7: Paused("PausedFromSnapshot", "VMI was reverted to a snapshot in which it was paused"),
    10: Paused("PausedCrashed", "VMI was paused because its guest crashed"),
}


MIGRATED = 4  # of virDomainShutoffReason
UNENDED = ("libvirt lists the domain {name} as starting up (paused) and cannot end it: its daemon was killed while it started "
           "QEMU, and no QEMU of it runs. Stop the daemon, delete /run/libvirt/qemu/{name}.xml and start it again")


def library() -> Any:
    """The module libvirt; StartupRefused names the packages to install."""
    try:
        return importlib.import_module("libvirt")
    except ImportError as error:
        raise StartupRefused(MISSING) from error


@functools.cache
def _events() -> None:
    """Run libvirt's event loop in a thread, once for the process."""
    lib = library()
    lib.registerErrorHandler(lambda *_: None, None)  # otherwise it prints every error that it also raises
    lib.virEventRegisterDefaultImpl()

    def run() -> None:
        while True:
            lib.virEventRunDefaultImpl()

    threading.Thread(target=run, name="libvirt events", daemon=True).start()


_starting = threading.Lock()


class Connection:
    """`changed` gets the uid of a domain that started, ended or changed; `closed` is called once when the connection is lost;
    both from another thread."""

    def __init__(self, uri: str, *, changed: Callable[[str], None], closed: Callable[[str], None]) -> None:
        self.uri, self.lib = uri, library()
        self._uids: dict[str, str] = {}  # libvirt's UUID -> the instance's uid, where they differ
        self._kvm: bool | None = None
        self._unended: set[str] = set()  # UUIDs of domains that are not tried to be ended again
        self._plugging = threading.Lock()  # what is left of a plug is not looked for while it lasts
        with _starting:
            _events()
        try:
            self._conn = self.lib.open(uri)
        except self.lib.libvirtError as error:
            raise HypervisorAway(f"libvirt at {uri} does not answer: {error}") from error
        with self.errors():
            self._listen(changed, closed)

    def _listen(self, changed: Callable[[str], None], closed: Callable[[str], None]) -> None:
        def on_event(_conn: Any, dom: Any, *_: Any) -> None:
            uuid = dom.UUIDString()
            changed(self._uids.get(uuid, uuid))

        for event in ("LIFECYCLE", "DEVICE_ADDED", "DEVICE_REMOVED", "DEVICE_REMOVAL_FAILED"):
            self._conn.domainEventRegisterAny(None, getattr(self.lib, f"VIR_DOMAIN_EVENT_ID_{event}"), on_event, None)
        with suppress(self.lib.libvirtError):  # not supported where libvirt is part of this process
            self._conn.registerCloseCallback(lambda *_: closed("the connection was closed"), None)
        with suppress(self.lib.libvirtError):
            self._conn.setKeepAlive(*KEEPALIVE)

    @contextmanager
    def errors(self, doing: str = "") -> Iterator[None]:
        """Translate libvirt's errors: HypervisorAway when the connection is lost or libvirt is busy, otherwise
        HypervisorError."""
        try:
            yield
        except self.lib.libvirtError as error:
            if error.get_error_domain() == self.lib.VIR_FROM_RPC or not self.alive():
                raise HypervisorAway(f"libvirt at {self.uri} does not answer: {error}") from error
            if error.get_error_code() == self.lib.VIR_ERR_OPERATION_TIMEOUT:
                raise HypervisorAway(f"libvirt at {self.uri} is busy: {error}") from error
            raise HypervisorError(f"libvirt {doing or 'refuses'}: {error}") from error

    def alive(self) -> bool:
        try:
            return bool(self._conn.isAlive())
        except self.lib.libvirtError:
            return False

    def close(self) -> None:
        with suppress(self.lib.libvirtError):
            self._conn.close()

    # -- reading

    def kvm(self) -> bool:
        """Whether KVM works on this host. Cached, as the kernel does not change while libvirt runs."""
        if self._kvm is None:
            with self.errors("does not report its capabilities"):
                capabilities = self._conn.getCapabilities()
                features = [] if (cpu := host_capabilities.cpu(capabilities)) is None else host_capabilities.features(
                    self._conn.baselineCPU([cpu], self.lib.VIR_CONNECT_BASELINE_CPU_EXPAND_FEATURES))
            self._kvm = host_capabilities.kvm(capabilities, features)
            log.info("libvirt at %s %s", self.uri, "has KVM" if self._kvm else "has no KVM: VMs are emulated")
        return self._kvm

    def domains(self) -> dict[str, Domain]:
        """All running domains, including foreign ones, by VMI uid or UUID; not those that are being started."""
        running = {}
        with self.errors("cannot list its domains"):
            active = self._conn.listAllDomains(self.lib.VIR_CONNECT_LIST_DOMAINS_ACTIVE)
            # Afterwards: one that begins to arrive between the calls would be taken for one that runs here.
            paused = {dom.UUIDString() for dom in self._conn.listAllDomains(self.lib.VIR_CONNECT_LIST_DOMAINS_PAUSED)}
            for dom in active:
                with self.gone():
                    domain = domains.read(dom.XMLDesc(0))
                    if dom.UUIDString() in paused:
                        if self.is_starting(dom):
                            continue  # nothing of it has run yet
                        domain = replace(domain, paused=self._paused(dom), migrating=self.is_stopped_for_migration(dom))
                    running[domain.uid] = domain
                    if not domain.foreign:
                        self._uids[dom.UUIDString()] = domain.uid
        return running

    def _paused(self, dom: Any) -> Paused | None:
        state, reason = dom.state()
        return PAUSES.get(reason) if state == self.lib.VIR_DOMAIN_PAUSED else None

    def is_stopped_for_migration(self, dom: Any) -> bool:
        """Whether a domain arrives by a migration, or is stopped for the last part of one."""
        state, reason = dom.state()
        return bool(state == self.lib.VIR_DOMAIN_PAUSED and reason == self.lib.VIR_DOMAIN_PAUSED_MIGRATION)

    def is_starting(self, dom: Any) -> bool:
        state, reason = dom.state()
        return bool(state == self.lib.VIR_DOMAIN_PAUSED and reason == self.lib.VIR_DOMAIN_PAUSED_STARTING_UP)

    def all_domains(self) -> list[Any]:
        return list(self._conn.listAllDomains(0))

    def ended(self) -> dict[str, Ended]:
        """Our domains that are defined and do not run, by VMI uid."""
        ended = {}
        with self.errors("cannot list its domains"):
            for dom in self._conn.listAllDomains(self.lib.VIR_CONNECT_LIST_DOMAINS_INACTIVE):
                with self.gone():
                    uid = self.vmi_uid(dom)
                    if uid is not None:
                        how = dom.state()[1]
                        ended[uid] = Ended(dom.name(), *ENDS.get(how, UNKNOWN), migrated=how == MIGRATED)
        return ended

    @contextmanager
    def gone(self) -> Iterator[None]:
        """Ignore that a domain vanished between two calls."""
        try:
            yield
        except self.lib.libvirtError as error:
            if error.get_error_code() != self.lib.VIR_ERR_NO_DOMAIN:
                raise

    def vmi_uid(self, dom: Any) -> str | None:
        """The uid of the VMI of a domain; None for a foreign domain."""
        uid = domains.owner_uid(self._owner_metadata(dom), dom.UUIDString())
        if uid is not None:
            self._uids[dom.UUIDString()] = uid
        return uid

    def _owner_metadata(self, dom: Any) -> Mapping[str, str]:
        """Our metadata element of a domain; empty for a foreign domain, unless it is a copy of ours."""
        try:
            element = dom.metadata(self.lib.VIR_DOMAIN_METADATA_ELEMENT, domains.NAMESPACE)
        except self.lib.libvirtError as error:
            if error.get_error_code() == self.lib.VIR_ERR_NO_DOMAIN_METADATA:
                return {}
            raise
        return ET.fromstring(element).attrib

    def find(self, uid: str) -> Any | None:
        """The domain of a VMI, running or not. Mostly its UUID is the uid of the VMI."""
        for dom in self._by_uuid(uid):
            if self.vmi_uid(dom) == uid:
                return dom
        for dom in self._conn.listAllDomains(0):
            with self.gone():
                if self.vmi_uid(dom) == uid:
                    return dom
        return None

    def _by_uuid(self, uuid: str) -> list[Any]:
        try:
            return [self._conn.lookupByUUIDString(uuid)]
        except self.lib.libvirtError as error:
            if error.get_error_code() in (self.lib.VIR_ERR_NO_DOMAIN, self.lib.VIR_ERR_INVALID_ARG):
                return []
            raise

    # -- starting and ending

    def start(self, domain: Domain) -> None:
        with self.errors(f"cannot start {domain.name}"):
            existing = self.find(domain.uid)
            if existing is not None and existing.isActive():
                if not self.is_starting(existing):
                    return
                self.end_start(existing)  # that a killed process began
            uuid = ET.fromstring(domain.xml).findtext("uuid", "")
            for other in self._by_uuid(uuid):
                if self.vmi_uid(other) != domain.uid:
                    raise StartFailed(f"the UUID {uuid} of {domain.name} is used by the domain {other.name()}, which "
                                      "belongs to another VM")
            defined = self._conn.defineXMLFlags(domain.xml, self.lib.VIR_DOMAIN_DEFINE_VALIDATE)
            self._uids[defined.UUIDString()] = domain.uid
            try:
                if domain.drive is not None:  # after defining the domain: every image has a domain that is cleaned up
                    drives.write(domain.drive)
                defined.createWithFlags(self.lib.VIR_DOMAIN_START_PAUSED if domain.paused is not None else 0)
            except (self.lib.libvirtError, StartFailed):
                with suppress(self.lib.libvirtError):
                    self.undefine(defined)
                raise

    def pause(self, uid: str) -> None:
        with self.errors(f"cannot pause {uid}"):
            dom = self.running(uid)
            if self._paused(dom) is None:
                dom.suspend()

    def unpause(self, uid: str) -> None:
        with self.errors(f"cannot unpause {uid}"):
            dom = self.running(uid)
            if self._paused(dom) is not None:
                dom.resume()

    def reset(self, uid: str) -> None:
        with self.errors(f"cannot reset {uid}"):
            self.running(uid).reset(0)

    def reboot(self, uid: str) -> None:
        with self.errors(f"cannot reboot {uid}"):
            self.running(uid).reboot(self.lib.VIR_DOMAIN_REBOOT_ACPI_POWER_BTN)

    # -- network interfaces of a running domain

    def attach_device(self, uid: str, element: str) -> None:
        what = "a host device" if element.startswith("<hostdev") else "a network interface"
        with self.errors(f"cannot plug {what} into {uid}"), self._plugging:
            libvirt_nics.attach(self.lib, self.running(uid), element)

    def detach_device(self, uid: str, alias: str) -> bool:
        """Whether it is gone."""
        with self.errors(f"cannot unplug {alias} of {uid}"):
            return libvirt_nics.detach(self.lib, self.running(uid), alias)

    def remove_remains(self) -> bool:
        """Of plugs that were interrupted, in all our domains. Whether nothing is left."""
        clean = True
        with self.errors("cannot look for what is left of plugs"), self._plugging:
            for dom in self._conn.listAllDomains(self.lib.VIR_CONNECT_LIST_DOMAINS_ACTIVE):
                with self.gone():
                    clean &= self.vmi_uid(dom) is None or plug_remains.remove_all(self.lib, dom)
        return clean

    def set_link(self, uid: str, alias: str, up: bool) -> None:
        with self.errors(f"cannot set the link of {alias} of {uid}"):
            libvirt_nics.set_link(self.lib, self.running(uid), alias, up=up)

    def set_bridge(self, uid: str, alias: str, bridge: str) -> None:
        with self.errors(f"cannot move {alias} of {uid} to bridge {bridge}"):
            libvirt_nics.set_bridge(self.lib, self.running(uid), alias, bridge)

    def running(self, uid: str) -> Any:
        dom = self.find(uid)
        if dom is None or not dom.isActive():
            raise HypervisorError(f"the VM of VMI {uid} does not run at {self.uri}")
        return dom

    def request_shutdown(self, uid: str) -> bool:
        """Press the ACPI power button. Whether the domain still runs and may react: a paused one does not."""
        with self.errors(f"cannot shut {uid} down"):
            dom = self.find(uid)
            if dom is None or not dom.isActive() or self._paused(dom) is not None:
                return False
            try:
                dom.shutdownFlags(self.lib.VIR_DOMAIN_SHUTDOWN_ACPI_POWER_BTN)
            except self.lib.libvirtError as error:
                if not self.alive():
                    raise
                if not dom.isActive():
                    return False
                log.warning("%s did not take the shutdown request (%s); it is destroyed after its grace period", dom.name(),
                            error)
            return True

    def destroy(self, uid: str) -> None:
        """Destroy and undefine the domain, and delete its drive."""
        with self.errors(f"cannot end {uid}"):
            dom = self.find(uid)
            if dom is None:
                return
            with self.gone():
                if self.end_domain(dom):
                    self.undefine(dom)

    def end_domain(self, dom: Any) -> bool:
        """Destroy it. False: libvirt cannot end it, and nothing of it runs (`UNENDED`)."""
        if dom.UUIDString() in self._unended and self.is_starting(dom):
            return False  # it takes libvirt 30 seconds to refuse
        try:
            dom.destroy()
        except self.lib.libvirtError as error:
            code = error.get_error_code()
            if code == self.lib.VIR_ERR_OPERATION_TIMEOUT and self.is_starting(dom):
                self._unended.add(dom.UUIDString())
                log.warning("%s: %s", self.uri, UNENDED.format(name=dom.name()))
                return False
            if code != self.lib.VIR_ERR_OPERATION_INVALID or dom.isActive():
                raise  # otherwise it was not running
        return True

    def end_start(self, dom: Any) -> None:
        """End a start that was interrupted. HypervisorError: libvirt cannot."""
        with self.gone():
            if not self.end_domain(dom):
                raise HypervisorError(UNENDED.format(name=dom.name()))

    def undefine(self, dom: Any) -> None:
        lib = self.lib
        if path := self._owner_metadata(dom).get("drive"):
            drives.remove(Path(path))
        if dom.isPersistent():
            dom.undefineFlags(lib.VIR_DOMAIN_UNDEFINE_MANAGED_SAVE | lib.VIR_DOMAIN_UNDEFINE_SNAPSHOTS_METADATA
                              | lib.VIR_DOMAIN_UNDEFINE_NVRAM)
