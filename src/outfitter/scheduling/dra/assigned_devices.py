"""Devices that were chosen for a container beforehand (`assignedDevices`): which they are, and that nobody else gets them while
the pod waits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from outfitter.api.device import DeviceId
from outfitter.api.kinds import Object
from outfitter.scheduling.dra import extended_resources
from outfitter.scheduling.dra.device_index import DeviceIndex


def resolve(word: str, index: DeviceIndex) -> list[DeviceId]:
    """The devices that somebody means by "host/device", "pool/device" or the name of a device."""
    place, _, name = word.rpartition("/")
    return [device for device in index.called(name) if not place or place in (device.pool, *index.where(device))]


def kept(pods: Iterable[Object], index: DeviceIndex) -> dict[DeviceId, str]:
    """What pods that wait, in this order, were given beforehand: for nobody else. Of several the first is named."""
    return {
        device: f"kept for pod/{pod['metadata']['name']} in {pod['metadata']['namespace']}, which was given it beforehand"
        for pod in reversed(list(pods))
        for _, word in extended_resources.presets(pod)
        for device in resolve(word, index)[:1]
    }


def wrong(pod: Object, index: DeviceIndex) -> list[str]:
    """What is wrong with the ids themselves: there is no such device, or several."""
    out = []
    for resource, word in extended_resources.presets(pod):
        found = resolve(word, index)
        if not found:
            out.append(f"{word} ({resource}) does not exist")
        elif len(found) > 1:
            out.append(f"{word} ({resource}) may be any of {', '.join(sorted(one.short for one in found))}: write host/device")
    return out


def reasons(pod: Object, index: DeviceIndex, host: str = "") -> Iterator[str]:
    """For each id what stands in its way; with a host also that it is somewhere else."""
    for _, word in extended_resources.presets(pod):
        for device in resolve(word, index)[:1]:
            where = index.where(device)
            if why := index.held.whole.get(device):
                yield f"{word} is {why}" if why.startswith("held") else f"{word} was {why}"
            elif host and host not in where:
                yield f"{word} is on {', '.join(where) or 'no host'}"


def hosts(pod: Object, index: DeviceIndex) -> set[str] | None:
    """The hosts that have all of them; None if none was given."""
    found = [set(index.where(resolve(word, index)[0])) for _, word in extended_resources.presets(pod)]
    return set.intersection(*found) if found else None


def only(asks: extended_resources.ExtendedResourceRequest, index: DeviceIndex) -> Mapping[str, frozenset[DeviceId]]:
    """Request -> the very devices for it."""
    return {request: frozenset(_first(ids, index)) for request, ids in asks.only.items()}


def _first(ids: Sequence[str], index: DeviceIndex) -> Iterator[DeviceId]:
    for word in ids:
        yield from resolve(word, index)[:1]
