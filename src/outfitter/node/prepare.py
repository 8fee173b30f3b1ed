"""Hands a claim's devices over. The order is what a start after a crash relies on: the page says `prepared` (the caller saw to
that), the checkpoint remembers how everything is, the functions are bound, then come the files by which others learn of it.
Every step may be repeated, and one that was done is found done."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from outfitter.api import device_metadata
from outfitter.api.kinds import Object
from outfitter.errors import NotReady
from outfitter.inventory import mdev, pci
from outfitter.node import cdi, metadata, vfio
from outfitter.node.atomic_files import Files
from outfitter.node.checkpoint import Before, Taken
from outfitter.node.host_env import HostEnv
from outfitter.node.metadata import PreparedDevice
from outfitter.node.passthrough_device import PassthroughDevice


@dataclass(frozen=True, slots=True)
class AllocatedDevice:
    """A device that a claim was given."""

    target: PassthroughDevice
    request: str
    looks_on: bool = False  # by admin access: whoever has the device goes on having it


@dataclass(frozen=True, slots=True)
class PreparedClaim:
    """What whoever starts a container or a machine needs."""

    devices: tuple[PreparedDevice, ...]
    env: Mapping[str, str]  # PCI_RESOURCE_<claim>_<request> and so on
    cdi: tuple[str, ...]  # names that a container runtime knows: "pci.outfitter.dev/device=..."
    metadata: str  # the folder that stands at device_metadata.BASE in a container


def prepare(
    station: HostEnv, claim: Object, wanted: Sequence[AllocatedDevice], *, running: Collection[str] = (),
    left: Mapping[str, str] = MappingProxyType({}),
) -> PreparedClaim:
    """NotReady says which device cannot be handed over and why; what was done stays remembered, and doing it again goes on.
    `running`: addresses and UUIDs that machines have: these are not touched. `left`: claims that hold nothing here any more and
    whose devices are not back -> why."""
    uid, root, checkpoint = claim["metadata"]["uid"], station.root, station.checkpoint
    known = {one.device: one for one in checkpoint.of(uid)}
    given = tuple(
        PreparedDevice(
            one.request,
            station.driver,
            station.host,
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
    taken = [known.get(one.target.name) or _taken(station, claim, one, tuple(texts)) for one in wanted]
    for one, memory in zip(wanted, taken, strict=True):
        _check(station, one, memory, running, left)
    checkpoint.take(taken)
    for memory in taken:
        for before in memory.functions:
            if before.address not in running:
                vfio.bind(root, before)
    env = metadata.environment(claim["metadata"]["name"], given)
    inside = metadata.folder(claim)
    _put(station.cdi, cdi.file_name(station.driver, uid), cdi.spec(
        station.driver, uid, {one.target.name: _nodes(station, one.target) for one in wanted}, env=env, dev=station.dev,
        mounts={station.metadata.at(f"{uid}/{inside}"): f"{device_metadata.BASE}/{inside}"}))
    for name, text in texts.items():
        _put(station.metadata, name, text)
    return PreparedClaim(
        given,
        env,
        tuple(f"{cdi.kind(station.driver)}={cdi.device_name(uid, one.target.name)}" for one in wanted),
        station.metadata.at(uid),
    )


def _taken(station: HostEnv, claim: Object, one: AllocatedDevice, files: tuple[str, ...]) -> Taken:
    meta, target = claim["metadata"], one.target
    if one.looks_on:
        return Taken(meta["uid"], meta["namespace"], meta["name"], target.name, files=files)
    functions = tuple(_before(station, address) for address in target.functions)
    return Taken(meta["uid"], meta["namespace"], meta["name"], target.name, functions, target.uuid, files)


def _before(station: HostEnv, address: str) -> Before:
    """A function as it was before anybody had it: whoever shares it would find what the first one did."""
    now = vfio.look(station.root, address)
    known = (before for taken in station.checkpoint.taken for before in taken.functions)
    return next((before for before in known if (before.address, before.ids) == (address, now.ids)), now)


def _check(station: HostEnv, one: AllocatedDevice, memory: Taken, running: Collection[str], left: Mapping[str, str]) -> None:
    """NotReady before anything is touched."""
    root, target = station.root, one.target
    for other in station.checkpoint.taken:
        if other.uid == memory.uid or other.places.isdisjoint(memory.places):
            continue
        whose = f"{other.namespace}/{other.claim}"
        if not memory.places.isdisjoint(running):
            raise NotReady(f"{target.name} cannot be handed over: a machine still has it, by claim {whose}")
        if other.uid in left:
            raise NotReady(f"{target.name} cannot be handed over: it is not back from claim {whose} yet: {left[other.uid]}")
    if target.uuid is not None and not root.exists(f"{mdev.DEVICES}/{target.uuid}"):
        raise NotReady(f"{target.name} cannot be handed over: the mediated device {target.uuid} is no longer there")
    loose = [before.address for before in memory.functions
             if before.address not in running and not pci.is_vfio_driver(vfio.driver(root, before.address))]
    if loose and not target.managed:
        names = ", ".join(f"{address} ({vfio.driver(root, address) or 'no driver'})" for address in loose)
        raise NotReady(f"{target.name} cannot be handed over: device_spec says managed: no, and {names} is not bound to "
                       "vfio-pci; bind it, or leave managed out")
    waits = bool(loose) or memory.places.isdisjoint(running)  # a machine that runs with it is the proof that it can
    if waits and (trouble := vfio.obstacle(root, [before.address for before in memory.functions])):
        raise NotReady(f"{target.name} cannot be handed over: {trouble}")


def _nodes(station: HostEnv, target: PassthroughDevice) -> list[str]:
    places = [f"{mdev.DEVICES}/{target.uuid}"] if target.uuid else [f"{vfio.DEVICES}/{target.address}"]
    numbers = [vfio.group(station.root, place) for place in places]
    return [f"vfio/{number}" for number in numbers if number is not None]


def _put(files: Files, name: str, text: str) -> None:
    if files.read(name) != text:
        files.write(name, text)
