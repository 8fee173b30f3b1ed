"""What `sriov` and `mdev` of a configuration would make of a host, as `outfit config check` tells it."""

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
        yield from (f"    {line}" for line in _switched(index, virtual, settings.sriov, found.devices))
    for index, mediated in enumerate(settings.mdev):
        yield ""
        yield f"  mdev[{index}] {_mediated(mediated)}"
        yield from (f"    {line}" for line in _made(host, index, mediated, found))


def _virtual(entry: Virtual) -> str:
    words = {"address": entry.address, "vendor_id": entry.vendor, "product_id": entry.product, "count": entry.count,
             "replace": "yes" if entry.replace else None}
    return ", ".join(f"{key} {value}" for key, value in words.items() if value is not None)


def _mediated(entry: Mediated) -> str:
    words = {"type": entry.type, "parent": entry.parent, "count": entry.count}
    return ", ".join(f"{key} {value}" for key, value in words.items() if value is not None)


# -- virtual functions

def _switched(index: int, entry: Virtual, wanted: Sequence[Virtual], devices: Sequence[HostDevice]) -> Iterator[str]:
    from outfitter.inventory import provisioning  # noqa: PLC0415

    meant = [device for device in devices if entry.matches(device)]
    mine = [device for device in meant if provisioning.entry_for(wanted, device) is entry]
    for device in mine:
        yield from _numbers(index, entry, device)
    if not mine:
        yield f"makes nothing: {_why_not(index, entry, wanted, meant, devices)}"


def _numbers(index: int, entry: Virtual, card: HostDevice) -> Iterator[str]:
    have, most = card.num_vfs or 0, card.total_vfs
    has = f"has {_functions(have)}"
    if have == entry.count:
        yield f"{card.address} {has}, as asked for"
    elif most is not None and entry.count > most:
        yield f"{card.address} {has}, and is left as it is"
        yield (f"warning: sriov[{index}].count: {entry.count} are asked for, and {card.address} can have {most} at most; "
               f"write {most} or less")
    elif not have:
        yield f"{card.address} gets {_functions(entry.count)}; it has none" + (f", and can have {most}" if most else "")
    elif entry.replace:
        yield f"{card.address} {has}, and gets {entry.count or 'none'} instead, unless one of them is in use"
    else:
        yield f"{card.address} {has}, and gets {entry.count or 'none'} instead only if outfitter switched them on"
        yield f"warning: sriov[{index}].replace: if somebody else did, it is left as it is; to change that write replace: yes"


def _why_not(
    index: int, entry: Virtual, wanted: Sequence[Virtual], meant: Sequence[HostDevice], devices: Sequence[HostDevice]
) -> str:
    if meant:
        earlier = sorted({place for device in meant for place, one in enumerate(wanted[:index]) if one.matches(device)})
        return f"what it means is meant before, by {' and '.join(f'sriov[{place}]' for place in earlier)}"
    named = [device for device in devices if entry.address in (None, device.address)
             and entry.vendor in (None, device.vendor) and entry.product in (None, device.product)]
    if named:
        return f"{named[0].address} {'is itself a virtual function' if named[0].parent else 'can have no virtual functions'}"
    cards = [f"{device.address} ({device.vendor}:{device.product})" for device in devices if device.total_vfs]
    return "no card of this host fits; those with virtual functions are " + ", ".join(cards) if cards else (
        "no card of this host has virtual functions")


def _functions(count: int) -> str:
    return f"{count or 'no'} virtual function{'' if count == 1 else 's'}"


# -- mediated devices

def _made(host: str, index: int, entry: Mediated, found: Scan) -> Iterator[str]:
    from outfitter.inventory import provisioning  # noqa: PLC0415

    parents = provisioning.parents(found.devices, found.parents)
    fit = {parent: type_ for parent, types in parents.items() if entry.parent in (None, parent)
           for type_ in types if type_.id == entry.type}
    for parent, type_ in fit.items():
        ours = {provisioning.mdev_uuid(host, parent, entry.type, number) for number in range(entry.count)}
        there = ours & {one.uuid for one in found.mdevs}
        yield f"{parent} {_numbered(entry, type_, len(there), len(set(type_.instances) - ours))}"
        if (most := type_.available) is not None and most < entry.count - len(there):
            yield (f"warning: mdev[{index}].count: {parent} can make {most or 'no'} more of {type_.id}, and "
                   f"{entry.count - len(there)} are missing: what cannot be made is left out")
    if fit:
        return
    if not parents:
        yield "makes nothing: nothing on this host makes mediated devices"
    elif entry.parent is not None and entry.parent not in parents:
        yield f"warning: mdev[{index}].parent: {entry.parent} makes no mediated devices; those that do are {', '.join(parents)}"
    else:
        known = sorted({type_.id for parent, types in parents.items() if entry.parent in (None, parent) for type_ in types})
        lacks = f"{entry.parent} does not have" if entry.parent else "nothing on this host has"
        yield f"warning: mdev[{index}].type: {lacks} the type {entry.type}; it is one of {', '.join(known)}"


def _numbered(entry: Mediated, type_: MdevType, there: int, others: int) -> str:
    """What a parent has and gets. `there`: how many of ours it has; `others`: how many of the type that are not ours."""
    name = f"{type_.id} ({type_.name})" if type_.name != type_.id else type_.id
    beside = f"; {others} that others made {'stays' if others == 1 else 'stay'}" if others else ""
    if there == entry.count:
        return f"has {there or 'none'} of {name}, as asked for{beside}"
    gets = min(entry.count - there, entry.count if type_.available is None else type_.available)
    return f"gets {gets or 'none'} of {name}; it has {there or 'none'} of those{beside}"
