"""Checks at the start of a role that the cluster is one on which it can work: a version of Kubernetes with devices, our
definitions, and the rights of the role. Each failure is one sentence with the remedy; nothing is written."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from outfitter.api import kinds
from outfitter.api.kinds import Kind
from outfitter.errors import StartupRefused, Unauthorized
from outfitter.store.kube import Kube

OLDEST = (1, 34)
DEVICES = "resource.k8s.io/v1"
# What a cluster must have learned; networks of others it need not know.
OURS = tuple(kind for kind in kinds.ALL if not kind.builtin and kind != kinds.NETWORK_ATTACHMENT)
INSTALL = "outfit install --apply creates them"
READ = ("list", "watch")
MOST_SHOWN = 5  # missing rights or definitions in one message


@dataclass(frozen=True, slots=True)
class Right:
    """One thing that a role must be allowed to do."""

    verb: str
    kind: Kind
    subresource: str = ""
    namespace: str = ""  # "": in all of them
    name: str = ""  # "": of every object

    def __str__(self) -> str:
        name = f"{self.kind.resource}/{self.subresource}" if self.subresource else self.kind.resource
        return f"{self.verb} {name}" + (f" in {self.namespace}" if self.namespace else "")


def reads(watched: Iterable[Kind]) -> list[Right]:
    return [Right(verb, kind) for kind in watched for verb in READ]


async def check_cluster(store: Kube, role: str, rights: Sequence[Right], definitions: Sequence[Kind] = OURS) -> None:
    """StartupRefused: the role cannot work on this cluster, and what would help."""
    await _check_version(store)
    await _check_devices(store)
    await _check_definitions(store, definitions)
    await _check_rights(store, role, rights)


async def _check_version(store: Kube) -> None:
    answer = await _get(store, "/version") or {}
    numbers = [re.match(r"[0-9]+", str(answer.get(part, ""))) for part in ("major", "minor")]
    if None in numbers or not answer:
        raise StartupRefused(f"{store.access.server} reports no version of Kubernetes: is it an API server? The address is "
                             f"from {store.access.origin}")
    version = tuple(int(number[0]) for number in numbers if number)
    if version < OLDEST:
        raise StartupRefused(f"{store.access.server} runs Kubernetes {version[0]}.{version[1]}, and outfitter needs "
                             f"{OLDEST[0]}.{OLDEST[1]} or newer: upgrade the control plane")


async def _check_devices(store: Kube) -> None:
    if await _get(store, f"/apis/{DEVICES}") is None:
        raise StartupRefused(f"{store.access.server} does not serve {DEVICES}, the API for devices: start kube-apiserver with "
                             f"the feature gate DynamicResourceAllocation=true and without --runtime-config={DEVICES}=false")


async def _check_definitions(store: Kube, definitions: Sequence[Kind]) -> None:
    versions = sorted({(kind.group, kind.version) for kind in definitions})
    lists = await asyncio.gather(*(_get(store, f"/apis/{group}/{version}") for group, version in versions))
    served = {(group, version): {entry["name"] for entry in (found or {}).get("resources", ())}
              for (group, version), found in zip(versions, lists, strict=True)}
    missing = [kind for kind in definitions if kind.plural not in served[kind.group, kind.version]]
    if not missing:
        return
    other = await _served_versions(store, missing[0])
    if other:
        raise StartupRefused(f"{store.access.server} serves {missing[0].resource} as {', '.join(other)}, and this version of "
                             f"outfitter needs {missing[0].version}: the definitions are those of another version; outfit "
                             "install --apply updates them")
    raise StartupRefused(f"{store.access.server} lacks the definitions of {_some([kind.resource for kind in missing])}: "
                         f"{INSTALL}")


async def _served_versions(store: Kube, kind: Kind) -> list[str]:
    """The versions in which the server has a kind."""
    group = await _get(store, f"/apis/{kind.group}")
    versions = [entry["version"] for entry in (group or {}).get("versions", ())]
    found = [await _get(store, f"/apis/{kind.group}/{version}") for version in versions]
    return [version for version, answer in zip(versions, found, strict=True)
            if kind.plural in {entry["name"] for entry in (answer or {}).get("resources", ())}]


async def _check_rights(store: Kube, role: str, rights: Sequence[Right]) -> None:
    allowed = await asyncio.gather(*(_allowed(store, right) for right in rights))
    missing = [str(right) for right, yes in zip(rights, allowed, strict=True) if not yes]
    if missing:
        review = await _post(store, "/apis/authentication.k8s.io/v1/selfsubjectreviews",
                             {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"})
        user = review.get("status", {}).get("userInfo", {}).get("username") or "the user"
        raise StartupRefused(f"{user} (of {store.access.origin}) may not {_some(missing)}: the ClusterRole outfitter-{role} "
                             "has these rights; outfit install --apply creates it with its binding, or bind it to this user")


async def _allowed(store: Kube, right: Right) -> bool:
    attributes = {"verb": right.verb, "group": right.kind.group, "resource": right.kind.plural,
                  "subresource": right.subresource, "namespace": right.namespace, "name": right.name}
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
              "spec": {"resourceAttributes": {key: value for key, value in attributes.items() if value}}}
    answer = await _post(store, "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review)
    return bool(answer.get("status", {}).get("allowed"))


async def _get(store: Kube, path: str) -> dict[str, Any] | None:
    """None: there is no such path."""
    return await _answer(store, "GET", path)


async def _post(store: Kube, path: str, body: Any) -> dict[str, Any]:
    return await _answer(store, "POST", path, json.dumps(body).encode()) or {}


async def _answer(store: Kube, method: str, path: str, body: bytes | None = None) -> dict[str, Any] | None:
    status, _, content = await store.raw(method, path, body=body, headers={"Content-Type": "application/json"})
    if status == 401:
        raise Unauthorized(f"{store.access.server} does not accept the credential of {store.access.origin}: it has expired or "
                           "is for another cluster")
    if status == 404:
        return None
    if status >= 300:
        text = content[:200].decode(errors="replace")
        raise StartupRefused(f"{store.access.server} answers {status} to {method} {path}: {text}")
    found = json.loads(content)
    return found if isinstance(found, dict) else {}


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_SHOWN} more" if len(names) > MOST_SHOWN else ""
    return ", ".join(names[:MOST_SHOWN]) + more
