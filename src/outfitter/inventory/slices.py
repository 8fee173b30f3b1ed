"""How a host's devices are published: ResourceSlices of resource.k8s.io/v1, one pool per host."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from outfitter.api import kinds
from outfitter.api.kinds import Object
from outfitter.inventory.offer import Offered

PER_SLICE = 128  # devices that Kubernetes takes in one slice
MAX_NAME = 253  # characters of an object's name
MAX_TEXT = 64  # characters of an attribute's text
STANDARD = "resource.kubernetes.io"


def slices(
    node: str, driver: str, offered: Iterable[Offered], generation: int, node_uid: str | None = None
) -> list[Object]:
    """The whole pool of a host at one generation; no slices if it offers nothing. With the uid of its Node object the
    slices go when the node goes."""
    devices = [_device(entry) for entry in offered]
    parts = [devices[start:start + PER_SLICE] for start in range(0, len(devices), PER_SLICE)]
    return [
        {
            "apiVersion": kinds.RESOURCE_SLICE.api_version,
            "kind": kinds.RESOURCE_SLICE.kind,
            "metadata": _metadata(_name(node, driver, index), node, node_uid),
            "spec": {
                "driver": driver,
                "nodeName": node,
                "pool": {"name": node, "generation": generation, "resourceSliceCount": len(parts)},
                "devices": part,
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
    spec = obj["spec"]
    pool = {key: value for key, value in spec["pool"].items() if key != "generation"}
    return {**{key: value for key, value in obj.items() if key != "metadata"}, "spec": {**spec, "pool": pool}}


def _metadata(name: str, node: str, node_uid: str | None) -> Object:
    if node_uid is None:
        return {"name": name}
    owner = {"apiVersion": kinds.NODE.api_version, "kind": kinds.NODE.kind, "name": node, "uid": node_uid,
             "controller": True}
    return {"name": name, "ownerReferences": [owner]}


def _name(node: str, driver: str, index: int) -> str:
    """Stable, and a DNS subdomain as node and driver are; a node's name too long for it is cut and told apart by a hash."""
    tail = f"-{driver}-{index}"
    if len(node) + len(tail) > MAX_NAME:
        mark = hashlib.sha256(node.encode()).hexdigest()[:10]
        room = MAX_NAME - len(tail) - len(mark) - 1
        node = f"{node[:room].rstrip('-.')}-{mark}"
    return node + tail


def _device(entry: Offered) -> Object:
    device = entry.device
    texts = {
        f"{STANDARD}/pciBusID": device.address,
        f"{STANDARD}/pcieRoot": device.pcie_root,
        "vendor": device.vendor,
        "product": device.product,
        "class": device.class_code,
        "driver": device.driver,
        "kind": device.kind.value,
        "parent": device.parent,
        "serial": device.serial,
        **dict(_members(entry)),
    }
    numbers = {f"{STANDARD}/numaNode": device.numa, "iommuGroup": device.iommu_group}
    attributes: Object = {name: {"string": text} for name, text in texts.items() if text is not None}
    attributes |= {name: {"int": number} for name, number in numbers.items() if number is not None}
    return {"name": entry.name, "attributes": attributes}


def _members(entry: Offered) -> Iterator[tuple[str, str]]:
    """All functions of the device if there are several: in "members", and as a text has few characters, what does not
    fit in "members2", "members3" and so on."""
    if len(entry.members) < 2:
        return
    addresses = [member.address for member in entry.members]
    each = (MAX_TEXT + 1) // (max(map(len, addresses)) + 1)
    rest, number = iter(addresses), 1
    while part := list(islice(rest, each)):
        yield f"members{number if number > 1 else ''}", ",".join(part)
        number += 1
