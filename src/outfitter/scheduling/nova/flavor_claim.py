"""Converts a flavor to a ResourceClaim, and back.

A VM with a flavor gets one ResourceClaim: a request for each entry of `pci_passthrough:alias`, with the alias as selectors.
What selectors cannot express (the alias, NUMA policies, the guest's cells) is in the claim's parameters for our driver. The VM
is scheduled from the claim alone, so that later changes of flavor and configuration do not matter."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from outfitter import cel
from outfitter.api import kinds, quantity
from outfitter.api.allocation import cells_config, on_host
from outfitter.api.device import DRIVER
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import device_refs, pod_claims, vm
from outfitter.api.validate import flavors
from outfitter.api.validate.names import label
from outfitter.errors import BadRequest, Cause, Invalid
from outfitter.inventory.config import HostSettings
from outfitter.scheduling.dra import claim_request
from outfitter.scheduling.nova import alias, alias_selector, extra_specs, request_groups
from outfitter.scheduling.nova.alias import Alias
from outfitter.scheduling.nova.extra_specs import AliasRequest, FlavorRequest
from outfitter.scheduling.nova.host_state import PciAllocation

CLASS = DRIVER  # the DeviceClass of all that our driver publishes
KIND = "FlavorRequest"
ALIASES_CONFIG_MAP = "outfitter-aliases"  # the ConfigMap with the configured aliases
ALIASES_NAMESPACE = "kube-system"
NUMA = "resource.kubernetes.io/numaNode"
PROVIDER = f"{DRIVER}/provider"
MAX_PARAMETERS = 10 * 1024  # bytes that Kubernetes takes
MIB, GIB = 1 << 20, 1 << 30


@dataclass(frozen=True, slots=True)
class AliasSet:
    """The aliases that flavors may name."""

    by_name: Mapping[str, Alias] = field(default_factory=dict)
    in_placement: bool = False

    @classmethod
    def of(cls, settings: HostSettings) -> AliasSet:
        """As configured. Invalid names every mistake."""
        return cls.read(settings.alias, in_placement=settings.pci_in_placement)

    @classmethod
    def read(cls, values: Sequence[Any], *, in_placement: bool) -> AliasSet:
        return cls(alias.parse(values, in_placement=in_placement), in_placement)


def device_class() -> Object:
    """The class that claims of flavors use."""
    return {"apiVersion": kinds.DEVICE_CLASS.api_version, "kind": kinds.DEVICE_CLASS.kind, "metadata": {"name": CLASS},
            "spec": {"selectors": [{"cel": {"expression": alias_selector.CLASS_SELECTOR}}]}}


def aliases_config_map(settings: HostSettings) -> Object:
    """The aliases as a ConfigMap, for users and `outfit plan`."""
    return {"apiVersion": kinds.CONFIG_MAP.api_version, "kind": kinds.CONFIG_MAP.kind,
            "metadata": {"name": ALIASES_CONFIG_MAP, "namespace": ALIASES_NAMESPACE},
            "data": {"alias": json.dumps([dict(each) for each in settings.alias], sort_keys=True),
                     "pci_in_placement": json.dumps(settings.pci_in_placement)}}


def read_aliases(config_map: Mapping[str, Any]) -> AliasSet:
    """The aliases in such a ConfigMap."""
    data = config_map.get("data") or {}
    return AliasSet.read(json.loads(data.get("alias") or "[]"), in_placement=data.get("pci_in_placement") == "true")


# -- admission of a flavor


def checked(aliases: AliasSet) -> Callable[[Mapping[str, Any]], Iterator[Cause]]:
    """What is wrong with a flavor's extra specs, for admission. Its amounts are checked elsewhere: if they are wrong, the extra
    specs are read as those of a VM that is large enough."""

    def check(obj: Mapping[str, Any]) -> Iterator[Cause]:
        spec = obj["spec"]
        vcpus = spec.get("vcpus") or 0
        sized = {**spec, "vcpus": vcpus if 1 <= vcpus <= flavors.MAX_VCPUS else flavors.MAX_VCPUS, "memory": "1Gi", "disk": "0"}
        extra = spec.get("extraSpecs") or {}
        found = [cause for key, value in extra.items() for cause in _wrong({**sized, "extraSpecs": {key: value}}, aliases)]
        yield from found or _wrong({**sized, "extraSpecs": extra}, aliases)

    return check


def _wrong(spec: Mapping[str, Any], aliases: AliasSet) -> Iterator[Cause]:
    """The first thing that is wrong with these extra specs."""
    obj = {"metadata": {"name": "it"}, "spec": spec}
    try:
        _spec(obj, _ask(obj, {}, aliases))
    except BadRequest as error:
        yield Cause(f"spec.extraSpecs[{error.field}]", f"Invalid value: {error.problem}")
    except Invalid as error:
        yield Cause(f"spec.extraSpecs[{extra_specs.ALIAS}]", f"Invalid value: {error.message}")


def _ask(obj: Mapping[str, Any], instance: Mapping[str, Any], aliases: AliasSet) -> FlavorRequest:
    """What a VM with this flavor asks for. The VM's own spec has precedence over the flavor."""
    spec = obj["spec"]
    extra = {
        **(spec.get("extraSpecs") or {}),
        **({extra_specs.CPU_POLICY: "dedicated"} if vm.dedicated(instance) else {}),
    }
    sized = {**instance, "spec": {"flavor": {"name": "it"}, "domain": {}, **(instance.get("spec") or {})},
             "status": {"flavor": {"vcpus": spec["vcpus"], "memory": spec["memory"]}}}
    found = extra_specs.read(
        extra, aliases.by_name, new_id=lambda: "", in_placement=aliases.in_placement,
        vcpus=vm.vcpus(sized), memory_mb=-(-quantity.to_int(vm.memory(sized)) // MIB),
        disk_gb=-(-quantity.to_int(spec.get("disk") or "0") // GIB))
    if found.count > claim_request.MOST:
        raise BadRequest.of(
            extra_specs.ALIAS,
            f"{spec['extraSpecs'][extra_specs.ALIAS]!r} asks for {found.count} devices, and one VM can have "
            f"{claim_request.MOST}",
        )
    if instance and not vm.flavor_name(instance):
        found = replace(found, guest=replace(found.guest, spread=True))
    own = {ref.name for ref in device_refs.written_refs(instance)}
    taken: set[str] = set()
    return replace(found, requests=tuple(replace(request, request_id=_name(request, taken, own))
                                         for request in found.requests if request.count))


def _name(request: AliasRequest, taken: set[str], own: set[str]) -> str:
    """A name for a request: that of its alias as far as names may have it, and none that would give a device the name of one
    that the spec asks for."""
    word = re.sub("[^a-z0-9]+", "-", request.alias.lower())[:48].strip("-") or "device"
    number = 1
    while True:
        name = word if number == 1 else f"{word}-{number}"
        if name not in taken and not own & {f"{name}-{index}" for index in range(request.count)} and not list(label(name, "")):
            taken.add(name)
            return name
        number += 1


# -- a claim for a VMI


def implied(instance: Mapping[str, Any]) -> Object:
    """The flavor of a VMI without one that asks for dedicated CPUs."""
    return {"metadata": {"name": ""}, "spec": {"vcpus": vm.vcpus(instance), "memory": vm.memory(instance)}}


def claim(obj: Mapping[str, Any], instance: Mapping[str, Any], aliases: AliasSet, name: str) -> Object | None:
    """The claim for the devices and NUMA cells of a VMI with this flavor; None if it needs neither. BadRequest or Invalid:
    what the flavor asks for is not understood (any more)."""
    ask = _ask(obj, instance, aliases)
    if not ask.requests and ask.guest.cells is None:
        return None
    meta = instance["metadata"]
    return {
        "apiVersion": kinds.RESOURCE_CLAIM.api_version, "kind": kinds.RESOURCE_CLAIM.kind,
        "metadata": {
            "name": name, "namespace": meta["namespace"],
            "ownerReferences": [{"apiVersion": kinds.VMI.api_version, "kind": kinds.VMI.kind, "name": meta["name"],
                                 "uid": meta["uid"], "controller": True, "blockOwnerDeletion": True}],
        },
        "spec": _spec(obj, ask),
    }


def settled(obj: Mapping[str, Any], made: Mapping[str, Any] | None) -> Object:
    """status.flavor of a VMI: from the claim that was created for it, else from the flavor."""
    if made is None:
        return _amounts(obj)
    ask, parameters = _read(made) or (FlavorRequest(()), {})
    devices = [{"name": request.request_id, "alias": request.alias, "count": request.count} for request in ask.requests]
    return {**parameters["flavor"], "claimName": made["metadata"]["name"], **({"devices": devices} if devices else {})}


def _amounts(obj: Mapping[str, Any]) -> Object:
    spec = obj["spec"]
    name = obj["metadata"]["name"]
    return {**({"name": name} if name else {}), "vcpus": spec["vcpus"], "memory": spec["memory"],
            **({"disk": spec["disk"]} if spec.get("disk") else {})}


def _spec(obj: Mapping[str, Any], ask: FlavorRequest) -> Object:
    plain = replace(ask, requests=tuple(replace(request, specs=tuple(replace(spec, written={}) for spec in request.specs))
                                        for request in ask.requests))
    parameters = {"apiVersion": kinds.FLAVOR.api_version, "kind": KIND, "flavor": _amounts(obj),
                  "ask": msgspec.to_builtins(plain, order="sorted")}
    if (size := len(json.dumps(parameters))) > MAX_PARAMETERS:
        raise Invalid(f"asks for more than fits in a claim ({size} bytes, {MAX_PARAMETERS} are possible): name fewer aliases, "
                      "or aliases with fewer traits")
    devices: Object = {"requests": [_request(request) for request in ask.requests],
                       "config": [{"opaque": {"driver": DRIVER, "parameters": parameters}}]}
    if constraints := list(_constraints(ask)):
        devices["constraints"] = constraints
    return {"devices": devices}


def _request(request: AliasRequest) -> Object:
    found = alias_selector.expressions(request.specs, in_placement=request.in_placement)
    if len(found) > alias_selector.MOST:
        raise Invalid(f"alias {request.alias} asks for more traits than a claim can ({alias_selector.MOST - 2})")
    for each in found:
        cel.compile_selector(each)  # an invalid selector is refused with the flavor, not with each VM
    return {"name": request.request_id, "exactly": {
        "deviceClassName": CLASS, "allocationMode": "ExactCount", "count": request.count,
        "selectors": [{"cel": {"expression": each}} for each in found]}}


def _constraints(ask: FlavorRequest) -> Iterator[Object]:
    """What any allocator can keep to: only what is exactly meant."""
    if ask.group_policy == "isolate" and any(request.in_placement for request in ask.requests):
        yield {"requests": [request.request_id for request in ask.requests], "distinctAttribute": PROVIDER}
    near = [request.request_id for request in ask.requests if request.numa_policy == "required"]
    if ask.guest.cells == 1 and near:
        yield {"requests": near, "matchAttribute": NUMA}


def beyond(made: Mapping[str, Any]) -> list[str]:
    """What a claim asks for and an allocator that knows claims alone cannot keep to, a sentence for each."""
    ask = read(made)
    if ask is None or ask.guest.cells is None:
        return []
    out = []
    if ask.guest.pinned:
        out.append("dedicated CPUs are not booked, so another VM may have the same")
    for request in ask.requests:
        if request.numa_policy != "required" or ask.guest.cells != 1:
            out.append(f"devices of alias {request.alias} may be on any NUMA cell, despite policy {request.numa_policy}")
    return out


# -- a claim that is to be served


def read(made: Mapping[str, Any]) -> FlavorRequest | None:
    """What a VMI's claim asks for; None for a claim without a flavor. Invalid: its requests and its parameters differ."""
    found = _read(made)
    return found[0] if found is not None else None


def _read(made: Mapping[str, Any]) -> tuple[FlavorRequest, Mapping[str, Any]] | None:
    devices = (made.get("spec") or {}).get("devices") or {}
    for entry in devices.get("config") or ():
        opaque = entry.get("opaque") or {}
        parameters = opaque.get("parameters")
        if opaque.get("driver") != DRIVER or not isinstance(parameters, Mapping) or parameters.get("kind") != KIND:
            continue
        try:
            ask = msgspec.convert(parameters["ask"], FlavorRequest)
        except (msgspec.ValidationError, KeyError) as error:
            raise Invalid(f"claim {made['metadata']['name']}: its parameters for {DRIVER} are no {KIND}: {error}") from error
        wanted = [(request.get("name"), (request.get("exactly") or {}).get("count", 1))
                  for request in devices.get("requests") or ()]
        if wanted != [(request.request_id, request.count) for request in ask.requests]:
            raise Invalid(f"claim {made['metadata']['name']}: its requests are not those of its parameters for {DRIVER}")
        return ask, parameters
    return None


def allocation(made: Mapping[str, Any], choice: PciAllocation) -> Object:
    """The AllocationResult of a claim for what was chosen."""
    results = [{"request": given.request.request_id, "driver": given.device.id.driver, "pool": given.device.id.pool,
                "device": given.device.id.device} for given in choice.given]
    config = [{"source": "FromClaim", **entry} for entry in made["spec"]["devices"].get("config") or ()]
    return {"devices": {"results": results, "config": [*config, *cells_config(choice.cells, choice.pins, choice.cpus)]},
            "nodeSelector": on_host(choice.host)}


def share(made: Mapping[str, Any], given: Mapping[str, Any]) -> Object | None:
    """The resources of the host that the VM of a claim takes, as booked; None without NUMA cells of its own, and for a claim
    without a flavor."""
    ask = read(made)
    where = pod_claims.cells_of({"status": {"allocation": given}})
    if ask is None or not where:
        return None
    return {
        "resources": request_groups.host_resources(ask),
        "guestCells": where["hostCells"],
        "cells": where.get("pinned") or {},
        **({"cpus": where["cpus"]} if where.get("cpus") else {}),
    }
