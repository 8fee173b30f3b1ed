"""Creates VFs where the settings ask for them. A PF that has another number of VFs which outfitter did not create is left as
it is, unless its entry has `replace`; a PF that is in use, or whose VFs are, always is: with VFs it could not be prepared
itself."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence

from outfitter.inventory import provisioning
from outfitter.inventory.pci import HostDevice
from outfitter.inventory.provisioning import Virtual
from outfitter.node.devices import vfio
from outfitter.node.host_env import HostEnv
from outfitter.node.sysfs_root import Root


def provision(
    host_env: HostEnv, wanted: Sequence[Virtual], functions: Sequence[HostDevice], used: Collection[str]
) -> Iterator[str]:
    """Create the configured numbers of VFs; a warning for each PF that failed. `functions`: those of the host; `used`:
    addresses that VMs have or that are booked, and those of their IOMMU groups."""
    for function in functions:
        entry = provisioning.entry_for(wanted, function)
        if entry is not None and (trouble := _switch(host_env, entry, function, functions, used)):
            yield trouble


def _switch(
    host_env: HostEnv, entry: Virtual, pf: HostDevice, functions: Sequence[HostDevice], used: Collection[str]
) -> str | None:
    root, checkpoint = host_env.root, host_env.checkpoint
    path, have, ours = f"{vfio.DEVICES}/{pf.address}/sriov_numvfs", pf.num_vfs or 0, checkpoint.vfs.get(pf.address)
    if have == entry.count:
        if ours and not have:  # a crash after they were removed
            checkpoint.set_vfs({**checkpoint.vfs, pf.address: 0})
        return None
    what = f"{pf.address} has {have} VFs, and {entry.count} are configured"
    if pf.total_vfs is not None and entry.count > pf.total_vfs:
        return f"{what}: it can have {pf.total_vfs} at most"
    busy = [one.address for one in functions if pf.address in (one.address, one.parent) and one.address in used]
    if busy:
        return f"{what}: it is left as it is while {', '.join(busy)} {'is' if len(busy) == 1 else 'are'} in use"
    if have and have != ours and not entry.replace:
        return f"{what}: they were not created by outfitter; set replace: yes in its entry of sriov to change them"
    trouble = _set(root, path, 0) if have else None
    if trouble is None:
        # Recorded as ours until the old ones are removed, and before the new ones are created.
        checkpoint.set_vfs({**checkpoint.vfs, pf.address: entry.count})
        trouble = _set(root, path, entry.count) if entry.count else None
    return None if trouble is None else f"{what}: {trouble}"


def _set(root: Root, path: str, count: int) -> str | None:
    """Why there is another number of VFs after this one was written."""
    try:
        root.write(path, str(count))
    except OSError as error:
        return f"writing to {path}: {os.strerror(error.errno or 0)}"
    now = (root.read(path) or "").strip()
    return None if now == str(count) else f"after the write it has {now or 'none'}"
