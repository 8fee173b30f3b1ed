"""Admission: every write passes through `AdmissionRules`, which fills in defaults and reports all causes at once. Called by the
embedded backends of the store, in a cluster by the admission webhook, and by the CLI for `plan` and `domxml`. Pure: lookups
come with the request."""

from __future__ import annotations

import base64
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from outfitter.api import kinds
from outfitter.api.assignment import assigned_devices
from outfitter.api.kinds import Kind, Object
from outfitter.api.kubevirt import kubevirt_config, vm
from outfitter.api.kubevirt.kubevirt_config import KubeVirtConfig
from outfitter.api.ledger_page.booking import OUT_OF_SERVICE_STATES
from outfitter.api.ledger_page.page_entries import raw_entries, unchanged
from outfitter.api.validate import (
    bounds,
    config_data,
    flavors,
    kubevirt,
    migrations,
    names,
    pages,
    pods,
    readable,
    resources,
    schema,
    slices,
    vms,
    warnings,
)
from outfitter.api.validate.dra import claim_status, pool_status_requests
from outfitter.api.write_request import WriteRequest
from outfitter.errors import Cause, Forbidden, Invalid, NotFound, Terminating, shortened

Check = Callable[[Mapping[str, Any]], Iterator[Cause]]
Compare = Callable[[Mapping[str, Any], Mapping[str, Any]], Iterator[Cause]]
Warn = Callable[[Mapping[str, Any], KubeVirtConfig, warnings.Look], Iterator[str]]
POD_GRACE = 30
MAX_CAUSES = 100  # that are looked for in one object


def _namespace(obj: Object) -> None:
    _default(_within(obj, "spec"), "finalizers", ["kubernetes"])
    _default(_within(obj, "status"), "phase", "Active")
    _within(obj["metadata"], "labels")["kubernetes.io/metadata.name"] = obj["metadata"]["name"]


def _pod(obj: Object) -> None:
    spec = obj.get("spec")
    if isinstance(spec, dict):
        for field, value in (("restartPolicy", "Always"), ("schedulerName", "default-scheduler"),
                             ("terminationGracePeriodSeconds", POD_GRACE)):
            _default(spec, field, value)
        _within(spec, "securityContext")  # kubectl debug reads it without a look
    _default(_within(obj, "status"), "phase", "Pending")


def _secret(obj: Object) -> None:
    """Moves stringData to data, base64 encoded."""
    plain = obj.pop("stringData", None)
    if isinstance(plain, dict):
        encoded = {key: base64.b64encode(str(text).encode()).decode() for key, text in plain.items()}
        obj["data"] = {**(obj.get("data") or {}), **encoded}
    _default(obj, "type", "Opaque")


def _taint_rule(obj: Object) -> None:
    """timeAdded defaults to the creation time. After a later change of the taint, the controllers set it."""
    taint = (obj.get("spec") or {}).get("taint") if isinstance(obj.get("spec"), dict) else None
    if isinstance(taint, dict) and obj.get("metadata", {}).get("creationTimestamp"):
        _default(taint, "timeAdded", obj["metadata"]["creationTimestamp"])


def _pool_status_request(obj: Object) -> None:
    if isinstance(spec := obj.get("spec"), dict):
        _default(spec, "limit", pool_status_requests.DEFAULT_LIMIT)


def _claim(obj: Object) -> None:
    _requests(obj.get("spec"))


def _claim_template(obj: Object) -> None:
    spec = obj.get("spec")
    _requests(spec.get("spec") if isinstance(spec, dict) else None)


def _requests(spec: Any) -> None:
    devices = spec.get("devices") if isinstance(spec, dict) else None
    for request in (devices.get("requests") if isinstance(devices, dict) else None) or ():
        if not isinstance(request, dict):
            continue
        for inner in (request.get("exactly"), *(request.get("firstAvailable") or ())):
            if isinstance(inner, dict):
                _default(inner, "allocationMode", "ExactCount")
                if inner["allocationMode"] == "ExactCount":
                    _default(inner, "count", 1)


