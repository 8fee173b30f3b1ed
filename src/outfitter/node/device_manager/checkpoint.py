"""The file `kubelet_internal_checkpoint` in the kubelet's format: which container has which devices of which plugin. Multus and
others read it, and a kubelet accepts it, so its checksum is the kubelet's: FNV-1a of the structure as Go's spew prints it.

Pure: text in, value out. A file that cannot be used is a `DamagedCheckpoint`; the device manager rebuilds it from the API."""

from __future__ import annotations

import base64
import binascii
import enum
import functools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

FILE = "kubelet_internal_checkpoint"
WITHOUT_NUMA_NODE = -1
_PRIME, _32_BITS = 0x01000193, 0xFFFFFFFF
_NUMA_KEY = re.compile(r"-?[0-9]{1,19}")


@dataclass(frozen=True)
class PodDevicesEntry:
    """The devices of one resource that one container has. Its texts are kept: of the entries of a file few change."""

    pod_uid: str
    container: str
    resource: str
    devices: Mapping[int, tuple[str, ...]]  # NUMA node, or WITHOUT_NUMA_NODE, -> ids; a device near two nodes is in both
    response: bytes = b""  # the plugin's ContainerAllocateResponse, serialized

    @property
    def ids(self) -> frozenset[str]:
        return frozenset(device for ids in self.devices.values() for device in ids)

    @functools.cached_property
    def text(self) -> str:
        """As in the file."""
        return _json(self._data)

    @functools.cached_property
    def printed(self) -> str:
        """As the kubelet prints it for its checksum."""
        return _printed_entry(self._data)

    @property
    def _data(self) -> dict[str, Any]:
        return {"PodUID": self.pod_uid, "ContainerName": self.container, "ResourceName": self.resource,
                "DeviceIDs": {str(node): list(ids) for node, ids in sorted(self.devices.items())},
                "AllocResp": base64.b64encode(self.response).decode()}


@dataclass(frozen=True, slots=True)
class DeviceCheckpoint:
    entries: tuple[PodDevicesEntry, ...] = ()
    registered: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # resource -> healthy ids


class CheckpointProblem(enum.StrEnum):
    NOT_JSON = "NotJSON"  # torn, or not a checkpoint
    CHECKSUM = "ChecksumMismatch"
    OTHER_VERSION = "OtherVersion"
    MALFORMED = "Malformed"
    UNREADABLE = "Unreadable"  # no file, no permission, no text


@dataclass(frozen=True, slots=True)
class DamagedCheckpoint:
    problem: CheckpointProblem
    message: str


class MalformedCheckpoint(Exception):
    """Raised while a file is read, and returned as `DamagedCheckpoint`."""

    def __init__(self, message: str, problem: CheckpointProblem = CheckpointProblem.MALFORMED) -> None:
        super().__init__(message)
        self.problem = problem


def encode(checkpoint: DeviceCheckpoint) -> str:
    registered = sorted(checkpoint.registered.items())
    entries = f"[{','.join(entry.text for entry in checkpoint.entries)}]" if checkpoint.entries else "null"
    devices = ",".join(f"{_json(resource)}:{_id_list(ids)}" for resource, ids in registered)
    checksum = _checksum([entry.printed for entry in checkpoint.entries] or None, dict(registered))
    return f'{{"Data":{{"PodDeviceEntries":{entries},"RegisteredDevices":{{{devices}}}}},"Checksum":{checksum}}}'


def decode(text: str | bytes) -> DeviceCheckpoint | DamagedCheckpoint:
    try:
        whole = read_json(text, FILE)
        data = whole.get("Data")
        if not isinstance(data, dict):
            raise MalformedCheckpoint(f"{FILE} has no Data")
        entries = tuple(_entry(raw, f"Data.PodDeviceEntries[{index}]")
                        for index, raw in enumerate(list_at(data.get("PodDeviceEntries"), "Data.PodDeviceEntries")))
        registered = _id_lists(data.get("RegisteredDevices"), "Data.RegisteredDevices")
        printed = data.get("PodDeviceEntries")
        printed = None if printed is None else [_printed_entry(raw) for raw in printed]
        if (actual := _checksum(printed, data.get("RegisteredDevices"))) != whole.get("Checksum"):
            raise MalformedCheckpoint(f"{FILE} has checksum {whole.get('Checksum')}, its content has {actual}: it was changed "
                                      "after it was written", CheckpointProblem.CHECKSUM)
    except MalformedCheckpoint as error:
        return DamagedCheckpoint(error.problem, str(error))
    return DeviceCheckpoint(entries, registered)


def read_json(text: str | bytes, file: str) -> dict[str, Any]:
    """The object in a checkpoint file."""
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MalformedCheckpoint(f"{file} is not complete JSON: {error}", CheckpointProblem.NOT_JSON) from None
    if not isinstance(whole, dict):
        raise MalformedCheckpoint(f"{file} is not a JSON object")
    return whole


def object_at(value: Any, path: str) -> dict[str, Any]:
    """null counts as empty, as in Go."""
    if value is not None and not isinstance(value, dict):
        raise MalformedCheckpoint(f"{path} is not an object")
    return value or {}


def list_at(value: Any, path: str) -> list[Any]:
    if value is not None and not isinstance(value, list):
        raise MalformedCheckpoint(f"{path} is not a list")
    return value or []


