"""Virtual functions, switched on where the settings ask for them. A physical function on which somebody else switched on
another number is left as it is, unless the setting says `replace`; one that is in use, or whose virtual functions are, always
is: with virtual functions it could not be handed over any more."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence

from outfitter.inventory import provisioning
from outfitter.inventory.pci import HostDevice
from outfitter.inventory.provisioning import Virtual
from outfitter.node import vfio
from outfitter.node.host_env import HostEnv
from outfitter.node.sysfs_root import Root


def arrange(
    station: HostEnv, wanted: Sequence[Virtual], functions: Sequence[HostDevice], used: Collection[str]
) -> Iterator[str]:
    """Bring the numbers about; what could not be done, as sentences. `functions`: those of the host; `used`: addresses that
    machines have or that are booked, and those that would go with them."""
    for function in functions:
        entry = provisioning.entry_for(wanted, function)
        if entry is not None and (trouble := _switch(station, entry, function, functions, used)):
            yield trouble


def _switch(
    station: HostEnv, entry: Virtual, pf: HostDevice, functions: Sequence[HostDevice], used: Collection[str]
) -> str | None:
    root, checkpoint = station.root, station.checkpoint
    path, have, ours = f"{vfio.DEVICES}/{pf.address}/sriov_numvfs", pf.num_vfs or 0, checkpoint.vfs.get(pf.address)
    if have == entry.count:
        if ours and not have:  # we died after they were switched off
            checkpoint.switched({**checkpoint.vfs, pf.address: 0})
        return None
    what = f"{pf.address} has {have} virtual functions, and {entry.count} are asked for"
    if pf.total_vfs is not None and entry.count > pf.total_vfs:
        return f"{what}: it can have {pf.total_vfs} at most"
    busy = [one.address for one in functions if pf.address in (one.address, one.parent) and one.address in used]
    if busy:
        return f"{what}: it is left as it is while {', '.join(busy)} {'is' if len(busy) == 1 else 'are'} in use"
    if have and have != ours and not entry.replace:
        return f"{what}: somebody else switched them on; say replace: yes in its entry of sriov to change that"
    trouble = _set(root, path, 0) if have else None
    if trouble is None:
        # Those that are there are ours until they are off, and new ones before they are there.
        checkpoint.switched({**checkpoint.vfs, pf.address: entry.count})
        trouble = _set(root, path, entry.count) if entry.count else None
    return None if trouble is None else f"{what}: {trouble}"


def _set(root: Root, path: str, count: int) -> str | None:
    """Why there is another number of virtual functions after this one was written."""
    try:
        root.write(path, str(count))
    except OSError as error:
        return f"writing to {path}: {os.strerror(error.errno or 0)}"
    now = (root.read(path) or "").strip()
    return None if now == str(count) else f"after it was switched it has {now or 'none'}"
