"""The patches that an action on a VM or VMI makes, as virtctl requests it, and NotFound when there is none. The rules are in
`vm_actions` and `vmi_actions`. Called by the embedded API server, the aggregated API and the CLI; pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from outfitter.api import kinds
from outfitter.api.kinds import Kind, Object
from outfitter.api.kubevirt import vm as vm_api
from outfitter.api.kubevirt import vm_actions, vmi_actions
from outfitter.api.kubevirt.vm_actions import ActionOptions, ObjectPatch
from outfitter.errors import NotFound

Read = Callable[[Kind], Object | None]  # the VM or VMI of the requested name; None: there is none


def action_patches(kind: Kind, name: str, action: str, options: ActionOptions, *, read: Read, now: str) -> list[ObjectPatch]:
    """Conflict: the state of the object does not allow the action."""
    obj = read(kind)
    if obj is None:
        raise NotFound(f"{vm_actions.qualified_name(kind, name)} not found")
    if kind == kinds.VMI:
        wanted = vmi_actions.with_action_request(cast("vmi_actions.Action", action), obj, now)
        return [ObjectPatch(kinds.VMI, {"status": {vmi_actions.FIELD: wanted}}, "status")]
    found = read(kinds.VMI)
    own = found if found is not None and vm_api.belongs(found, obj) else None
    if action == vm_actions.MIGRATE:
        return [vm_actions.requested_migration(obj, own, options)]
    return vm_actions.requested_changes(cast("vm_actions.Action", action), obj, own, options)
