"""What a guest's cloud-init is to find: the volume that says it, in KubeVirt's words, and the Secrets that it names.

A launcher has no way to the API server, so the contents of Secrets are files of its container, where KubeVirt mounts them too.
They are bytes: as text they are decoded with surrogates for what is no UTF-8 (compressed user data is common)."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["cloudInitNoCloud", "cloudInitConfigDrive"]
KINDS: tuple[Kind, ...] = ("cloudInitNoCloud", "cloudInitConfigDrive")
METHODS: Mapping[Kind, str] = {"cloudInitNoCloud": "noCloud", "cloudInitConfigDrive": "configDrive"}  # of access credentials
SECRETS = "/var/run/kubevirt-private/secret"  # a launcher's folder of Secrets


@dataclass(frozen=True, slots=True)
class CloudInitPart:
    """User data or network data: the fields that may say it, and the keys under which a Secret may have it."""

    word: str
    text: str
    base64: str
    secret: str
    keys: tuple[str, ...]


USER = CloudInitPart("userdata", "userData", "userDataBase64", "secretRef", ("userdata", "userData"))
NETWORK = CloudInitPart(
    "networkdata", "networkData", "networkDataBase64", "networkDataSecretRef", ("networkdata", "networkData")
)
PARTS = (USER, NETWORK)


@dataclass(frozen=True, slots=True)
class CloudInitVolume:
    index: int
    name: str
    kind: Kind
    source: Mapping[str, Any]

    def path(self, root: str = "spec") -> str:
        return f"{root}.volumes[{self.index}].{self.kind}"

    def secret(self, part: CloudInitPart) -> str | None:
        return (self.source.get(part.secret) or {}).get("name") or None


@dataclass(frozen=True, slots=True)
class SecretRef:
    """A Secret that must be there before the machine starts, and in which folder its launcher looks for what it has."""

    path: str  # the field that names it
    secret: str
    folder: str
    keys: tuple[str, ...]  # the first of these that is there; empty: all


def volumes(spec: Mapping[str, Any]) -> Iterator[CloudInitVolume]:
    for index, volume in enumerate(spec.get("volumes") or ()):
        for kind in KINDS:
            if volume.get(kind) is not None:
                yield CloudInitVolume(index, str(volume.get("name") or ""), kind, volume[kind])


def volume(spec: Mapping[str, Any]) -> CloudInitVolume | None:
    """That of a machine; no machine has two."""
    return next(volumes(spec), None)


def secrets(spec: Mapping[str, Any]) -> Iterator[SecretRef]:
    """Every Secret that the machine's cloud-init volume is made from."""
    found = volume(spec)
    if found is None:
        return
    for part in PARTS:
        if name := found.secret(part):
            yield SecretRef(f"{found.path()}.{part.secret}", name, f"{SECRETS}/{found.name}", part.keys)
    for index, entry in enumerate(spec.get("accessCredentials") or ()):
        if name := _public_key(entry, found.kind):
            path = f"spec.accessCredentials[{index}].sshPublicKey.source.secret.secretName"
            yield SecretRef(path, name, f"{SECRETS}/{name}-access-cred", ())


def _public_key(entry: Mapping[str, Any], kind: Kind) -> str | None:
    """The Secret with public keys that this kind of volume shall carry."""
    key = entry.get("sshPublicKey") or {}
    if (key.get("propagationMethod") or {}).get(METHODS[kind]) is None:
        return None
    return ((key.get("source") or {}).get("secret") or {}).get("secretName") or None


def decoded(text: str) -> bytes:
    """ValueError: it is not base64."""
    return base64.b64decode(text.replace("\r", "").replace("\n", ""), validate=True)


def as_text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def as_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
