"""How a host's devices are published: ResourceSlices of resource.k8s.io/v1, one pool per host.

A physical function and its virtual ones exclude each other: where both are offered, each virtual function takes one of a
shared counter and the physical one takes all of it, so that whoever allocates, Kubernetes included, gives one or the others."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from outfitter.api import kinds
from outfitter.api.device import PCI_BUS_ID
from outfitter.api.kinds import Object
from outfitter.api.providers import Provider
from outfitter.inventory import providers
from outfitter.inventory.assignable import AssignableDevice
from outfitter.inventory.mdev import Mdev
from outfitter.inventory.pci import FunctionKind, HostDevice
from outfitter.inventory.pci_ids import PciIds

PER_SLICE = 128  # devices that Kubernetes takes in one slice
PER_SLICE_COUNTED = 64  # and when one of them has taints or takes of counters
MAX_COUNTER_SETS = 8  # in one slice
MAX_NAME = 253  # characters of an object's name
MAX_TEXT = 64  # characters of an attribute's text
MAX_PIECES = 5  # attributes over which a list of traits may be spread: there are at most 32 for a device
STANDARD = "resource.kubernetes.io"
COUNTER = "functions"  # of a physical function: how many virtual ones it can be
# What a device has only while the host's own driver is bound to it; not news while a machine has it.
FOR_PEOPLE = ("vendorName", "productName", "className", "mdevTypeName")  # may be cut; a part of anything else would be a lie
VOLATILE = ("driver", "interface", "serial")

NO_PCI_IDS = PciIds(None)


def describe(offered: Sequence[AssignableDevice], names: PciIds = NO_PCI_IDS) -> list[Object]:
    """The devices as a slice lists them, without what they take of counters."""
    return [_mdev(one, one.device) if isinstance(one.device, Mdev) else _function(one, one.device, names) for one in offered]


@dataclass(frozen=True, slots=True)
class CounterSets:
    """Which devices exclude each other, because one is or has the physical function of the other."""

    sets: Mapping[str, int]  # device with a physical function -> how many virtual ones of it are published
    takes: Mapping[str, Mapping[str, int]]  # device -> counter set -> how much of it

    def on(self, device: Object) -> Object:
        """A device with what it takes."""
        out = {key: value for key, value in device.items() if key != "consumesCounters"}
        if taken := self.takes.get(device["name"]):
            out["consumesCounters"] = [{"counterSet": name, "counters": {COUNTER: {"value": str(amount)}}}
                                       for name, amount in taken.items()]
        return out


def counters(offered: Iterable[AssignableDevice], kept: Iterable[Mapping[str, object]] = ()) -> CounterSets:
    """Of all that is published: what is offered, and what is only kept until it is free."""
    units = [(one.name, one.members) for one in offered if isinstance(one.device, HostDevice)]
    units += [(function.name, (function,)) for function in map(published_function, kept) if function is not None]
    owners = {function.address: name for name, functions in units for function in functions if function.kind is FunctionKind.PF}
    sets: dict[str, int] = defaultdict(int)
    takes: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for name, functions in units:
        for function in functions:
            owner = owners.get(function.parent) if function.parent is not None else None
            if owner is not None and owner != name:
                sets[owner] += 1
                takes[name][owner] += 1
    for owner, count in sets.items():
        takes[owner][owner] = count
    return CounterSets(dict(sets), {name: dict(taken) for name, taken in takes.items()})


def pool(
    node: str, driver: str, devices: Sequence[Object], counters: Mapping[str, int], *, generation: int,
    node_uid: str | None = None,
) -> list[Object]:
    """The whole pool of a host at one generation; no slices if it offers nothing. With the uid of its Node object the slices go
    when the node goes.

    A pool that is one slice keeps its name, and is replaced. Several have names of their own in each generation: the old ones
    stand until all the new ones do, so that no device is ever in none of them."""
    each = PER_SLICE_COUNTED if any("taints" in one or "consumesCounters" in one for one in devices) else PER_SLICE
    parts: list[Object] = [{"devices": list(devices[start:start + each])} for start in range(0, len(devices), each)]
    sets = [{"name": name, "counters": {COUNTER: {"value": str(count)}}} for name, count in counters.items()]
    parts += [{"sharedCounters": sets[start:start + MAX_COUNTER_SETS]} for start in range(0, len(sets), MAX_COUNTER_SETS)]
    return [
        {
            "apiVersion": kinds.RESOURCE_SLICE.api_version,
            "kind": kinds.RESOURCE_SLICE.kind,
            "metadata": _metadata(_name(node, driver, f"g{generation}-{index}" if len(parts) > 1 else "0"), node, node_uid),
            "spec": {
                "driver": driver,
                "nodeName": node,
                "pool": {"name": node, "generation": generation, "resourceSliceCount": len(parts)},
                **part,
            },
        }
        for index, part in enumerate(parts)
    ]


def same_pool(some: Sequence[Object], others: Sequence[Object]) -> bool:
    """Whether two sets of slices have the same names and content, in any order: then there is nothing to write."""
    return _by_name(some) == _by_name(others)


def _by_name(objects: Sequence[Object]) -> list[tuple[str, Object]]:
    return sorted(((obj["metadata"]["name"], _content(obj)) for obj in objects), key=lambda pair: pair[0])


def _content(obj: Object) -> Object:
    """What a slice says: without its generation, and without when a taint was added."""
    spec = obj["spec"]
    out = {**spec, "pool": {key: value for key, value in spec["pool"].items() if key != "generation"}}
    if "devices" in spec:
        out["devices"] = [_untimed(device) for device in spec["devices"]]
    return out


def _untimed(device: Object) -> Object:
    if not device.get("taints"):
        return device
    taints = [{key: value for key, value in taint.items() if key != "timeAdded"} for taint in device["taints"]]
    return {**device, "taints": taints}


def _metadata(name: str, node: str, node_uid: str | None) -> Object:
    if node_uid is None:
        return {"name": name}
    owner = {"apiVersion": kinds.NODE.api_version, "kind": kinds.NODE.kind, "name": node, "uid": node_uid,
             "controller": True}
    return {"name": name, "ownerReferences": [owner]}


def _name(node: str, driver: str, part: str) -> str:
    """A DNS subdomain as node and driver are; a node's name too long for it is cut and told apart by a hash."""
    tail = f"-{driver}-{part}"
    if len(node) + len(tail) > MAX_NAME:
        mark = hashlib.sha256(node.encode()).hexdigest()[:10]
        room = MAX_NAME - len(tail) - len(mark) - 1
        node = f"{node[:room].rstrip('-.')}-{mark}"
    return node + tail


