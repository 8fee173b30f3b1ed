"""`outfit doctor` on clusters: each thing that can be wrong is found, with the remedy."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import pytest
import yaml

from outfitter.api import kinds
from outfitter.api.kinds import Object
from outfitter.doctor import cluster_checks, cluster_state
from outfitter.doctor.codes import CODES
from outfitter.doctor.expected import from_manifests
from outfitter.install import manifests
from outfitter.install.names import InstallOptions
from tests.doctor import fake_cluster as fake
from tests.doctor.fake_cluster import FakeCluster, Table
from tests.e2e.process import Typed, Utf8Text, typed


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeCluster]:
    with FakeCluster(tmp_path_factory.mktemp("fake")) as running:
        yield running


@pytest.fixture(autouse=True)
def fresh(cluster: FakeCluster) -> None:
    cluster.table, cluster.allowed = fake.healthy(), lambda review: True


def findings(cluster: FakeCluster, *words: str, code: int = 0, rights: bool = False) -> list[Object]:
    """Without `rights`, those of the service accounts may not be asked for: that saves 200 requests."""
    if not rights:
        cluster.allowed = None
    done = typed("doctor", "-o", "json", *words, kubeconfig=cluster.kubeconfig)
    assert done.code == code, done
    found: list[Object] = json.loads(done.out)["findings"]
    assert all(finding["code"] in CODES for finding in found)
    assert all(bool(finding["missing"]) == (finding["level"] != "ok") for finding in found)
    return found if rights else [finding for finding in found if finding["code"] != "cluster-role-rights"]


def bad(found: list[Object]) -> dict[str, tuple[str, str]]:
    """Code -> level and what is printed of the findings that are not ok."""
    return {each["code"]: (each["level"], f"{each['message']} {each['missing']} $ {each['command']}")
            for each in found if each["level"] != "ok"}


def test_nothing_is_wrong_with_a_healthy_cluster(cluster: FakeCluster) -> None:
    found = findings(cluster, rights=True)
    assert bad(found) == {}
    assert {each["code"] for each in found} == {
        code for code in CODES if code.startswith("cluster-")} - {"cluster-reachable", "cluster-installed", "cluster-kubevirt"}


class Case(NamedTuple):
    """One change of a healthy cluster, and the only code that reports it."""

    change: Callable[[Table], object]
    code: str
    level: str
    words: tuple[str, ...]  # of its message, what is missing, and the command


def put(path: str, value: Any) -> Callable[[Table], object]:
    return lambda table: table.update({path: value})


def edit(path: str, change: Callable[[Any], object]) -> Callable[[Table], object]:
    def run(table: Table) -> None:
        table[path] = copy.deepcopy(table[path])
        change(table[path])

    return run


def each_definition(change: Callable[[Object], object], *names: kinds.Kind) -> Callable[[Table], object]:
    return edit(fake.CRDS, lambda crds: [change(crd) for crd in crds if crd["metadata"]["name"] in [k.resource for k in names]])


def expired(table: Table) -> None:
    table[fake.SECRET] = fake.certificate(fake.NOW - timedelta(days=1))


EXPECTED = from_manifests(manifests.objects(InstallOptions()))
WAITS: Object = {"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"}]}
DEPLOYMENTS, DAEMONSETS, PODS = f"{fake.APPS}/deployments", f"{fake.APPS}/daemonsets", f"{fake.CORE}/pods"
INVENTORIES, SLICES, CLAIMS = f"{fake.OUTFITTER}/hostinventories", f"{fake.DRA}/resourceslices", f"{fake.DRA}/resourceclaims"
VIRT_CONTROLLER = fake.named("virt-controller", metadata={"namespace": "kubevirt"}, spec={"replicas": 2})
CONTROLLER, WEBHOOK = fake.workload("outfitter-controller"), fake.workload("outfitter-webhook")
COMPANION = fake.workload("outfitter-controller", args=("--companion",))

KUBEVIRTS, VMIS = "/apis/kubevirt.io/v1/kubevirts", "/apis/kubevirt.io/v1/virtualmachineinstances"


def with_claim(name: str, phase: str = "Running") -> Object:
    """A VMI with a device by claim."""
    return fake.named(name, metadata={"namespace": "default"}, status={"phase": phase}, spec={
        "resourceClaims": [{"name": "net", "resourceClaimName": "c"}], "domain": {"devices": {"hostDevices": [
            {"name": "nic", "claimName": "net", "requestName": "nic"}]}}})


CASES: dict[str, Case] = {
    "the server is too old": Case(
        put("/version", {"gitVersion": "v1.33.4"}), "cluster-version", "error",
        ("v1.33.4", "1.34 or newer", "kubeadm upgrade")),
    "the version is no version": Case(put("/version", {"gitVersion": "?"}), "cluster-version", "warning", ("'?'",)),
    "dynamic resource allocation is off": Case(
        put("/apis", {"groups": [{"name": "resource.k8s.io", "versions": [{"groupVersion": "resource.k8s.io/v1beta1"}]}]}),
        "cluster-dra", "error", ("does not serve resource.k8s.io/v1", "only resource.k8s.io/v1beta1", "--runtime-config")),
    "the gate of dynamic resource allocation is off": Case(
        put("/metrics", 'kubernetes_feature_enabled{name="DynamicResourceAllocation",stage=""} 0\n'),
        "cluster-feature-gates", "error",
        ("DynamicResourceAllocation is off", "--feature-gates=DynamicResourceAllocation=true")),
    "a gate of devices is off": Case(
        put("/metrics", 'kubernetes_feature_enabled{name="DRAPartitionableDevices",stage="BETA"} 0\n'),
        "cluster-feature-gates", "warning", ("DRAPartitionableDevices",)),
    "gates may not be read, and taint rules are not served": Case(
        lambda table: table.update({"/metrics": 403, fake.DRA: {"resources": [{"name": "resourceclaims"}]}}),
        "cluster-feature-gates", "warning", ("devicetaintrules are not served",)),
    "a kubeconfig that may read nothing": Case(
        lambda table: table.update({path: 403 for path in table if path not in ("/version", "/apis", fake.DRA)}),
        "cluster-caller-rights", "error", ("jane may not read", "nodes", "deployments", "clusterrolebinding", "--user=jane")),
    "a kubeconfig with a wrong credential": Case(
        lambda table: table.update({path: 401 for path in table if path not in ("/version", "/apis", fake.DRA)}),
        "cluster-caller-rights", "error", ("does not accept the credential", "kubectl auth whoami")),
    "a kubeconfig that may not read the webhook's secret": Case(
        put(fake.SECRET, 403), "cluster-caller-rights", "error", ("may not read secrets.",)),
    "a read that fails": Case(put(CLAIMS, 500), "cluster-caller-rights", "error", ("resourceclaims cannot be read",)),
    "nothing is installed": Case(
        lambda table: [table.pop(path) for path in list(table) if "outfitter" in path or path in (fake.CRDS, fake.API_SERVICES)]
        and table.update({fake.CRDS: [], INVENTORIES: [fake.inventory("a")]}),
        "cluster-installed", "error", ("not installed", "outfit install --apply")),
    "a definition is missing": Case(
        edit(fake.CRDS, lambda crds: crds.pop()), "cluster-crds", "error", ("flavors.outfitter.dev", "outfit install --apply")),
    "a definition is of another version": Case(
        each_definition(lambda crd: crd["spec"]["versions"][0].update(name="v1beta1"), kinds.LEDGER_PAGE),
        "cluster-crds", "error", ("ledgerpages.outfitter.dev is of another version", "serves v1beta1", "uses v1alpha1")),
    "objects are stored in a newer version": Case(
        each_definition(lambda crd: crd["status"].update(storedVersions=["v1alpha1", "v1beta1"]), kinds.FLAVOR),
        "cluster-crds", "error", ("flavors.outfitter.dev is of another version", "stored as v1beta1")),
    "a definition is not established": Case(
        each_definition(lambda crd: crd["status"].update(conditions=[
            {"type": "NamesAccepted", "status": "False", "message": "short name is taken"}]), kinds.VM),
        "cluster-crds", "error", ("virtualmachines.kubevirt.io is not established", "short name is taken")),
    "a definition is being deleted": Case(
        each_definition(lambda crd: crd["metadata"].update(deletionTimestamp="2026-01-01T00:00:00Z"), kinds.VM),
        "cluster-crds", "error", ("virtualmachines.kubevirt.io is being deleted", "outfit install --remove")),
    "a definition lacks fields": Case(
        each_definition(lambda crd: crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"].pop("spec"),
                        kinds.FLAVOR),
        "cluster-crds", "warning", ("flavors.outfitter.dev differs", "outfit install --diff")),
    "a definition was made by another version": Case(
        each_definition(lambda crd: crd["metadata"]["annotations"].update({"outfitter.dev/version": "0.0.9"})
                        or crd["spec"]["versions"][0].pop("additionalPrinterColumns"), kinds.FLAVOR),
        "cluster-crds", "warning", ("flavors.outfitter.dev differs", "it was made by 0.0.9", "outfit install --apply")),
    "objects are stored in an older version": Case(
        each_definition(lambda crd: crd["status"].update(storedVersions=["v1alpha3", "v1"]), kinds.VM),
        "cluster-crds", "warning", ("virtualmachines.kubevirt.io may have objects that are stored as v1alpha3",
                                    "outfit install --apply")),
    "a workload is missing": Case(put(DAEMONSETS, []), "cluster-workloads", "error", ("outfitter-node does not exist",)),
    "the webhook is not ready": Case(
        lambda table: table.update({
            DEPLOYMENTS: [CONTROLLER, fake.workload("outfitter-webhook", readyReplicas=1)],
            PODS: [*table[PODS],
                   fake.pod("outfitter-webhook-1", ready=False, message="error: the certificate cannot be written.")]}),
        "cluster-workloads", "warning", ("1 of 2 pods of outfitter-webhook", "the certificate cannot be written",
                                         "component=webhook")),
    "no node takes the webhook": Case(
        lambda table: table.update({
            DEPLOYMENTS: [CONTROLLER, fake.workload("outfitter-webhook", readyReplicas=1)],
            PODS: [*table[PODS], {"metadata": {"name": "outfitter-webhook-1"}, "status": {"conditions": [
                {"type": "PodScheduled", "status": "False", "message": "0/1 nodes are available."}]}}]}),
        "cluster-workloads", "warning", ("1 of 2 pods of outfitter-webhook", "outfitter-webhook-1: 0/1 nodes are available.",
                                         "component=webhook")),
    "a node agent is two versions behind": Case(
        lambda table: table.update({
            DEPLOYMENTS: [fake.workload(name, version="0.1.0") for name in ("outfitter-controller", "outfitter-webhook")],
            INVENTORIES: [fake.inventory("a", agentVersion="0.3.0")]}),
        "cluster-version-skew", "error", ("node/a has version 0.3.0", "newer than the controllers")),
    "a node agent is newer than the controller that holds the Lease": Case(  # the next one is being rolled out
        lambda table: table.update({
            DEPLOYMENTS: [fake.workload(name, version="0.2.0") for name in ("outfitter-controller", "outfitter-webhook")],
            fake.LEASES: [fake.lease(annotations={"outfitter.dev/version": "0.1.0"})],
            INVENTORIES: [fake.inventory("a", agentVersion="0.2.0")]}),
        "cluster-version-skew", "error", ("node/a has version 0.2.0, newer than the controllers (0.1.0)",)),
    "a gate is off and in use": Case(
        lambda table: table.update({
            KUBEVIRTS: [fake.named("kubevirt", metadata={"namespace": "default"}, spec={"configuration": {
                "developerConfiguration": {"disabledFeatureGates": ["HostDevicesWithDRA"]}}})],
            VMIS: [with_claim("blue"), with_claim("over", phase="Succeeded")]}),
        "cluster-gates-in-use", "warning", ("HostDevicesWithDRA is off, and used by VMIs: default/blue.",
                                            "kubectl -n default delete vmi blue")),
    "the controllers are newer than this program": Case(
        put(DEPLOYMENTS, [fake.workload(name, version="0.2.0") for name in ("outfitter-controller", "outfitter-webhook")]),
        "cluster-version-skew", "warning", ("this outfit is 0.1.0, the controllers are 0.2.0",)),
    "two controllers without leader election": Case(
        put(DEPLOYMENTS, [fake.workload("outfitter-controller", args=("--no-leader-elect",)), WEBHOOK]),
        "cluster-leader-election", "error", ("2 replicas without leader election", "--replicas=1")),
    "two controllers without leader election, by a variable": Case(
        put(DEPLOYMENTS, [fake.workload("outfitter-controller", env=[{"name": "OUTFITTER_LEADER_ELECT", "value": "false"}]),
                          WEBHOOK]),
        "cluster-leader-election", "error", ("2 replicas without leader election",)),
    "two controllers without leader election, by the configuration file": Case(
        put(f"{fake.CORE}/configmaps/outfitter-config",
            fake.named("outfitter-config", data={"config.yaml": "roles: {leader_elect: false}"})),
        "cluster-leader-election", "error", ("2 replicas without leader election",)),
    "the lease is not renewed": Case(
        put(fake.LEASES, [fake.lease(timedelta(minutes=5))]), "cluster-leader-election", "error",
        ("outfitter-controller-1", "last renewed", "rollout restart")),
    "no controller takes the lease": Case(put(fake.LEASES, []), "cluster-leader-election", "error", ("no one holds",)),
    "no webhook configuration": Case(
        put(f"{fake.ADMISSION}/mutating{fake.WEBHOOK}", 404), "cluster-webhook", "error",
        ("mutatingwebhookconfigurations/outfitter does not exist", "outfit install --apply")),
    "no CA bundle": Case(
        put(f"{fake.ADMISSION}/validating{fake.WEBHOOK}", fake.hooks(None)), "cluster-webhook", "error", ("no CA bundle",)),
    "the webhook's certificate has expired": Case(
        expired, "cluster-webhook-certificate", "error", ("tls.crt", "expired at", "delete secret outfitter-webhook-cert")),
    "the webhook's certificate expires tomorrow": Case(
        put(fake.SECRET, fake.certificate(fake.NOW + timedelta(days=1))), "cluster-webhook-certificate", "warning",
        ("was not renewed",)),
    "the webhook's certificate does not exist yet": Case(
        put(fake.SECRET, fake.named("outfitter-webhook-cert", data={})), "cluster-webhook-certificate", "error",
        ("no certificate in tls.crt",)),
    "the CA bundle is of another CA": Case(
        put(f"{fake.ADMISSION}/mutating{fake.WEBHOOK}", fake.hooks(fake.OTHER_CA)), "cluster-webhook-certificate", "error",
        ("mutatingwebhookconfigurations does not sign",)),
    "the aggregated API is away": Case(
        edit(fake.API_SERVICES, lambda services: services[0].update(status={"conditions": [
            {"type": "Available", "status": "False", "message": "no endpoints"}]})),
        "cluster-aggregated-api", "error", ("v1.subresources.kubevirt.io is not available: no endpoints",)),
    "the counts of devices are not served": Case(
        edit(fake.API_SERVICES, lambda services: services.pop()), "cluster-aggregated-api", "error",
        ("do not exist: v1alpha1.status.outfitter.dev", "outfit install --apply")),
    "a host is refused": Case(
        put("/api/v1/nodes", [fake.named("a", status={"conditions": [
            {"type": "Ready", "status": "False", "reason": "StartRefused", "message": "two entries match"}]})]),
        "cluster-agents", "error", ("node a is refused: two entries match",)),
    "an agent does not report": Case(
        lambda table: table.update({"/api/v1/nodes": [fake.named("a"), fake.named("b")],
                                    PODS: [*table[PODS], fake.pod("outfitter-node-2", "b")]}),
        "cluster-agents", "error", ("agent of node b has not published", "logs outfitter-node-2")),
    "the agent of a node is gone": Case(
        put(PODS, [fake.pod("outfitter-controller-1")]), "cluster-agents", "warning", ("no agent runs any more on a",)),
    "no agent at all": Case(
        lambda table: table.update({INVENTORIES: [], PODS: []}), "cluster-agents", "warning", ("no host has published",)),
    "a host name that is not a node": Case(
        lambda table: table.update({INVENTORIES: [fake.inventory("a"), fake.inventory("a.example.com")]}),
        "cluster-agent-names", "error", ("reports as a.example.com, which is not a node", "Nodes are a", "kubectl delete")),
    "slices of a host that is not a node": Case(
        put(SLICES, [fake.slice_("s"), fake.slice_("t", node="b")]), "cluster-agent-names", "error", ("reports as b",)),
    "the DaemonSet sets a name that is not a node": Case(
        put(DAEMONSETS, [fake.workload("outfitter-node", "DaemonSet", 1, args=("--node-name", "b"))]),
        "cluster-agent-names", "error", ("the DaemonSet sets node_name to b",)),
    "a node without IOMMU": Case(
        lambda table: table.update({
            "/api/v1/nodes": [fake.named("a"), fake.named("b")], PODS: [*table[PODS], fake.pod("outfitter-node-2", "b")],
            INVENTORIES: [fake.inventory("a"), fake.inventory("b", iommu=False)]}),
        "cluster-node-iommu", "warning", ("node b has no IOMMU", "outfit doctor --host")),
    "no node with IOMMU": Case(
        put(INVENTORIES, [fake.inventory("a", iommu=False)]), "cluster-node-iommu", "error", ("node a",)),
    "no driver publishes anything": Case(
        lambda table: table.update({SLICES: [], CLAIMS: []}), "cluster-drivers", "warning", ("outfit devices --all",)),
    "KubeVirt runs as well": Case(
        put("/apis/apps/v1/deployments", [VIRT_CONTROLLER]), "cluster-kubevirt", "error",
        ("KubeVirt runs in namespace kubevirt", "outfit install --apply --companion")),
    "a companion without KubeVirt": Case(
        put(DEPLOYMENTS, [COMPANION, WEBHOOK]), "cluster-kubevirt", "error", ("KubeVirt does not run",)),
    "no device class": Case(
        put(f"{fake.DRA}/deviceclasses", []), "cluster-device-classes", "warning", ("outfit apply -f examples/01-one-vf",)),
    "a pool lacks a slice": Case(
        put(SLICES, [fake.slice_("s", slices=2)]), "cluster-pools", "warning",
        ("pool a of pci.outfitter.dev", "1 of 2 slices")),
    "a claim waits": Case(
        put(CLAIMS, [fake.claim("mine", metadata=WAITS)]), "cluster-claims", "warning",
        ("default/mine", "outfit why claim/mine -n default")),
    "a claim is being deleted": Case(
        put(CLAIMS, [fake.claim("mine", "d0", metadata={"deletionTimestamp": fake.stamp(timedelta(hours=1))})]),
        "cluster-claims", "warning", ("being deleted",)),
    "a claim holds a device that is gone": Case(
        put(CLAIMS, [fake.claim("mine", "gone")]), "cluster-claims", "warning", ("published no more", "default/mine")),
    "an object cannot be read": Case(
        put(f"{fake.OUTFITTER}/ledgerpages", [fake.named("a", spec={"bookings": 1})]), "cluster-unreadable-objects", "error",
        ("LedgerPage a cannot be read: spec.bookings", "kubectl edit ledgerpages.outfitter.dev a")),
}


def check_case(case: Case, found: list[Object]) -> None:
    wrong = bad(found)
    assert wrong.keys() == {case.code}
    level, words = wrong[case.code]
    assert level == case.level
    assert [word for word in case.words if word not in words] == []


@pytest.mark.parametrize("name", CASES)
async def test_what_is_wrong_is_found_with_its_remedy(cluster: FakeCluster, name: str) -> None:
    CASES[name].change(cluster.table)
    cluster.allowed = None
    state = await cluster_state.collect(cluster, now=datetime.now(UTC), expected=lambda companion: EXPECTED)
    check_case(CASES[name], [finding.to_object() for finding in cluster_checks.check(state)
                             if finding.code != "cluster-role-rights"])


@pytest.mark.parametrize("name", [
    "a kubeconfig that may read nothing", "the server is too old", "dynamic resource allocation is off",
    "a definition is of another version", "the webhook's certificate has expired", "no node with IOMMU",
    "two controllers without leader election", "a host name that is not a node"])
def test_what_is_wrong_ends_the_command_with_status_1(cluster: FakeCluster, name: str) -> None:
    CASES[name].change(cluster.table)
    check_case(CASES[name], findings(cluster, code=1))


def test_rights_that_an_account_lacks_are_found(cluster: FakeCluster) -> None:
    cluster.allowed = lambda review: review["resourceAttributes"]["resource"] != "ledgerpages" or "node" not in review["user"]
    found = [each for each in findings(cluster, code=1, rights=True) if each["level"] == "error"]
    assert [(each["code"], each["subject"], each["command"]) for each in found] == [
        ("cluster-role-rights", "outfitter-node", "outfit install --apply")]
    assert "outfitter-node may not get ledgerpages.outfitter.dev" in found[0]["message"]
    cluster.allowed = None
    assert bad(findings(cluster, rights=True)).keys() == {"cluster-role-rights"}


def test_every_code_of_a_cluster_is_found_by_a_test() -> None:
    codes = {case.code for case in CASES.values()} | {"cluster-reachable", "cluster-role-rights"}
    assert codes == {code for code in CODES if code.startswith("cluster-")}


def test_a_companion_of_kubevirt(cluster: FakeCluster) -> None:
    cluster.table |= {"/apis/apps/v1/deployments": [VIRT_CONTROLLER], DEPLOYMENTS: [COMPANION, WEBHOOK]}
    messages = {each["code"]: each["message"] for each in findings(cluster)}
    assert "outfitter is its companion" in messages["cluster-kubevirt"]


def test_the_name_of_this_host_is_checked_when_it_is_named(cluster: FakeCluster) -> None:
    assert bad(findings(cluster, "--node-name", "a")) == {}
    found = bad(findings(cluster, "--node-name", "worker-7", code=1))
    assert found.keys() == {"cluster-agent-names"}
    assert "this host is called worker-7, which is not a node" in found["cluster-agent-names"][1]


def test_the_table_names_each_finding_and_its_remedy(cluster: FakeCluster) -> None:
    cluster.table["/version"], cluster.allowed = {"gitVersion": "v1.33.0"}, None
    done = typed("doctor", kubeconfig=cluster.kubeconfig)
    assert done.code == 1
    lines = done.out.splitlines()
    assert re.fullmatch(r"checked: cluster http://127\.0\.0\.1:\d+", lines[0])
    at = next(index for index, line in enumerate(lines) if line.startswith("error"))
    assert [line.split(maxsplit=2) for line in lines[at:at + 1]] == [
        ["error", "cluster-version", "the server is Kubernetes v1.33.0."]]
    assert lines[at + 2].strip().startswith("$ kubeadm upgrade plan")
    assert lines[-1].startswith("1 error, 1 warning, ")
    assert "\x1b" not in done.out


class Terminal(Utf8Text):
    def isatty(self) -> bool:
        return True


def test_a_terminal_has_colours_and_nothing_else_does(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.allowed = None
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[32mok" in typed("doctor", kubeconfig=cluster.kubeconfig, stdout=Terminal).out
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in typed("doctor", kubeconfig=cluster.kubeconfig, stdout=Terminal).out


def test_yaml_has_the_same_findings(cluster: FakeCluster) -> None:
    cluster.allowed = None
    done = typed("doctor", "-o", "yaml", kubeconfig=cluster.kubeconfig)
    assert yaml.safe_load(done.out)["ok"] is True
    assert yaml.safe_load(done.out)["findings"] == json.loads(
        typed("doctor", "-o", "json", kubeconfig=cluster.kubeconfig).out)["findings"]


def test_a_code_is_explained_and_an_unknown_one_is_not() -> None:
    done = typed("doctor", "--explain", "host-iommu")
    assert done.code == 0
    assert "intel_iommu=on" in done.out
    unknown: Typed = typed("doctor", "--explain", "host-iomu")
    assert unknown.code == 1
    assert "host-iommu" in unknown.err
