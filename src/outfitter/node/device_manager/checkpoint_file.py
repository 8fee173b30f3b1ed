"""The file `device-plugins/kubelet_internal_checkpoint` of a host: written for Multus and others that read it, and for what
plugins answered to Allocate. The API is the truth: a file that is lost or damaged is written again from it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from outfitter.api.assignment import assigned_devices
from outfitter.api.kinds import Object
from outfitter.node.atomic_files import FolderFiles
from outfitter.node.device_manager import checkpoint
from outfitter.node.device_manager.checkpoint import DamagedCheckpoint, DeviceCheckpoint, PodDevicesEntry
from outfitter.node.device_manager.plugin_resource import ContainerAllocation, PluginDevice, PluginResource

log = logging.getLogger(__name__)
LARGEST = 64 << 20  # bytes that are read
NO_DEVICES: Mapping[str, PluginDevice] = {}
AllocationKey = tuple[str, str, str]  # uid of a pod, container, resource
Allocations = Mapping[AllocationKey, ContainerAllocation]


class CheckpointFile:
    def __init__(self, folder: Path) -> None:
        """`folder`: device-plugins."""
        self._files = FolderFiles(folder, durable=False)  # a copy: a file that a crash tore is written again
        self._text: str | None = None
        self._known: dict[str, _PodEntries] = {}  # by uid: most pods are as they were when the file was written last

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
        before, self._known = self._known, {}
        for pod in pods:
            uid = pod["metadata"]["uid"]
            known = before.get(uid)
            if known is None or not known.is_made_of(pod, resources, allocations):
                known = _pod_entries(pod, resources, allocations)
            self._known[uid] = known
        entries = tuple(entry for known in self._known.values() for entry in known.entries)
        registered = {name: resource.healthy_ids if resource.ready else () for name, resource in resources.items()}
        text = checkpoint.encode(DeviceCheckpoint(entries, registered))
        if text == self._text:
            return
        try:
            self._files.write(checkpoint.FILE, text)
            self._text = text
        except OSError as error:
            log.warning("%s cannot be written: %s", self._files.at(checkpoint.FILE), error)


@dataclass(frozen=True, slots=True)
class _PodEntries:
    """The entries of a pod, with all that they were made of."""

    pod: Object
    answers: Mapping[AllocationKey, ContainerAllocation | None]
    listed: Mapping[str, Mapping[str, PluginDevice]]  # resource -> the devices of its plugin
    entries: tuple[PodDevicesEntry, ...]

    def is_made_of(self, pod: Object, resources: Mapping[str, PluginResource], allocations: Allocations) -> bool:
        """Whether pod, answers and devices are the identical ones."""
        return (self.pod is pod and all(allocations.get(key) is answer for key, answer in self.answers.items())
                and all(_listed(resources, name) is devices for name, devices in self.listed.items()))


def _pod_entries(pod: Object, resources: Mapping[str, PluginResource], allocations: Allocations) -> _PodEntries:
    uid = pod["metadata"]["uid"]
    ids = {(uid, container, resource): each for container, devices in assigned_devices.readable_of_plugins(pod).items()
           for resource, each in devices.items()}
    answers = {key: allocations.get(key) for key in ids}
    listed = {resource: _listed(resources, resource) for _, _, resource in ids}
    return _PodEntries(pod, answers, listed, tuple(
        PodDevicesEntry(*key, _by_numa_node(each, listed[key[2]]), answer.message if answer is not None else b"")
        for (key, each), answer in zip(ids.items(), answers.values(), strict=True)))


def _listed(resources: Mapping[str, PluginResource], name: str) -> Mapping[str, PluginDevice]:
    resource = resources.get(name)
    return resource.devices if resource is not None else NO_DEVICES


def _by_numa_node(ids: Iterable[str], listed: Mapping[str, PluginDevice]) -> dict[int, tuple[str, ...]]:
    out: dict[int, tuple[str, ...]] = {}
    for each in ids:
        device = listed.get(each)
        for node in (device.numa_nodes if device is not None else ()) or (checkpoint.WITHOUT_NUMA_NODE,):
            out[node] = (*out.get(node, ()), each)
    return out
