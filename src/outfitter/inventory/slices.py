"""Describes a host's devices as ResourceSlices of resource.k8s.io/v1, one pool per host. Pure; the slice publisher of the node
agent writes them.

A PF and its VFs exclude each other. Where both are offered, each VF consumes one of a shared counter and the PF consumes all of
it, so that every allocator, Kubernetes' included, allocates either the PF or its VFs. A provider that has more devices than its
total, as some are held and no longer listed, has a counter of that total, so that claims get no more of it than aliases."""

from __future__ import annotations

import hashlib
import re
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

PER_SLICE = 128  # maximum of Kubernetes
PER_SLICE_COUNTED = 64  # maximum when a device has taints or consumes counters
MAX_COUNTER_SETS = 8  # in one slice
MAX_NAME = 253  # characters of an object's name
MAX_TEXT = 64  # characters of an attribute's text
MAX_PIECES = 5  # attributes for a list of traits; a device has at most 32
STANDARD = "resource.kubernetes.io"
COUNTER = "functions"  # counter of a PF: how many VFs of it are published; of a provider: its total
PROVIDER_SET = "provider-"  # and an address: the counter set of a provider; no device has such a name
# May be truncated; other values are published whole or not at all.
FOR_PEOPLE = ("vendorName", "productName", "className", "mdevTypeName")
# Known only while the host's own driver is bound; kept as published while a VM has the device.
VOLATILE = ("driver", "interface", "serial")

NO_PCI_IDS = PciIds(None)


def describe(offered: Sequence[AssignableDevice], names: PciIds = NO_PCI_IDS) -> list[Object]:
    """The devices as entries of a slice, without consumesCounters."""
    return [_mdev(entry, entry.device) if isinstance(entry.device, Mdev) else _function(entry, entry.device, names)
            for entry in offered]


@dataclass(frozen=True, slots=True)
class CounterSets:
    """Shared counters that make a PF and its VFs exclude each other, and limit the devices of a provider to its total."""

    sets: Mapping[str, int]  # device with a PF -> how many VFs of it are published; or set of a provider -> its total
    takes: Mapping[str, Mapping[str, int]]  # device -> counter set -> amount that it consumes

    def on(self, device: Object) -> Object:
        """A device with its consumesCounters."""
        out = {key: value for key, value in device.items() if key != "consumesCounters"}
        if taken := self.takes.get(device["name"]):
            out["consumesCounters"] = [{"counterSet": name, "counters": {COUNTER: {"value": str(amount)}}}
                                       for name, amount in taken.items()]
        return out


def counters(
    offered: Iterable[AssignableDevice], kept: Iterable[Mapping[str, object]] = (), tree: Iterable[Provider] = ()
) -> CounterSets:
    """The counters of all published devices: offered ones, and kept ones that are still held. `tree`: the host's providers."""
    units = [(entry.name, entry.members) for entry in offered if isinstance(entry.device, HostDevice)]
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
    published = {name for name, _ in units}
    for provider in tree:
        devices = [name for name in provider.devices if name in published]
        total = sum(inventory.total for inventory in provider.inventories.values())
        if len(devices) > total:
            name = PROVIDER_SET + re.sub("[^0-9a-z]", "-", provider.name.rpartition("_")[2].lower())
            sets[name] = total
            for device in devices:
                takes[device][name] = 1
    return CounterSets(dict(sets), {name: dict(taken) for name, taken in takes.items()})


def pool(
    node: str, driver: str, devices: Sequence[Object], counters: Mapping[str, int], *, generation: int,
    node_uid: str | None = None,
) -> list[Object]:
    """All slices of a host's pool at one generation; none if it offers nothing. With `node_uid` the Node owns the slices.

    A pool of one slice keeps its name and is replaced. Slices of a larger pool are named by generation: the old ones are
    deleted after all new ones exist, so that every device is always in a slice."""
    counted = any("taints" in device or "consumesCounters" in device for device in devices)
    per_slice = PER_SLICE_COUNTED if counted else PER_SLICE
    parts: list[Object] = [{"devices": list(devices[start:start + per_slice])}
                           for start in range(0, len(devices), per_slice)]
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
    """Whether two sets of slices have the same content, in any order, so that nothing has to be written."""
    return _in_order(some) == _in_order(others)


def _in_order(objects: Sequence[Object]) -> list[Object]:
    """By what comes first in each: nothing is in two slices of a pool."""
    def first(spec: Object) -> tuple[str, ...]:
        return tuple(spec[key][0]["name"] if spec.get(key) else "" for key in ("devices", "sharedCounters"))

    return sorted(map(_content, objects), key=first)


def _content(obj: Object) -> Object:
    """The spec of a slice without generation and without timeAdded of taints."""
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
    """The name of a slice: a DNS subdomain. A node name that is too long is truncated and made unique by a hash."""
    tail = f"-{driver}-{part}"
    if len(node) + len(tail) > MAX_NAME:
        digest = hashlib.sha256(node.encode()).hexdigest()[:10]
        room = MAX_NAME - len(tail) - len(digest) - 1
        node = f"{node[:room].rstrip('-.')}-{digest}"
    return node + tail


