"""Devices of resources that a DeviceClass maps and that were pre-assigned to a container (`assignedDevices`): which they are,
and that no other pod gets them while the pod waits. Ids of other resources belong to device plugins, and are checked on the
node. `class_of`: which class maps a resource."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from outfitter.api.device import DeviceId
from outfitter.api.kinds import Object
from outfitter.api.rejection import Rejection, RejectionCode
from outfitter.scheduling.dra import extended_resources
from outfitter.scheduling.dra.device_index import DeviceIndex
from outfitter.scheduling.dra.extended_resources import Resources


def resolve(word: str, index: DeviceIndex) -> list[DeviceId]:
    """The devices that are meant by "host/device", "pool/device" or the name of a device."""
    place, _, name = word.rpartition("/")
    return [device for device in index.called(name) if not place or place in (device.pool, *index.where(device))]


def kept(pods: Iterable[Object], index: DeviceIndex, class_of: Resources) -> dict[DeviceId, Rejection]:
    """What is pre-assigned to pods that wait, in this order: no other pod gets it. Of several the first is named."""
    return {
        device: Rejection.of(RejectionCode.ASSIGNED_TO_OTHER, device, pod=pod["metadata"]["name"],
                             namespace=pod["metadata"]["namespace"])
        for pod in reversed(list(pods))
        for _, word in extended_resources.presets(pod, class_of)
        for device in resolve(word, index)[:1]
    }


def wrong(pod: Object, index: DeviceIndex, class_of: Resources) -> list[Rejection]:
    """What is wrong with the ids themselves: there is no such device, or several."""
    out = []
    for resource, word in extended_resources.presets(pod, class_of):
        found = resolve(word, index)
        if not found:
            out.append(Rejection.of(RejectionCode.ASSIGNED_DEVICE_MISSING, id=word, resource=resource))
        elif len(found) > 1:
            out.append(Rejection.of(RejectionCode.ASSIGNED_DEVICE_AMBIGUOUS, id=word, resource=resource,
                                    devices=tuple(sorted(one.short for one in found))))
    return out


def rejections(pod: Object, index: DeviceIndex, class_of: Resources, host: str = "") -> Iterator[Rejection]:
    """For each id why it cannot be allocated; with a host also that it is on another one."""
    for _, word in extended_resources.presets(pod, class_of):
        for device in resolve(word, index)[:1]:
            where = index.where(device)
            if device in index.held.whole and (taken := index.held.why_taken(device)) is not None:
                yield replace(taken, device=None).with_detail(id=word)
            elif host and host not in where:
                yield Rejection.of(RejectionCode.ASSIGNED_DEVICE_ELSEWHERE, id=word, hosts=tuple(where))


def hosts(pod: Object, index: DeviceIndex, class_of: Resources) -> set[str] | None:
    """The hosts that have all of them; None if none was given."""
    found = [set(index.where(resolve(word, index)[0])) for _, word in extended_resources.presets(pod, class_of)]
    return set.intersection(*found) if found else None


def only(asks: extended_resources.ExtendedResourceRequest, index: DeviceIndex) -> Mapping[str, frozenset[DeviceId]]:
    """Request -> the very devices for it."""
    return {request: frozenset(_first(ids, index)) for request, ids in asks.only.items()}


def _first(ids: Sequence[str], index: DeviceIndex) -> Iterator[DeviceId]:
    for word in ids:
        yield from resolve(word, index)[:1]
