"""gpus, hostDevices and resourceClaims of a VMI. Where a list is rejected as a whole (its feature gate is disabled, or it mixes
DRA and non-DRA GPUs), the claims of its entries are not checked further."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Iterator, Mapping
from typing import Any

from outfitter.api.kubevirt import device_refs, feature_gates
from outfitter.api.kubevirt.device_refs import DeviceRef, List
from outfitter.api.kubevirt.feature_gates import Gates
from outfitter.api.validate import names
from outfitter.errors import Cause

SOURCES = ("resourceClaimName", "resourceClaimTemplateName")
NOUNS: Mapping[List, str] = {"gpus": "GPU", "hostDevices": "HostDevice"}
GATES: Mapping[List, str] = {"gpus": feature_gates.GPUS, "hostDevices": feature_gates.HOST_DEVICES}
Good = Generator[Cause, None, list[DeviceRef]]  # yields causes, returns the entries with claim and request
Pairs = dict[tuple[str, str], int]  # (claim, request) -> index of its first use in the list


def claims(spec: Mapping[str, Any], root: str) -> Iterator[Cause]:
    """The entries of resourceClaims."""
    seen: set[str] = set()
    for index, entry in enumerate(spec.get("resourceClaims") or ()):
        here = f"{root}.resourceClaims[{index}]"
        if not entry.get("name"):
            yield Cause(f"{here}.name", f"{here}.name is a required field", "FieldValueRequired")
        elif entry["name"] in seen:
            yield Cause(f"{here}.name", f'duplicate resourceClaims name "{entry["name"]}"', "FieldValueDuplicate")
        else:
            for cause in names.label(entry["name"], f"{here}.name"):
                yield Cause(cause.field, f"{cause.message}, as the kubernetes DNS_LABEL rules require")
            seen.add(entry["name"])
        given = [source for source in SOURCES if entry.get(source) is not None]
        if len(given) > 1:
            yield Cause(here, f"at most one of {SOURCES[0]} or {SOURCES[1]} may be specified")
        if not given:
            hint = "; they belong beside the name, not under source" if isinstance(entry.get("source"), Mapping) else ""
            yield Cause(here, f"must specify one of: {', '.join(SOURCES)}{hint}")
        for source in given:
            yield from names.subdomain(entry[source], f"{here}.{source}")


def gated_claims(spec: Mapping[str, Any], root: str, gates: Gates, own_claims: Collection[str]) -> Iterator[Cause]:
    """Claims are part of what the gates allow, whether a device uses them or not. `own_claims`: of the VM."""
    listed = [str(entry.get("name")) for entry in spec.get("resourceClaims") or ()]
    for path, claims_ in ((f"{root}.resourceClaims", listed), ("spec.resourceClaimTemplates", own_claims)):
        if refused := feature_gates.disallowed_claims(spec, claims_, gates):
            yield Cause(path, gates.refusal_of_all(feature_gates.OF_DOCUMENT, (
                f"contains claims ({', '.join(refused)}) but the feature gates {' and '.join(feature_gates.OF_DOCUMENT)} are "
                "not enabled")))


def devices(spec: Mapping[str, Any], root: str, open_: Gates, own_claims: Collection[str] = ()) -> Iterator[Cause]:
    """The entries of gpus and hostDevices. `own_claims`: claims of the VM besides those in resourceClaims."""
    refs = device_refs.device_refs({"spec": spec})
    yield from _misplaced(spec["domain"], root)
    if not open_.open(feature_gates.PASSTHROUGH) and (spec["domain"].get("devices") or {}).get("hostDevices") is not None:
        yield Cause(f"{root}.HostDevices", open_.refusal(
            feature_gates.PASSTHROUGH, "Host Devices feature gate is not enabled in kubevirt-config"))
    pairs: dict[str, Pairs] = {}
    used: list[DeviceRef] = []
    for list_ in device_refs.LISTS:
        entries = [ref for ref in refs if ref.list == list_]
        yield from _names(entries, root)
        good = yield from _list(list_, entries, root, open_)
        used += good
        pairs[NOUNS[list_] + "s"] = _first((ref.index, ref.claim, ref.request) for ref in good)
    if open_.open(feature_gates.NETWORKS):
        pairs["Networks"] = network_pairs(spec)
    yield from _shared(pairs, root)
    listed = {entry.get("name") for entry in spec.get("resourceClaims") or ()}
    if lost := [ref for ref in used if ref.claim not in listed and ref.claim not in own_claims]:
        yield Cause(f"{root}.resourceClaims", "vmi.spec.resourceClaims must specify all claims used in "
                    "vmi.spec.domain.devices.gpus and vmi.spec.domain.devices.hostDevices: "
                    + ", ".join(f'{_path(ref, root)} uses "{ref.claim}"' for ref in lost))


def _misplaced(domain: Mapping[str, Any], root: str) -> Iterator[Cause]:
    """Device lists one level too high: they would be ignored, and the VM would start without its devices."""
    for name in (*device_refs.LISTS, "interfaces"):
        if name in domain:
            yield Cause(
                f"{root}.domain.{name}", f"Invalid value: {name} belongs one level deeper: {root}.domain.devices.{name}"
            )


def _names(refs: Collection[DeviceRef], root: str) -> Iterator[Cause]:
    """Names are required and unique: status.deviceStatus is matched by name."""
    seen: set[str] = set()
    for ref in refs:
        here = f"{_path(ref, root)}.name"
        yield from names.required(ref.name, here, "a unique name of the device")
        if ref.name and ref.name in seen:
            yield Cause(here, f'Duplicate value: "{ref.name}"', "FieldValueDuplicate")
        seen.add(ref.name)


def _path(ref: DeviceRef, root: str) -> str:
    return f"{root}.domain.devices.{ref.list}[{ref.index}]"


def _list(list_: List, refs: list[DeviceRef], root: str, open_: Gates) -> Good:
    path, noun = f"{root}.domain.devices.{list_}", NOUNS[list_]
    by_claim = [ref for ref in refs if ref.by_claim]
    plain = [ref for ref in refs if not ref.by_claim]
    if list_ == "gpus" and by_claim and plain:
        yield Cause(path, f"vmi.spec.domain.devices.gpus contains both DRA and non-DRA GPUs ({_called(by_claim)} by claim, "
                          f"{_called(plain)} not); each GPU must be either DRA or non-DRA: request all of them in the same way")
        return []
    for ref in plain:
        if ref.device_name is None:
            yield Cause(path, f"vmi.spec.domain.devices.{list_} contains {noun}s without deviceName or claimRequest; each "
                              f"{noun} must specify either a deviceName or claimName and requestName: {_called([ref])} does "
                              "not", "FieldValueRequired")
        elif ref.says_claim:
            yield Cause(path, f"vmi.spec.domain.devices.{list_} contains {noun}s with both deviceName and claimRequest: "
                              f"{_called([ref])}; specify one of them")
    if by_claim and not open_.open(GATES[list_]):
        yield Cause(path, open_.refusal(GATES[list_], f"vmi.spec.domain.devices.{list_} contains DRA enabled {noun}s but "
                                                       "feature gate is not enabled"))
        return []
    return (yield from _references(by_claim, root, noun))


def _called(refs: Collection[DeviceRef]) -> str:
    return ", ".join(ref.name or f"{ref.list}[{ref.index}]" for ref in refs)


def _references(refs: list[DeviceRef], root: str, noun: str) -> Good:
    good: list[DeviceRef] = []
    for ref in refs:
        here = _path(ref, root)
        if ref.at_odds:
            yield Cause(here, f"{' and '.join(ref.at_odds)} mean the same and have different values: keep one of them")
        if not ref.claim:
            yield Cause(f"{here}.{ref.claim_at}", f"{ref.claim_at} is required for DRA {noun}: claimName names an entry of "
                                                  f"{root}.resourceClaims", "FieldValueRequired")
        if not ref.request:
            yield Cause(f"{here}.{ref.request_at}", f"{ref.request_at} is required for DRA {noun}: requestName names a request "
                                                    "of that claim", "FieldValueRequired")
        if ref.claim and ref.request and not ref.at_odds:
            good.append(ref)
    first = _first((ref.index, ref.claim, ref.request) for ref in good)
    for ref in good:
        if first[str(ref.claim), str(ref.request)] != ref.index:
            yield Cause(_path(ref, root), f'duplicate claimName/requestName pair "{ref.claim}/{ref.request}"; use another '
                                          "request, or a request with a higher count", "FieldValueDuplicate")
    return good


def network_pairs(spec: Mapping[str, Any]) -> Pairs:
    claims_of = ((index, network.get("resourceClaim") or {}) for index, network in enumerate(spec.get("networks") or ()))
    return _first((index, claim.get("claimName"), claim.get("requestName")) for index, claim in claims_of)


def _first(uses: Iterable[tuple[int, str | None, str | None]]) -> Pairs:
    out: Pairs = {}
    for index, claim, request in uses:
        if claim and request:
            out.setdefault((claim, request), index)
    return out


PATHS = {"GPUs": "domain.devices.gpus", "HostDevices": "domain.devices.hostDevices", "Networks": "networks"}


def _shared(pairs: Mapping[str, Pairs], root: str) -> Iterator[Cause]:
    """A request of a claim may be used once over all lists. A later use is reported with the first one only."""
    first: dict[tuple[str, str], str] = {}
    for list_, uses in pairs.items():
        for (claim, request), index in uses.items():
            here = f"{list_}[{index}]"
            if (earlier := first.setdefault((claim, request), here)) != here:
                yield Cause(f"{root}.{PATHS[list_]}[{index}]", f'duplicate claimName/requestName pair "{claim}/{request}" '
                                                               f"between {earlier} and {here}", "FieldValueDuplicate")


def displays(spec: Mapping[str, Any], root: str) -> Iterator[Cause]:
    """At most one GPU may have a ramfb boot display, which is enabled by default."""
    given = [gpu.get("virtualGPUOptions") or {} for gpu in (spec["domain"].get("devices") or {}).get("gpus") or ()]
    shown = [options["display"] for options in given if options.get("display") is not None]
    booting = [display for display in shown if display.get("enabled") is not False
               and (display.get("ramFB") or {}).get("enabled") is not False]
    if len(booting) > 1:
        yield Cause(f"{root}.GPUs", "configuring multiple displays with ramfb is not valid: set display.ramFB.enabled to false "
                                    "on all GPUs but one")
