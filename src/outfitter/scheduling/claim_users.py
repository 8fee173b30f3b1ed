"""Who else has or uses a claim of a pod: claims are made for one pod, and devices of VMs are not shared."""

from __future__ import annotations

from outfitter.api.kinds import Object
from outfitter.api.kubevirt import vm
from outfitter.api.rejection import Rejection, RejectionCode

NOT_MADE = "FailedResourceClaimCreation"  # the reason of a pod that waits because the claim of that name has another owner


def other_users(claim: Object, pod: Object) -> list[str]:
    """The pods that use a claim besides this one."""
    return [user["name"] for user in claim["status"].get("reservedFor") or ()
            if user.get("resource", "pods") == "pods" and user.get("uid") != pod["metadata"].get("uid")]


def of_another(claim: Object, pod: Object) -> Rejection | None:
    """That a claim with the name of one that is created for a pod was not created for it; None: it was."""
    meta = claim["metadata"]
    mine = vm.owner(claim, "Pod")
    if mine is not None and mine.get("uid") == pod["metadata"].get("uid"):
        return None
    owners = tuple(f"{one['kind']} {one['name']}" for one in meta.get("ownerReferences") or ())
    return Rejection.of(RejectionCode.CLAIM_NAME_TAKEN, claim=meta["name"], owners=owners, pod=pod["metadata"]["name"])
