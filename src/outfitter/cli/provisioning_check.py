"""What `sriov` and `mdev` of a configuration would provision on a host, as lines of `outfit config check`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from outfitter.inventory.config import HostSettings
    from outfitter.inventory.mdev import MdevType
    from outfitter.inventory.pci import HostDevice
    from outfitter.inventory.provisioning import Mediated, Virtual
    from outfitter.inventory.scan import Scan


def lines(host: str, settings: HostSettings, found: Scan) -> Iterator[str]:
    for index, virtual in enumerate(settings.sriov):
        yield ""
        yield f"  sriov[{index}] {_virtual(virtual)}"
        yield from (f"    {line}" for line in _vf_lines(index, virtual, settings.sriov, found.devices))
    for index, mediated in enumerate(settings.mdev):
        yield ""
        yield f"  mdev[{index}] {_mediated(mediated)}"
        yield from (f"    {line}" for line in _mdev_lines(host, index, mediated, found))


def _virtual(entry: Virtual) -> str:
    words = {"address": entry.address, "vendor_id": entry.vendor, "product_id": entry.product, "count": entry.count,
             "replace": "yes" if entry.replace else None}
    return ", ".join(f"{key} {value}" for key, value in words.items() if value is not None)


def _mediated(entry: Mediated) -> str:
    words = {"type": entry.type, "parent": entry.parent, "count": entry.count}
    return ", ".join(f"{key} {value}" for key, value in words.items() if value is not None)


# -- virtual functions

def _vf_lines(index: int, entry: Virtual, wanted: Sequence[Virtual], devices: Sequence[HostDevice]) -> Iterator[str]:
    from outfitter.inventory import provisioning  # noqa: PLC0415

    matching = [device for device in devices if entry.matches(device)]
    applied = [device for device in matching if provisioning.entry_for(wanted, device) is entry]
    for device in applied:
        yield from _vf_counts(index, entry, device)
    if not applied:
        yield f"creates nothing: {_no_match_reason(index, entry, wanted, matching, devices)}"


def _vf_counts(index: int, entry: Virtual, pf: HostDevice) -> Iterator[str]:
    have, most = pf.num_vfs or 0, pf.total_vfs
    has = f"has {_functions(have)}"
    if have == entry.count:
        yield f"{pf.address} {has}, as configured"
    elif most is not None and entry.count > most:
        yield f"{pf.address} {has}, and is not changed"
        yield (f"warning: sriov[{index}].count: {entry.count} is more than the {most} that {pf.address} supports; "
               f"write {most} or less")
    elif not have:
        yield f"{pf.address} gets {_functions(entry.count)}; it has none" + (f", and supports {most}" if most else "")
    elif entry.replace:
        yield f"{pf.address} {has}, and gets {entry.count or 'none'} instead, unless one of them is in use"
    else:
        yield f"{pf.address} {has}, and gets {entry.count or 'none'} instead only if Outfitter created them"
        yield (f"warning: sriov[{index}].replace: virtual functions that others created are not changed; "
               "to replace them write replace: yes")


def _no_match_reason(
    index: int, entry: Virtual, wanted: Sequence[Virtual], matching: Sequence[HostDevice], devices: Sequence[HostDevice]
) -> str:
    if matching:
        earlier = sorted({place for device in matching for place, other in enumerate(wanted[:index]) if other.matches(device)})
        return f"its devices are matched earlier, by {' and '.join(f'sriov[{place}]' for place in earlier)}"
    named = [device for device in devices if entry.address in (None, device.address)
             and entry.vendor in (None, device.vendor) and entry.product in (None, device.product)]
    if named:
        return f"{named[0].address} {'is itself a virtual function' if named[0].parent else 'supports no virtual functions'}"
    capable = [f"{device.address} ({device.vendor}:{device.product})" for device in devices if device.total_vfs]
    return "no device of this host matches; those that support virtual functions are " + ", ".join(capable) if capable else (
        "no device of this host supports virtual functions")


def _functions(count: int) -> str:
    return f"{count or 'no'} virtual function{'' if count == 1 else 's'}"


# -- mediated devices

def _mdev_lines(host: str, index: int, entry: Mediated, found: Scan) -> Iterator[str]:
    from outfitter.inventory import provisioning  # noqa: PLC0415

    parents = provisioning.parents(found.devices, found.parents)
    fit = {parent: type_ for parent, types in parents.items() if entry.parent in (None, parent)
           for type_ in types if type_.id == entry.type}
    for parent, type_ in fit.items():
        ours = {provisioning.mdev_uuid(host, parent, entry.type, number) for number in range(entry.count)}
        there = ours & {mdev.uuid for mdev in found.mdevs}
        yield f"{parent} {_mdev_counts(entry, type_, len(there), len(set(type_.instances) - ours))}"
        if (most := type_.available) is not None and most < entry.count - len(there):
            yield (f"warning: mdev[{index}].count: {parent} can create {most or 'no'} more of {type_.id}, and "
                   f"{entry.count - len(there)} are missing: the rest is skipped")
    if fit:
        return
    if not parents:
        yield "creates nothing: no device of this host supports mediated devices"
    elif entry.parent is not None and entry.parent not in parents:
        yield f"warning: mdev[{index}].parent: {entry.parent} supports no mediated devices; use one of {', '.join(parents)}"
    else:
        known = sorted({type_.id for parent, types in parents.items() if entry.parent in (None, parent) for type_ in types})
        lacks = f"{entry.parent} does not have" if entry.parent else "no device of this host has"
        yield f"warning: mdev[{index}].type: {lacks} the type {entry.type}; supported: {', '.join(known)}"


def _mdev_counts(entry: Mediated, type_: MdevType, there: int, others: int) -> str:
    """How many mediated devices a parent has and gets. `there`: those that Outfitter created; `others`: the rest of the
    type."""
    name = f"{type_.id} ({type_.name})" if type_.name != type_.id else type_.id
    beside = f"; {others} created by others {'stays' if others == 1 else 'stay'}" if others else ""
    if there == entry.count:
        return f"has {there or 'none'} of {name}, as configured{beside}"
    gets = min(entry.count - there, entry.count if type_.available is None else type_.available)
    return f"gets {gets or 'none'} of {name}; it has {there or 'none'} of those{beside}"
