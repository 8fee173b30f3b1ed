"""One connection to libvirt. Everything here blocks and is called from threads; `libvirt.py` is the asynchronous side.

The library libvirt-python is optional and imported late. Its events come from a thread of this process that must run before the
first connection is opened."""

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

log = logging.getLogger(__name__)
MISSING = ("libvirt is used through the Python library libvirt-python, which is not installed here: pip install "
           "'outfitter[libvirt]' (it is built on this machine; on Debian: apt install libvirt-dev python3-dev gcc pkg-config)")
KEEPALIVE = (5, 3)  # seconds between questions whether the daemon is there, and how many may stay without answer

# Why libvirt says that a domain is off (virDomainShutoffReason), as (failed, what its owner is told).
ENDS: Mapping[int, tuple[bool, str]] = {
    1: (False, "the guest shut down"),
    2: (True, "the machine was forced off by somebody else than outfitter (libvirt: destroyed)"),
    3: (True, "the machine ended without shutting down: QEMU died or its guest crashed (libvirt: crashed)"),
    4: (True, "the machine was moved to another host by somebody else than outfitter (libvirt: migrated)"),
    5: (True, "the machine was saved to disk by somebody else than outfitter (libvirt: saved)"),
    6: (True, "QEMU could not run the machine (libvirt: failed)"),
    7: (True, "the machine was set back to a snapshot that was not running (libvirt: from snapshot)"),
    8: (True, "libvirt ended the machine when it was started again, because it could not go on with it (libvirt: daemon)"),
}
UNKNOWN = (True, "the machine ended while libvirt was not running or the host was restarted (libvirt: unknown)")

# Why libvirt says that a domain is paused (virDomainPausedReason). Those that are not here are moments of something else, which
# ends by itself: a start, a snapshot, the end of a guest that shut down.
PAUSES: Mapping[int, Paused] = {
    0: Paused("Paused", "VMI was paused, and libvirt does not say why"),
    1: BY_USER,
    5: IO_ERROR,
    6: Paused("PausedByWatchdog", "VMI was paused by its watchdog"),
    7: Paused("PausedFromSnapshot", "VMI was set back to a snapshot in which it was paused"),
    10: Paused("PausedCrashed", "VMI was paused because its guest crashed"),
}


def library() -> Any:
    """The module libvirt; StartupRefused says what to install."""
    try:
        return importlib.import_module("libvirt")
    except ImportError as error:
        raise StartupRefused(MISSING) from error


