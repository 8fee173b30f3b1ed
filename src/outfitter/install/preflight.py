"""What is looked at before anything is written, so that nothing is half installed: the cluster's version and API, the rights of
the user, objects of others under our names, and what the API server itself says to our objects in a dry run."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from typing import Any

from outfitter.api import kinds
from outfitter.api.kinds import Object
from outfitter.errors import CommandFailed, Forbidden, Unauthorized
from outfitter.install import names, resources
from outfitter.store.kube import Kube

OLDEST = (1, 34)
DEVICES = "resource.k8s.io/v1"
VERBS = ("get", "list", "create", "patch", "delete")
MOST_SHOWN = 6
REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


async def check(kube: Kube, objects: Sequence[Object], namespace: str) -> None:
    """CommandFailed: this cannot be installed here, why, and what helps."""
    await check_version(kube)
    await check_rights(kube)
    known = await _check_definitions(kube, objects)
    await _check_namespace(kube, namespace)
    await _check_accepted(kube, [obj for obj in objects if obj["metadata"]["name"] not in known])


async def check_version(kube: Kube) -> None:
    version = await _answer(kube, "GET", "/version") or {}
    found = [re.match(r"\d+", str(version.get(part, ""))) for part in ("major", "minor")]
    numbers = tuple(int(number[0]) for number in found if number)
    if len(numbers) < 2:
        raise CommandFailed(
            f"{kube.access.server} reports no version of Kubernetes: is it an API server? The address is from "
            f"{kube.access.origin}"
        )
    if numbers < OLDEST:
        raise CommandFailed(
            f"{kube.access.server} runs Kubernetes {numbers[0]}.{numbers[1]}, and outfitter needs "
            f"{OLDEST[0]}.{OLDEST[1]} or newer: upgrade the control plane"
        )
    if await _answer(kube, "GET", f"/apis/{DEVICES}") is None:
        raise CommandFailed(
            f"{kube.access.server} does not serve {DEVICES}, the API for devices: start kube-apiserver without "
            f"--runtime-config={DEVICES}=false"
        )


async def check_rights(kube: Kube) -> None:
    """Whether the user may write every kind of an installation."""
    if await _allowed(kube, "*", "*", "*"):
        return
    asked = [(verb, kind) for kind in resources.INSTALLED for verb in VERBS]
    answers = await asyncio.gather(*(_allowed(kube, verb, kind.group, kind.plural) for verb, kind in asked))
    missing = [f"{verb} {kind.resource}" for (verb, kind), yes in zip(asked, answers, strict=True) if not yes]
    if missing:
        more = f" and {len(missing) - MOST_SHOWN} more" if len(missing) > MOST_SHOWN else ""
        raise CommandFailed(
            f"{await _user(kube)} (of {kube.access.origin}) may not {', '.join(missing[:MOST_SHOWN])}{more}: use "
            "the kubeconfig of an administrator, or bind the ClusterRole cluster-admin to this user"
        )


async def _check_definitions(kube: Kube, objects: Sequence[Object]) -> set[str]:
    """CRDs under our names that others installed are not overwritten, and those that are being deleted would go with what is
    installed now. The names of those that exist."""
    wanted = {obj["metadata"]["name"] for obj in objects if obj["kind"] == resources.CRD.kind}
    existing = [obj for obj in (await kube.list(resources.CRD)).items if obj["metadata"]["name"] in wanted]
    foreign = [obj for obj in existing if not names.managed(obj)]
    ending = [obj["metadata"]["name"] for obj in existing if obj["metadata"].get("deletionTimestamp")]
    if ending and not foreign:
        raise CommandFailed(
            f"{', '.join(ending)}: being deleted, with the objects of {'its kind' if len(ending) == 1 else 'their kinds'}: "
            "outfit install --remove completes that; then repeat the command"
        )
    if not foreign:
        return {obj["metadata"]["name"] for obj in existing}
    listed = ", ".join(obj["metadata"]["name"] for obj in foreign)
    if any(_of_kubevirt(obj) for obj in foreign):
        raise CommandFailed(
            f"KubeVirt is installed in this cluster and owns {listed}: its VMs stay its own. Install beside it "
            "with --companion, or remove KubeVirt first"
        )
    them, they = ("it", "it is") if len(foreign) == 1 else ("them", "they are")
    raise CommandFailed(
        f"{listed}: installed by another program, and left as {they}; if {they} from an earlier outfitter, let this "
        f"one manage {them}: kubectl label crd {listed.replace(',', '')} {names.MANAGED_BY}={names.MANAGER}"
    )


def _of_kubevirt(definition: Object) -> bool:
    labels = definition["metadata"].get("labels") or {}
    return "kubevirt.io" in labels or labels.get(names.MANAGED_BY) in ("virt-operator", "kubevirt-operator")


async def _check_namespace(kube: Kube, namespace: str) -> None:
    present = next(iter((await kube.list(kinds.NAMESPACE, fields=f"metadata.name={namespace}")).items), None)
    if present is not None and present["metadata"].get("deletionTimestamp"):
        raise CommandFailed(
            f"namespace {namespace} is being deleted, and nothing can be created in it: wait until it is gone "
            f"(kubectl wait --for=delete namespace/{namespace}), and repeat the command"
        )
    found = (await kube.list(resources.DEPLOYMENT, labels=f"{names.MANAGED_BY}={names.MANAGER}")).items
    elsewhere = sorted({obj["metadata"]["namespace"] for obj in found} - {namespace})
    if elsewhere:
        raise CommandFailed(
            f"outfitter is installed in namespace {elsewhere[0]} already, and a cluster has one: use "
            f"-n {elsewhere[0]}, or remove it first (outfit install --remove -n {elsewhere[0]})"
        )


async def _check_accepted(kube: Kube, objects: Sequence[Object]) -> None:
    """Objects without a namespace, in a dry run: one that the API server rejects, or whose rights the user may not grant, is
    found before the first is written. Namespaced ones need a namespace that is not there yet."""
    for obj in objects:
        kind = resources.kind_of(obj)
        if kind.namespaced or kind == kinds.NAMESPACE:
            continue
        try:
            await kube.apply(kind, obj, field_manager=names.FIELD_MANAGER, dry_run=True)
        except Forbidden as error:
            raise CommandFailed(
                f"{resources.title(resources.key_of(obj))}: {error}; use the kubeconfig of an administrator "
                "(nothing was written)"
            ) from error


async def _allowed(kube: Kube, verb: str, group: str, resource: str) -> bool:
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": {"verb": verb, "group": group, "resource": resource}},
    }
    answer = await _answer(kube, "POST", REVIEWS, review) or {}
    return bool((answer.get("status") or {}).get("allowed"))


async def _user(kube: Kube) -> str:
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    answer = await _answer(kube, "POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", review) or {}
    return str(((answer.get("status") or {}).get("userInfo") or {}).get("username") or "the user")


async def _answer(kube: Kube, method: str, path: str, body: Any = None) -> Object | None:
    """None: the server has no such path."""
    status, _, content = await kube.raw(
        method, path, body=None if body is None else json.dumps(body).encode(), headers={"Content-Type": "application/json"}
    )
    if status == 401:
        raise Unauthorized(
            f"{kube.access.server} does not accept the credential of {kube.access.origin}: it has expired, or is "
            "for another cluster"
        )
    if status == 404:
        return None
    if status >= 300:
        raise CommandFailed(
            f"{kube.access.server} answers {status} to {method} {path}: {content[:200].decode(errors='replace')}"
        )
    found: Object = json.loads(content)
    return found
