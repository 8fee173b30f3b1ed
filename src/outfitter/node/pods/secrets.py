"""The Secrets of a VMI's cloud-init volume, as files of its launcher. They are read when the VMI starts and are not watched."""

from __future__ import annotations

from collections.abc import Mapping

from outfitter.api import kinds
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import cloudinit
from outfitter.api.kubevirt.cloudinit import SecretRef
from outfitter.errors import NotFound
from outfitter.store.base import Store

RETRY_AFTER = 5.0  # seconds, for a Secret that does not exist yet


async def files(store: Store, instance: Object) -> Mapping[str, str] | str:
    """Files of the launcher's container, by path; or what is missing."""
    out: dict[str, str] = {}
    for reference in cloudinit.secrets(instance["spec"]):
        try:
            secret = await store.get(kinds.SECRET, reference.secret, instance["metadata"]["namespace"])
        except NotFound:
            return f"{reference.path}: there is no Secret {reference.secret} yet"
        found = _contents(reference, secret.get("data") or {})
        if isinstance(found, str):
            return found
        out |= found
    return out


def _contents(reference: SecretRef, data: Mapping[str, str]) -> dict[str, str] | str:
    keys = sorted(data) if not reference.keys else [key for key in reference.keys if key in data][:1]
    if not keys:
        missing = f"no key {' or '.join(reference.keys)}" if reference.keys else "nothing in it"
        return f"{reference.path}: Secret {reference.secret} has {missing} yet"
    out = {}
    for key in keys:
        try:
            out[f"{reference.folder}/{key}"] = cloudinit.as_text(cloudinit.decoded(data[key]))
        except ValueError as error:
            return f"{reference.path}: {key} of Secret {reference.secret} is not base64: {error}"
    return out