def text_at(value: Any, path: str) -> str:
    if not isinstance(value, str):
        raise MalformedCheckpoint(f"{path} is not a string")
    return value


def texts_at(value: Any, path: str) -> tuple[str, ...]:
    return tuple(text_at(item, path) for item in list_at(value, path))


def _id_lists(value: Any, path: str) -> dict[str, tuple[str, ...]]:
    return {key: texts_at(ids, f"{path}[{key}]") for key, ids in object_at(value, path).items()}


def _entry(raw: Any, path: str) -> PodDevicesEntry:
    raw = object_at(raw, path)
    devices = raw.get("DeviceIDs")
    if isinstance(devices, list):
        raise MalformedCheckpoint(f"{path}.DeviceIDs is a list: written by a kubelet before 1.20",
                                  CheckpointProblem.OTHER_VERSION)
    by_node = _id_lists(devices, f"{path}.DeviceIDs")
    if wrong := [key for key in by_node if not _NUMA_KEY.fullmatch(key)]:
        raise MalformedCheckpoint(f"{path}.DeviceIDs has {wrong[0]!r}, which is no NUMA node")
    return PodDevicesEntry(
        text_at(raw.get("PodUID"), f"{path}.PodUID"), text_at(raw.get("ContainerName"), f"{path}.ContainerName"),
        text_at(raw.get("ResourceName"), f"{path}.ResourceName"), {int(key): ids for key, ids in by_node.items()},
        _bytes(raw.get("AllocResp"), f"{path}.AllocResp"))


def _bytes(value: Any, path: str) -> bytes:
    try:
        return base64.b64decode(text_at(value or "", path), validate=True)
    except binascii.Error:
        raise MalformedCheckpoint(f"{path} is not base64") from None


# -- the checksum

def _checksum(entries: Sequence[str] | None, registered: Mapping[str, Sequence[str] | None] | None) -> int:
    """FNV-1a, 32 bits, of the entries as they are printed and of the registered devices; whether a list is null or empty
    matters."""
    digest = 0x811C9DC5
    for text in _printed(entries, registered):
        digest = _fnv(digest, text)
    return digest


def _fnv(digest: int, text: str) -> int:
    """Goes on with a digest."""
    factor, summand = _fnv_step(digest & 0xFF, text)
    return (digest * factor + summand) & _32_BITS


@functools.lru_cache(maxsize=1 << 13)
def _fnv_step(low: int, text: str) -> tuple[int, int]:
    """What a text does to a digest that ends with the byte `low`: each step is (digest ^ byte) * PRIME, where the byte changes
    only the last eight bits, and these depend on nothing but `low`. So the whole is digest * factor + summand. Cached: of a
    checkpoint little changes."""
    digest = low
    data = text.encode("utf-8", "surrogatepass")
    for byte in data:
        digest = (digest ^ byte) * _PRIME & _32_BITS
    factor = pow(_PRIME, len(data), _32_BITS + 1)
    return factor, (digest - low * factor) & _32_BITS


def _printed(entries: Sequence[str] | None, registered: Mapping[str, Sequence[str] | None] | None) -> Iterator[str]:
    """The structure as the kubelet prints it for its checksum, in pieces."""
    yield "(checkpoint.checkpointData){PodDeviceEntries:([]checkpoint.PodDevicesEntry)"
    yield "<nil>" if entries is None else "["
    for index, entry in enumerate(entries or ()):
        yield (" " if index else "") + entry
    yield "" if entries is None else "]"
    yield " RegisteredDevices:(map[string][]string)" + ("<nil>" if registered is None else "map[")
    for index, (key, ids) in enumerate(sorted((registered or {}).items())):
        yield f"{' ' if index else ''}{key}:"
        yield "<nil>" if ids is None else _printed_ids(tuple(ids))
    yield "}" if registered is None else "]}"


def _printed_entry(entry: Mapping[str, Any]) -> str:
    devices, response = entry.get("DeviceIDs"), entry.get("AllocResp")
    by_node = None if devices is None else {int(node): ids for node, ids in devices.items()}
    octets = "<nil>" if response is None else f"[{' '.join(map(str, base64.b64decode(response)))}]"
    return (f"{{PodUID:(string){entry['PodUID']} ContainerName:(string){entry['ContainerName']} "
            f"ResourceName:(string){entry['ResourceName']} DeviceIDs:(checkpoint.DevicesPerNUMA){_printed_map(by_node)} "
            f"AllocResp:([]uint8){octets}}}")


def _printed_map(lists: Mapping[Any, list[str] | None] | None) -> str:
    if lists is None:
        return "<nil>"
    return f"map[{' '.join(f'{key}:{_printed_list(lists[key])}' for key in sorted(lists))}]"


@functools.lru_cache(maxsize=64)
def _printed_ids(ids: tuple[str, ...]) -> str:
    """The same text for the same ids, whose effect on the digest is cached."""
    return _printed_list(list(ids))


@functools.lru_cache(maxsize=64)
def _id_list(ids: tuple[str, ...]) -> str:
    """The same for the file."""
    return _json(ids)


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _printed_list(items: list[str] | None) -> str:
    return "<nil>" if items is None else f"[{' '.join(items)}]"
