"""Machine instances: the devices they ask for and the claims that these come from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from outfitter.api import machine, quantity
from outfitter.api.validate import names
from outfitter.errors import Cause, Invalid

SOURCES = ("resourceClaimName", "resourceClaimTemplateName")


def instance(obj: Mapping[str, Any]) -> Iterator[Cause]:
    spec = obj.get("spec")
    if not isinstance(spec, Mapping) or not isinstance(spec.get("domain"), Mapping):
        yield Cause("spec.domain", "Required value: what the machine is made of", "FieldValueRequired")
        return
    yield from _amounts(spec["domain"])
    yield from _claims(spec.get("resourceClaims"))
    yield from _devices(obj)


def _amounts(domain: Mapping[str, Any]) -> Iterator[Cause]:
    """Memory and CPUs, which the domain's XML is made of."""
    for path in (("memory", "guest"), ("resources", "requests", "memory")):
        amount: Any = domain
        for field in path:
            amount = (amount or {}).get(field)
        if amount is None:
            continue
        try:
            enough = quantity.to_int(str(amount)) > 0
        except Invalid:
            enough = False
        if not enough:
            yield Cause(f"spec.domain.{'.'.join(path)}",
                        f'Invalid value: "{amount}": must be an amount above zero, such as 2Gi')
    for field, number in (domain.get("cpu") or {}).items():
        if field in ("cores", "sockets", "threads") and number is not None and number < 1:
            yield Cause(f"spec.domain.cpu.{field}", f"Invalid value: {number}: must be greater than zero")


def _claims(claims: Any) -> Iterator[Cause]:
    seen: set[str] = set()
    for index, entry in enumerate(claims or ()):
        here = f"spec.resourceClaims[{index}]"
        if not entry.get("name"):
            yield Cause(f"{here}.name", f"{here}.name is a required field", "FieldValueRequired")
        else:
            yield from names.label(entry["name"], f"{here}.name")
            if entry["name"] in seen:
                yield Cause(f"{here}.name", f'duplicate resourceClaims name "{entry["name"]}"', "FieldValueDuplicate")
            seen.add(entry["name"])
        given = [source for source in SOURCES if entry.get(source)]
        if len(given) > 1:
            yield Cause(here, f"at most one of {SOURCES[0]} or {SOURCES[1]} may be specified")
        if not given:
            yield Cause(here, f"must specify one of: {', '.join(SOURCES)}")
        for source in given:
            yield from names.subdomain(entry[source], f"{here}.{source}")


def _devices(obj: Mapping[str, Any]) -> Iterator[Cause]:
    listed = {entry.get("name") for entry in obj["spec"].get("resourceClaims") or ()}
    seen: set[tuple[str, str]] = set()
    called: set[tuple[str, str]] = set()  # what a device got is found by its name
    for ref in machine.device_refs(obj):
        path = f"spec.domain.devices.{ref.list}"
        yield from names.required(ref.name, f"{ref.path}.name", "a device has a name of its own")
        if ref.name and (ref.list, ref.name) in called:
            yield Cause(f"{ref.path}.name", f'Duplicate value: "{ref.name}"', "FieldValueDuplicate")
        called.add((ref.list, ref.name))
        if ref.device_name is not None and (ref.claim or ref.request):
            yield Cause(path, f"{ref.name} has both deviceName and a claim: say one of them")
        elif ref.device_name is None and not ref.by_claim:
            yield Cause(path, f"{ref.name} has neither deviceName nor claimName and requestName", "FieldValueRequired")
        if not ref.by_claim:
            continue
        yield from names.required(ref.claim, f"{ref.path}.claimName", "claimName names an entry of spec.resourceClaims")
        yield from names.required(ref.request, f"{ref.path}.requestName", "requestName names a request of that claim")
        if ref.claim and ref.claim not in listed:
            yield Cause("spec.resourceClaims", f'vmi.spec.resourceClaims must specify all claims used: {ref.path} uses '
                                               f'"{ref.claim}"')
        if ref.claim and ref.request:
            if (ref.claim, ref.request) in seen:
                pair = f"{ref.claim}/{ref.request}"
                yield Cause(ref.path, f'duplicate claimName/requestName pair "{pair}"', "FieldValueDuplicate")
            seen.add((ref.claim, ref.request))


def unchanged_claims(new: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[Cause]:
    if (new.get("spec") or {}).get("resourceClaims") != (old.get("spec") or {}).get("resourceClaims"):
        yield Cause("spec.resourceClaims", "Invalid value: field is immutable: a machine keeps the claims it started with")
