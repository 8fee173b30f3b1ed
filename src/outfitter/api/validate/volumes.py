"""Volumes of a VMI: unique names, one source each, at most one cloud-init volume, and its user data, network data and
credentials."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from outfitter.api.kubevirt import cloudinit
from outfitter.api.kubevirt.cloudinit import CloudInitPart, CloudInitVolume
from outfitter.api.validate import names
from outfitter.errors import Cause

MOST = 2048  # bytes of user data or network data in a spec; a Secret may hold more


def check(spec: Mapping[str, Any], root: str) -> Iterator[Cause]:
    seen: dict[str, int] = {}
    for index, volume in enumerate(spec.get("volumes") or ()):
        here, name = f"{root}.volumes[{index}]", volume.get("name")
        yield from names.required(name, f"{here}.name", "disks name the volume by it")
        if name and name in seen:
            yield Cause(f"{here}.name", f"{here} and {root}.volumes[{seen[name]}] must not have the same Name.")
        seen.setdefault(name or "", index)
        sources = sorted(key for key, value in volume.items() if key != "name" and value is not None)
        if len(sources) != 1:
            present = f"it has {', '.join(sources)}" if sources else "it has none"
            yield Cause(here, f"{here} must have exactly one source type set: {present}")
    cloud_inits = list(cloudinit.volumes(spec))
    for volume in cloud_inits:
        yield from _cloud_init(volume, root)
    for volume in cloud_inits[1:]:
        if volume.index != cloud_inits[0].index:
            yield Cause(f"{root}.volumes[{volume.index}]", "a VMI can have one cloud-init volume: there is another one, "
                                                           f"{cloud_inits[0].path(root)}")
    yield from _credentials(spec, root, {volume.kind for volume in cloud_inits})


def _cloud_init(volume: CloudInitVolume, root: str) -> Iterator[Cause]:
    here, sources = volume.path(root), 0
    for part in cloudinit.PARTS:
        given = [field for field in (part.secret, part.base64, part.text)
                 if (volume.secret(part) if field == part.secret else volume.source.get(field))]
        sources += len(given)
        if name := volume.secret(part):
            yield from names.subdomain(name, f"{here}.{part.secret}.name")
        if len(given) > 1:
            source = "userdatasource" if part is cloudinit.USER else "networkdata source"
            yield Cause(here, f"{here} must have only one {source} set. It has {', '.join(given)}")
        yield from _fits(volume, part, here)
    if not sources:
        yield Cause(here, f"{here} must have at least one userdatasource or one networkdatasource set.")


def _fits(volume: CloudInitVolume, part: CloudInitPart, here: str) -> Iterator[Cause]:
    data = str(volume.source.get(part.text) or "").encode()
    if not data and volume.source.get(part.base64):
        try:
            data = cloudinit.decoded(volume.source[part.base64])
        except ValueError as error:
            yield Cause(f"{here}.{part.base64}", f"{here}.{part.base64} is not a valid base64 value. ({error})")
    if len(data) > MOST:
        yield Cause(here, f"{here} {part.word} exceeds {MOST} byte limit. Should use {part.secret} for larger data: it has "
                          f"{len(data)} bytes")


def _credentials(spec: Mapping[str, Any], root: str, kinds: set[cloudinit.Kind]) -> Iterator[Cause]:
    """SSH public keys that are propagated by a cloud-init volume need that volume, and a Secret."""
    for index, entry in enumerate(spec.get("accessCredentials") or ()):
        here, key = f"{root}.accessCredentials[{index}]", entry.get("sshPublicKey")
        methods = (key or {}).get("propagationMethod") or {}
        for kind, method in cloudinit.METHODS.items():
            if methods.get(method) is None:
                continue
            if kind not in kinds:
                yield Cause(f"{here}.sshPublicKey.propagationMethod", f"{here} requires a {method} volume to exist when the "
                                                                      f"{method} propagationMethod is in use.")
            name = (((key or {}).get("source") or {}).get("secret") or {}).get("secretName")
            at = f"{here}.sshPublicKey.source.secret.secretName"
            yield from names.subdomain(name, at) if name else names.required(name, at, "the Secret with the public keys")
