"""Who wrote which field of which object, from the audit log of a kube-apiserver that records the answers to writes. Needs no
pytest:

    flags = audit_writes.flags(folder)
    with Cluster(folder, apiserver_flags=flags) as cluster: ...
    for write in audit_writes.read(folder): ...
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outfitter.api.kinds import Object

WRITES = ["create", "update", "patch", "delete", "deletecollection"]
POLICY = {
    "apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"], "omitManagedFields": True,
    "rules": [
        {"level": "None", "resources": [{"group": "coordination.k8s.io"}, {"group": "events.k8s.io"},
                                        {"group": "", "resources": ["events", "secrets"]},
                                        {"group": "authorization.k8s.io"}, {"group": "authentication.k8s.io"}]},
        {"level": "RequestResponse", "verbs": WRITES},
        {"level": "None"},
    ],
}
SET_BY_SERVER = ("resourceVersion", "uid", "generation", "creationTimestamp", "managedFields", "deletionTimestamp",
                 "deletionGracePeriodSeconds")


@dataclass(frozen=True, slots=True)
class FieldWrite:
    """One field of one object that a request changed. A deletion changes metadata.deletionTimestamp."""

    user: str  # the one that is acted for, where a request impersonates
    resource: str  # "pods", "virtualmachines.kubevirt.io"
    object: str  # namespace/name
    path: str


def flags(folder: Path) -> list[str]:
    """Of a kube-apiserver that logs to this folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "audit.json").write_text(json.dumps(POLICY))
    return [f"--audit-policy-file={folder / 'audit.json'}", f"--audit-log-path={folder / 'audit.log'}"]


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every field with its value; a list is one value."""
    if isinstance(value, dict) and value:
        for key, below in value.items():
            if not (path == "metadata" and key in SET_BY_SERVER):
                yield from leaves(below, f"{path}.{key}" if path else key)
    elif path not in ("apiVersion", "kind", "metadata.name", "metadata.namespace"):
        yield path, value


def read(folder: Path) -> list[FieldWrite]:
    """Every field that was changed, in the order of the answers' revisions."""
    events = [event for event in map(json.loads, (folder / "audit.log").read_text().splitlines()) if _succeeded(event)]
    known: dict[tuple[str, str], dict[str, Any]] = {}
    out: list[FieldWrite] = []
    for event in sorted(events, key=_revision):
        about, answer = event["objectRef"], event.get("responseObject") or {}
        meta = answer.get("metadata") or {}
        resource = about["resource"] + (f".{about['apiGroup']}" if about.get("apiGroup") else "")
        name = f"{about.get('namespace', '')}/{about.get('name') or meta.get('name', '')}"
        user = (event.get("impersonatedUser") or event["user"])["username"]
        if event["verb"].startswith("delete"):
            paths = {"metadata.deletionTimestamp"}
        elif answer.get("kind") in ("Status", None):
            paths = {about.get("subresource") or ""}  # of a binding: another object is answered
        else:
            before, after = known.get((resource, name), {}), dict(leaves(answer))
            paths = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
            known[resource, name] = after
        out += [FieldWrite(user, resource, name, path) for path in sorted(paths)]
    return out


def _succeeded(event: Object) -> bool:
    """Whether a request wrote: dry runs and refused ones do not."""
    return (event.get("stage") == "ResponseComplete" and event.get("verb") in WRITES and "objectRef" in event
            and int((event.get("responseStatus") or {}).get("code", 500)) < 300 and "dryRun=" not in event["requestURI"])


def _revision(event: Object) -> tuple[int, str]:
    meta = (event.get("responseObject") or {}).get("metadata") or {}
    return int(meta.get("resourceVersion") or 0), event["stageTimestamp"]
