"""What `--apply` would change, as a unified diff of YAML: each object as it is beside what the API server makes of ours in a
dry run, so that defaults and fields of other writers are no difference."""

from __future__ import annotations

import difflib
from collections.abc import AsyncIterator, Sequence

import yaml

from outfitter.api.kinds import Object
from outfitter.errors import NotFound
from outfitter.install import apply, names, preflight, resources
from outfitter.store.kube import Kube

SERVER_SET = ("managedFields", "resourceVersion", "generation", "uid", "creationTimestamp", "selfLink")


async def differences(kube: Kube, objects: Sequence[Object]) -> AsyncIterator[str]:
    """One text per object that differs. CommandFailed: nothing can be compared, and what helps."""
    await preflight.check_version(kube)
    await preflight.check_rights(kube)
    for obj in objects:
        kind = resources.kind_of(obj)
        key = resources.key_of(obj)
        live = await apply.read(kube, key)
        if apply.unmanaged_namespace(key, live):
            continue
        try:
            after = await kube.apply(kind, obj, field_manager=names.FIELD_MANAGER, dry_run=True)
        except NotFound:  # its namespace is not there yet
            after = obj
        if text := _difference(resources.title(key), live, after):
            yield text
    for kind, namespace, name in await apply.superfluous(kube, objects):
        yield _difference(resources.title((kind, namespace, name)), await kube.get(kind, name, namespace), None)


def _difference(title: str, old: Object | None, new: Object | None) -> str:
    before, after = (_shown(obj) if obj is not None else None for obj in (old, new))
    if before == after:
        return ""
    return "".join(
        difflib.unified_diff(
            _lines(before), _lines(after), f"live/{title}" if old else "/dev/null", f"installed/{title}" if new else "/dev/null"
        )
    )


def _shown(obj: Object) -> Object:
    meta = {key: value for key, value in obj["metadata"].items() if key not in SERVER_SET}
    shown = {**{key: value for key, value in obj.items() if key != "status"}, "metadata": meta}
    if obj["kind"] == "Secret":  # its content is not ours and must not be printed
        shown.pop("data", None)
    return shown


def _lines(shown: Object | None) -> list[str]:
    if shown is None:
        return []
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)  # ten times as fast, where libyaml is there
    text: str = yaml.dump(shown, Dumper=dumper, sort_keys=True, width=120)
    return text.splitlines(keepends=True)