def _function(offer: AssignableDevice, device: HostDevice, names: PciIds) -> Object:
    vendor, product = names.vendor_and_product(device.vendor, device.product)
    entry = offer.entry
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
        **_pieces("members", [member.address for member in offer.members] if len(offer.members) > 1 else ()),
        **_pieces("traits", sorted(providers.traits(device, entry)), MAX_PIECES),
    }
    flags = {"liveMigratable": entry.live_migratable, "oneTimeUse": entry.one_time_use or None,
             "remoteManaged": entry.remote_managed or None} if entry else {}
    capacity = {"bandwidth": f"{device.speed}M"} if device.speed else {}
    return _device(offer.name, texts, {f"{STANDARD}/numaNode": device.numa, "iommuGroup": device.iommu_group}, flags, capacity)


def _mdev(offer: AssignableDevice, mdev: Mdev) -> Object:
    entry = offer.entry
    texts = {
        f"{STANDARD}/pcieRoot": mdev.pcie_root,
        "vendor": mdev.vendor,
        "product": mdev.product,
        "class": mdev.class_code,
        "mdevUUID": mdev.uuid,
        "mdevType": mdev.type_id,
        "mdevTypeName": mdev.type_name,
        "deviceApi": mdev.device_api,
        "kind": "MDEV",
        "parent": mdev.parent,
        **_pieces("traits", sorted(entry.traits) if entry else (), MAX_PIECES),
    }
    capacity = {"memory": f"{mdev.memory // (1 << 20)}Mi"} if mdev.memory else {}
    return _device(offer.name, texts, {f"{STANDARD}/numaNode": mdev.numa, "iommuGroup": mdev.iommu_group}, {}, capacity)


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
    """A list of words as attributes: comma-separated in `key`, and as an attribute is short, continued in "key2", "key3" and so
    on. A word that is longer than an attribute is not published, nor is anything beyond `most` attributes."""
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
    """The devices with the attributes of the provider tree: provider, resource class and traits, so that selectors on slices
    and Placement give the same answer. A device with traits that do not fit has the attribute `traitsIncomplete`:
    it may have traits that are not published."""
    provider_of = {name: provider for provider in tree for name in provider.devices if len(provider.inventories) == 1}
    return [_with_provider(device, provider_of[device["name"]]) if device["name"] in provider_of else device
            for device in devices]


def _with_provider(device: Object, provider: Provider) -> Object:
    own = [key for key in device["attributes"]
           if key.rstrip("0123456789") in ("traits", "resourceClass", "provider", "traitsIncomplete")]
    attributes: Object = {key: value for key, value in device["attributes"].items() if key not in own}
    (class_,) = provider.inventories
    traits = sorted(provider.traits - {providers.MANAGED})
    pieces = _pieces("traits", traits, MAX_PIECES)
    published = {word for line in pieces.values() for word in line.split(",")}
    texts = {"provider": provider.name.rpartition("_")[2].lower(), "resourceClass": class_, **pieces}
    attributes |= {key: {"string": text} for key, text in texts.items() if len(text) <= MAX_TEXT}
    if len(class_) > MAX_TEXT or not published.issuperset(traits):
        attributes["traitsIncomplete"] = {"bool": True}
    return {**device, "attributes": attributes}


def truncation_warnings(offered: Iterable[AssignableDevice]) -> list[str]:
    """A warning for each entry of device_spec with values that do not fit into a slice, so that selectors cannot use them."""
    out = []
    for offer in offered:
        if offer.entry is None or isinstance(offer.device, Mdev):
            continue
        traits = sorted(providers.traits(offer.device, offer.entry))
        published = {word for line in _pieces("traits", traits, MAX_PIECES).values() for word in line.split(",")}
        missing = [name for name in traits if name not in published]
        missing += [text for text in (providers.resource_class(offer.device, offer.entry), offer.entry.physical_network or "")
                    if len(text) > MAX_TEXT]
        if missing:
            out.append(f"entry {offer.entry.index} of device_spec has values that do not fit into a published device: "
                       f"selectors cannot use {', '.join(missing)}")
    return list(dict.fromkeys(out))


def is_virtual(published: Mapping[str, object]) -> bool:
    """Whether a published device is a VF."""
    function = published_function(published)
    return function is not None and function.kind.is_vf


def members(published: Mapping[str, object]) -> list[str]:
    """The addresses of all functions of a published device."""
    attributes = published.get("attributes")
    texts = [value.get("string", "") for key, value in attributes.items()
             if key.startswith("members")] if isinstance(attributes, dict) else []
    return [address for text in texts for address in text.split(",") if address]


def published_function(published: Mapping[str, object]) -> HostDevice | None:
    """The PCI function of a published device, for one that is no longer on the bus; None for other devices."""
    attributes = published.get("attributes")
    known = {key: next(iter(value.values()), None) for key, value in attributes.items()} if isinstance(attributes, dict) else {}
    kind, address = known.get("kind"), known.get(PCI_BUS_ID)
    if kind not in set(FunctionKind) or not isinstance(address, str):
        return None
    return HostDevice(
        address=address, kind=FunctionKind(kind), vendor=known.get("vendor"), product=known.get("product"),
        class_code=known.get("class"), revision=known.get("revision"), driver=known.get("driver"), parent=known.get("parent"),
        numa=known.get(f"{STANDARD}/numaNode"), pcie_root=known.get(f"{STANDARD}/pcieRoot"),
        iommu_group=known.get("iommuGroup"), members=(), serial=known.get("serial"), interfaces=(), name=str(published["name"]),
    )
