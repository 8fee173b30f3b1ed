"""The door of the embedded homes: every write passes here, whoever makes it. Defaults are filled in, then all that is wrong
is said at once. Pure: what must be looked up comes in with the change."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from outfitter.api import kinds
from outfitter.api.kinds import Kind, Object
from outfitter.api.kubevirt import kubevirt_config, vm
from outfitter.api.kubevirt.kubevirt_config import KubeVirtConfig
from outfitter.api.page import is_pool_page
from outfitter.api.validate import flavors, kubevirt, names, pages, pods, resources, schema, vms, warnings
from outfitter.api.write_request import WriteRequest
from outfitter.errors import Cause, Forbidden, Invalid, NotFound, Terminating, shortened

Check = Callable[[Mapping[str, Any]], Iterator[Cause]]
Compare = Callable[[Mapping[str, Any], Mapping[str, Any]], Iterator[Cause]]
Warn = Callable[[Mapping[str, Any], KubeVirtConfig, warnings.Look], Iterator[str]]
POD_GRACE = 30


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
    _default(_within(obj, "status"), "phase", "Pending")


def _secret(obj: Object) -> None:
    """Plain text that a person wrote becomes data; it is never shown again."""
    plain = obj.pop("stringData", None)
    if isinstance(plain, dict):
        encoded = {key: base64.b64encode(str(text).encode()).decode() for key, text in plain.items()}
        obj["data"] = {**(obj.get("data") or {}), **encoded}
    _default(obj, "type", "Opaque")


def _taint_rule(obj: Object) -> None:
    """Since when it holds. One that is changed later without saying so gets its time from whoever acts on it."""
    taint = (obj.get("spec") or {}).get("taint") if isinstance(obj.get("spec"), dict) else None
    if isinstance(taint, dict) and obj.get("metadata", {}).get("creationTimestamp"):
        _default(taint, "timeAdded", obj["metadata"]["creationTimestamp"])


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
    """null is as good as nothing."""
    if obj.get(field) is None:
        obj[field] = value


def _within(obj: Object, field: str) -> Object:
    """The object in a field, made where there is none."""
    _default(obj, field, {})
    inner: Object = obj[field]
    return inner


def _vmi_finalizer(obj: Object) -> None:
    """A machine stays until its pod is gone, from its first moment on. One that came in through another door gets it later."""
    have = obj["metadata"].get("finalizers") or []
    if isinstance(have, list) and vm.FINALIZER not in have:
        obj["metadata"]["finalizers"] = [*have, vm.FINALIZER]


CREATE_DEFAULTS: Mapping[Kind, Callable[[Object], None]] = {kinds.VMI: _vmi_finalizer}  # what a new object gets, once
DEFAULTS: Mapping[Kind, Callable[[Object], None]] = {
    kinds.NAMESPACE: _namespace,
    kinds.POD: _pod,
    kinds.SECRET: _secret,
    kinds.RESOURCE_CLAIM: _claim,
    kinds.RESOURCE_CLAIM_TEMPLATE: _claim_template,
    kinds.DEVICE_TAINT_RULE: _taint_rule,
}
CHECKS: Mapping[Kind, Check] = {
    kinds.CONFIG_MAP: names.texts("data", "binaryData"),
    kinds.SECRET: names.texts("data"),
    kinds.POD: pods.pod,
    kinds.NODE: pods.node,
    kinds.DEVICE_CLASS: resources.device_class,
    kinds.DEVICE_TAINT_RULE: resources.taint_rule,
    kinds.RESOURCE_CLAIM: resources.claim,
    kinds.RESOURCE_CLAIM_TEMPLATE: resources.claim_template,
    kinds.RESOURCE_SLICE: resources.resource_slice,
    kinds.NETWORK_ATTACHMENT: resources.network,
    kinds.KUBEVIRT: kubevirt.check,
    kinds.FLAVOR: flavors.flavor,
}
# Checks that depend on what the KubeVirt object says. They are for what is new: a machine that was let in stays, whatever
# gate was closed since.
CONFIG_CHECKS: Mapping[Kind, Callable[[Mapping[str, Any], KubeVirtConfig], Iterator[Cause]]] = {
    kinds.VMI: vms.vmi,
    kinds.VM: vms.vm,
    kinds.MIGRATION: vms.migration,
}
WARNINGS: Mapping[Kind, Warn] = {
    kinds.VMI: warnings.vmi_warnings,
    kinds.VM: warnings.vm_warnings,
    kinds.KUBEVIRT: lambda obj, now, look: kubevirt.config_warnings(obj),
}
UPDATE_CHECKS: Mapping[Kind, Compare] = {
    kinds.POD: pods.same_place,
    kinds.RESOURCE_CLAIM: resources.unchanged_spec,
    kinds.RESOURCE_CLAIM_TEMPLATE: resources.unchanged_spec,
}
PLAIN_LABEL_NAMES = (kinds.NAMESPACE,)
UNDELETABLE = ("default", "kube-system")  # namespaces that are always there


class AdmissionRules:
    """What `store.base.Rules` asks for. `more`: checks of a kind's spec that need to know how this installation is set up; what
    was stored before and keeps its spec is not asked again."""

    def __init__(self, more: Mapping[Kind, Check] | None = None) -> None:
        self._more = more or {}

    def admit(self, change: WriteRequest) -> Object:
        obj = change.new
        if change.verb == "delete":
            return self._delete(change)
        if wrong := list(schema.check(change.kind.kind, obj, change.old)):
            raise_invalid(change.kind, obj, [*wrong, *self._besides(change, wrong)])
        if change.verb == "create":
            self._place(change)
        if change.verb == "create" and change.kind in CREATE_DEFAULTS:
            CREATE_DEFAULTS[change.kind](obj)
        if change.subresource == "" and change.kind in DEFAULTS:
            DEFAULTS[change.kind](obj)
        raise_invalid(change.kind, obj, list(self._causes(change, obj)))
        self._foresee(change)
        return obj

    def grace(self, kind: Kind, obj: Object, asked: int | None) -> int:
        """A pod that a node runs waits for that node; one that never had a node, or is over, goes at once."""
        if kind != kinds.POD or not obj["spec"].get("nodeName") or obj.get("status", {}).get("phase") in vm.FINAL:
            return 0
        seconds = obj["spec"].get("terminationGracePeriodSeconds", POD_GRACE) if asked is None else asked
        return int(seconds) if seconds >= 0 else 1  # as Kubernetes reads a negative one

    def blocks_deletion(self, kind: Kind, obj: Object) -> bool:
        return kind == kinds.NAMESPACE and bool((obj.get("spec") or {}).get("finalizers"))

    def _delete(self, change: WriteRequest) -> Object:
        if change.kind == kinds.NAMESPACE:
            name = change.new["metadata"]["name"]
            if name in UNDELETABLE:
                raise Forbidden(f'namespaces "{name}" is forbidden: this namespace may not be deleted')
            change.new.setdefault("status", {})["phase"] = "Terminating"
        if change.kind == kinds.LEDGER_PAGE and _by_user(change):
            name = change.new["metadata"]["name"]
            pages.deletable(change.new, host_known=is_pool_page(name) or change.look(kinds.NODE, "", name) is not None)
        return change.new

    def _place(self, change: WriteRequest) -> None:
        """A new object needs a namespace that is there to stay."""
        name = change.new["metadata"].get("namespace")
        if not change.kind.namespaced or not name:
            return
        namespace = change.look(kinds.NAMESPACE, "", name)
        if namespace is None:
            raise NotFound(f'namespaces "{name}" not found')
        if namespace["metadata"].get("deletionTimestamp"):
            raise Terminating(f'{change.kind.resource} "{change.new["metadata"]["name"]}" is forbidden: unable to create new '
                              f"content in namespace {name} because it is being terminated")

    def _causes(self, change: WriteRequest, new: Object) -> Iterator[Cause]:
        kind = change.kind
        if change.subresource != "status":
            yield from names.metadata(new, namespaced=kind.namespaced, plain_label=kind in PLAIN_LABEL_NAMES)
            if kind in CHECKS and change.subresource == "":
                yield from CHECKS[kind](new)
                if kind in self._more and _new_spec(change):
                    yield from self._more[kind](new)
            if kind in CONFIG_CHECKS and change.subresource == "":
                yield from _config_causes(change, new)
        if kind == kinds.VMI:
            yield from vms.phase(new, change.old)
        if change.verb == "create" and kind == kinds.KUBEVIRT:
            yield from _only_one(change)
        if change.old is not None and kind == kinds.LEDGER_PAGE and _by_user(change):
            yield from pages.kept_bookings(new, change.old)
        if change.old is not None and change.subresource == "" and kind in UPDATE_CHECKS:
            yield from UPDATE_CHECKS[kind](new, change.old)

    def _besides(self, change: WriteRequest, wrong: Sequence[Cause]) -> Iterator[Cause]:
        """What else is wrong with an object of the wrong shape, as far as that can be said without what is wrong there."""
        rest = schema.without_wrong(change.kind.kind, change.new)
        if any(schema.check(change.kind.kind, rest)):
            return  # what the others rely on is missing
        for cause in self._causes(change, rest):
            if not any(_within_path(cause.field, each.field) or _within_path(each.field, cause.field) for each in wrong):
                yield cause

    def _foresee(self, change: WriteRequest) -> None:
        """Whoever hears warnings is told what cannot work yet in what they wrote."""
        if change.by.warn is None or change.subresource or change.kind not in WARNINGS or not _new_spec(change):
            return
        for words in WARNINGS[change.kind](change.new, _settings(change), change.look):
            change.by.warn(words)


def _within_path(inner: str, outer: str) -> bool:
    return inner == outer or inner.startswith((f"{outer}.", f"{outer}["))


def _settings(change: WriteRequest) -> KubeVirtConfig:
    return kubevirt_config.read_config(kubevirt_config.active_kubevirt(change.every(kinds.KUBEVIRT)))


def _by_user(change: WriteRequest) -> bool:
    """Whether it is no part of the system that writes."""
    return bool(change.by.user) and not _settings(change).ours(change.by.user)


def _new_spec(change: WriteRequest) -> bool:
    return change.old is None or change.new.get("spec") != change.old.get("spec")


def _config_causes(change: WriteRequest, new: Object) -> Iterator[Cause]:
    if not _new_spec(change):
        return
    now = _settings(change)
    if change.kind == kinds.VMI and change.old is not None:
        refused = list(vms.changed_vmi(new, change.old, now.ours(change.by.user)))
        yield from refused
        if refused:
            return
    same = change.kind == kinds.VM and change.old is not None and all(
        (new.get("spec") or {}).get(part) == (change.old.get("spec") or {}).get(part) for part in vms.BUILT_FROM)
    for cause in CONFIG_CHECKS[change.kind](new, now):
        if not (same and cause.field.startswith(vms.BUILT_AT)):
            yield cause


def _only_one(change: WriteRequest) -> Iterator[Cause]:
    if other := kubevirt_config.active_kubevirt(change.every(kinds.KUBEVIRT)):
        meta = other["metadata"]
        yield Cause("metadata.name", f"Forbidden: KubeVirt {meta['namespace']}/{meta['name']} is there already, and one is for "
                                     "all: change that one", "FieldValueForbidden")


def raise_invalid(kind: Kind, obj: Object, causes: Sequence[Cause]) -> None:
    """Raise when anything is wrong, and say all of it."""
    if not causes:
        return
    causes = [Cause(shortened(cause.field), shortened(cause.message), cause.reason) for cause in causes]
    said = "; ".join(f"{cause.field}: {cause.message}" for cause in causes[:10])
    more = f"; and {len(causes) - 10} more" if len(causes) > 10 else ""
    title = f"{kind.kind}.{kind.group}" if kind.group else kind.kind
    meta = obj.get("metadata")
    name = meta.get("name", "") if isinstance(meta, dict) else ""
    raise Invalid(f'{title} "{shortened(str(name))}" is invalid: {said}{more}', causes)
