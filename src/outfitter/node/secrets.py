"""What the launcher of a machine finds of the Secrets that its cloud-init volume names: they are read when the machine starts,
and nobody watches them."""

from __future__ import annotations

from collections.abc import Mapping

from outfitter.api import kinds
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import cloudinit
from outfitter.api.kubevirt.cloudinit import SecretRef
from outfitter.errors import NotFound
from outfitter.store.base import Store

LOOK_AGAIN = 5.0  # seconds, for a Secret that is not there yet


async def files(store: Store, instance: Object) -> Mapping[str, str] | str:
    """Files of the launcher's container, by path; or what is missing."""
    out: dict[str, str] = {}
    for ask in cloudinit.secrets(instance["spec"]):
        try:
            secret = await store.get(kinds.SECRET, ask.secret, instance["metadata"]["namespace"])
        except NotFound:
            return f"{ask.path}: there is no Secret {ask.secret} yet"
        found = _contents(ask, secret.get("data") or {})
        if isinstance(found, str):
            return found
        out |= found
    return out


def _contents(ask: SecretRef, data: Mapping[str, str]) -> dict[str, str] | str:
    keys = sorted(data) if not ask.keys else [key for key in ask.keys if key in data][:1]
    if not keys:
        return f"{ask.path}: Secret {ask.secret} has {'no key ' + ' or '.join(ask.keys) if ask.keys else 'nothing in it'} yet"
    out = {}
    for key in keys:
        try:
            out[f"{ask.folder}/{key}"] = cloudinit.as_text(cloudinit.decoded(data[key]))
        except ValueError as error:
            return f"{ask.path}: {key} of Secret {ask.secret} is not base64: {error}"
    return out
