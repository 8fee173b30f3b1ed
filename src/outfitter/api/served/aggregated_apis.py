"""The groups and versions that the aggregated API (`apiserver.aggregated`) serves: kube-apiserver has an APIService for each.
`install` creates them, and `webhook` keeps their CA."""

from __future__ import annotations

from outfitter.api import kinds
from outfitter.api.kubevirt import vm_actions

ACTIONS = tuple((vm_actions.GROUP, version) for version in kinds.VM.versions)  # beside KubeVirt they are its own
STATUS = ((kinds.POOL_STATUS.group, kinds.POOL_STATUS.version),)
SERVED = (*ACTIONS, *STATUS)


def api_service(group: str, version: str) -> str:
    """The name of its APIService."""
    return f"{version}.{group}"
