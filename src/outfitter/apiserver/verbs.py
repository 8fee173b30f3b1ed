"""The verbs on objects, but for watch. Each reads its options, asks the store, and shows what came of it."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Mapping, Sequence

from outfitter.api import kinds, known_fields, versions
from outfitter.api.assignment import pod_binding
from outfitter.api.kinds import Kind, Object
from outfitter.api.write_request import Writer
from outfitter.apiserver import body_limits, delete_options, negotiate, status, subresources
from outfitter.apiserver.delete_options import DeleteOptions
from outfitter.apiserver.paths import ACTIONS_GROUP, RequestPath
from outfitter.apiserver.render import Renderer
from outfitter.apiserver.request import Request, Response, response
from outfitter.errors import BadRequest, Cause, Invalid, NotFound, TooLarge, TooNew, Unsupported, shortened
from outfitter.store import base
from outfitter.store.clock import rfc3339
from outfitter.store.memory import Memory, revision_number
from outfitter.store.transaction import Transaction, apply_patch
from outfitter.store.watch_cache import Record, Selection

DELETED_AT_ONCE = 200  # objects of a collection, before other requests have their turn
MAX_PROBLEMS = 100  # unknown and duplicate fields that are reported, as by Kubernetes
VALIDATION = ("Ignore", "Warn", "Strict")
MATCHES = ("Exact", "NotOlderThan")
PATCHES: Mapping[str, base.PatchType] = {
    "application/json-patch+json": "json",
    "application/merge-patch+json": "merge",
    "application/strategic-merge-patch+json": "strategic",
}
APPLY = ("application/apply-patch+yaml", "application/apply-patch+cbor")
# A delete of these answers with the object as it was last; of the others, with a Status.
RETURNS_OBJECT = frozenset({kinds.POD, kinds.SERVICE_ACCOUNT, kinds.DEVICE_CLASS, kinds.RESOURCE_CLAIM,
                            kinds.RESOURCE_CLAIM_TEMPLATE, kinds.RESOURCE_SLICE, kinds.DEVICE_TAINT_RULE,
                            kinds.POOL_STATUS_REQUEST})

Verb = Callable[[Memory, Request], Awaitable[Response]]


# -- reading

async def get(store: Memory, request: Request) -> Response:
    target = request.target
    renderer = Renderer(request, store.clock)
    check_reached(store, request)
    return await renderer.one_beside(store.record(target.kind, target.name, target.namespace))


async def list_(store: Memory, request: Request) -> Response:
    renderer = Renderer(request, store.clock)
    records, meta = _part(store, request)
    return await renderer.list_beside(records, meta)


def _part(store: Memory, request: Request) -> tuple[list[Record], Object]:
    """The records that a list is about, and the list's metadata."""
    selection = select(request)
    limit, more = request.number("limit") or 0, request.text("continue")
    if limit < 0:
        raise BadRequest(f"limit: Invalid value: {limit}: must not be negative")
    match = request.choice("ListOptions", "resourceVersionMatch", MATCHES)
    at = check_reached(store, request)
    if request.text("sendInitialEvents"):
        raise _bad_list("sendInitialEvents", "Forbidden: sendInitialEvents is forbidden for list")
    if match and not request.text("resourceVersion"):
        raise _bad_list("resourceVersionMatch", "Forbidden: resourceVersionMatch is forbidden unless resourceVersion is "
                        "provided")
    if match == "Exact" and not at:
        raise _bad_list("resourceVersionMatch", 'Forbidden: resourceVersionMatch "exact" is forbidden for resourceVersion "0"')
    if match and more:
        raise _bad_list("resourceVersionMatch", "Forbidden: resourceVersionMatch is forbidden when continue is provided")
    if more and at:
        raise BadRequest("specifying resource version is not allowed when using continue")
    exact = match == "Exact" or (not match and limit and at)
    records, revision, token, left = store.list_records(
        request.target.kind, selection, limit=limit, continue_=more, at=at if exact else None
    )
    meta: Object = {"resourceVersion": str(revision)}
    if token:
        meta["continue"] = token
        if selection.whole:
            meta["remainingItemCount"] = left
    return list(records), meta


def select(request: Request) -> Selection:
    target = request.target
    return Selection(target.kind, target.namespace, request.text("labelSelector"), request.text("fieldSelector"))


def check_reached(store: Memory, request: Request) -> int:
    """The revision that the client asks for at least (0 when it does not say), which must have happened."""
    text = request.text("resourceVersion")
    asked = revision_number(text) if text else 0
    if asked > store.revision:
        raise TooNew(f"Timeout: Too large resource version: {asked}, current: {store.revision}")
    return asked