def _default(obj: Object, field: str, value: Any) -> None:
    """Sets a field that is absent or null."""
    if obj.get(field) is None:
        obj[field] = value


def _within(obj: Object, field: str) -> Object:
    """The object in a field, created where there is none."""
    if not isinstance(obj.get(field), dict):
        obj[field] = {}
    inner: Object = obj[field]
    return inner


def _vmi_finalizer(obj: Object) -> None:
    """A VMI has the finalizer from its creation, so that it stays until its pod is gone. In a cluster, the VMI controller adds
    it."""
    have = obj["metadata"].get("finalizers") or []
    if isinstance(have, list) and vm.FINALIZER not in have:
        obj["metadata"]["finalizers"] = [*have, vm.FINALIZER]


CREATE_DEFAULTS: Mapping[Kind, Callable[[Object], None]] = {  # applied at creation only
    kinds.VMI: _vmi_finalizer,
    kinds.MIGRATION: migrations.with_defaults,
}
DEFAULTS: Mapping[Kind, Callable[[Object], None]] = {
    kinds.NAMESPACE: _namespace,
    kinds.POD: _pod,
    kinds.SECRET: _secret,
    kinds.RESOURCE_CLAIM: _claim,
    kinds.RESOURCE_CLAIM_TEMPLATE: _claim_template,
    kinds.DEVICE_TAINT_RULE: _taint_rule,
    kinds.POOL_STATUS_REQUEST: _pool_status_request,
}
CHECKS: Mapping[Kind, Check] = {
    kinds.CONFIG_MAP: config_data.config_map,
    kinds.SECRET: config_data.secret,
    kinds.POD: pods.pod,
    kinds.NODE: pods.node,
    kinds.DEVICE_CLASS: resources.device_class,
    kinds.DEVICE_TAINT_RULE: resources.taint_rule,
    kinds.POOL_STATUS_REQUEST: pool_status_requests.request,
    kinds.RESOURCE_CLAIM: resources.claim,
    kinds.RESOURCE_CLAIM_TEMPLATE: resources.claim_template,
    kinds.RESOURCE_SLICE: slices.resource_slice,
    kinds.NETWORK_ATTACHMENT: resources.network,
    kinds.KUBEVIRT: kubevirt.check,
    kinds.FLAVOR: flavors.flavor,
}
# Checks that depend on the KubeVirt object. They apply to new and changed specs only: an admitted VM stays valid when a feature
# gate is disabled later.
CONFIG_CHECKS: Mapping[Kind, Callable[[Mapping[str, Any], KubeVirtConfig], Iterator[Cause]]] = {
    kinds.VMI: vms.vmi,
    kinds.VM: vms.vm,
}
WARNINGS: Mapping[Kind, Warn] = {
    kinds.VMI: warnings.vmi_warnings,
    kinds.VM: warnings.vm_warnings,
    kinds.KUBEVIRT: lambda obj, config, look: kubevirt.config_warnings(obj),
}
STATUS_UPDATE_CHECKS: Mapping[Kind, Compare] = {
    kinds.RESOURCE_CLAIM: claim_status.changed,
    kinds.POOL_STATUS_REQUEST: pool_status_requests.changed_status,
}
STATUS_CHECKS: Mapping[Kind, Check] = {  # for writes of the status subresource
    kinds.NODE: pods.node_status,
    kinds.POD: pods.pod_status,
    kinds.RESOURCE_CLAIM: claim_status.claim_status,
    kinds.POOL_STATUS_REQUEST: pool_status_requests.request_status,
}
UPDATE_CHECKS: Mapping[Kind, Compare] = {
    kinds.CONFIG_MAP: config_data.unchanged("data", "binaryData"),
    kinds.SECRET: config_data.changed_secret,
    kinds.RESOURCE_SLICE: slices.changed,
    kinds.RESOURCE_CLAIM: resources.unchanged_spec,
    kinds.RESOURCE_CLAIM_TEMPLATE: resources.unchanged_spec,
    kinds.POOL_STATUS_REQUEST: resources.unchanged_spec,
}
PLAIN_LABEL_NAMES = (kinds.NAMESPACE,)
UNDELETABLE = ("default", "kube-system")  # namespaces that always exist


