"""A made-up cluster that other allocators were measured with too: nodes of eight GPUs, and claims of three kinds, one after the
other, until half of the devices are taken. Every first-fit allocator ends with the same checksum."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from typing import Any

Object = dict[str, Any]
DRIVER = "gpu.example.com"
MODELS = (("h100", "80Gi"), ("a100", "40Gi"), ("h100", "80Gi"), ("l40s", "48Gi"))
LARGE = (f'device.attributes["{DRIVER}"].model == "h100" && '
         f'device.capacity["{DRIVER}"].memory.compareTo(quantity("80Gi")) >= 0')
KINDS = {"one": 1, "numa2": 2, "four": 4}  # how many devices a claim of each wants
STRIDE = 7919
CLASSES: dict[str, Object] = {DRIVER: {"metadata": {"name": DRIVER}, "spec": {
    "selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]}}}


def node(at: int) -> Object:
    name = f"node-{at:05d}"
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
            "status": {"allocatable": {"cpu": "64", "memory": "512Gi", "pods": "110"}}}


def part(at: int) -> Object:
    """The ResourceSlice of a node."""
    model, memory = MODELS[at % len(MODELS)]
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": f"slice-{at:05d}"}, "spec": {
        "driver": DRIVER, "nodeName": f"node-{at:05d}",
        "pool": {"name": f"node-{at:05d}", "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": f"gpu-{place}", "attributes": {
            "model": {"string": model}, "uuid": {"string": f"gpu-{at:05d}-{place}"}, "index": {"int": place},
            "numaNode": {"int": place // 4}, "pciBusID": {"string": f"0000:{16 * (place + 1):02x}:00.0"},
            "driverVersion": {"version": "1.37.0"},
            "resource.kubernetes.io/pcieRoot": {"string": f"pci0000:{place // 2:02x}"}},
            "capacity": {"memory": {"value": memory}}} for place in range(8)]}}


def claim(number: int, *selectors: str) -> Object:
    """Of the kind that is its turn; with more selectors than the kind has."""
    kind = list(KINDS)[number % len(KINDS)]
    texts = [*([LARGE] if kind == "four" else []), *selectors]
    exactly: Object = {"deviceClassName": DRIVER, "allocationMode": "ExactCount", "count": KINDS[kind],
                       "selectors": [{"cel": {"expression": text}} for text in texts]}
    devices: Object = {"requests": [{"name": "gpu", "exactly": exactly}]}
    if kind == "numa2":
        devices["constraints"] = [{"matchAttribute": f"{DRIVER}/numaNode"}]
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "spec": {"devices": devices},
            "metadata": {"namespace": "default", "name": f"claim-{number:06d}", "uid": f"uid-{number}"}}


def fill(nodes: int, allocate_on: Callable[[int, Mapping[str, Any]], list[str] | None]) -> tuple[str, list[float]]:
    """Claims until half of the devices are taken, each on the first node that fits from its own start on. The checksum of what
    was given, and the CPU time of each claim."""
    log, took, used, number = hashlib.sha256(), list[float](), 0, 0
    while used < nodes * 4:
        wanted, start = claim(number), number * STRIDE % nodes
        begun = time.process_time()
        at, got = next((at, got) for at in ((start + step) % nodes for step in range(nodes))
                       if (got := allocate_on(at, wanted)) is not None)
        took.append(time.process_time() - begun)
        log.update(f"{wanted['metadata']['name']}|node-{at:05d}|{','.join(got)}\n".encode())
        used, number = used + len(got), number + 1
    return log.hexdigest(), took
