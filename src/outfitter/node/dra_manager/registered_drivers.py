"""The file `outfitter_dra_drivers` in the kubelet's folder: a JSON list of the drivers that have registered and whose slices
were not deleted since. By it an agent knows after its restart which slices are those of a driver that went meanwhile. A file
that is lost or damaged counts as empty: slices are left alone. Called by `driver_controller`."""

from __future__ import annotations

import json
import logging

from outfitter.node.atomic_files import Files

log = logging.getLogger(__name__)
FILE = "outfitter_dra_drivers"


def read(files: Files) -> list[str]:
    try:
        found = json.loads(files.read(FILE) or "[]")
    except (OSError, ValueError) as error:
        log.warning("%s cannot be read, and is written again: %s", files.at(FILE), error)
        return []
    return [driver for driver in found if isinstance(driver, str)] if isinstance(found, list) else []


def change(files: Files, driver: str, *, registered: bool) -> None:
    """Add a driver, or remove it. A file that cannot be written is logged: nothing else depends on it."""
    known = read(files)
    if (driver in known) is registered:
        return
    drivers = sorted({*known, driver} if registered else set(known) - {driver})
    try:
        files.write(FILE, json.dumps(drivers))
    except OSError as error:
        log.warning("%s cannot be written: %s", files.at(FILE), error)
