"""VMs, as a person with a kubectl meets admission."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from outfitter.api import admission, kinds
from tests.apiserver.running import Kubectl, Running, kubectls

pytestmark = pytest.mark.kubectl
FOUND = kubectls()
BAD = """
apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata: {name: blue}
spec:
  runStrategy: Always
  template:
    spec:
      resourceClaims:
      - {name: acc}
      domain:
        devices:
          gpus:
          - {name: g, claimName: acc}
          - {name: h, claimName: other, requestName: card}
"""
GOOD = """
apiVersion: kubevirt.io/v1alpha3
kind: VirtualMachine
metadata: {name: blue}
spec:
  running: false
  template:
    spec:
      resourceClaims:
      - {name: acc, resourceClaimTemplateName: not-there}
      domain:
        devices:
          gpus:
          - {name: g, claim: {name: acc, request: card}}
"""
INSTANCE = """
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata: {name: red}
spec: {domain: {memory: {guest: 1Gi}}}
"""
KUBEVIRT = """
apiVersion: kubevirt.io/v1
kind: KubeVirt
metadata: {name: kubevirt}
spec: {configuration: {developerConfiguration: {disabledFeatureGates: [GPUsWithDRA]}}}
"""


@pytest.fixture(params=FOUND or [pytest.param("none", marks=pytest.mark.skip("no kubectl in PATH or KUBEBUILDER_ASSETS"))])
def kubectl(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubectl]:
    with Running(tmp_path_factory.mktemp("kubectl")) as server:
        server.store.rules = admission.AdmissionRules()
        server.call(server.store.create(kinds.NAMESPACE, {"metadata": {"name": "default"}}))
        yield Kubectl(FOUND[request.param], server)


def test_kubectl_output(kubectl: Kubectl) -> None:
    seen = kubectl("apply", "-f", "-", stdin=BAD, fails=True)
    for words in ('The VirtualMachine "blue" is invalid', "* spec.template.spec.resourceClaims[0]: must specify one of",
                  "* spec.template.spec.domain.devices.gpus[0].requestName: requestName is required",
                  "* spec.template.spec.resourceClaims: vmi.spec.resourceClaims must specify all claims"):
        assert words in seen

    seen = kubectl("apply", "-f", "-", stdin=GOOD)
    assert 'Warning: spec.template.spec.resourceClaims[0].resourceClaimTemplateName: there is no ResourceClaimTemplate' in seen
    assert "virtualmachine.kubevirt.io/blue created" in seen
    assert "unchanged" in kubectl("apply", "-f", "-", stdin=GOOD)

    kubectl("apply", "-f", "-", stdin=INSTANCE + "---" + KUBEVIRT)
    seen = kubectl("get", "vm,vmi,kubevirt")
    for words in ("virtualmachine.kubevirt.io/blue", "virtualmachineinstance.kubevirt.io/red", "kubevirt.kubevirt.io/kubevirt"):
        assert words in seen
    assert kubectl("get", "vm").splitlines()[0].split() == ["NAME", "AGE", "STATUS", "READY"]
    assert kubectl("get", "kv").splitlines()[0].split() == ["NAME", "AGE", "PHASE"]
    seen = kubectl("apply", "-f", "-", stdin=GOOD.replace("blue", "green"), fails=True)
    assert "feature gate is not enabled: list GPUsWithDRA in" in seen
    seen = kubectl("patch", "vmi", "red", "--type=merge", "-p", '{"spec":{"domain":{"cpu":{"cores":2}}}}', fails=True)
    assert "update of VMI object is restricted" in seen


def test_actions_are_found_and_asked_for(kubectl: Kubectl) -> None:
    """kubectl asks for everything that is served, in one answer or in several; a group of actions alone is no harm."""
    assert "virtualmachineinstances" in kubectl("api-resources", "--api-group=kubevirt.io")
    assert kubectl("api-resources", "--api-group=subresources.kubevirt.io", "--no-headers=true").strip() == ""
    assert "subresources.kubevirt.io/v1" in kubectl("api-versions").splitlines()
    assert '"virtualmachineinstances/pause"' in kubectl("get", "--raw", "/apis/subresources.kubevirt.io/v1")
    kubectl("apply", "-f", "-", stdin=GOOD.replace("running: false", "runStrategy: Manual"))
    place = "/apis/subresources.kubevirt.io/v1/namespaces/default/virtualmachines/blue"
    kubectl("replace", "--raw", f"{place}/start", "-f", "-", stdin='{"paused": true}')
    assert '[{"action":"Start","data":{"paused":"true"}}]' in kubectl(
        "get", "vm", "blue", "-o", "jsonpath={.status.stateChangeRequests}")
    assert "VM is not running" in kubectl("replace", "--raw", f"{place}/migrate", "-f", "-", stdin="{}", fails=True)
