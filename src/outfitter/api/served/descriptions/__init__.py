"""Descriptions of all served fields, as `kubectl explain` shows them. One table: the end of a field's path -> its description;
the longest end that is in the table counts, and it may begin with the kind.

>>> describe(("VirtualMachineInstance", "status", "deviceStatus", "gpuStatuses", "deviceResourceClaimStatus", "pool"))
'The pool of the ResourceSlice that has the device; outfitter names it after the host.'
"""

from __future__ import annotations

from collections.abc import Mapping

from outfitter.api.served.descriptions import common, core, dra, kubevirt, outfitter, vms
from outfitter.api.validate import unsupported_fields

Path = tuple[str, ...]  # the kind, then field names; items of lists and values of maps add nothing
FIELDS: Mapping[str, str] = {
    **common.FIELDS, **core.FIELDS, **dra.FIELDS, **vms.FIELDS, **kubevirt.FIELDS, **outfitter.FIELDS}
_UNSUPPORTED: Mapping[str, str] = {
    **{f"VirtualMachineInstance.spec.{field}": instead for field, instead in unsupported_fields.VMI.items()},
    **{f"VirtualMachine.spec.template.spec.{field}": instead for field, instead in unsupported_fields.VMI.items()},
    **{f"VirtualMachine.spec.{field}": instead for field, instead in unsupported_fields.VM.items()},
}


KEPT = "Kept as Kubernetes defines it; outfitter does not act on it."
_WHOLE_KINDS = ("Node", "Pod")  # kinds of which every field is known, and few are read


def describe(path: Path) -> str:
    """Empty for a field that the table does not have, KEPT if it is one of a pod or node. What KubeVirt acts on and outfitter
    does not is said to be so."""
    text = next((FIELDS[end] for start in range(len(path)) if (end := ".".join(path[start:])) in FIELDS), "")
    if not text and path[0] in _WHOLE_KINDS:
        return KEPT
    instead = _UNSUPPORTED.get(".".join(path))
    return f"{text} Not supported: {instead}." if text and instead else text
