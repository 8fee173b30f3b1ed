"""docs/cluster.md on a real control plane, block by block: installed by the command, the roles as processes with the tokens of
their service accounts. The API server's audit log shows which of their rights they used."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from outfitter.api.kinds import Object
from outfitter.install import names, rbac
from tests import control_planes, kubernetes
from tests.cluster_roles import NAMESPACE, ClusterRoles
from tests.e2e.process import OUTFIT, ROOT, environment, until

pytestmark = [pytest.mark.cluster, pytest.mark.time_limit(1800)]
AUDIT = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata", "userGroups": [f"system:serviceaccounts:{NAMESPACE}"]}, {"level": "None"}],
}
Used = tuple[str, str, str]  # account, resource with group and subresource, verb
# Rights that are not used here, by the reason: a right that is missing here and in the audit log is one that no code asks for.
NOT_SEEN = {
    "asked for by the admission plugin OwnerReferencesPermissionEnforcement (test_rights_cluster.py)": (
        "outfitter-controller pods/finalizers update",
        "outfitter-controller virtualmachines.kubevirt.io/finalizers update",
        "outfitter-controller virtualmachineinstances.kubevirt.io/finalizers update",
    ),
    "asked for within a write of a claim's status (test_rights_cluster.py)": (
        "outfitter-controller resourceclaims.resource.k8s.io/binding patch",
    ),
    "the annotation of a claim that a stopped VM keeps (test_vm_claims.py)": (
        "outfitter-controller resourceclaims.resource.k8s.io patch",
    ),
    "no VM migrates, and no NIC changes (test_nic_stories.py, test_nic_namespace_admin.py)": (
        *(f"outfitter-controller virtualmachineinstancemigrations.kubevirt.io {verb}"
          for verb in ("get", "create", "patch", "delete")),
        "outfitter-controller virtualmachineinstancemigrations.kubevirt.io/status patch",
        "outfitter-controller pods patch",
        "outfitter-simulation kubevirts.kubevirt.io list",
        "outfitter-webhook virtualmachineinstancemigrations.kubevirt.io list",
        "outfitter-webhook virtualmachineinstancemigrations.kubevirt.io create",
        "outfitter-webhook nodes list",
    ),
    "no aliases are configured": (
        "outfitter-controller configmaps patch",
        "outfitter-controller deviceclasses.resource.k8s.io get",
    ),
    "behind a gate of Kubernetes that is off by default (test_pool_status_kubernetes.py)": (
        "outfitter-webhook devicetaintrules.resource.k8s.io list",
        *(f"outfitter-simulation devicetaintrules.resource.k8s.io {verb}" for verb in ("create", "delete")),
    ),
    "gates are as they were": ("outfitter-controller kubevirts.kubevirt.io/status patch",),
    "no VM has a network or a Secret": (
        "outfitter-controller network-attachment-definitions.k8s.cni.cncf.io get",
        "outfitter-simulation network-attachment-definitions.k8s.cni.cncf.io get",
        "outfitter-webhook network-attachment-definitions.k8s.cni.cncf.io get",
        "outfitter-simulation pods patch",
        "outfitter-simulation secrets get",
    ),
    "an object was created by another process meanwhile, or is written again": (
        "outfitter-controller resourceclaims.resource.k8s.io get",
        "outfitter-controller pastbookings.outfitter.dev get",
        "outfitter-controller pastbookings.outfitter.dev update",
        "outfitter-simulation pastbookings.outfitter.dev get",
        "outfitter-simulation pastbookings.outfitter.dev update",
        "outfitter-simulation hostinventories.outfitter.dev get",
        "outfitter-simulation hostinventories.outfitter.dev update",
        "outfitter-simulation hostinventories.outfitter.dev delete",
        "outfitter-simulation providertrees.outfitter.dev get",
        "outfitter-simulation providertrees.outfitter.dev delete",
        "outfitter-simulation resourceslices.resource.k8s.io get",
        "outfitter-simulation resourceslices.resource.k8s.io update",
        "outfitter-simulation resourceslices.resource.k8s.io delete",
        "outfitter-simulation nodes patch",
        "outfitter-simulation nodes list",
    ),
    "pages and history are written by the controller or the agent, whichever is first": (
        "outfitter-controller ledgerpages.outfitter.dev create",
        "outfitter-controller ledgerpages.outfitter.dev get",
        "outfitter-controller ledgerpages.outfitter.dev update",
        "outfitter-controller pastbookings.outfitter.dev create",
        "outfitter-simulation ledgerpages.outfitter.dev get",
        "outfitter-simulation ledgerpages.outfitter.dev update",
    ),
    "the pods of a claim that the DRA driver books itself (tests/node/kubelet)": ("outfitter-simulation pods get",),
    "events that repeat": ("outfitter-controller events patch", "outfitter-simulation events patch"),
    "claims of VMs that name a template or are rewritten": (
        "outfitter-controller resourceclaims.resource.k8s.io delete",
        "outfitter-controller resourceclaimtemplates.resource.k8s.io get",
        "outfitter-controller virtualmachines.kubevirt.io patch",
    ),
    "bookings that the node agent ends itself; history that expires; Placement": (
        "outfitter-simulation ledgerpages.outfitter.dev create",
        "outfitter-simulation pastbookings.outfitter.dev create",
        "outfitter-simulation pastbookings.outfitter.dev list",
        "outfitter-simulation pastbookings.outfitter.dev delete",
        "outfitter-simulation providertrees.outfitter.dev create",
        "outfitter-simulation providertrees.outfitter.dev update",
    ),
    "launcher pods with a readiness gate, which a kubelet runs": ("outfitter-controller pods/status patch",),
    "counts of devices for users who may not read pages (tests/apiserver/aggregated)": (
        "outfitter-webhook ledgerpages.outfitter.dev list",
    ),
    "pages that users edit (tests/webhook)": (
        "outfitter-webhook ledgerpages.outfitter.dev get",
        "outfitter-webhook nodes get",
        "outfitter-webhook pods list",
        "outfitter-webhook resourceclaims.resource.k8s.io get",
        "outfitter-webhook resourceslices.resource.k8s.io list",
    ),
    "actions of virtctl besides start and stop with Manual (tests/apiserver/aggregated)": (
        "outfitter-webhook virtualmachines.kubevirt.io patch",
        "outfitter-webhook virtualmachineinstances.kubevirt.io patch",
        "outfitter-webhook virtualmachineinstances.kubevirt.io/status patch",
    ),
}


def blocks() -> list[str]:
    return re.findall(r"^```sh\n(.*?)^```$", (ROOT / "docs" / "cluster.md").read_text(), re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[kubernetes.Cluster]:
    folder = tmp_path_factory.mktemp("plane")
    (folder / "audit.json").write_text(json.dumps(AUDIT))
    flags = [f"--audit-policy-file={folder / 'audit.json'}", f"--audit-log-path={folder / 'audit.log'}"]
    with control_planes.started(folder, scheduler=True, controllers=True, learn=(), apiserver_flags=flags) as running:
        yield running


def shell(plane: kubernetes.Cluster, line: str) -> str:
    """A line of the document, as the administrator types it; the installation is told where the roles of this test are."""
    if line == "outfit install --apply":
        line += f" --simulation --webhook-url https://localhost:{PORT}"
    path = os.pathsep.join([str(OUTFIT.parent), str(plane.binaries), os.environ["PATH"]])
    env = {**environment(plane.folder), "PATH": path, "KUBECONFIG": str(plane.kubeconfig)}
    done = subprocess.run(line, shell=True, cwd=ROOT, env=env, text=True, capture_output=True, check=False)
    assert done.returncode == 0, f"$ {line}\n{done.stdout}{done.stderr}"
    return done.stdout


[PORT] = kubernetes.free_ports(1)


def test_every_block_does_what_it_says(plane: kubernetes.Cluster, tmp_path: Path) -> None:
    roles = ClusterRoles(plane, tmp_path, real=True)
    install, look, start, template, stop, remove = blocks()
    try:
        shell(plane, install.strip())
        roles.start("controller").ready()
        roles.start("webhook", "--address", f"127.0.0.1:{PORT}").ready()
        roles.start("node", "--simulate", "2x4").ready()
        until(
            lambda: plane.kubectl("get", "--raw", "/apis/subresources.kubevirt.io/v1").returncode == 0,
            "virtctl's API is served",
        )
        vm = str(ROOT / "examples" / "03-vm" / "2-amber.yaml")
        until(
            lambda: plane.kubectl("create", "--dry-run=server", "-f", vm).returncode == 0, f"VMs are admitted\n{roles.logs()}"
        )
        done = {block: [shell(plane, line) for line in block.splitlines()] for block in (look, start, template)}
        assert "free" in done[look][-1]
        assert "amber" in done[start][3]
        assert done[template][-1].count("held") >= 2
        for line in stop.splitlines():
            shell(plane, line)
        assert roles.forbidden() == [], roles.logs()
        until(lambda: not held(plane), "the devices are free")
    finally:
        roles.stop()
        print(roles.logs())
    shell(plane, remove.strip())


def held(plane: kubernetes.Cluster) -> list[Object]:
    pages = json.loads(plane.request("GET", "/apis/outfitter.dev/v1alpha1/ledgerpages"))["items"]
    return [booking for page in pages for booking in page["spec"].get("bookings") or ()]


def audited(plane: kubernetes.Cluster) -> list[Object]:
    lines = (plane.folder / "audit.log").read_text().splitlines()
    return [event for event in map(json.loads, lines) if "objectRef" in event]


def resource(group: str, plural: str) -> str:
    name, slash, subresource = plural.partition("/")
    return f"{name}{f'.{group}' if group else ''}{slash}{subresource}"


def used(plane: kubernetes.Cluster) -> set[Used]:
    out = set()
    for event in audited(plane):
        about = event["objectRef"]
        plural = about["resource"] + (f"/{about['subresource']}" if about.get("subresource") else "")
        account, asked = event["user"]["username"].rpartition(":")[2], resource(about.get("apiGroup", ""), plural)
        out.add((account, asked, event["verb"]))
        if "sendInitialEvents=true" in event["requestURI"]:
            out.add((account, asked, "list"))  # what is asked of a server that does not stream lists
    return out


def granted(account: str, rights: rbac.Rights) -> set[Used]:
    return {
        (account, resource(group, plural), verb)
        for rule in (*rights.cluster, *rights.own, *rights.system)
        for group in rule["apiGroups"]
        for plural in rule["resources"]
        for verb in rule["verbs"]
    }


def test_no_role_is_refused_anything(plane: kubernetes.Cluster) -> None:
    refused = {
        (event["user"]["username"].rpartition(":")[2], event["verb"], event["requestURI"].partition("?")[0])
        for event in audited(plane)
        if event.get("responseStatus", {}).get("code") == 403
    }
    assert refused == set()


def test_every_right_is_used_or_known_why_not(plane: kubernetes.Cluster) -> None:
    given = granted(names.CONTROLLER, rbac.controller()) | granted(names.WEBHOOK, rbac.webhook())
    simulated = granted(names.SIMULATION, rbac.node()) | granted(names.SIMULATION, rbac.simulation())
    known = {one for group in NOT_SEEN.values() for one in group}
    everything = {" ".join(one) for one in given | simulated}
    assert known - everything == set(), "not granted any more"
    assert everything - {" ".join(one) for one in used(plane)} - known == set(), "granted, and never used"
