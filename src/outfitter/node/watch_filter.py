"""Which watch updates the agent reconciles a pod for: those that change something which the agent goes by. Pure.

Every write of another controller, and of the agent itself, comes back as a watch update. Most change fields that the agent does
not read. An update that is dropped here by mistake is a VM that waits for ever: when in doubt the answer is yes. The fields
that the agent reads are listed here and nowhere else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from outfitter.api import conditions
from outfitter.api.device import DeviceId
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import device_refs, device_status, migration, vm, vmi_actions
from outfitter.api.ledger_page.booking import Booking, device_of
from outfitter.api.ledger_page.page_entries import changed_bookings, raw_entries, readable_device

MIGRATION = ("migrationUid", "targetPod", "targetNodeAddress", "targetCertificate", "sourceCertificate", "startTimestamp",
             "abortRequested", "sourceDomainLeft", "completed")  # of status.migrationState


def pod_changed(old: Object | None, new: Object) -> bool:
    """Whether a pod changed in anything but what the API server counts and the conditions that others write."""
    return old is None or _pod(old) != _pod(new)


def vmi_changed(old: Object | None, new: Object | None) -> bool:
    """Whether a VMI changed in what decides when its domain is started, or in what is asked of a running one."""
    return old is None or new is None or _vmi(old) != _vmi(new)


def newly_booked(old: Object | None, new: Object | None) -> set[str]:
    """The claims ("namespace/name") that got a booking on a page."""
    gone, added = changed_bookings(old, new)
    known = set(map(_held, gone))
    return {f"{booking.holder.namespace}/{booking.holder.name}" for booking in added if _held(booking) not in known}


def released(old: Object | None, new: Object | None) -> bool:
    """Whether a booking went from a page, so that a claim which waits for the device may get it."""
    gone, added = changed_bookings(old, new)
    return not set(map(_held, gone)) <= set(map(_held, added))


def quarantine_changed(old: Object | None, new: Object | None) -> set[DeviceId]:
    """The devices of which a page got, lost or changed a quarantine record."""
    before, after = (raw_entries(page, "quarantined") for page in (old, new))
    return {device_of(raw["device"]) for raw in (*before, *after)
            if readable_device(raw) and (raw in before) is not (raw in after)} if before != after else set()


def _pod(pod: Object) -> object:
    meta, status = pod["metadata"], pod.get("status") or {}
    return (
        {key: value for key, value in meta.items() if key not in ("resourceVersion", "generation", "managedFields")},
        pod["spec"],
        {key: value for key, value in status.items() if key != "conditions"},
        conditions.is_true(pod, vmi_actions.UNPAUSED),
    )


def _vmi(vmi: Object) -> object:
    meta, status = vmi["metadata"], vmi.get("status") or {}
    phase = status.get("phase")
    common = (meta["uid"], meta.get("generation"), meta.get("deletionTimestamp"), sorted(status.get("activePods") or ()))
    if phase == "Scheduled":  # its domain is started once the status contains its devices
        return (*common, phase, status.get("deviceStatus"), status.get("flavor"))
    if phase == "Running":
        paused = conditions.find(vmi, vmi_actions.PAUSED) or {}
        moves = {field: migration.state(vmi).get(field) for field in MIGRATION}
        return (*common, phase, status.get(vmi_actions.FIELD), paused.get("reason"), status.get("nodeName"), moves,
                _devices(status))  # what was booked for it is plugged
    return (*common, phase if phase in vm.FINAL else "waiting")


def _devices(status: Mapping[str, Any]) -> object:
    """The devices of a VMI, without those of its NICs."""
    return [device_status.statuses({"status": status}, list_) for list_ in device_refs.LISTS]


def _held(booking: Booking) -> tuple[str, DeviceId]:
    return booking.holder.uid, booking.device
