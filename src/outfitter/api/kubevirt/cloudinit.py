"""cloud-init volumes of a VMI and the Secrets that they name, as KubeVirt defines them.

A launcher does not talk to the API server, so the contents of Secrets are files of its container, at the paths where KubeVirt
mounts them. They are bytes, kept as text with surrogates for what is not UTF-8 (compressed user data is common)."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["cloudInitNoCloud", "cloudInitConfigDrive"]
KINDS: tuple[Kind, ...] = ("cloudInitNoCloud", "cloudInitConfigDrive")
METHODS: Mapping[Kind, str] = {
    "cloudInitNoCloud": "noCloud",
    "cloudInitConfigDrive": "configDrive",
}  # propagationMethod of access credentials
SECRETS = "/var/run/kubevirt-private/secret"  # folder of Secrets in a launcher's container


@dataclass(frozen=True, slots=True)
class CloudInitPart:
    """User data or network data: the volume fields that may hold it, and its keys in a Secret."""

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
    """A Secret that must exist before the VMI starts, and the launcher's folder for its contents."""

    path: str  # the field that names it
    secret: str
    folder: str
    keys: tuple[str, ...]  # the first existing key is used; empty: all keys


def volumes(spec: Mapping[str, Any]) -> Iterator[CloudInitVolume]:
    for index, volume in enumerate(spec.get("volumes") or ()):
        for kind in KINDS:
            if volume.get(kind) is not None:
                yield CloudInitVolume(index, str(volume.get("name") or ""), kind, volume[kind])


def volume(spec: Mapping[str, Any]) -> CloudInitVolume | None:
    """The cloud-init volume of a VMI; admission rejects a second one."""
    return next(volumes(spec), None)


def secrets(spec: Mapping[str, Any]) -> Iterator[SecretRef]:
    """Every Secret that the cloud-init volume of a VMI uses."""
    cloud_init = volume(spec)
    if cloud_init is None:
        return
    for part in PARTS:
        if name := cloud_init.secret(part):
            yield SecretRef(f"{cloud_init.path()}.{part.secret}", name, f"{SECRETS}/{cloud_init.name}", part.keys)
    for index, entry in enumerate(spec.get("accessCredentials") or ()):
        if name := _public_key(entry, cloud_init.kind):
            path = f"spec.accessCredentials[{index}].sshPublicKey.source.secret.secretName"
            yield SecretRef(path, name, f"{SECRETS}/{name}-access-cred", ())


def _public_key(entry: Mapping[str, Any], kind: Kind) -> str | None:
    """The Secret with SSH public keys for this kind of volume."""
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
