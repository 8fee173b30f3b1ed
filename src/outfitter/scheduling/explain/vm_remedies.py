"""What helps a VM for which waiting does not help: a request that its claim does not have, a device of its own claim that is
gone, an alias that was changed after it was created. Called by the explanations of VMs and VMIs. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from outfitter.api import kinds, rejection_conditions
from outfitter.api.device import DeviceId
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import pod_claims
from outfitter.api.kubevirt import vm as vm_api
from outfitter.api.rejection import Rejection, RejectionCode
from outfitter.api.rejection_text import Wording, render, render_all
from outfitter.errors import Invalid
from outfitter.scheduling.explain.cluster_objects import ClusterObjects
from outfitter.scheduling.explain.explanation import Explanation
from outfitter.scheduling.nova import flavor_claim
from outfitter.scheduling.nova.extra_specs import AliasRequest, FlavorRequest

STUCK = frozenset({"Waiting", "Failed", "Fits"})  # states of an explanation to which this applies


def of_vmi(cluster: ClusterObjects, obj: Mapping[str, Any], answer: Explanation) -> Explanation:
    """The explanation of a VMI, with what helps it."""
    if answer.state not in STUCK:
        return answer
    vm = vm_api.owner(obj, kinds.VM.kind)
    answer = of_own_claims(cluster, vm["uid"] if vm is not None else "", answer)
    if RejectionCode.REQUEST_MISSING in (*answer.codes, *rejection_conditions.of(obj)):
        answer = replace(answer, todo=(*answer.todo, _renamed(obj, vm)))
    if changed := _changed_aliases(cluster, obj):
        answer = replace(answer, lines=(*answer.lines, _asks_as_before(changed)), todo=(*answer.todo, _recreated(obj, vm)))
    return answer


def of_own_claims(cluster: ClusterObjects, uid: str, answer: Explanation) -> Explanation:
    """The explanation of a VM with this uid, with the devices of its own claims that are gone. A VM keeps these claims, so it
    starts with nothing else until they are deleted."""
    lost = [rejection for claim in _own_claims(cluster, uid) for rejection in _lost_devices(cluster, claim)]
    if answer.state not in STUCK or not lost:
        return answer
    text = render_all(lost, Wording(answer.namespace))
    if answer.state == "Fits":  # on the host where it cannot start
        answer = replace(answer, state="Waiting", waits_for="claim", sentence=f"waits: {text}")
    else:
        answer = replace(answer, lines=(*answer.lines, *(render(rejection) for rejection in lost)))
    claims = dict.fromkeys(rejection["claim"] for rejection in lost)
    return replace(answer, rejections=(*answer.rejections, *lost), todo=(*answer.todo, *(
        f"if it does not come back: kubectl delete resourceclaim {name} -n {answer.namespace}, and the VM gets another device"
        for name in claims)))


def _own_claims(cluster: ClusterObjects, uid: str) -> list[Object]:
    if not uid:
        return []
    return [claim for claim in cluster.claims if (vm_api.owner(claim, kinds.VM.kind) or {}).get("uid") == uid
            and not claim["metadata"].get("deletionTimestamp")]


def _lost_devices(cluster: ClusterObjects, claim: Object) -> Iterator[Rejection]:
    """The devices of a claim that its VM cannot start with, now or ever."""
    for result in pod_claims.allocation_results(claim):
        device = DeviceId(result["driver"], result["pool"], result["device"])
        if cluster.vanished(device):
            why = f"is no longer on the bus of {device.pool}"
        elif not cluster.published(device) and not cluster.unread:
            why = f"is no longer published by {device.driver}"
        else:
            continue
        name = claim["metadata"]["name"]
        yield Rejection.of(RejectionCode.DEVICE_MISSING, device, claim=name, message=f"{why}, and claim {name} keeps it")


def _renamed(obj: Mapping[str, Any], vm: Mapping[str, Any] | None) -> str:
    """What helps a VMI that names a request which its claim does not have."""
    if vm is None:
        return f"outfit delete vmi {obj['metadata']['name']}, and apply it again with a requestName that there is"
    return f"correct requestName in the template of vm/{vm['name']}, then: outfit vm restart {vm['name']}"


# -- aliases


def _changed_aliases(cluster: ClusterObjects, obj: Mapping[str, Any]) -> list[str]:
    """The aliases of a VMI that waits for its devices, that are configured otherwise than when it was created."""
    record = vm_api.flavored(obj)
    claim = cluster.claim(obj["metadata"]["namespace"], record["claimName"]) if record.get("claimName") else None
    if cluster.aliases is None or claim is None or (claim.get("status") or {}).get("allocation"):
        return []
    try:
        ask = flavor_claim.read(claim)
    except Invalid:
        return []
    return [] if ask is None else [request.alias for request in ask.requests if not _same(request, ask, cluster.aliases)]


def _same(request: AliasRequest, ask: FlavorRequest, aliases: flavor_claim.AliasSet) -> bool:
    alias = aliases.by_name.get(request.alias)
    if alias is None:
        return False
    specs = tuple(replace(spec, written={}) for spec in alias.specs)
    policy = ask.affinity or alias.numa_policy
    return (specs, policy, aliases.in_placement) == (request.specs, request.numa_policy, request.in_placement)


def _asks_as_before(changed: Sequence[str]) -> str:
    names = ", ".join(dict.fromkeys(changed))
    return f"alias {names} was changed after it was created: it still asks for what the alias was then"


def _recreated(obj: Mapping[str, Any], vm: Mapping[str, Any] | None) -> str:
    if vm is None:
        return f"outfit delete vmi {obj['metadata']['name']}, and apply it again: then it asks for what the alias is now"
    return f"outfit vm restart {vm['name']}: then it asks for what the alias is now"
