"""The claims of a migration's target pod: for each claim whose devices travel a second one, which asks for devices in which
the state of the first can arrive. Pure; the migration controller creates them, `outfit plan migrate` shows what they would get.

A second claim has the spec of the first, so that a template that was changed or deleted meanwhile does not matter, narrowed to
what the VM has, in words that every scheduler of claims understands: as many devices as there are (All becomes that number),
the same alternative of firstAvailable, and of a request whose device travels only devices of the same driver and product that
are marked as live migratable, or mediated devices. One that is reattached has no state: of it only driver and product are the
same. It belongs to the target's pod: with it, it goes.

A claim from a template of which no device travels (a NIC on a VF) is made from the template, as for every pod."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from typing import Any

from outfitter.api import kinds
from outfitter.api.device import MDEV_NAMES, flag_attribute
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import attachment_pods, device_refs, pod_claims, reattached_devices
from outfitter.controllers import launcher_pod
from outfitter.scheduling.device_migration import LIVE_MIGRATABLE, DeviceMigration, SourceView
from outfitter.scheduling.device_twins import SAME, first_attribute

REPLACES = "outfitter.dev/replaces-claim"  # annotation of a target's claim: the claim that it replaces if the VM arrives
ENTRY = "outfitter.dev/claim-entry"  # annotation of the same: the entry of the pod's resourceClaims
OF_KUBERNETES = "resource.kubernetes.io/"  # annotations that are not copied


def target_claims(vmi: Object, job: Object, pod: Object, view: SourceView) -> list[Object]:
    """The claims to create for the target's pod, without an owner. `pod`: the target's, as rendered."""
    listed = [entry["name"] for entry in pod["spec"].get("resourceClaims") or ()]
    sources = dict(pod_claims.claim_names(view.pod or {}))
    travelling: dict[str, list[device_refs.DeviceRef]] = {}
    for ref in device_refs.device_refs(vmi):
        if ref.by_claim and ref.claim:
            travelling.setdefault(ref.claim, []).append(ref)
    named = {entry["name"]: entry.get("resourceClaimName") for entry in pod["spec"].get("resourceClaims") or ()}
    reattached = reattached_devices.planned_for(pod)
    out = []
    for entry in listed:
        name = sources.get(entry)
        source = view.claim(vmi["metadata"]["namespace"], name) if name else None
        if source is not None and (entry in travelling or named[entry]):
            host = (vmi.get("status") or {}).get("nodeName")
            wanted = {ref.request: _arrivals(source, ref, view, host, state=(ref.list, ref.name) not in reattached)
                      for ref in travelling.get(entry, ()) if ref.request and ref.number is None}
            out.append(_second(vmi, job, source, entry, wanted))
    return out


def without_unplugged(vmi: Object, pod: Object, view: SourceView) -> Object:
    """The target's pod without claims by name whose devices were unplugged: such a claim stays where it is allocated, also one
    that the VM owns."""
    used = {ref.claim for ref in device_refs.request_refs(vmi)}
    left = pod_claims.entries_by_request(view.pod or {}) - used
    listed = pod["spec"].get("resourceClaims") or ()
    kept = [entry for entry in listed if entry["name"] not in left]
    return pod if len(kept) == len(listed) else {**pod, "spec": {**pod["spec"], "resourceClaims": kept}}


def with_reattached(pod: Object, devices: Sequence[DeviceMigration]) -> Object:
    """The target's pod, if GPUs or host devices are reattached: it names them, so that what is decided now holds for the whole
    migration, and goes only to a host that plugs devices into running VMs."""
    keys = [(device.list, device.name) for device in devices if device.how == "reattached" and device.list is not None]
    if not keys:
        return pod
    meta, spec = pod["metadata"], pod["spec"]
    annotations = {**(meta.get("annotations") or {}), reattached_devices.PLANNED: reattached_devices.planned(keys)}
    selector = {**(spec.get("nodeSelector") or {}), attachment_pods.PLUG_IN_PLACE: "true"}
    return {**pod, "metadata": {**meta, "annotations": annotations}, "spec": {**spec, "nodeSelector": selector}}


def with_target_claims(pod: Object, claims: Sequence[Object]) -> Object:
    """The target's pod with these claims by name."""
    names = {claim["metadata"]["annotations"][ENTRY]: claim["metadata"]["name"] for claim in claims}
    if not names:
        return pod
    listed = [{"name": entry["name"], "resourceClaimName": names[entry["name"]]} if entry["name"] in names else entry
              for entry in pod["spec"]["resourceClaims"]]
    return {**pod, "spec": {**pod["spec"], "resourceClaims": listed}}