class AdmissionRules:
    """Implements `store.base.Rules`. `more`: checks of a kind's spec that depend on the configuration of this installation; an
    update that keeps the spec is not checked again. `device_assignment`: the gate of that name."""

    def __init__(self, more: Mapping[Kind, Check] | None = None, *, device_assignment: bool = True) -> None:
        self._more, self._device_assignment = more or {}, device_assignment

    def admit(self, change: WriteRequest) -> Object:
        obj = change.new
        if change.verb == "delete":
            return self._delete(change)
        if too_long := bounds.check(change.kind.kind, obj, change.old):
            raise_invalid(change.kind, obj, too_long)
        checked = _checked_part(change)
        if not schema.conforms(change.kind.kind, checked, change.old):
            type_errors = list(_first(schema.check(change.kind.kind, checked, change.old)))
            if type_errors or change.old is None:
                raise_invalid(change.kind, obj, [*type_errors, *_first(self._further_causes(change, type_errors))])
            # Only parts that are stored already have fields of the wrong type; checks of values would fail on them.
            if change.kind != kinds.LEDGER_PAGE:  # whose rules skip entries that are malformed
                raise_invalid(change.kind, obj, list(_metadata_causes(change, obj)))
                return obj
        if change.verb == "create":
            self._check_namespace(change)
        _fill_in(change)
        if change.kind == kinds.POD and not self._device_assignment:
            assigned_devices.drop_disabled(obj, change.old)
        raise_invalid(change.kind, obj, list(_first(self._causes(change, obj))))
        self._warn(change)
        return obj

    def with_defaults(self, change: WriteRequest) -> Object:
        """The new object with defaults, not checked further: a mutating webhook sees it before its name is generated and before
        other webhooks change it. One with fields of the wrong type is returned as it is: `admit` reports those."""
        kind, obj = change.kind.kind, change.new
        named = {**obj, "metadata": {"name": "unnamed", **_object_in(obj, "metadata")}}
        if isinstance(obj.get("metadata"), dict) and not bounds.check(kind, obj, change.old) and schema.conforms(kind, named):
            _fill_in(change)
        return obj

    def fills_in(self, kind: Kind) -> bool:
        return kind in DEFAULTS or kind in CREATE_DEFAULTS

    def grace(self, kind: Kind, obj: Object, asked: int | None) -> int:
        """Seconds until a deleted object is removed. A pod on a node waits for its agent; one without a node or in a final
        phase is removed at once."""
        spec, status = _object_in(obj, "spec"), _object_in(obj, "status")
        if kind != kinds.POD or not spec.get("nodeName") or status.get("phase") in vm.FINAL:
            return 0
        seconds = spec.get("terminationGracePeriodSeconds", POD_GRACE) if asked is None else asked
        if type(seconds) is not int:
            return POD_GRACE
        return seconds if seconds >= 0 else 1  # as Kubernetes treats a negative value

    def blocks_deletion(self, kind: Kind, obj: Object) -> bool:
        return kind == kinds.NAMESPACE and bool(_object_in(obj, "spec").get("finalizers"))

    def _delete(self, change: WriteRequest) -> Object:
        if change.kind == kinds.NAMESPACE:
            name = change.new["metadata"]["name"]
            if name in UNDELETABLE:
                raise Forbidden(f'namespaces "{name}" is forbidden: this namespace may not be deleted')
            change.new["status"] = {**_object_in(change.new, "status"), "phase": "Terminating"}
        if change.kind == kinds.LEDGER_PAGE:
            pages.deletable(change)
        return change.new

    def _check_namespace(self, change: WriteRequest) -> None:
        """NotFound, Terminating: the namespace of a new object is missing, or being deleted."""
        name = change.new["metadata"].get("namespace")
        if not change.kind.namespaced or not name:
            return
        namespace = change.look(kinds.NAMESPACE, "", name)
        if namespace is None:
            raise NotFound(f'namespaces "{name}" not found')
        if namespace["metadata"].get("deletionTimestamp"):
            raise Terminating(f'{change.kind.resource} "{change.new["metadata"]["name"]}" is forbidden: unable to create new '
                              f"content in namespace {name} because it is being terminated", name)

    def _causes(self, change: WriteRequest, new: Object) -> Iterator[Cause]:
        kind = change.kind
        if change.subresource != "status" or (change.old is not None and new["metadata"] != change.old["metadata"]):
            yield from _metadata_causes(change, new)
        if kind in CHECKS and change.subresource == "":
            yield from CHECKS[kind](new)
            if kind in self._more and _new_spec(change):
                yield from self._more[kind](new)
        if kind in CONFIG_CHECKS and change.subresource == "":
            yield from _config_causes(change, new)
        if kind in STATUS_CHECKS and change.subresource == "status":
            yield from STATUS_CHECKS[kind](new)
            if change.old is not None and kind in STATUS_UPDATE_CHECKS and schema.conforms(kind.kind, change.old):
                yield from STATUS_UPDATE_CHECKS[kind](new, change.old)
        if kind == kinds.VMI:
            yield from vms.phase(new, change.old)
        if kind == kinds.MIGRATION and change.subresource == "":
            yield from migrations.check(change, by_user=_by_user(change))
        if change.verb == "create" and kind == kinds.KUBEVIRT:
            yield from _only_one(change)
        if kind == kinds.LEDGER_PAGE and new is change.new:  # else it has malformed entries, which are missing here
            yield from pages.check(change, by_user=_by_user(change))
        if change.old is None or change.subresource:
            return
        if kind in UPDATE_CHECKS and schema.conforms(kind.kind, change.old):
            yield from UPDATE_CHECKS[kind](new, change.old)
        if kind == kinds.POD and _new_spec(change) and schema.conforms(kind.kind, change.old):
            yield from pods.changed_spec(new, change.old, binds=not _by_user(change))
        if kind == kinds.POD and schema.conforms(kind.kind, change.old):
            yield from pods.unassigned(new, change.old)

    def _further_causes(self, change: WriteRequest, type_errors: Sequence[Cause]) -> Iterator[Cause]:
        """Further causes in an object with fields of the wrong type, from checks on the object without those fields."""
        rest = schema.without_wrong(change.kind.kind, change.new)
        if any(schema.check(change.kind.kind, rest)):
            return  # required fields are missing
        for cause in self._causes(change, rest):
            if not any(
                _within_path(cause.field, error.field) or _within_path(error.field, cause.field) for error in type_errors
            ):
                yield cause

    def _warn(self, change: WriteRequest) -> None:
        """Sends the writer warnings about what is valid and cannot work yet."""
        if change.by.warn is None or change.subresource or change.kind not in WARNINGS or not _new_spec(change):
            return
        for warning in itertools.islice(WARNINGS[change.kind](change.new, _settings(change), change.look), MAX_CAUSES):
            change.by.warn(warning)