@functools.cache
def _events() -> None:
    """Run libvirt's event loop in a thread, once for the process."""
    lib = library()
    lib.registerErrorHandler(lambda *_: None, None)  # else it prints every error that it also raises
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
        self.uri, self._lib = uri, library()
        self._uids: dict[str, str] = {}  # libvirt's UUID -> the instance's uid, where they differ
        self._kvm: bool | None = None
        with _starting:
            _events()
        try:
            self._conn = self._lib.open(uri)
        except self._lib.libvirtError as error:
            raise HypervisorAway(f"libvirt at {uri} does not answer: {error}") from error
        with self._errors():
            self._listen(changed, closed)

    def _listen(self, changed: Callable[[str], None], closed: Callable[[str], None]) -> None:
        def moved(_conn: Any, dom: Any, *_: Any) -> None:
            uuid = dom.UUIDString()
            changed(self._uids.get(uuid, uuid))

        for event in ("LIFECYCLE", "DEVICE_ADDED", "DEVICE_REMOVED"):
            self._conn.domainEventRegisterAny(None, getattr(self._lib, f"VIR_DOMAIN_EVENT_ID_{event}"), moved, None)
        with suppress(self._lib.libvirtError):  # where libvirt is part of this process there is nothing to lose
            self._conn.registerCloseCallback(lambda *_: closed("the connection was closed"), None)
        with suppress(self._lib.libvirtError):
            self._conn.setKeepAlive(*KEEPALIVE)

    @contextmanager
    def _errors(self, doing: str = "") -> Iterator[None]:
        """libvirt's error as ours: the connection is gone, libvirt is busy, or what was asked is refused."""
        try:
            yield
        except self._lib.libvirtError as error:
            if error.get_error_domain() == self._lib.VIR_FROM_RPC or not self.alive():
                raise HypervisorAway(f"libvirt at {self.uri} does not answer: {error}") from error
            if error.get_error_code() == self._lib.VIR_ERR_OPERATION_TIMEOUT:
                raise HypervisorAway(f"libvirt at {self.uri} is busy: {error}") from error
            raise HypervisorError(f"libvirt {doing or 'refuses'}: {error}") from error

    def alive(self) -> bool:
        try:
            return bool(self._conn.isAlive())
        except self._lib.libvirtError:
            return False

    def close(self) -> None:
        with suppress(self._lib.libvirtError):
            self._conn.close()

    # -- looking

    def kvm(self) -> bool:
        """Whether machines can use the host's processors. Asked once: kernels are not exchanged under a daemon."""
        if self._kvm is None:
            with self._errors("does not tell what it can do"):
                capabilities = self._conn.getCapabilities()
                features = [] if (cpu := host_capabilities.cpu(capabilities)) is None else host_capabilities.features(
                    self._conn.baselineCPU([cpu], self._lib.VIR_CONNECT_BASELINE_CPU_EXPAND_FEATURES))
            self._kvm = host_capabilities.kvm(capabilities, features)
            log.info("libvirt at %s %s", self.uri, "has KVM" if self._kvm else "has no KVM: machines are emulated")
        return self._kvm

    def domains(self) -> dict[str, Domain]:
        """What runs: ours and everybody else's."""
        found = {}
        with self._errors("cannot list its domains"):
            still = {dom.UUIDString() for dom in self._conn.listAllDomains(self._lib.VIR_CONNECT_LIST_DOMAINS_PAUSED)}
            for dom in self._conn.listAllDomains(self._lib.VIR_CONNECT_LIST_DOMAINS_ACTIVE):
                with self._gone():
                    domain = domains.read(dom.XMLDesc(0))
                    if dom.UUIDString() in still:
                        domain = replace(domain, paused=self._paused(dom))
                    found[domain.uid] = domain
                    if not domain.foreign:
                        self._uids[dom.UUIDString()] = domain.uid
        return found

    def _paused(self, dom: Any) -> Paused | None:
        state, reason = dom.state()
        return PAUSES.get(reason) if state == self._lib.VIR_DOMAIN_PAUSED else None

    def ended(self) -> dict[str, Ended]:
        """Ours that are defined and do not run."""
        found = {}
        with self._errors("cannot list its domains"):
            for dom in self._conn.listAllDomains(self._lib.VIR_CONNECT_LIST_DOMAINS_INACTIVE):
                with self._gone():
                    uid = self._instance(dom)
                    if uid is not None:
                        failed, reason = ENDS.get(dom.state()[1], UNKNOWN)
                        found[uid] = Ended(dom.name(), failed, reason)
        return found

    @contextmanager
    def _gone(self) -> Iterator[None]:
        """A domain that went while it was looked at."""
        try:
            yield
        except self._lib.libvirtError as error:
            if error.get_error_code() != self._lib.VIR_ERR_NO_DOMAIN:
                raise

    def _instance(self, dom: Any) -> str | None:
        """The uid of the instance whose domain it is; None for somebody else's."""
        uid = domains.owner_uid(self._mark(dom), dom.UUIDString())
        if uid is not None:
            self._uids[dom.UUIDString()] = uid
        return uid

    def _mark(self, dom: Any) -> Mapping[str, str]:
        """What we wrote into a domain to know it again; nothing in somebody else's, unless it is a copy."""
        try:
            mark = dom.metadata(self._lib.VIR_DOMAIN_METADATA_ELEMENT, domains.NAMESPACE)
        except self._lib.libvirtError as error:
            if error.get_error_code() == self._lib.VIR_ERR_NO_DOMAIN_METADATA:
                return {}
            raise
        return ET.fromstring(mark).attrib

    def _find(self, uid: str) -> Any | None:
        """The domain of an instance, running or not. Nearly always its UUID is the instance's uid."""
        for dom in self._by_uuid(uid):
            if self._instance(dom) == uid:
                return dom
        for dom in self._conn.listAllDomains(0):
            with self._gone():
                if self._instance(dom) == uid:
                    return dom
        return None

    def _by_uuid(self, uuid: str) -> list[Any]:
        try:
            return [self._conn.lookupByUUIDString(uuid)]
        except self._lib.libvirtError as error:
            if error.get_error_code() in (self._lib.VIR_ERR_NO_DOMAIN, self._lib.VIR_ERR_INVALID_ARG):
                return []
            raise

    # -- starting and ending

    def start(self, domain: Domain) -> None:
        with self._errors(f"cannot start {domain.name}"):
            found = self._find(domain.uid)
            if found is not None and found.isActive():
                return
            uuid = ET.fromstring(domain.xml).findtext("uuid", "")
            for other in self._by_uuid(uuid):
                if self._instance(other) != domain.uid:
                    raise StartFailed(f"the UUID {uuid} of {domain.name} is that of the domain {other.name()}, which is "
                                      "another")
            made = self._conn.defineXMLFlags(domain.xml, self._lib.VIR_DOMAIN_DEFINE_VALIDATE)
            self._uids[made.UUIDString()] = domain.uid
            try:
                if domain.drive is not None:  # after the domain: whatever lies there has a domain that is put away some day
                    drives.write(domain.drive)
                made.createWithFlags(self._lib.VIR_DOMAIN_START_PAUSED if domain.paused is not None else 0)
            except (self._lib.libvirtError, StartFailed):
                with suppress(self._lib.libvirtError):
                    self._undefine(made)
                raise

    def pause(self, uid: str) -> None:
        with self._errors(f"cannot pause {uid}"):
            dom = self._running(uid)
            if self._paused(dom) is None:
                dom.suspend()

    def unpause(self, uid: str) -> None:
        with self._errors(f"cannot unpause {uid}"):
            dom = self._running(uid)
            if self._paused(dom) is not None:
                dom.resume()

    def reset(self, uid: str) -> None:
        with self._errors(f"cannot reset {uid}"):
            self._running(uid).reset(0)

    def reboot(self, uid: str) -> None:
        with self._errors(f"cannot reboot {uid}"):
            self._running(uid).reboot(self._lib.VIR_DOMAIN_REBOOT_ACPI_POWER_BTN)

    def _running(self, uid: str) -> Any:
        dom = self._find(uid)
        if dom is None or not dom.isActive():
            raise HypervisorError(f"the machine of instance {uid} does not run at {self.uri}")
        return dom

    def request_shutdown(self, uid: str) -> bool:
        """Press the power button. Whether it still runs and may hear it: one that is paused does not."""
        with self._errors(f"cannot shut {uid} down"):
            dom = self._find(uid)
            if dom is None or not dom.isActive() or self._paused(dom) is not None:
                return False
            try:
                dom.shutdownFlags(self._lib.VIR_DOMAIN_SHUTDOWN_ACPI_POWER_BTN)
            except self._lib.libvirtError as error:
                if not self.alive():
                    raise
                if not dom.isActive():
                    return False
                log.warning("%s cannot be asked to shut down (%s); it is forced later", dom.name(), error)
            return True

    def destroy(self, uid: str) -> None:
        """Force it off and leave nothing of it."""
        with self._errors(f"cannot end {uid}"):
            dom = self._find(uid)
            if dom is None:
                return
            with self._gone():
                try:
                    dom.destroy()
                except self._lib.libvirtError as error:
                    if error.get_error_code() != self._lib.VIR_ERR_OPERATION_INVALID or dom.isActive():
                        raise  # else: it was not running
                self._undefine(dom)

    def _undefine(self, dom: Any) -> None:
        lib = self._lib
        if path := self._mark(dom).get("drive"):
            drives.remove(Path(path))
        if dom.isPersistent():
            dom.undefineFlags(lib.VIR_DOMAIN_UNDEFINE_MANAGED_SAVE | lib.VIR_DOMAIN_UNDEFINE_SNAPSHOTS_METADATA
                              | lib.VIR_DOMAIN_UNDEFINE_NVRAM)
