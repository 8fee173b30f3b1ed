"""Live migration by libvirt: the calls on one connection. Every function blocks and is called from a thread; `libvirt.py` is
the asynchronous interface.

The copy is peer to peer: the source's daemon connects to the target's, so that it goes on when this process is killed. libvirt
resumes it on the source unless the target has confirmed that it runs. If the target's daemon is killed in between, QEMU
refuses that, as the target's has the locks of the disks, and the domain stays stopped on the source; if the source's is killed
while it waits for the confirmation, it does not resume it either. The caller decides: `abort` resumes it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from outfitter.api.hypervisor import Domain, MigrationJob, MigrationLimits, MigrationTarget
from outfitter.errors import HypervisorError
from outfitter.launcher import domain as domains
from outfitter.launcher import iso_image as drives
from outfitter.launcher.connection import Connection

LOOPBACK = "tcp://127.0.0.1"  # of the data, where both daemons are on one host; libvirt chooses the port
MIB = 1 << 20


def prepare_incoming(connection: Connection, domain: Domain) -> None:
    with connection.errors(f"cannot prepare for {domain.name}"):
        existing = connection.find(domain.uid)
        if existing is not None and connection.is_starting(existing):  # of an arrival that was interrupted
            connection.end_start(existing)
            existing = connection.find(domain.uid)
        if existing is not None and not existing.isActive():  # left by an earlier stay
            connection.undefine(existing)
    if domain.drive is not None:
        drives.write(domain.drive)


def incoming(connection: Connection, folder: Path) -> frozenset[str]:
    """Config drives of no domain: of those without one nothing is prepared."""
    with connection.errors("cannot list its domains"):
        known = {connection.vmi_uid(dom) for dom in connection.all_domains()}
    return frozenset(path.stem for path in folder.glob("*.iso") if path.stem not in known) if folder.is_dir() else frozenset()


def cancel_incoming(connection: Connection, uid: str, folder: Path) -> None:
    with connection.errors(f"cannot cancel the arrival of {uid}"):
        dom = connection.find(uid)
        if dom is not None and dom.isActive() and not (
                connection.is_starting(dom) or connection.is_stopped_for_migration(dom)):
            return  # it has arrived
        if dom is not None:
            with connection.gone():
                if not dom.isActive() or connection.end_domain(dom):
                    connection.undefine(dom)
    drives.remove(folder / f"{uid}.iso")


def migrate(connection: Connection, uid: str, target: MigrationTarget, limits: MigrationLimits) -> None:
    """Returns when the domain runs on the target. HypervisorError: it runs on here, or is stopped (see above)."""
    lib = connection.lib
    with connection.errors(f"cannot migrate {uid} to {target.address}"):
        dom = connection.running(uid)
        flags = (lib.VIR_MIGRATE_LIVE | lib.VIR_MIGRATE_PEER2PEER | lib.VIR_MIGRATE_PERSIST_DEST
                 | lib.VIR_MIGRATE_UNDEFINE_SOURCE | lib.VIR_MIGRATE_ABORT_ON_ERROR
                 | lib.VIR_MIGRATE_UNSAFE)  # which disks may migrate is decided by condition LiveMigratable
        if limits.auto_converge:
            flags |= lib.VIR_MIGRATE_AUTO_CONVERGE
        try:
            dom.migrateToURI3(target.address, _parameters(lib, dom, target, limits), flags)
        except lib.libvirtError as error:
            if not connection.alive():
                raise
            message = f"libvirt cannot migrate {uid} to {target.address}: {error}"
            raise HypervisorError(message) from error  # also where the target's libvirt is away


def _parameters(lib: Any, dom: Any, target: MigrationTarget, limits: MigrationLimits) -> dict[str, Any]:
    live = dom.XMLDesc(lib.VIR_DOMAIN_XML_MIGRATABLE | lib.VIR_DOMAIN_XML_SECURE)
    kept = dom.XMLDesc(lib.VIR_DOMAIN_XML_INACTIVE | lib.VIR_DOMAIN_XML_SECURE)
    parameters: dict[str, Any] = {
        lib.VIR_MIGRATE_PARAM_DEST_XML: domains.moved(live, target),
        lib.VIR_MIGRATE_PARAM_PERSIST_XML: domains.moved(kept, target),
    }
    if target.data:
        parameters[lib.VIR_MIGRATE_PARAM_URI] = target.data
    elif not urlsplit(target.address).hostname:
        parameters[lib.VIR_MIGRATE_PARAM_URI] = LOOPBACK
    if limits.bandwidth:
        parameters[lib.VIR_MIGRATE_PARAM_BANDWIDTH] = max(1, limits.bandwidth // MIB)
    return parameters


def job(connection: Connection, uid: str) -> MigrationJob | None:
    """The migration of a domain that runs here; None: there is none, or the domain has just left."""
    with connection.errors(f"does not report the migration of {uid}"), connection.gone():
        dom = connection.find(uid)
        found = _job_stats(connection, dom) if dom is not None and dom.isActive() else None
        if found is not None:
            return MigrationJob(int(found.get("memory_total", 0)), int(found.get("memory_remaining", 0)),
                                int(found.get("memory_processed", 0)), int(found.get("memory_iteration", 0)))
    return None


def abort(connection: Connection, uid: str) -> None:
    """End a copy, or resume a domain that one which has ended left stopped."""
    with connection.errors(f"cannot abort the migration of {uid}"), connection.gone():
        dom = connection.find(uid)
        if dom is None or not dom.isActive():
            return
        if _job_stats(connection, dom) is not None:
            dom.abortJob()
        elif connection.is_stopped_for_migration(dom):
            dom.resume()


def _job_stats(connection: Connection, dom: Any) -> Mapping[str, Any] | None:
    """None: there is no job, or the domain ended meanwhile."""
    lib = connection.lib
    try:
        found: Mapping[str, Any] = dom.jobStats(0)
    except lib.libvirtError as error:
        if error.get_error_code() != lib.VIR_ERR_OPERATION_INVALID or dom.isActive():
            raise
        return None
    return None if found.get("type") in (lib.VIR_DOMAIN_JOB_NONE, None) else found
