"""What a person with a kubectl sees."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from outfitter.api import kinds
from outfitter.store.watch_cache import Record, Selection
from tests.apiserver.running import Kubectl, Running, kubectls

pytestmark = pytest.mark.kubectl
FOUND = kubectls()
MACHINE = """
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata: {name: blue, labels: {app: web}}
spec: {domain: {devices: {gpus: [{name: g, claimName: c}]}}}
"""
CLAIM = """
apiVersion: resource.k8s.io/v1beta1
kind: ResourceClaim
metadata: {name: c}
spec: {devices: {requests: [{name: gpu, deviceClassName: gpu}]}}
"""
CONFIG = """
apiVersion: v1
kind: ConfigMap
metadata: {name: a}
data: {k: v}
"""
ALL = "---".join([MACHINE, CLAIM, CONFIG])


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with Running(tmp_path_factory.mktemp("kubectl")) as server:
        server.call(server.store.create(kinds.NAMESPACE, {"metadata": {"name": "default"}}))
        yield server


@pytest.fixture(params=FOUND or [pytest.param("none", marks=pytest.mark.skip("no kubectl in PATH or KUBEBUILDER_ASSETS"))])
def kubectl(request: pytest.FixtureRequest, running: Running) -> Iterator[Kubectl]:
    run = Kubectl(FOUND[request.param], running)
    yield run
    for kind in kinds.ALL:
        for record in running.call(_everything(running, kind)):
            if record.key[1] != "default":
                running.call(running.store.delete(kind, record.key[1], record.key[0]))


async def _everything(running: Running, kind: kinds.Kind) -> Sequence[Record]:
    return running.store.list_records(kind, Selection(kind))[0]


def test_api_resources_and_version(kubectl: Kubectl) -> None:
    seen = kubectl("api-resources")
    for kind in kinds.ALL:
        assert kind.plural in seen
    assert "Server Version: v1.36.0+outfitter" in kubectl("version")
    assert "resource.k8s.io/v1beta1" in kubectl("api-versions")


def test_another_user_is_refused_with_the_reason(kubectl: Kubectl) -> None:
    seen = kubectl("get", "configmaps", "--as", "bob", fails=True)
    assert 'users "bob" is forbidden: User "admin" cannot impersonate' in seen
    assert "impersonation is not served" in seen


EXPLAINED = {  # field -> words of what kubectl explain prints about it
    "vmi.status.deviceStatus.gpuStatuses.deviceResourceClaimStatus": ("driver\t<string>", "pool\t<string>", "product\t<string>",
                                                                      "The DRA driver that publishes the device."),
    "vmi.spec.livenessProbe": ("Not supported:",),
    "resourceslice.spec.devices.attributes.string": ("The value, if it is text",),
    "ledgerpage.spec.bookings.holder": ("purpose\t<string>",),
}


@pytest.mark.parametrize("field", EXPLAINED)
def test_explain_knows_the_fields_and_what_they_mean(kubectl: Kubectl, field: str) -> None:
    seen = kubectl("explain", field)
    for words in EXPLAINED[field]:
        assert words in seen


def test_apply_is_repeatable_and_takes_changes(kubectl: Kubectl) -> None:
    assert kubectl("apply", "-f", "-", stdin=ALL).count(" created") == 3
    assert kubectl("apply", "-f", "-", stdin=ALL).count(" unchanged") == 3
    changed = ALL.replace("k: v", "k: w").replace("deviceClassName: gpu", "deviceClassName: nic")
    seen = kubectl("apply", "-f", "-", stdin=changed)
    assert (seen.count(" configured"), seen.count(" unchanged")) == (2, 1)
    assert kubectl("get", "cm", "a", "-o", "jsonpath={.data.k}") == "w"
    assert kubectl("get", "resourceclaim", "c", "-o", "jsonpath={.spec.devices.requests[0].exactly.deviceClassName}") == "nic"
    seen = kubectl("apply", "-f", "-", stdin=CONFIG.replace("{k: v}", "{}"))
    assert "configured" in seen
    assert kubectl("get", "cm", "a", "-o", "jsonpath={.data}") in ("", "{}")


def test_get_shows_tables(kubectl: Kubectl, running: Running) -> None:
    kubectl("apply", "-f", "-", stdin=ALL)
    waits = {"type": "Ready", "status": "False", "reason": "FailedStart", "message": "no GPU is free"}
    status = {"phase": "Running", "nodeName": "n1", "conditions": [waits]}
    running.call(running.store.patch(kinds.VMI, "blue", {"status": status}, "default", subresource="status"))
    heads, row = kubectl("get", "vmi").splitlines()
    assert heads.split() == ["NAME", "AGE", "PHASE", "IP", "NODENAME", "READY", "DEVICES", "WAITING"]
    assert row.split()[0] == "blue"
    assert row.endswith("FailedStart: it could not be started")
    assert "LIVE-MIGRATABLE" in kubectl("get", "vmi", "-o", "wide")
    assert kubectl("get", "resourceclaims").splitlines()[1].split()[:2] == ["c", "pending"]
    assert "default" in kubectl("get", "cm", "-A").splitlines()[1]
    assert kubectl("get", "all,cm", "-o", "name").split() == ["virtualmachineinstance.kubevirt.io/blue", "configmap/a"]
    assert kubectl("get", "vmi", "-l", "app=web", "-o", "name").strip() == "virtualmachineinstance.kubevirt.io/blue"
    assert 'configmaps "zz" not found' in kubectl("get", "cm", "zz", fails=True)
    assert "deviceClassName: gpu" in kubectl("get", "resourceclaims.v1beta1.resource.k8s.io", "c", "-o", "yaml")


def test_watching_shows_changes_as_they_come(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", stdin=CONFIG)
    watching = kubectl.start("get", "cm", "-w", "--output-watch-events")
    try:
        assert watching.stdout is not None
        assert watching.stdout.readline().split() == ["EVENT", "NAME", "DATA", "AGE"]
        assert watching.stdout.readline().split()[:3] == ["ADDED", "a", "1"]
        kubectl("patch", "cm", "a", "-p", '{"data":{"x":"y"}}')
        assert watching.stdout.readline().split()[:3] == ["MODIFIED", "a", "2"]
        kubectl("delete", "cm", "a")
        assert watching.stdout.readline().split()[:3] == ["DELETED", "a", "2"]
    finally:
        watching.kill()
        watching.communicate()


def test_edit_label_annotate_and_patch(kubectl: Kubectl, tmp_path: Path) -> None:
    kubectl("apply", "-f", "-", stdin=ALL)
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\nsed -i "s/k: v/k: edited/; s/claimName: c/claimName: d/" "$1"\n')
    editor.chmod(0o755)
    for what in ("cm/a", "vmi/blue"):
        assert " edited" in kubectl("edit", what, EDITOR=str(editor))
    assert kubectl("get", "cm", "a", "-o", "jsonpath={.data.k}") == "edited"
    assert kubectl("get", "vmi", "blue", "-o", "jsonpath={.spec.domain.devices.gpus[0].claimName}") == "d"
    kubectl("label", "cm", "a", "tier=x")
    kubectl("annotate", "vmi", "blue", "why=because")
    kubectl("label", "cm", "a", "tier-")
    kubectl("patch", "vmi", "blue", "--type=merge", "-p", '{"spec":{"x":1}}')
    kubectl("patch", "vmi", "blue", "--type=json", "-p", '[{"op":"remove","path":"/spec/x"}]')
    assert kubectl("get", "cm", "a", "-o", "jsonpath={.metadata.labels}") == ""
    assert kubectl("get", "vmi", "blue", "-o", "jsonpath={.metadata.annotations.why}") == "because"
    assert "not supported" in kubectl("patch", "vmi", "blue", "-p", "{}", fails=True)


def test_describe_wait_replace_and_delete(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", stdin=ALL)
    assert "k:\n----\nv" in kubectl("describe", "cm", "a")
    assert "Device Class Name:  gpu" in kubectl("describe", "resourceclaim", "c")
    assert "condition met" in kubectl("wait", "--for=jsonpath={.data.k}=v", "cm/a", "--timeout=120s")
    assert "replaced" in kubectl("replace", "-f", "-", stdin=CONFIG)
    assert "created (server dry run)" in kubectl("create", "-f", "-", "--dry-run=server", stdin=CONFIG.replace(": a", ": b"))
    assert kubectl("delete", "-f", "-", stdin=ALL).count(" deleted") == 3
    assert "No resources found" in kubectl("get", "cm")


def test_a_namespace_and_its_usual_things_are_made_by_name(kubectl: Kubectl) -> None:
    assert "namespace/team created" in kubectl("create", "namespace", "team")
    kubectl("create", "configmap", "c", "-n", "team", "--from-literal=a=b")
    kubectl("create", "secret", "generic", "s", "-n", "team", "--from-literal=a=b")
    kubectl("create", "serviceaccount", "sa", "-n", "team")
    assert kubectl("get", "cm", "c", "-n", "team", "-o", "jsonpath={.data.a}") == "b"
    assert kubectl("get", "secret", "s", "-n", "team", "-o", "jsonpath={.data.a}") == "Yg=="
    assert "sa" in kubectl("get", "sa", "-n", "team")
    for what in ("cm", "secret", "sa"):
        kubectl("delete", what, "--all", "-n", "team")


def test_mistakes_are_named(kubectl: Kubectl) -> None:
    seen = kubectl("apply", "-f", "-", stdin=CONFIG + "dat: {}\n", fails=True)
    assert 'strict decoding error: unknown field "dat"' in seen
    assert 'Warning: unknown field "dat"' in kubectl("apply", "--validate=warn", "-f", "-", stdin=CONFIG + "dat: {}\n")
    assert "not served yet" in kubectl("apply", "--server-side", "-f", "-", stdin=CONFIG, fails=True)
    assert "already exists" in kubectl("create", "-f", "-", stdin=CONFIG, fails=True)
    assert "cannot read" in kubectl("get", "cm", "-l", "a===b", fails=True)


def test_kinds_that_are_not_served_are_named(kubectl: Kubectl) -> None:
    for version, kind in (("apps/v1", "Deployment"), ("v1", "Service"), ("kubevirt.io/v1", "Moon")):
        for verb in ("apply", "create"):
            seen = kubectl(verb, "-f", "-", stdin=f"apiVersion: {version}\nkind: {kind}\nmetadata: {{name: d}}\n", fails=True)
            assert f'no matches for kind "{kind}" in version "{version}"' in seen


def test_debug_reports_why_it_cannot(kubectl: Kubectl, running: Running) -> None:
    pod = {"metadata": {"name": "p", "namespace": "default"}, "spec": {"containers": [{"name": "c"}], "securityContext": {}}}
    running.call(running.store.create(kinds.POD, pod))
    assert "outfitter runs VMs, not containers" in kubectl("debug", "pod/p", "--image=x", fails=True)


def test_readiness_is_listed(kubectl: Kubectl) -> None:
    assert kubectl("get", "--raw", "/readyz?verbose").endswith("readyz check passed\n")
