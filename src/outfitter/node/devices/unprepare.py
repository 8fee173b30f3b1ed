"""Unprepares a claim's devices: removes its files, then resets each function and restores the driver that it had.

The caller then releases the bookings on the page, and last removes the claim from the checkpoint: until then a start after a
crash does all of it again, which is safe."""

from __future__ import annotations

from collections.abc import Collection

from outfitter.errors import BindFailed, NotReady
from outfitter.node.devices import cdi, vfio
from outfitter.node.host_env import HostEnv


def unprepare(host_env: HostEnv, uid: str, *, running: Collection[str] = ()) -> dict[str, str]:
    """Device -> why it could not be restored: it must not be allocated again. NotReady, before anything is touched: a VM still
    has one. `running`: addresses and UUIDs that VMs have."""
    taken = host_env.checkpoint.of(uid)
    shared = {where for one in host_env.checkpoint.taken if one.uid != uid for where in one.places}
    for one in taken:
        if used := sorted(one.places.intersection(running) - shared):
            raise NotReady(f"{one.device} of claim {one.claim} in {one.namespace} is not unprepared: a VM still has "
                           f"{', '.join(used)}")
    for name in dict.fromkeys(name for one in taken for name in one.files):
        host_env.metadata.remove(name)
    if taken:
        host_env.cdi.remove(cdi.file_name(host_env.driver, uid))
    faults: dict[str, str] = {}
    for one in taken:
        for before in one.functions:
            if before.address in shared:
                continue
            try:
                vfio.restore(host_env.root, before)
            except BindFailed as error:
                faults[one.device] = "; ".join(filter(None, (faults.get(one.device), error.message)))
    return faults