def _bad_list(field: str, message: str) -> status.BadOptions:
    return status.BadOptions("ListOptions", field, message, "FieldValueForbidden")


# -- writing

async def create(store: Memory, request: Request) -> Response:
    target = request.target
    if target.subresource == "binding":
        return await _bind(store, request)
    renderer = Renderer(request, store.clock)
    dry_run, validation = request.dry_run("CreateOptions"), _validation(request, "CreateOptions")
    obj = _object(request, validation)
    record = await store.write(
        lambda transaction: _bounded(transaction.create(target.kind, obj)), dry_run=dry_run, by=request.by
    )
    return renderer.one(record, 201)


async def _bind(store: Memory, request: Request) -> Response:
    target, dry_run = request.target, request.dry_run("CreateOptions")
    binding, now = pod_binding.read(request.content().value, target.name, target.namespace), rfc3339(store.clock.now())
    by = Writer(warn=request.warnings.append)  # the server writes it: users do not change nodeName
    await store.write(lambda transaction: transaction.change(
        target.kind, target.name, target.namespace, lambda pod: pod_binding.bound(pod, binding, now), target.subresource),
        dry_run=dry_run, by=by)
    return response(pod_binding.BOUND, 201)


async def update(store: Memory, request: Request) -> Response:
    target = request.target
    if target.group == ACTIONS_GROUP:
        return await subresources.act(store, request)
    renderer = Renderer(request, store.clock)
    dry_run, validation = request.dry_run("UpdateOptions"), _validation(request, "UpdateOptions")
    obj = _object(request, validation, store.committed_record(target.kind, target.name, target.namespace))
    if target.subresource == "finalize":
        return renderer.one(
            await store.write(lambda transaction: _finalize(transaction, target, obj), dry_run=dry_run, by=request.by)
        )
    record = await store.write(
        lambda transaction: _bounded(transaction.replace(target.kind, obj, target.subresource)), dry_run=dry_run, by=request.by
    )
    return renderer.one(record)


def _finalize(transaction: Transaction, target: RequestPath, obj: Object) -> Record:
    """Replace spec.finalizers and nothing else."""
    finalizers = (obj.get("spec") or {}).get("finalizers")
    if not isinstance(finalizers or [], list):
        raise BadRequest("spec.finalizers: must be a list of strings")

    def change(old: Object) -> Object:
        at = {key: obj["metadata"][key] for key in ("resourceVersion", "uid") if key in obj["metadata"]}
        meta = {**old["metadata"], **at}
        return {**old, "metadata": meta, "spec": {**(old.get("spec") or {}), "finalizers": finalizers or []}}

    return transaction.change(target.kind, target.name, target.namespace, change, target.subresource)


async def patch_(store: Memory, request: Request) -> Response:
    target = request.target
    renderer = Renderer(request, store.clock)
    how = _patch_type(request)
    dry_run, validation = request.dry_run("PatchOptions"), _validation(request, "PatchOptions")
    body = negotiate.from_json(request.body)
    _report(request, validation, [f'duplicate field "{path}"' for path in body.duplicates], _bad_patch)

    def change(stored: Object) -> Object:
        old = versions.from_stored(target.kind, target.version, stored)
        new = known_fields.normalize(target.kind, apply_patch(target.kind, old, body.value, how))
        body_limits.check_size(new)
        _check_identity(target, new)
        _report(request, validation, _strangers(target, new, old), _bad_patch)
        return versions.to_stored(target.kind, target.version, new)

    record = await store.write(
        lambda transaction: _bounded(
            transaction.change(target.kind, target.name, target.namespace, change, target.subresource)
        ),
        dry_run=dry_run,
        by=request.by,
    )
    return renderer.one(record)


def _patch_type(request: Request) -> base.PatchType:
    media = negotiate.media_type(request.header("content-type"))
    kind = request.target.kind
    how = PATCHES.get(media)
    if media in APPLY:
        raise Unsupported(f"server-side apply ({media}) is not served yet: use kubectl apply without --server-side")
    if how is None or (how == "strategic" and not kind.builtin):
        known = [each for each, type_ in PATCHES.items() if kind.builtin or type_ != "strategic"]
        raise Unsupported(f"the body of the request was in an unknown format ({media or 'no Content-Type'}) - accepted media "
                          f"types include: {', '.join(known)}")
    return how


def _bounded(record: Record) -> Record:
    if len(record.data) > negotiate.MAX_BODY:
        raise TooLarge(f"Request entity too large: an object may have {negotiate.MAX_BODY} bytes")
    return record


