"""A published device's identity, the attributes by which a hypervisor finds it, and the hardware of a host that it is."""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

DRIVER = "pci.outfitter.dev"  # our DRA driver
PCI_BUS_ID = "resource.kubernetes.io/pciBusID"

# Attribute names under which drivers publish a PCI address, preferred first. A PCIe root is not an address.
ADDRESS_NAMES = (PCI_BUS_ID, "pciBusID", "pciAddress", "pcieAddress")
VANISHED = "outfitter.dev/vanished"  # taint of a held device that is no longer on the bus of its host
NUMA_NODE = "resource.kubernetes.io/numaNode"
MDEV_NAMES = ("resource.kubernetes.io/mdevUUID", "mdevUUID", "resource.kubernetes.io/mDevUUID", "mDevUUID")
# Attribute names for people: the type of a mediated device comes first, as its product is that of its parent.
MDEV_PRODUCT_NAMES = ("mdevTypeName", "mdevType")
PRODUCT_NAMES = ("productName", "product", "model")
_Slice = TypeVar("_Slice", bound=Mapping[str, Any])
_MEMBERS = re.compile(r"members([2-9]|[1-9][0-9]+)?")
NO_HARDWARE = frozenset[str]()
_ADDRESS = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}:[01][0-9a-f]\.[0-7])")


class DeviceId(NamedTuple):
    """Identifies a device in slices, claims and pages."""

    driver: str
    pool: str
    device: str

    def __str__(self) -> str:
        return f"{self.driver}/{self.pool}/{self.device}"

    @property
    def short(self) -> str:
        """pool/device, for messages; the pool is named after the host."""
        return f"{self.pool}/{self.device}"


def text_attribute(device: Mapping[str, Any], driver: str, names: Iterable[str]) -> str | None:
    """The first of these attributes that the device has as a string. A plain name may also have the driver's domain."""
    attributes = device.get("attributes") or {}
    for name in names:
        for spelling in (name, f"{driver}/{name}"):
            value = attributes.get(spelling)
            if isinstance(value, Mapping) and isinstance(value.get("string"), str) and value["string"]:
                return str(value["string"])
    return None


def flag_attribute(device: Mapping[str, Any], driver: str, name: str) -> bool:
    """Whether a device has an attribute of its driver that is true."""
    attributes = device.get("attributes") or {}
    values = (attributes.get(spelling) for spelling in (name, f"{driver}/{name}"))
    return any(isinstance(value, Mapping) and value.get("bool") is True for value in values)


def left_the_bus(device: Mapping[str, Any]) -> bool:
    """Whether our driver publishes a device only because it is held: it is no longer on the bus."""
    return any(taint.get("key") == VANISHED for taint in device.get("taints") or ())


def product_name(device: Mapping[str, Any], driver: str) -> str | None:
    """What people call the device: the type of a mediated device, else the product; None when neither is published."""
    return text_attribute(device, driver, (*MDEV_PRODUCT_NAMES, *PRODUCT_NAMES))


def members(device: Mapping[str, Any], driver: str) -> list[str]:
    """The PCI addresses of a device of several functions, from the attributes "members", "members2" and so on. Empty: a single
    function."""
    plain = {str(key).removeprefix(f"{driver}/") for key in device.get("attributes") or {}}
    names = sorted((key for key in plain if _MEMBERS.fullmatch(key)), key=lambda key: int(key.removeprefix("members") or 1))
    texts = [text_attribute(device, driver, (name,)) or "" for name in names]
    return [address for text in texts for address in text.split(",") if address]


def are_partitions(own: DeviceId, own_sets: Collection[str], other: DeviceId, other_sets: Collection[str]) -> bool:
    """Whether two devices of one pool consume counters of a common set: they are parts of the same hardware, and their driver
    says by the counters which of them go together."""
    return (own.driver, own.pool) == (other.driver, other.pool) and not set(own_sets).isdisjoint(other_sets)


def hardware_of(device: Mapping[str, Any], driver: str) -> frozenset[str]:
    """What of its host a published device is, whichever driver publishes it and under whichever name: the addresses of its PCI
    functions (of a whole IOMMU group, where its driver publishes the members), or the UUID of a mediated device. Empty: the
    driver does not say."""
    attributes = device.get("attributes") or {}
    known = _spellings(driver)
    names = [name for name in attributes if name in known]
    if not names:
        return NO_HARDWARE
    uuids = [_text(attributes[name]) for name in names if known[name] is MDEV_NAMES]
    if uuids:  # its address is then that of its parent
        return frozenset(hardware_key(text) for text in uuids if text)
    texts = [_text(attributes[name]) for name in names if known[name] is ADDRESS_NAMES]
    return _functions(tuple(texts) if len(texts) == len(names) else (*texts, *members(device, driver)))


@functools.lru_cache(maxsize=4096)  # hosts are alike
def _functions(texts: tuple[str, ...]) -> frozenset[str]:
    return frozenset(key for text in texts if _ADDRESS.fullmatch(key := hardware_key(text)))


def hardware_key(text: str) -> str:
    """A PCI address or a UUID in the one spelling in which hardware is compared."""
    lower = text.strip().lower()
    match = _ADDRESS.fullmatch(lower)
    return f"{match[1] or '0000'}:{match[2]}" if match else lower


@functools.lru_cache(maxsize=256)
def _spellings(driver: str) -> Mapping[str, tuple[str, ...]]:
    """Every name under which a driver may publish what hardware a device is -> the list that it is of."""
    return {spelling: names for names in (MDEV_NAMES, ADDRESS_NAMES, ("members",)) for name in names
            for spelling in (name, f"{driver}/{name}")}


def _text(value: Any) -> str:
    text = value.get("string") if isinstance(value, Mapping) else None
    return text if isinstance(text, str) else ""


def numa_node(device: Mapping[str, Any]) -> int | None:
    """The NUMA node of a device; None when it is not published."""
    value = (device.get("attributes") or {}).get(NUMA_NODE)
    node = value.get("int") if isinstance(value, Mapping) else None
    return node if isinstance(node, int) and node >= 0 else None


def newest_pools(slices: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], list[Mapping[str, Any]]]:
    """Slices by driver and pool: the newest generation of each pool, and only complete pools."""
    pools: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for entry in slices:
        pools.setdefault((entry["spec"]["driver"], entry["spec"]["pool"]["name"]), []).append(entry)
    found = {name: newest(have) for name, have in pools.items()}
    return {name: have for name, have in found.items() if len(have) == (have[0]["spec"]["pool"].get("resourceSliceCount") or 1)}


def newest(slices: Iterable[_Slice]) -> list[_Slice]:
    """The slices of a pool's newest generation, sorted by name; the pool may be incomplete."""
    out: list[_Slice] = []
    for entry in slices:
        if out and _generation(out[0]) < _generation(entry):
            out.clear()
        if not out or _generation(out[0]) == _generation(entry):
            out.append(entry)
    return sorted(out, key=lambda entry: str(entry["metadata"]["name"]))


def _generation(entry: Mapping[str, Any]) -> int:
    return int(entry["spec"]["pool"].get("generation") or 0)
