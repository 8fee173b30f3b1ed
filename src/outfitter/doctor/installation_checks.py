"""Checks of our workloads in a cluster: ready, of one version, one leader, a webhook that is called, the rights of their
service accounts. Pure; called by `cluster_checks`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime, timedelta

import outfitter
from outfitter.api import conditions, kinds
from outfitter.api.kinds import Object
from outfitter.api.served import aggregated_apis
from outfitter.api.version_skew import minor_versions_apart
from outfitter.doctor import workload_settings
from outfitter.doctor.cluster_state import CONTROLLER, NODE, WEBHOOK, ClusterState
from outfitter.doctor.finding import Finding, count, error, ok, some, warning
from outfitter.doctor.webhook_checks import check as check_webhook

APPLY = "outfit install --apply"
USUAL = ("Completed", "ContainerCreating", "PodInitializing")  # reasons of a container that are none for being late
LATE = timedelta(seconds=60)  # a Lease that was not renewed for so long has no holder, whatever its duration


def check(state: ClusterState) -> list[Finding]:
    return [*_workloads(state), *_skew(state), *_leader(state), *check_webhook(state), *_aggregated(state), *_rights(state)]


def _workloads(state: ClusterState) -> Iterator[Finding]:
    if not state.known("deployments", "daemonsets"):
        return
    have = {obj["metadata"]["name"]: obj for plural in ("deployments", "daemonsets") for obj in state.items(plural)}
    absent = [name for name in (CONTROLLER, WEBHOOK, NODE) if name not in have]
    if absent:
        yield error("cluster-workloads", f"{some(absent)} {'does' if len(absent) == 1 else 'do'} not exist in namespace "
                    f"{state.namespace}.", "Install the workloads.", APPLY)
    behind = [(obj, ready, wanted) for obj in have.values() for ready, wanted in [_ready(obj)] if ready < wanted]
    for obj, ready, wanted in behind:
        name = obj["metadata"]["name"]
        why = _why_not_ready(state, name)
        level = error if ready == 0 else warning
        label = f"app.kubernetes.io/component={name.removeprefix('outfitter-')}"
        yield level("cluster-workloads", f"{ready} of {wanted} pods of {name} are ready{f': {why}' if why else ''}.",
                    "See why the pods do not become ready.", f"kubectl -n {state.namespace} describe pods -l {label}",
                    subject=name)
    if not absent and not behind:
        yield ok("cluster-workloads", f"ready: {some(f'{name} {_ready(obj)[0]}' for name, obj in have.items())}")


def _ready(obj: Object) -> tuple[int, int]:
    """Pods that are ready, and how many there should be."""
    status = obj.get("status") or {}
    if obj.get("kind") == "DaemonSet" or "desiredNumberScheduled" in status:
        return int(status.get("numberReady") or 0), int(status.get("desiredNumberScheduled") or 0)
    wanted = (obj.get("spec") or {}).get("replicas")
    return int(status.get("readyReplicas") or 0), 1 if wanted is None else int(wanted)


def _why_not_ready(state: ClusterState, name: str) -> str:
    """What the kubelet, the process or the scheduler reports of the first pod that is not ready."""
    for pod in state.items("pods"):
        if not pod["metadata"]["name"].startswith(f"{name}-"):
            continue
        scheduled = conditions.find(pod, "PodScheduled") or {}
        if scheduled.get("status") == "False" and scheduled.get("message"):
            return f"{pod['metadata']['name']}: {scheduled['message'].rstrip('.')}"
        for container in (pod.get("status") or {}).get("containerStatuses") or ():
            for place in (container.get("state"), container.get("lastState")):
                for part in ("terminated", "waiting"):
                    found = (place or {}).get(part) or {}
                    text = str(found.get("message") or found.get("reason") or "").strip().rstrip(".")
                    if text and text not in USUAL:
                        return f"{pod['metadata']['name']}: {text}"
    return ""


def _skew(state: ClusterState) -> Iterator[Finding]:
    if not state.known("deployments"):
        return
    images = {obj["metadata"]["name"]: _image_version(obj) for obj in state.items("deployments")}
    versions = {f"deployment/{name}": version for name, version in images.items() if version}
    agents = {f"node/{obj['metadata']['name']}": str((obj.get("spec") or {}).get("agentVersion") or "")
              for obj in state.items("hostinventories")}
    leader: Object = next((obj for obj in state.items("leases") if obj["metadata"]["name"] == CONTROLLER), {"metadata": {}})
    reference = (leader["metadata"].get("annotations") or {}).get(kinds.VERSION_ANNOTATION) or images.get(CONTROLLER) \
        or outfitter.__version__
    found = False
    for subject, version in {**versions, **{name: text for name, text in agents.items() if text}}.items():
        distance = minor_versions_apart(reference, version)
        if distance is None or -1 <= distance <= (0 if subject.startswith("node/") else 1):
            continue
        found = True
        newer = "newer than the controllers" if distance > 0 else "more than one minor version behind the controllers"
        yield error("cluster-version-skew", f"{subject} has version {version}, {newer} ({reference}).",
                    "Controllers first, then node agents, one minor version at a time.", APPLY, subject=subject)
    own = minor_versions_apart(reference, outfitter.__version__)
    if own:
        found = True
        yield warning("cluster-version-skew", f"this outfit is {outfitter.__version__}, the controllers are {reference}.",
                      "Use an outfit of their version, or upgrade them.", f"pip install 'outfitter=={reference}'")
    if not found:
        yield ok("cluster-version-skew", f"controllers and agents have version {reference}, or are one minor version apart")


def _image_version(obj: Object) -> str:
    for container in obj["spec"]["template"]["spec"].get("containers") or ():
        tag = re.fullmatch(r".*:([0-9]+\.[0-9]+[^:/@]*)(@.*)?", container.get("image") or "")
        if tag:
            return tag[1]
    return ""


def _leader(state: ClusterState) -> Iterator[Finding]:
    if not state.known("deployments", "leases"):
        return
    found = next((obj for obj in state.items("deployments") if obj["metadata"]["name"] == CONTROLLER), None)
    if found is None:
        return
    ready, wanted = _ready(found)
    pods = [pod for pod in state.items("pods") if pod["metadata"]["name"].startswith(f"{CONTROLLER}-")
            and (pod.get("status") or {}).get("phase") == "Running"]
    replicas = max(wanted, len(pods))
    elects = workload_settings.switched_on(state.readings, CONTROLLER, "leader_elect", default=True)
    lease = next((obj for obj in state.items("leases") if obj["metadata"]["name"] == CONTROLLER), None)
    holder, renewed = _holder(lease)
    if not elects and replicas > 1:
        yield error("cluster-leader-election", f"{CONTROLLER} has {replicas} replicas without leader election.",
                    "Each would do all work; switch leader election on, or run one replica.",
                    f"kubectl -n {state.namespace} scale deployment {CONTROLLER} --replicas=1; {APPLY}")
    elif not elects:
        yield warning("cluster-leader-election", "the controller runs without leader election.",
                      "A second one would do all work again; switch leader election on.", APPLY)
    elif not ready:
        return  # reported as a workload
    elif not holder or renewed is None:
        yield error("cluster-leader-election", f"{count(ready, 'controller')} ready, but no one holds the Lease {CONTROLLER}.",
                    "The controllers wait for it; see their log.", f"kubectl -n {state.namespace} logs deployment/{CONTROLLER}")
    elif state.now - renewed > LATE:
        yield error("cluster-leader-election", f"the Lease {CONTROLLER} is held by {holder} and was last renewed at "
                    f"{renewed:%Y-%m-%dT%H:%M:%SZ}.", "Its holder does not work, and no other replica takes it over.",
                    f"kubectl -n {state.namespace} rollout restart deployment {CONTROLLER}")
    else:
        yield ok("cluster-leader-election", f"{holder} holds the Lease {CONTROLLER}")


def _holder(lease: Object | None) -> tuple[str, datetime | None]:
    spec = (lease or {}).get("spec") or {}
    try:
        renewed = datetime.fromisoformat(spec.get("renewTime") or "")
    except ValueError:
        renewed = None
    return str(spec.get("holderIdentity") or ""), renewed


def _aggregated(state: ClusterState) -> Iterator[Finding]:
    if not state.known("apiservices"):
        return
    companion = workload_settings.switched_on(state.readings, CONTROLLER, "companion")
    wanted = [aggregated_apis.api_service(*served) for served in (
        aggregated_apis.STATUS if companion else aggregated_apis.SERVED)]
    have = {obj["metadata"]["name"]: obj for obj in state.items("apiservices")}
    absent = [name for name in wanted if name not in have]
    away = [name for name in wanted if name in have and not conditions.is_true(have[name], "Available")]
    if absent:
        yield error("cluster-aggregated-api", f"API services do not exist: {some(absent)}.",
                    "virtctl, outfit vm and counts of devices need them.", APPLY)
    for name in away:
        found = conditions.find(have[name], "Available") or {}
        why = str(found.get("message") or found.get("reason") or "it has no status yet")
        yield error("cluster-aggregated-api", f"the API service {name} is not available: {why.rstrip('.')}.",
                    "See whether the webhook's pods are ready and its certificate is valid.",
                    f"kubectl -n {state.namespace} logs deployment/{WEBHOOK}", subject=name)
    if not absent and not away:
        yield ok("cluster-aggregated-api", f"available: {some(wanted)}")


def _rights(state: ClusterState) -> Iterator[Finding]:
    if state.refused is None:
        yield warning("cluster-role-rights", "the rights of the service accounts may not be asked for.",
                      "An administrator may create subjectaccessreviews.",
                      "kubectl auth can-i create subjectaccessreviews.authorization.k8s.io")
        return
    found = False
    for account, rights in state.refused.items():
        if rights:
            found = True
            yield error("cluster-role-rights", f"{account} may not {some(map(str, rights), 4)}.",
                        "Apply the roles and bindings of this version.", APPLY, subject=account)
    if not found and state.refused:
        yield ok("cluster-role-rights", f"{count(len(state.refused), 'service account')} have the rights of their roles")
