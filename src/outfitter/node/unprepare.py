"""Takes a claim's devices back: the files go, then each function is reset and given back to the driver that it had. The caller
then writes the page, and last the checkpoint forgets the claim: until then a start after a crash does all of it again, which
is no harm."""

from __future__ import annotations

from collections.abc import Collection

from outfitter.errors import BindFailed, NotReady
from outfitter.node import cdi, vfio
from outfitter.node.host_env import HostEnv


def unprepare(station: HostEnv, uid: str, *, running: Collection[str] = ()) -> dict[str, str]:
    """Device -> why it could not be brought back to where it was: it must not be given to anybody else. NotReady, before
    anything is touched: a machine still has one. `running`: addresses and UUIDs that machines have."""
    taken = station.checkpoint.of(uid)
    shared = {where for one in station.checkpoint.taken if one.uid != uid for where in one.places}
    for one in taken:
        if used := sorted(one.places.intersection(running) - shared):
            raise NotReady(f"{one.device} of claim {one.claim} in {one.namespace} is not taken back: a machine still has "
                           f"{', '.join(used)}")
    for name in dict.fromkeys(name for one in taken for name in one.files):
        station.metadata.remove(name)
    if taken:
        station.cdi.remove(cdi.file_name(station.driver, uid))
    trouble: dict[str, str] = {}
    for one in taken:
        for before in one.functions:
            if before.address in shared:
                continue
            try:
                vfio.give_back(station.root, before)
            except BindFailed as error:
                trouble[one.device] = "; ".join(filter(None, (trouble.get(one.device), error.message)))
    return trouble
