"""What the container of a launcher gets from its device plugins' answers to Allocate, where no container runtime adds it: the
environment, that of CDI devices included, and device metadata files below mounts. Device nodes are the host's own: they must
exist. Called by the agent of a host without a kubelet, before it builds the domain."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from outfitter.api import device_metadata
from outfitter.api.device import hardware_key
from outfitter.api.launcher import launcher_environment
from outfitter.api.rejection import RejectionCode, carrying
from outfitter.errors import StartFailed
from outfitter.node.atomic_files import Files
from outfitter.node.device_manager.plugin_resource import ContainerAllocation

BASES = (device_metadata.BASE, device_metadata.EARLIER_BASE)
MAX_FILE = 2 << 20  # bytes of a file that is read
PREFIXES = (launcher_environment.PCI, launcher_environment.MDEV, launcher_environment.NETWORK)


@dataclass(frozen=True, slots=True)
class ContainerEdits:
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)  # path in the container -> text


def container_edits(answers: Iterable[ContainerAllocation], cdi: Files | None, *, simulated: bool = False) -> ContainerEdits:
    """`cdi`: the folder of CDI specs. StartFailed: something that an answer names is not there; on a `simulated` host device
    nodes and CDI specs may be missing, as the hardware is."""
    env: dict[str, str] = {}
    files: dict[str, str] = {}
    specs = list(_specs(cdi)) if cdi is not None else []
    for answer in answers:
        nodes = [host_path for _, host_path, _ in answer.devices]
        mounts = [(inside, outside) for inside, outside, _ in answer.mounts]
        for cdi_id in answer.cdi_ids:
            edits = list(_edits(cdi_id, specs))
            if not edits and not simulated:
                raise _missing(f"the CDI device {cdi_id}, which a device plugin named, is in no spec"
                               + (f" below {cdi.at('')}" if cdi is not None else ""))
            for edit in edits:
                env.update(_assignments(edit.get("env")))
                nodes += [str(node.get("hostPath") or node.get("path")) for node in edit.get("deviceNodes") or ()]
                mounts += [(str(mount.get("containerPath")), str(mount.get("hostPath"))) for mount in edit.get("mounts") or ()]
        env.update(answer.envs)
        for node in nodes if not simulated else ():
            if not Path(node).exists():
                raise _missing(f"the device node {node}, which a device plugin named, does not exist")
        for inside, outside in mounts:
            files.update(_mounted(PurePosixPath(inside), Path(outside)))
    return ContainerEdits(env, files)


def plugin_hardware(resource: str, env: Mapping[str, str]) -> tuple[str, ...]:
    """The PCI functions and mediated devices that the environment lists for a resource, in its order."""
    return tuple(dict.fromkeys(hardware_key(address) for prefix in PREFIXES
                               for address in launcher_environment.addresses(env, prefix, resource)))


def _missing(message: str) -> StartFailed:
    return carrying(StartFailed(message), RejectionCode.PLUGIN_ANSWER_INVALID)


def _mounted(inside: PurePosixPath, outside: Path) -> Iterator[tuple[str, str]]:
    """The device metadata files of a mount, by their path in the container."""
    for base in BASES:
        if not inside.is_relative_to(base) and not PurePosixPath(base).is_relative_to(inside):
            continue
        for path in [outside] if outside.is_file() else sorted(outside.rglob("*.json")) if outside.is_dir() else ():
            place = inside / path.relative_to(outside).as_posix() if path != outside else inside
            if not place.is_relative_to(base):
                continue
            try:
                if path.stat().st_size > MAX_FILE:
                    raise _missing(f"{path}, which a device plugin mounts, is larger than {MAX_FILE} bytes")
                yield str(place), path.read_text(encoding="utf-8", errors="replace")
            except OSError as error:
                raise _missing(f"{path}, which a device plugin mounts, cannot be read: {error}") from error


# -- CDI

def _specs(cdi: Files) -> Iterator[Mapping[str, Any]]:
    for name in cdi.names():
        if name.endswith((".json", ".yaml")):
            try:
                content = yaml.safe_load(cdi.read(name) or "")
            except (OSError, ValueError, yaml.YAMLError):
                continue  # a runtime skips it too
            if isinstance(content, dict):
                yield content


def _edits(cdi_id: str, specs: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """What is done to a container for one device: vendor.com/class=name."""
    kind, _, name = cdi_id.partition("=")
    for spec in specs:
        devices = [device for device in spec.get("devices") or () if device.get("name") == name]
        if spec.get("kind") == kind and devices:
            yield spec.get("containerEdits") or {}
            yield from (device.get("containerEdits") or {} for device in devices)


def _assignments(lines: Any) -> Iterator[tuple[str, str]]:
    for line in lines or ():
        name, found, value = str(line).partition("=")
        if found:
            yield name, value
