"""The file `dra_manager_state` in the kubelet's format: which claims are prepared for which pods, with which devices. Pure, as
`checkpoint`. A kubelet that finds a damaged one does not start; the agent rebuilds it from the API."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from outfitter.node.device_manager.checkpoint import (
    CheckpointProblem,
    DamagedCheckpoint,
    MalformedCheckpoint,
    list_at,
    object_at,
    read_json,
    text_at,
    texts_at,
)

FILE = "dra_manager_state"
KIND, API_VERSION = "DRACheckpoint", "checkpoint.dra.kubelet.k8s.io/v1"


@dataclass(frozen=True, slots=True)
class ClaimDeviceState:
    """A prepared device of a claim, as its driver answered."""

    pool: str
    device: str
    requests: tuple[str, ...]
    cdi_ids: tuple[str, ...]
    share_id: str | None = None


@dataclass(frozen=True, slots=True)
class ClaimInfoState:
    uid: str
    name: str
    namespace: str
    pod_uids: frozenset[str]
    drivers: Mapping[str, tuple[ClaimDeviceState, ...]]  # every driver of the allocation, also without devices


def encode(claims: tuple[ClaimInfoState, ...]) -> str:
    data = json.dumps({"kind": KIND, "apiVersion": API_VERSION, "ClaimInfoStateList": [{
        "ClaimUID": claim.uid, "ClaimName": claim.name, "Namespace": claim.namespace,
        "PodUIDs": {uid: {} for uid in sorted(claim.pod_uids)},
        "DriverState": {driver: {"Devices": [_device(device) for device in devices]}
                        for driver, devices in sorted(claim.drivers.items())},
    } for claim in claims]}, separators=(",", ":"), ensure_ascii=False)
    return json.dumps({"Data": data, "Checksum": zlib.crc32(data.encode())}, separators=(",", ":"), ensure_ascii=False)


def decode(text: str | bytes) -> tuple[ClaimInfoState, ...] | DamagedCheckpoint:
    try:
        whole = read_json(text, FILE)
        data = text_at(whole.get("Data"), "Data")
        if (actual := zlib.crc32(data.encode("utf-8", "surrogatepass"))) != whole.get("Checksum"):
            raise MalformedCheckpoint(f"{FILE} has checksum {whole.get('Checksum')}, its content has {actual}: it was changed "
                                      "after it was written", CheckpointProblem.CHECKSUM)
        content = read_json(data, FILE)
        if (content.get("kind"), content.get("apiVersion")) != (KIND, API_VERSION):
            raise MalformedCheckpoint(f"{FILE} is {content.get('apiVersion')} {content.get('kind')}, and {API_VERSION} {KIND} "
                                      "can be read", CheckpointProblem.OTHER_VERSION)
        return tuple(_claim(object_at(raw, f"ClaimInfoStateList[{index}]"), f"ClaimInfoStateList[{index}]")
                     for index, raw in enumerate(list_at(content.get("ClaimInfoStateList"), "ClaimInfoStateList")))
    except MalformedCheckpoint as error:
        return DamagedCheckpoint(error.problem, str(error))


def _device(device: ClaimDeviceState) -> dict[str, Any]:
    return {"PoolName": device.pool, "DeviceName": device.device, "ShareID": device.share_id,
            "RequestNames": list(device.requests), "CDIDeviceIDs": list(device.cdi_ids)}


def _claim(raw: Mapping[str, Any], path: str) -> ClaimInfoState:
    drivers = {}
    for driver, state in object_at(raw.get("DriverState"), f"{path}.DriverState").items():
        at = f"{path}.DriverState[{driver}]"
        drivers[driver] = tuple(_read_device(object_at(device, at), at)
                                for device in list_at(object_at(state, at).get("Devices"), at))
    return ClaimInfoState(text_at(raw.get("ClaimUID"), f"{path}.ClaimUID"), text_at(raw.get("ClaimName"), f"{path}.ClaimName"),
                          text_at(raw.get("Namespace"), f"{path}.Namespace"),
                          frozenset(object_at(raw.get("PodUIDs"), f"{path}.PodUIDs")), drivers)


def _read_device(raw: Mapping[str, Any], path: str) -> ClaimDeviceState:
    share = raw.get("ShareID")
    return ClaimDeviceState(
        text_at(raw.get("PoolName"), f"{path}.PoolName"), text_at(raw.get("DeviceName"), f"{path}.DeviceName"),
        texts_at(raw.get("RequestNames"), f"{path}.RequestNames"), texts_at(raw.get("CDIDeviceIDs"), f"{path}.CDIDeviceIDs"),
        None if share is None else text_at(share, f"{path}.ShareID"))