def _object(request: Request, validation: str, before: Record | None = None) -> Object:
    """The object in the body, in the stored version, checked against the path."""
    target = request.target
    body = request.content()
    obj = known_fields.normalize(target.kind, body.value)
    given = (obj.get("apiVersion", target.api_version), obj.get("kind", target.kind.kind))
    if given != (target.api_version, target.kind.kind):
        version, kind = shortened(repr(given[0])), shortened(str(given[1]))
        raise BadRequest(f"apiVersion, kind: {kind} in version {version} cannot be handled as a {target.kind.kind} of "
                         f"{target.api_version}: send it to its own path")
    obj = {"apiVersion": target.api_version, "kind": target.kind.kind, **obj}
    _check_identity(target, obj)
    old = versions.from_stored(target.kind, target.version, before.object()) if before else {}
    problems = _strangers(target, obj, old) + [f'duplicate field "{path}"' for path in body.duplicates]
    _report(request, validation, problems, lambda words: BadRequest(
        f'{target.kind.kind} in version "{target.version}" cannot be handled as a {target.kind.kind}: {words}'))
    return versions.to_stored(target.kind, target.version, obj)


def _check_identity(target: RequestPath, obj: Object) -> None:
    """Name and namespace in the object are those of the path; a name that only one of them says is filled in."""
    meta = obj["metadata"]
    if target.name and meta.setdefault("name", target.name) != target.name:
        raise BadRequest(f"the name of the object ({meta['name']}) does not match the name on the URL ({target.name})")
    if target.kind.namespaced and (meta.get("namespace") or target.namespace) != target.namespace:
        raise BadRequest("the namespace of the provided object does not match the namespace sent on the request")
    if target.kind.namespaced:
        meta["namespace"] = target.namespace


def _strangers(target: RequestPath, new: Object, old: Object) -> list[str]:
    """Fields that are not known, but for those that the object had before."""
    found = known_fields.unknown(target.kind, target.version, new)
    had = set(known_fields.unknown(target.kind, target.version, old)) if found else ()
    return [f'unknown field "{path}"' for path in found if path not in had]


def _validation(request: Request, options: str) -> str:
    return request.choice(options, "fieldValidation", VALIDATION) or "Warn"


def _report(request: Request, validation: str, problems: list[str], refuse: Callable[[str], Exception]) -> None:
    problems = problems[:MAX_PROBLEMS]
    if problems and validation == "Strict":
        raise refuse(f"strict decoding error: {', '.join(problems)}")
    if validation == "Warn":
        request.warnings += problems


def _bad_patch(words: str) -> Invalid:
    return Invalid(f"patch is invalid: {words}", [Cause("patch", words)])


# -- deleting

async def delete(store: Memory, request: Request) -> Response:
    target = request.target
    renderer = Renderer(request, store.clock)
    options = delete_options.read(request)
    record, gone = await store.write(
        lambda transaction: _delete(transaction, target.kind, target.name, target.namespace, options), dry_run=options.dry_run,
        by=request.by,
    )
    if gone and target.kind not in RETURNS_OBJECT:
        return renderer.value(status.success(target, record.uid))
    return renderer.one(record)


def _delete(transaction: Transaction, kind: Kind, name: str, namespace: str, options: DeleteOptions) -> tuple[Record, bool]:
    return transaction.delete(
        kind, name, namespace, uid=options.uid, revision=options.revision, propagation=options.propagation, grace=options.grace
    )


async def delete_collection(store: Memory, request: Request) -> Response:
    target = request.target
    renderer = Renderer(request, store.clock)
    options = delete_options.read(request)
    records, meta = _part(store, request)
    deleted: list[Record] = []

    def work(transaction: Transaction, some: Sequence[Record]) -> list[Record]:
        out = []
        for record in some:
            namespace, name = record.key
            try:
                out.append(_delete(transaction, target.kind, name, namespace, options)[0])
            except NotFound:
                continue  # it went in the meantime
        return out

    for start in range(0, len(records), DELETED_AT_ONCE):  # as in Kubernetes, not all or nothing
        part = functools.partial(work, some=records[start:start + DELETED_AT_ONCE])
        deleted += await store.write(part, dry_run=options.dry_run, by=request.by)
        await asyncio.sleep(0)
    return await renderer.list_beside(deleted, meta)


VERBS: Mapping[str, Verb] = {
    "get": get, "list": list_, "create": create, "update": update, "patch": patch_, "delete": delete,
    "deletecollection": delete_collection,
}
