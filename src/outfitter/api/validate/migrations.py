"""The rules of VirtualMachineInstanceMigrations: what is refused before anything is booked. Called by admission, with lookups
of the VMI, of other migrations of it and of the requested host."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from outfitter.api import conditions, kinds
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import live_migratable, migration, vm
from outfitter.api.validate import names, readable
from outfitter.api.write_request import WriteRequest
from outfitter.errors import Cause

VMI_NAME = "spec.vmiName"
SELECTOR = "spec.addedNodeSelector"


def check(change: WriteRequest, *, by_user: bool) -> Iterator[Cause]:
    new = change.new
    spec = new.get("spec") or {}
    if change.old is not None:
        yield from changed(new, change.old)
        return
    yield from names.required(spec.get("vmiName"), VMI_NAME, "the VMI to migrate")
    yield from names.labels(spec.get("addedNodeSelector"), SELECTOR)
    if by_user and spec.get("priority"):
        yield Cause("spec.priority", "Forbidden: only components of the system set the priority of a migration: remove it",
                    "FieldValueForbidden")
    for field in ("receive", "sendTo"):
        if spec.get(field) is not None:
            yield Cause(f"spec.{field}", "Forbidden: migrations between clusters are not supported: remove it",
                        "FieldValueForbidden")
    if spec.get("vmiName"):
        yield from _vmi(change, str(spec["vmiName"]))


def changed(new: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[Cause]:
    """spec is immutable; so is the label by which it is found, until it has ended."""
    if new.get("spec") != old.get("spec"):
        yield Cause("spec", "Forbidden: the spec of a migration is immutable: delete it, which cancels it, and create another",
                    "FieldValueForbidden")
    now, was = ((obj["metadata"].get("labels") or {}).get(migration.VMI_NAME) for obj in (new, old))
    if now != was and not migration.is_finished(old):
        yield Cause(f"metadata.labels[{migration.VMI_NAME}]", "Forbidden: this label is kept until the migration has ended",
                    "FieldValueForbidden")


def with_defaults(obj: Object) -> None:
    """The label by which virtctl finds it, and the finalizer: it stays until what its target had is released."""
    meta, name = obj["metadata"], migration.vmi_name(obj)
    if name and isinstance(meta.get("labels") or {}, dict):
        meta["labels"] = {**(meta.get("labels") or {}), migration.VMI_NAME: name[:63].rstrip("-.")}
    have = meta.get("finalizers") or []
    if isinstance(have, list) and migration.FINALIZER not in have:
        meta["finalizers"] = [*have, migration.FINALIZER]


def _vmi(change: WriteRequest, name: str) -> Iterator[Cause]:
    namespace = change.new["metadata"].get("namespace") or ""
    vmi = change.look(kinds.VMI, namespace, name)
    if vmi is None:
        yield Cause(VMI_NAME, f'Not found: "{name}": there is no VMI {namespace}/{name}: name one that runs',
                    "FieldValueNotFound")
        return
    if readable.problem(kinds.VMI, vmi) is not None:
        yield Cause(VMI_NAME, f'Invalid value: "{name}": VMI {namespace}/{name} cannot be read: repair it first')
        return
    status = vmi.get("status") or {}
    if status.get("phase") in vm.FINAL or vmi["metadata"].get("deletionTimestamp"):
        yield Cause(VMI_NAME, f'Invalid value: "{name}": cannot migrate VMI in finalized state: it is being deleted or has '
                              "ended")
        return
    if status.get("phase") != "Running":
        yield Cause(VMI_NAME, f'Invalid value: "{name}": the VMI is not running (it is {status.get("phase") or "Pending"}): a '
                              "VM that does not run needs no migration; wait until it is Running")
        return
    blocked = conditions.find(vmi, live_migratable.TYPE)
    if blocked is None:
        computed = live_migratable.live_migratable(vmi)
        blocked = None if computed.status else {"status": "False", "reason": computed.reason, "message": computed.message}
    if blocked is not None and blocked.get("status") == "False":
        yield Cause(VMI_NAME, f'Invalid value: "{name}": cannot migrate VMI, it is not live migratable: '
                              f'{blocked.get("reason")}: {blocked.get("message")}')
    for record in change.indexed(kinds.MIGRATION, name):
        other = record.object()
        if other["metadata"].get("namespace") == namespace and readable.problem(kinds.MIGRATION, other) is None and (
                not migration.is_finished(other)):
            yield Cause(VMI_NAME, f'Invalid value: "{name}": in-flight migration detected: migration '
                                  f'{other["metadata"]["name"]} of this VMI is {migration.phase_of(other) or "Pending"}: wait '
                                  "until it has ended, or cancel it by deleting it")
            break
    if host := migration.requested_host(change.new):
        yield from _host(change, host, str(status.get("nodeName") or ""))


def _host(change: WriteRequest, host: str, source: str) -> Iterator[Cause]:
    path = f"{SELECTOR}[{migration.HOSTNAME}]"
    if host == source:
        yield Cause(path, f'Invalid value: "{host}": the VMI runs on {host} already: name another host, or none')
        return
    node = change.look(kinds.NODE, "", host)
    if node is not None:
        return
    known = [node["metadata"]["name"] for node in change.every(kinds.NODE)
             if ((node["metadata"].get("labels") or {}).get(migration.HOSTNAME)) == host]
    if not known:
        yield Cause(path, f'Not found: "{host}": there is no such host: kubectl get nodes lists them', "FieldValueNotFound")
