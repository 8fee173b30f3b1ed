"""Creates mediated devices where the settings ask for them. Their UUIDs follow from host, parent, type and number, so that
they are the same devices after every start. Those that were created here and are no longer configured are removed once they
are free."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence

from outfitter.inventory import mdev, provisioning, scan
from outfitter.inventory.provisioning import Mediated
from outfitter.node.devices.checkpoint import Made
from outfitter.node.host_env import HostEnv
from outfitter.node.sysfs_root import Root


def provision(
    host_env: HostEnv, wanted: Sequence[Mediated], found: scan.Scan, used: Collection[str]
) -> Iterator[str]:
    """Create what is missing and remove what is not configured; a warning for each that failed. `used`: UUIDs that VMs have or
    that are booked."""
    root, checkpoint, host = host_env.root, host_env.checkpoint, host_env.host
    parents = provisioning.parents(found.devices, found.parents)
    asked = {name: Made(name, parent, entry.type)
             for entry in wanted for parent, types in parents.items()
             if entry.parent in (None, parent) and any(one.id == entry.type for one in types) for number in range(entry.count)
             for name in [provisioning.mdev_uuid(host, parent, entry.type, number)]}
    for entry in wanted:
        if not any(one.type == entry.type and entry.parent in (None, one.parent) for one in asked.values()) and entry.count:
            where = f"{entry.parent} does not have" if entry.parent else "no parent on this host has"
            yield f"mediated devices of type {entry.type} cannot be created: {where} that type"
    there = {one.uuid for one in found.mdevs}
    for one in checkpoint.made:
        if one.uuid in asked or one.uuid not in there:
            continue
        if one.uuid in used:
            yield f"mediated device {one.uuid} is no longer configured and stays while it is in use"
        elif trouble := _write(root, f"{mdev.DEVICES}/{one.uuid}/remove", "1"):
            yield f"mediated device {one.uuid} could not be removed: {trouble}"
        else:
            there.discard(one.uuid)
    # Recorded before they are created, so that none is ever left that is not known to be ours.
    checkpoint.set_made([*(one for one in checkpoint.made if one.uuid in there and one.uuid not in asked), *asked.values()])
    for one in asked.values():
        if one.uuid in there:
            continue
        folder = f"{mdev.PARENTS}/{one.parent}/{mdev.TYPES}/{one.type}"
        trouble = _write(root, f"{folder}/create", one.uuid)
        if trouble or not root.exists(f"{mdev.DEVICES}/{one.uuid}"):
            why = trouble or "it did not appear"
            yield f"mediated device {one.uuid} ({one.type} of {one.parent}) could not be created: {why}"


def _write(root: Root, path: str, text: str) -> str | None:
    try:
        root.write(path, text)
    except OSError as error:
        return f"writing to {path}: {os.strerror(error.errno or 0)}"
    return None
