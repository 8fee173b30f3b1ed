"""Prepares a claim's devices. A start after a crash relies on the order: the page records `prepared` (by the caller), the
checkpoint records how everything is, the functions are bound, then the files for runtimes and launchers are written. Every step
may be repeated, and one that was done is found done."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from outfitter.api import device_metadata
from outfitter.api.kinds import Object
from outfitter.api.rejection import RejectionCode, carrying
from outfitter.errors import NotReady
from outfitter.inventory import mdev, pci
from outfitter.node.atomic_files import Files
from outfitter.node.devices import cdi, metadata, vfio
from outfitter.node.devices.checkpoint import Before, Taken
from outfitter.node.devices.metadata import PreparedDevice
from outfitter.node.devices.passthrough_device import PassthroughDevice
from outfitter.node.host_env import HostEnv


@dataclass(frozen=True, slots=True)
class AllocatedDevice:
    """A device that is allocated to a claim."""

    target: PassthroughDevice
    request: str
    admin_access: bool = False  # its holder keeps it: nothing is bound


@dataclass(frozen=True, slots=True)
class PreparedClaim:
    """What is needed to start a container or a VM."""

    devices: tuple[PreparedDevice, ...]
    env: Mapping[str, str]  # PCI_RESOURCE_<claim>_<request> and so on
    cdi: tuple[str, ...]  # names that a container runtime knows: "pci.outfitter.dev/device=..."
    metadata: str  # the folder that stands at device_metadata.BASE in a container


def prepare(
    host_env: HostEnv, claim: Object, wanted: Sequence[AllocatedDevice], *, running: Collection[str] = (),
    left: Mapping[str, str] = MappingProxyType({}),
) -> PreparedClaim:
    """NotReady says which device cannot be prepared and why; what was done stays in the checkpoint, and a retry continues.
    `running`: addresses and UUIDs that VMs have: these are not touched. `left`: claims that hold nothing here any more and
    whose devices are not restored -> why."""
    uid, root, checkpoint = claim["metadata"]["uid"], host_env.root, host_env.checkpoint
    known = {one.device: one for one in checkpoint.of(uid)}
    given = tuple(
        PreparedDevice(
            one.request,
            host_env.driver,
            host_env.host,
            one.target.name,
            one.target.address,
            one.target.uuid,
            one.target.numa,
            one.target.pcie_root,
            one.target.functions,
        )
        for one in wanted
    )
    texts = {f"{uid}/{name}": text for name, text in metadata.files(claim, given).items()}
    taken = [known.get(one.target.name) or _taken(host_env, claim, one, tuple(texts)) for one in wanted]
    for one, memory in zip(wanted, taken, strict=True):
        _check(host_env, one, memory, running, left)
    checkpoint.take(taken)
    for memory in taken:
        for before in memory.functions:
            if before.address not in running:
                vfio.bind(root, before)
    env = metadata.environment(claim["metadata"]["name"], given)
    inside = metadata.folder(claim)
    nodes = {one.target.name: device_nodes(host_env, one.target) for one in wanted}
    _put(host_env.cdi, cdi.file_name(host_env.driver, uid), cdi.spec(
        host_env.driver, uid, nodes, env=env, dev=host_env.dev,
        mounts={host_env.metadata.at(f"{uid}/{inside}"): f"{device_metadata.BASE}/{inside}"}))
    for name, text in texts.items():
        _put(host_env.metadata, name, text)
    return PreparedClaim(
        given,
        env,
        tuple(f"{cdi.kind(host_env.driver)}={cdi.device_name(uid, one.target.name)}" for one in wanted),
        host_env.metadata.at(uid),
    )


def _taken(host_env: HostEnv, claim: Object, one: AllocatedDevice, files: tuple[str, ...]) -> Taken:
    meta, target = claim["metadata"], one.target
    if one.admin_access:
        return Taken(meta["uid"], meta["namespace"], meta["name"], target.name, files=files)
    functions = tuple(_before(host_env, address) for address in target.functions)
    return Taken(meta["uid"], meta["namespace"], meta["name"], target.name, functions, target.uuid, files)


def _before(host_env: HostEnv, address: str) -> Before:
    """A function as it was before the first claim that shares it: a later one would find what that one did."""
    now = vfio.read_binding(host_env.root, address)
    known = (before for taken in host_env.checkpoint.taken for before in taken.functions)
    return next((before for before in known if (before.address, before.ids) == (address, now.ids)), now)


def _check(host_env: HostEnv, one: AllocatedDevice, memory: Taken, running: Collection[str], left: Mapping[str, str]) -> None:
    """Raise NotReady before anything is touched."""
    root, target = host_env.root, one.target
    for other in host_env.checkpoint.taken:
        if other.uid == memory.uid or other.places.isdisjoint(memory.places):
            continue
        whose = f"{other.namespace}/{other.claim}"
        if not memory.places.isdisjoint(running):
            raise carrying(NotReady(f"{target.name} cannot be prepared: a VM still has it, by claim {whose}"),
                           RejectionCode.DEVICE_IN_USE)
        if other.uid in left:
            raise carrying(NotReady(f"{target.name} cannot be prepared: it is not restored from claim {whose} yet: "
                                    f"{left[other.uid]}"), RejectionCode.DEVICE_IN_USE)
    if target.uuid is not None and not root.exists(f"{mdev.DEVICES}/{target.uuid}"):
        raise carrying(NotReady(f"{target.name} cannot be prepared: the mediated device {target.uuid} is no longer there"),
                       RejectionCode.DEVICE_MISSING)
    loose = [before.address for before in memory.functions
             if before.address not in running and not pci.is_vfio_driver(vfio.driver(root, before.address))]
    if loose and not target.managed:
        names = ", ".join(f"{address} ({vfio.driver(root, address) or 'no driver'})" for address in loose)
        raise carrying(NotReady(f"{target.name} cannot be prepared: device_spec says managed: no, and {names} is not bound "
                                "to vfio-pci; bind it, or leave managed out"), RejectionCode.DRIVER_NOT_BOUND)
    waits = bool(loose) or memory.places.isdisjoint(running)  # a VM that runs with it proves that it can be
    if waits and (trouble := vfio.obstacle(root, [before.address for before in memory.functions])):
        raise carrying(NotReady(f"{target.name} cannot be prepared: {trouble['message']}"), trouble.code)


def device_nodes(host_env: HostEnv, target: PassthroughDevice) -> list[str]:
    """Of its IOMMU group, below /dev."""
    places = [f"{mdev.DEVICES}/{target.uuid}"] if target.uuid else [f"{vfio.DEVICES}/{target.address}"]
    numbers = [vfio.group(host_env.root, place) for place in places]
    return [f"vfio/{number}" for number in numbers if number is not None]


def _put(files: Files, name: str, text: str) -> None:
    if files.read(name) != text:
        files.write(name, text)
