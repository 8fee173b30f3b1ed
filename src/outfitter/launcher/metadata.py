"""Devices from Kubernetes' device metadata files, in which DRA drivers describe prepared devices. Called by `sources`.

    <base>/resourceclaims/<claim>/<request>/*-metadata.json            a claim that was named
    <base>/resourceclaimtemplates/<entry>/<request>/*-metadata.json    one made from a template, by its entry in the spec
    <base>/<claim>/<request>/*.json                                    earlier: both by the claim's name; a file of a template's
                                                                       claim says for which entry it is (podClaimName)

A file is a stream of JSON objects, one for each version that the driver can write."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from outfitter.api.device_metadata import API_VERSIONS, BASE, EARLIER_BASE, SUFFIX
from outfitter.errors import StartFailed
from outfitter.launcher.device_assignment import (
    AssignedDevice,
    DeviceNotAssigned,
    RequestedDevice,
    checked,
    from_attributes,
    same_devices,
)

Files = Mapping[str, str]  # path -> text
BASES = (BASE, EARLIER_BASE)


def claimed(ask: RequestedDevice, entry: Mapping[str, Any], claim: str | None, files: Files) -> tuple[AssignedDevice, ...]:
    """The devices in the files of a claim's request. `entry` is that of spec.resourceClaims, `claim` the name of the claim
    object where known."""
    if not ask.claim or not ask.request:
        raise StartFailed(f"{ask.path}: {ask.word} has incomplete ClaimRequest: claimName and requestName are both needed")
    if not entry:
        raise DeviceNotAssigned(f"no files are read: claim {ask.claim} is not among spec.resourceClaims")
    listed: list[tuple[str, tuple[AssignedDevice, ...]]] = []
    patterns: list[str] = []
    for place, found in _places(ask, entry, claim, files):
        patterns.append(place)
        if found:
            listed.append((place, _devices(ask, found)))
    if not listed:
        raise DeviceNotAssigned(
            f"failed to read metadata for claim {ask.claim} request {ask.request}: no files matching {patterns[0]}"
        )
    for place, devices in listed[1:]:
        if not same_devices(devices, listed[0][1]):
            raise StartFailed(f"{ask.path}: {ask.word}: {listed[0][0]} and {place} do not list the same devices")
    return listed[0][1]


def _places(
    ask: RequestedDevice, entry: Mapping[str, Any], claim: str | None, files: Files
) -> Iterator[tuple[str, dict[str, str]]]:
    named = entry.get("resourceClaimName")
    folder = f"resourceclaims/{named}" if named else f"resourceclaimtemplates/{ask.claim}"
    for base in BASES:
        place = f"{base}/{folder}/{ask.request}/"
        yield f"{place}*{SUFFIX}", {path: text for path, text in files.items()
                                    if path.startswith(place) and path.endswith(SUFFIX)}
    for base in BASES:  # the earlier layout
        found = {}
        for path, text in files.items():
            steps = path.removeprefix(f"{base}/").split("/") if path.startswith(f"{base}/") else []
            if len(steps) == 3 and steps[1] == ask.request and path.endswith(".json") and (
                    steps[0] == (named or claim) or (not named and _is_for(text, ask.claim))):
                found[path] = text
        yield f"{base}/{named or claim or '*'}/{ask.request}/*", found


def _is_for(text: str, entry: str | None) -> bool:
    """Whether a file is for this entry of spec.resourceClaims; an unreadable file belongs to another entry."""
    try:
        return bool(_version(text).get("podClaimName") == entry)
    except StartFailed:
        return False


def _devices(ask: RequestedDevice, found: Mapping[str, str]) -> tuple[AssignedDevice, ...]:
    out: list[AssignedDevice] = []
    for path in sorted(found):
        try:
            listed = _listed(ask, _version(found[path]))
        except StartFailed as error:
            raise StartFailed(f"{ask.path}: {ask.word}: {path}: {error.message}") from error
        for device in listed:
            given = from_attributes(ask, device)
            if given is None:
                wanted = "pciBusID" if ask.list == "interfaces" else "mdevUUID or pciBusID"
                raise StartFailed(f"{ask.path}: {ask.word} has no {wanted} in metadata for claim {ask.claim} request "
                              f'{ask.request}: device {device.get("name", "?")} of {path} needs an attribute such as '
                              '"resource.kubernetes.io/pciBusID": {"string": "0000:3b:01.0"}')
            out.append(checked(ask, given))
    seen = [given.id for given in out]
    if twice := next((each for number, each in enumerate(seen) if each in seen[:number] and each != "//"), None):
        where = f"{len(found)} metadata files" if len(found) > 1 else "the metadata"
        raise StartFailed(f"{ask.path}: {ask.word}: request {ask.request} has {len(out)} devices, but {where} list {twice} "
                          "twice: each device may be listed once")
    return tuple(out)


def _version(text: str) -> Mapping[str, Any]:
    """The first object of the stream whose version is known. The rest of the stream is ignored."""
    decoder, at, others = json.JSONDecoder(), 0, []
    while True:
        while at < len(text) and text[at].isspace():
            at += 1
        if at == len(text):
            break
        try:
            value, at = decoder.raw_decode(text, at)
        except ValueError as error:
            raise StartFailed(f"failed to decode metadata: {error}") from error
        version = value.get("apiVersion") if isinstance(value, dict) else None
        if not isinstance(version, str) or not version:
            raise StartFailed("an object of the metadata stream has no apiVersion")
        if version in API_VERSIONS:
            return dict(value)
        others.append(version)
    if others:
        raise StartFailed(f"no compatible metadata version found in stream (unknown versions: {', '.join(others)}); known are "
                          f"{' and '.join(API_VERSIONS)}")
    raise StartFailed("no metadata objects found in stream")


def _listed(ask: RequestedDevice, document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The devices of a request. An alternative that was chosen is written "request/alternative"."""
    requests = document.get("requests")
    of_request = [each for each in requests if isinstance(each, Mapping) and str(each.get("name", "")).partition("/")[0] ==
                  ask.request] if isinstance(requests, list) else []
    if not of_request:
        raise StartFailed(f"request {ask.request} not found in metadata of claim {ask.claim}")
    devices = [device for each in of_request if isinstance(each.get("devices"), list) for device in each["devices"]]
    if strange := [device for device in devices if not isinstance(device, Mapping)
                   or not isinstance(device.get("attributes") or {}, Mapping)]:
        raise StartFailed(f"request {ask.request} has an invalid device: {json.dumps(strange[0])}")
    if not devices:
        raise StartFailed(f"request {ask.request} has no devices")
    return devices
