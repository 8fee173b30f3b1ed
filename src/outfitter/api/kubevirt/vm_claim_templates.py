"""Entries of a VirtualMachine's `resourceClaimTemplates`, in two shapes: `spec` says in place what the claim asks for (ours);
`resourceClaimTemplateName` names a ResourceClaimTemplate (KubeVirt's VEP 344). Pure.

    - {name: disk, spec: {spec: {devices: ...}}}                                           kept while the VM is stopped
    - {name: gpu, resourceClaimTemplateName: one-gpu}                                      freed when the VM stops
    - {name: gpu, resourceClaimTemplateName: one-gpu, persistWhenStopped: true}            kept
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from outfitter.api.kinds import Object

CLAIM_OF_ENTRY = "claim.outfitter.dev/"  # annotation of a VM, with the name of an entry: its claim since a migration
SHAPES = ("spec", "resourceClaimTemplateName")


def entries(vm: Mapping[str, Any]) -> Sequence[Object]:
    return (vm.get("spec") or {}).get("resourceClaimTemplates") or ()


def migrated_claim(vm: Mapping[str, Any], name: str) -> str:
    """The claim that a migration gave the VM in the place of the one that was created for an entry; "": none did."""
    return str((vm["metadata"].get("annotations") or {}).get(f"{CLAIM_OF_ENTRY}{name}") or "")


def template_name(entry: Mapping[str, Any]) -> str | None:
    return entry.get("resourceClaimTemplateName")


def kept_when_stopped(entry: Mapping[str, Any]) -> bool:
    """Whether claim and devices stay the VM's while it is stopped. Over a reboot, a restart and a failure they always do."""
    persist = entry.get("persistWhenStopped")
    return template_name(entry) is None if persist is None else bool(persist)


def made_when_stopped(entry: Mapping[str, Any]) -> bool:
    """Whether the claim is there before the first start. One of a ResourceClaimTemplate is made when the VM starts."""
    return template_name(entry) is None and kept_when_stopped(entry)