def _function(one: AssignableDevice, device: HostDevice, names: PciIds) -> Object:
    vendor, product = names.vendor_and_product(device.vendor, device.product)
    entry = one.entry
    texts = {
        PCI_BUS_ID: device.address,
        f"{STANDARD}/pcieRoot": device.pcie_root,
        "vendor": device.vendor,
        "product": device.product,
        "class": device.class_code,
        "vendorName": vendor,
        "productName": product,
        "className": names.class_name(device.class_code),
        "revision": device.revision,
        "driver": device.driver,
        "kind": device.kind.value,
        "parent": device.parent,
        "serial": device.serial,
        "interface": device.interfaces[0] if device.interfaces else None,
        "resourceClass": providers.resource_class(device, entry),
        "physicalNetwork": entry.physical_network if entry else None,
        **_pieces("members", [member.address for member in one.members] if len(one.members) > 1 else ()),
        **_pieces("traits", sorted(providers.traits(device, entry)), MAX_PIECES),
    }
    flags = {"liveMigratable": entry.live_migratable, "oneTimeUse": entry.one_time_use or None,
             "remoteManaged": entry.remote_managed or None} if entry else {}
    capacity = {"bandwidth": f"{device.speed}M"} if device.speed else {}
    return _device(one.name, texts, {f"{STANDARD}/numaNode": device.numa, "iommuGroup": device.iommu_group}, flags, capacity)


def _mdev(one: AssignableDevice, mdev: Mdev) -> Object:
    entry = one.entry
    texts = {
        f"{STANDARD}/pcieRoot": mdev.pcie_root,
        "mdevUUID": mdev.uuid,
        "mdevType": mdev.type_id,
        "mdevTypeName": mdev.type_name,
        "deviceApi": mdev.device_api,
        "kind": "MDEV",
        "parent": mdev.parent,
        **_pieces("traits", sorted(entry.traits) if entry else (), MAX_PIECES),
    }
    capacity = {"memory": f"{mdev.memory // (1 << 20)}Mi"} if mdev.memory else {}
    return _device(one.name, texts, {f"{STANDARD}/numaNode": mdev.numa, "iommuGroup": mdev.iommu_group}, {}, capacity)


def _device(
    name: str, texts: Mapping[str, str | None], numbers: Mapping[str, int | None], flags: Mapping[str, bool | None],
    capacity: Mapping[str, str],
) -> Object:
    attributes: Object = {key: {"string": text[:MAX_TEXT] if key in FOR_PEOPLE else text} for key, text in texts.items()
                          if text and (key in FOR_PEOPLE or len(text) <= MAX_TEXT)}
    attributes |= {key: {"int": number} for key, number in numbers.items() if number is not None}
    attributes |= {key: {"bool": flag} for key, flag in flags.items() if flag is not None}
    out: Object = {"name": name, "attributes": attributes}
    if capacity:
        out["capacity"] = {key: {"value": amount} for key, amount in capacity.items()}
    return out