def owned_by(claim: Object, pod: Object) -> Object:
    """The claim as it is created: it goes with the pod."""
    meta = pod["metadata"]
    owner = {"apiVersion": kinds.POD.api_version, "kind": kinds.POD.kind, "name": meta["name"], "uid": meta["uid"],
             "controller": True, "blockOwnerDeletion": True}
    return {**claim, "metadata": {**claim["metadata"], "ownerReferences": [owner]}}


def _second(vmi: Object, job: Object, source: Object, entry: str, selectors: Mapping[str, str]) -> Object:
    meta, had = vmi["metadata"], source["metadata"]
    stem = f"{launcher_pod.target_pod_name(vmi, job)}-{entry}"[:247].rstrip("-.")
    kept = {key: value for key, value in (had.get("annotations") or {}).items() if not key.startswith(OF_KUBERNETES)}
    return {
        "apiVersion": kinds.RESOURCE_CLAIM.api_version, "kind": kinds.RESOURCE_CLAIM.kind,
        "metadata": {"name": f"{stem}-{launcher_pod.suffix(job['metadata']['uid'], entry)}", "namespace": meta["namespace"],
                     **({"labels": dict(had["labels"])} if had.get("labels") else {}),
                     "annotations": {**kept, REPLACES: had["name"], ENTRY: entry}},
        "spec": narrowed(source, selectors),
    }


def narrowed(source: Object, selectors: Mapping[str, str]) -> Object:
    """The spec of a claim, for as many devices as it has, of the same alternatives; `selectors`: an expression that devices of
    a request must meet too."""
    spec: Object = copy.deepcopy(source["spec"])
    devices, dropped = spec.get("devices") or {}, set[str]()
    for request in devices.get("requests") or ():
        name = request["name"]
        results = pod_claims.results(source, name)
        if request.get("firstAvailable") and results:
            chosen = str(results[0]["request"]).partition("/")[2]
            dropped |= {f"{name}/{one['name']}" for one in request["firstAvailable"] if one["name"] != chosen}
            request["firstAvailable"] = [one for one in request["firstAvailable"] if one["name"] == chosen]
        for body in (request.get("exactly"), *(request.get("firstAvailable") or ())):
            if body is None:
                continue
            if body.get("allocationMode") == "All" and results:
                body["allocationMode"], body["count"] = "ExactCount", len(results)
            if (expression := selectors.get(name)) and {"cel": {"expression": expression}} not in (body.get("selectors") or ()):
                body["selectors"] = [*(body.get("selectors") or ()), {"cel": {"expression": expression}}]
    for field in ("constraints", "config"):
        if field in devices:
            devices[field] = [_without(one, dropped) for one in devices[field]
                              if not one.get("requests") or set(one["requests"]) - dropped]
    return spec


def _without(part: Object, dropped: set[str]) -> Object:
    return {**part, "requests": [name for name in part["requests"] if name not in dropped]} if part.get("requests") else part


def _arrivals(source: Object, ref: device_refs.DeviceRef, view: SourceView, host: str | None, *, state: bool) -> str:
    """The expression for devices in which the state of these devices can arrive, or that replace them without `state`."""
    kinds_of = [_arrival(result["driver"], device, state=state) for result in pod_claims.results_for(source, ref)
                if not isinstance(device := view.find(result, host), str)]
    return " || ".join(f"({one})" for one in dict.fromkeys(kinds_of))


def _arrival(driver: str, device: Mapping[str, Any], *, state: bool) -> str:
    parts = [f"device.driver == {json.dumps(driver)}"]
    product = first_attribute(device, driver, SAME)
    if state and flag_attribute(device, driver, LIVE_MIGRATABLE):
        parts.append(f"{_attribute(driver, LIVE_MIGRATABLE)}.orValue(false)")
    elif mediated := first_attribute(device, driver, MDEV_NAMES):
        parts.append(f'{_attribute(driver, mediated[0])}.orValue("") != ""')
    if product:
        parts.append(f'{_attribute(driver, product[0])}.orValue("") == {json.dumps(product[1])}')
    return " && ".join(parts)


def _attribute(driver: str, name: str) -> str:
    domain, _, key = name.rpartition("/")
    return f"device.attributes[{json.dumps(domain or driver)}].?{key}"