def _fill_in(change: WriteRequest) -> None:
    if change.verb == "create" and change.kind in CREATE_DEFAULTS:
        CREATE_DEFAULTS[change.kind](change.new)
    if change.subresource == "" and change.kind in DEFAULTS:
        DEFAULTS[change.kind](change.new)


def _object_in(obj: Object, field: str) -> Object:
    """The object in a field of a stored object; empty where that is none: such an object can still be deleted."""
    found = obj.get(field)
    return found if isinstance(found, dict) else {}


def _checked_part(change: WriteRequest) -> Object:
    """What of the new object is checked for types: of a page everything but the entries that it had before, one of which may be
    malformed and must not prevent that others are added or removed."""
    if change.kind != kinds.LEDGER_PAGE or change.old is None or not isinstance(change.new.get("spec"), dict):
        return change.new
    spec = {field: _new_entries(change.old, field, value)
            if field in ("bookings", *OUT_OF_SERVICE_STATES) and isinstance(value, list) else value
            for field, value in change.new["spec"].items()}
    return {**change.new, "spec": spec}


def _new_entries(page: Object, field: str, entries: list[Any]) -> list[Any]:
    old = raw_entries(page, field)
    same = unchanged(old, entries) if field == "bookings" else 0
    had = set(map(_canonical, old[same:]))
    return [entry for entry in entries[same:] if _canonical(entry) not in had]


