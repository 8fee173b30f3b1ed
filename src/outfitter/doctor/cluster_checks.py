"""Checks of a cluster: its server, our definitions and the rights of the caller. Pure; `installation_checks` has those of our
workloads, `device_checks` those of nodes and devices. Called by `cli/doctor.py`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import outfitter
from outfitter.api import conditions, kinds
from outfitter.api.dra_feature_gates import DEVICE_GATES
from outfitter.api.kinds import Object
from outfitter.doctor import device_checks, gate_checks, installation_checks
from outfitter.doctor.cluster_state import ClusterState
from outfitter.doctor.finding import Finding, count, error, ok, some, warning
from outfitter.doctor.reading import is_ours

OLDEST = (1, 34)
DRA = "resource.k8s.io/v1"
CORE_GATE = "DynamicResourceAllocation"
OURS = tuple(kind for kind in kinds.ALL if not kind.builtin and kind != kinds.NETWORK_ATTACHMENT)
APPLY = "outfit install --apply"
DIFFERENCE = "outfit install --diff"


def check(state: ClusterState, node_name: str = "") -> list[Finding]:
    """`node_name`: of this host, if it should be a node."""
    out = [*_version(state), *_dra(state), *_gates(state), *_caller(state)]
    if not state.embedded:
        installed = [*_installed(state)]
        out += installed or [*_definitions(state), *installation_checks.check(state)]
    return [*out, *device_checks.check(state, node_name), *gate_checks.check(state)]


def _version(state: ClusterState) -> Iterator[Finding]:
    text = str(state.version.get("gitVersion", ""))
    if state.embedded:
        yield ok("cluster-version", f"the embedded server of outfitter, {text}")
        return
    found = re.match(r"v?([0-9]+)\.([0-9]+)", text)
    if found is None:
        yield warning("cluster-version", f"the server's version {text!r} cannot be read.", "Outfitter needs Kubernetes 1.34.",
                      "kubectl version")
    elif (int(found[1]), int(found[2])) < OLDEST:
        yield error("cluster-version", f"the server is Kubernetes {text}.",
                    "Outfitter needs 1.34 or newer; upgrade the control plane, then the nodes.",
                    "kubeadm upgrade plan  # or your provider's upgrade")
    else:
        yield ok("cluster-version", f"Kubernetes {text}")


def _dra(state: ClusterState) -> Iterator[Finding]:
    if DRA in state.served:
        yield ok("cluster-dra", f"{DRA} is served")
        return
    older = sorted(each for each in state.served if each.startswith("resource.k8s.io/"))
    yield error("cluster-dra", f"the server does not serve {DRA}{f', only {some(older)}' if older else ''}.",
                "Upgrade to 1.34, or start kube-apiserver without --runtime-config=resource.k8s.io/v1=false and "
                f"--feature-gates={CORE_GATE}=false.", "kubectl api-versions | grep resource.k8s.io")


def _gates(state: ClusterState) -> Iterator[Finding]:
    if state.embedded or DRA not in state.served:
        return
    if state.gates is None:
        if "devicetaintrules" not in state.dra_resources:
            yield warning("cluster-feature-gates", "devicetaintrules are not served, and the gates cannot be read.",
                          "Without DRADeviceTaintRules devices are taken out of service by the page and slice alone.",
                          "kubectl get --raw /metrics | grep kubernetes_feature_enabled.*DRA")
        else:
            yield ok("cluster-feature-gates", "devicetaintrules are served; the gates themselves may not be read")
        return
    if not state.gates.get(CORE_GATE, True):
        yield error("cluster-feature-gates", f"the feature gate {CORE_GATE} is off.", "Claims are not allocated without it.",
                    f"kube-apiserver --feature-gates={CORE_GATE}=true  # and the scheduler, controllers and kubelets")
    off = [gate for gate, (_, used) in DEVICE_GATES.items() if used and state.gates.get(gate) is False]
    if off:
        yield warning("cluster-feature-gates", f"feature gates are off: {some(off, 12)}.",
                      "Fields of claims and slices behind them are dropped; switch on those that you use.",
                      f"kube-apiserver --feature-gates={','.join(f'{gate}=true' for gate in off)}")
    elif state.gates.get(CORE_GATE, True):
        yield ok("cluster-feature-gates", "the feature gates for devices are on")


def _caller(state: ClusterState) -> Iterator[Finding]:
    denied = {name: reading for name, reading in state.readings.items() if reading.denied}
    failed = {name: reading for name, reading in state.readings.items() if not reading.known and not reading.denied}
    user = state.user or "you"
    for name, reading in failed.items():
        yield error("cluster-caller-rights", f"{name} cannot be read: {reading.reason.rstrip('.')}.",
                    "Checks that need it are left out; try again when the server answers.", f"kubectl get {name} -A")
    if any(reading.status == 401 for reading in denied.values()):
        yield error("cluster-caller-rights", "the server does not accept the credential of the kubeconfig.",
                    "It is wrong or has expired; log in again, or use another kubeconfig.", "kubectl auth whoami")
    elif denied:
        yield error("cluster-caller-rights", f"{user} may not read {some(denied, 20)}.",
                    "Checks that need these are left out; use the kubeconfig of an administrator, or bind one of its roles.",
                    "kubectl create clusterrolebinding outfitter-doctor --clusterrole=cluster-admin "
                    f"--user={state.user or 'NAME'}")
    elif not failed:
        yield ok("cluster-caller-rights", f"{user} may read everything that is checked")


def _installed(state: ClusterState) -> Iterator[Finding]:
    """A finding where there is nothing of ours, and no more need be said."""
    if not state.known("customresourcedefinitions", "deployments"):
        return
    names = {obj["metadata"]["name"] for obj in state.items("customresourcedefinitions")}
    if not state.items("deployments") and not any(kind.resource in names for kind in OURS if kind.group == "outfitter.dev"):
        yield error("cluster-installed", f"outfitter is not installed in this cluster, namespace {state.namespace}.",
                    "Install definitions, rights and workloads.", APPLY)


def _definitions(state: ClusterState) -> Iterator[Finding]:
    if not state.known("customresourcedefinitions"):
        return
    have = {obj["metadata"]["name"]: obj for obj in state.items("customresourcedefinitions")}
    missing = [kind.resource for kind in OURS if kind.resource not in have]
    wrong = [finding for kind in OURS if kind.resource in have for finding in _definition(state, kind, have[kind.resource])]
    if missing:
        yield error("cluster-crds", f"definitions are missing: {some(missing, 12)}.",
                    "Install the definitions of this version.", APPLY)
    yield from wrong
    if not missing and not wrong:
        yield ok("cluster-crds", f"{count(len(OURS), 'definition')} of this version")


def _definition(state: ClusterState, kind: kinds.Kind, have: Object) -> Iterator[Finding]:
    name = kind.resource
    served = {version["name"] for version in have["spec"]["versions"] if version.get("served")}
    stored = next((version["name"] for version in have["spec"]["versions"] if version.get("storage")), "")
    left = sorted(set((have.get("status") or {}).get("storedVersions") or ()) - set(kind.versions))
    if have["metadata"].get("deletionTimestamp"):
        yield error("cluster-crds", f"the definition {name} is being deleted, with the objects of its kind.",
                    "Complete the removal, and install again.", f"outfit install --remove; {APPLY}", subject=name)
    elif not conditions.is_true(have, "Established"):
        why = some(str(each.get("message")) for each in (have.get("status") or {}).get("conditions") or ()
                   if each.get("status") == "False" and each.get("message"))
        yield error("cluster-crds", f"the definition {name} is not established{f': {why}' if why else ''}.",
                    "The API server does not serve the kind.", f"kubectl describe crd {name}", subject=name)
    elif kind.version not in served or left:
        found = f"serves {some(sorted(served))}" if kind.version not in served else f"has objects stored as {some(left)}"
        yield error("cluster-crds",
                    f"the definition {name} is of another version: it {found}, this outfitter uses {kind.version}.",
                    "Upgrade the definitions, or use an outfit of their version.", APPLY, subject=name)
    elif not kind.group.startswith("kubevirt") and stored != kind.version:
        yield error("cluster-crds", f"the definition {name} stores {stored}, this outfitter {kind.version}.",
                    "Apply the definitions of this version.", APPLY, subject=name)
    elif (wanted := state.expected.definitions.get(name)) is not None and is_ours(have) and not _contains(
            have["spec"], wanted["spec"]):
        by = (have["metadata"].get("annotations") or {}).get(kinds.VERSION_ANNOTATION)
        made = f", outfitter {outfitter.__version__}: it was made by {by}" if by and by != outfitter.__version__ else ""
        yield warning("cluster-crds", f"the definition {name} differs from that of this version{made}.",
                      "The API server checks types and prints columns as it says.", f"{DIFFERENCE}; {APPLY}", subject=name)
    elif is_ours(have) and (older := sorted(set((have.get("status") or {}).get("storedVersions") or ()) - {kind.version})):
        yield warning("cluster-crds", f"{name} may have objects that are stored as {some(older)}.",
                      "A later version of outfitter may not read them: write them again.", APPLY, subject=name)


def _contains(have: Any, wanted: Any) -> bool:
    """Whether an object has everything that was applied; the API server adds defaults and drops what is empty."""
    if isinstance(wanted, dict):
        return isinstance(have, dict | None) and all(_contains((have or {}).get(key), value) for key, value in wanted.items())
    if isinstance(wanted, list) and wanted:
        return isinstance(have, list) and len(have) == len(wanted) and all(map(_contains, have, wanted))
    return bool(have == wanted) or (not wanted and not have)