def _pieces(key: str, words: Iterable[str], most: int | None = None) -> dict[str, str]:
    """A list as texts: in `key`, and as a text has few characters, what does not fit in "key2", "key3" and so on. A word that
    is longer than a text cannot be published, nor what is beyond `most` texts."""
    lines: list[str] = []
    for word in words:
        if len(word) > MAX_TEXT:
            continue
        if lines and len(lines[-1]) + 1 + len(word) <= MAX_TEXT:
            lines[-1] += f",{word}"
        else:
            lines.append(word)
    return {f"{key}{number if number > 1 else ''}": line for number, line in enumerate(lines[:most], start=1)}


def on_providers(devices: Iterable[Object], tree: Iterable[Provider]) -> list[Object]:
    """The devices with what the provider tree says of each: where it is counted, as what, and with which traits. So whoever
    asks the slices by class and trait gets the same answer as whoever asks Placement. What there is no room for is told by
    `unsaid`: then a trait that is not listed may be there nevertheless."""
    homes = {name: provider for provider in tree for name in provider.devices if len(provider.inventories) == 1}
    return [_counted(device, homes[device["name"]]) if device["name"] in homes else device for device in devices]


def _counted(device: Object, provider: Provider) -> Object:
    own = [key for key in device["attributes"] if key.rstrip("0123456789") in ("traits", "resourceClass", "provider", "unsaid")]
    attributes: Object = {key: value for key, value in device["attributes"].items() if key not in own}
    (class_,) = provider.inventories
    traits = sorted(provider.traits - {providers.MANAGED})
    pieces = _pieces("traits", traits, MAX_PIECES)
    said = {word for line in pieces.values() for word in line.split(",")}
    texts = {"provider": provider.name.rpartition("_")[2].lower(), "resourceClass": class_, **pieces}
    attributes |= {key: {"string": text} for key, text in texts.items() if len(text) <= MAX_TEXT}
    if len(class_) > MAX_TEXT or not said.issuperset(traits):
        attributes["unsaid"] = {"bool": True}
    return {**device, "attributes": attributes}


def truncation_warnings(offered: Iterable[AssignableDevice]) -> list[str]:
    """What device_spec says of devices and slices have no room for, a sentence for each entry: selectors cannot ask for it."""
    out = []
    for one in offered:
        if one.entry is None or isinstance(one.device, Mdev):
            continue
        traits = sorted(providers.traits(one.device, one.entry))
        said = {word for line in _pieces("traits", traits, MAX_PIECES).values() for word in line.split(",")}
        missing = [name for name in traits if name not in said]
        missing += [text for text in (providers.resource_class(one.device, one.entry), one.entry.physical_network or "")
                    if len(text) > MAX_TEXT]
        if missing:
            out.append(f"entry {one.entry.index} of device_spec says more than a published device has room for: selectors "
                       f"cannot ask for {', '.join(missing)}")
    return list(dict.fromkeys(out))


def is_virtual(published: Mapping[str, object]) -> bool:
    """Whether a published device is a virtual function."""
    function = published_function(published)
    return function is not None and function.kind.is_vf


def members(published: Mapping[str, object]) -> list[str]:
    """The addresses of all functions that a published device has."""
    attributes = published.get("attributes")
    texts = [value.get("string", "") for key, value in attributes.items()
             if key.startswith("members")] if isinstance(attributes, dict) else []
    return [address for text in texts for address in text.split(",") if address]


def published_function(published: Mapping[str, object]) -> HostDevice | None:
    """A PCI function as it was published, for one that is no longer on the bus; None if it was none."""
    attributes = published.get("attributes")
    said = {key: next(iter(value.values()), None) for key, value in attributes.items()} if isinstance(attributes, dict) else {}
    kind, address = said.get("kind"), said.get(PCI_BUS_ID)
    if kind not in set(FunctionKind) or not isinstance(address, str):
        return None
    return HostDevice(
        address=address, kind=FunctionKind(kind), vendor=said.get("vendor"), product=said.get("product"),
        class_code=said.get("class"), revision=said.get("revision"), driver=said.get("driver"), parent=said.get("parent"),
        numa=said.get(f"{STANDARD}/numaNode"), pcie_root=said.get(f"{STANDARD}/pcieRoot"),
        iommu_group=said.get("iommuGroup"), members=(), serial=said.get("serial"), interfaces=(), name=str(published["name"]),
    )