_canonical = msgspec.json.Encoder(order="deterministic").encode  # equal exactly for equal entries


def _first(causes: Iterator[Cause]) -> Iterator[Cause]:
    """As many as a user reads: an object can have a cause for each of its values."""
    return itertools.islice(causes, MAX_CAUSES)


def _metadata_causes(change: WriteRequest, new: Object) -> Iterator[Cause]:
    yield from names.metadata(new, namespaced=change.kind.namespaced, plain_label=change.kind in PLAIN_LABEL_NAMES)


def _within_path(inner: str, outer: str) -> bool:
    return inner == outer or inner.startswith((f"{outer}.", f"{outer}["))


def _settings(change: WriteRequest) -> KubeVirtConfig:
    return kubevirt_config.read_config(kubevirt_config.active_kubevirt(_kubevirts(change)))


def _kubevirts(change: WriteRequest) -> list[Object]:
    """Those that can be read: the others must not keep VMs from being admitted."""
    return [obj for obj in change.every(kinds.KUBEVIRT) if readable.problem(kinds.KUBEVIRT, obj) is None]


def _by_user(change: WriteRequest) -> bool:
    """Whether a user writes, and not a component of the system."""
    return bool(change.by.user) and not _settings(change).ours(change.by.user)


def _new_spec(change: WriteRequest) -> bool:
    return change.old is None or change.new.get("spec") != change.old.get("spec")


def _config_causes(change: WriteRequest, new: Object) -> Iterator[Cause]:
    if not _new_spec(change):
        if change.kind == kinds.VMI and change.old is not None:
            yield from vms.changed_annotation(new, change.old)
        return
    config = _settings(change)
    if change.kind == kinds.VMI and change.old is not None:
        refused = list(vms.changed_vmi(new, change.old, config.ours(change.by.user)))
        yield from refused
        if refused:
            return
    same = change.kind == kinds.VM and change.old is not None and all(
        (new.get("spec") or {}).get(part) == (change.old.get("spec") or {}).get(part) for part in vms.BUILT_FROM)
    if change.old is None:
        yield from vms.at_creation(change.kind.kind, new)
    for cause in CONFIG_CHECKS[change.kind](new, config):
        if not (same and cause.field.startswith(vms.BUILT_AT)):
            yield cause


def _only_one(change: WriteRequest) -> Iterator[Cause]:
    if other := kubevirt_config.active_kubevirt(_kubevirts(change)):
        meta = other["metadata"]
        yield Cause(
            "metadata.name",
            f"Forbidden: KubeVirt {meta['namespace']}/{meta['name']} exists already, and there can be only "
            "one: change that one",
            "FieldValueForbidden",
        )


def raise_invalid(kind: Kind, obj: Object, causes: Sequence[Cause]) -> None:
    """Raises Invalid with all causes, if there are any."""
    if not causes:
        return
    causes = [Cause(shortened(cause.field), shortened(cause.message), cause.reason) for cause in causes]
    listed = "; ".join(f"{cause.field}: {cause.message}" for cause in causes[:10])
    more = f"; and {len(causes) - 10} more" if len(causes) > 10 else ""
    which = f"{kind.kind}.{kind.group}" if kind.group else kind.kind
    meta = obj.get("metadata")
    name = meta.get("name", "") if isinstance(meta, dict) else ""
    title = f'{which} "{shortened(str(name))}" is invalid'
    raise Invalid(f"{title}: {listed}{more}", causes, title=title)
