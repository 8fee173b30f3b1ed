"""The file `device-plugins/kubelet_internal_checkpoint` of a host: written for Multus and others that read it, and for what
plugins answered to Allocate. The API is the truth: a file that is lost or damaged is written again from it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path

from outfitter.api.assignment import assigned_devices
from outfitter.api.kinds import Object
from outfitter.node.atomic_files import FolderFiles
from outfitter.node.device_manager import checkpoint
from outfitter.node.device_manager.checkpoint import DamagedCheckpoint, DeviceCheckpoint, PodDevicesEntry
from outfitter.node.device_manager.plugin_resource import ContainerAllocation, PluginResource

log = logging.getLogger(__name__)
LARGEST = 64 << 20  # bytes that are read
Allocations = Mapping[tuple[str, str, str], ContainerAllocation]  # uid of a pod, container, resource


class CheckpointFile:
    def __init__(self, folder: Path) -> None:
        """`folder`: device-plugins."""
        self._files = FolderFiles(folder, durable=False)  # a copy: a file that a crash tore is written again
        self._text: str | None = None

    def load(self) -> DeviceCheckpoint:
        """Empty where there is none that can be used."""
        try:
            path = Path(self._files.at(checkpoint.FILE))
            if path.exists() and path.stat().st_size > LARGEST:
                raise OSError(f"it has more than {LARGEST} bytes")
            text = self._files.read(checkpoint.FILE)
        except (OSError, UnicodeDecodeError) as error:
            log.warning("%s cannot be read, and is written again: %s", self._files.at(checkpoint.FILE), error)
            return DeviceCheckpoint()
        found = checkpoint.decode(text) if text is not None else DeviceCheckpoint()
        if isinstance(found, DamagedCheckpoint):
            log.warning("%s is not used, and written again: %s: %s", self._files.at(checkpoint.FILE), found.problem,
                        found.message)
            return DeviceCheckpoint()
        return found

    def save(self, pods: Iterable[Object], resources: Mapping[str, PluginResource], allocations: Allocations) -> None:
        """What these pods have, and what plugins report. A file that cannot be written is logged: nothing depends on it."""
        entries = tuple(
            PodDevicesEntry(pod["metadata"]["uid"], container, resource, _by_numa_node(ids, resources.get(resource)),
                            _answer(allocations, (pod["metadata"]["uid"], container, resource)))
            for pod in pods for container, devices in assigned_devices.of_pod(pod).items() for resource, ids in devices.items())
        registered = {name: resource.healthy_ids if resource.ready else () for name, resource in resources.items()}
        text = checkpoint.encode(DeviceCheckpoint(entries, registered))
        if text == self._text:
            return
        try:
            self._files.write(checkpoint.FILE, text)
            self._text = text
        except OSError as error:
            log.warning("%s cannot be written: %s", self._files.at(checkpoint.FILE), error)


def _answer(allocations: Allocations, key: tuple[str, str, str]) -> bytes:
    found = allocations.get(key)
    return found.message if found is not None else b""


def _by_numa_node(ids: Iterable[str], resource: PluginResource | None) -> dict[int, tuple[str, ...]]:
    out: dict[int, tuple[str, ...]] = {}
    for each in ids:
        device = resource.devices.get(each) if resource is not None else None
        for node in (device.numa_nodes if device is not None else ()) or (checkpoint.WITHOUT_NUMA_NODE,):
            out[node] = (*out.get(node, ()), each)
    return out
