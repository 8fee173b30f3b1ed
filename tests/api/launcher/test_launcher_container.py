"""A launcher pod as a kubelet runs it, and what its end says."""

from __future__ import annotations

from typing import Any

import pytest

from outfitter.api.kinds import Object
from outfitter.api.kubevirt import pod_end
from outfitter.api.launcher import launcher_container
from outfitter.api.launcher.launcher_container import LauncherSettings
from outfitter.api.launcher.launcher_outcome import Outcome
from outfitter.controllers import launcher_pod

SETTINGS = LauncherSettings("registry/launcher:1", kvm_resource="devices.kubevirt.io/kvm")


def pod(**spec: Any) -> Object:
    vmi = {"metadata": {"name": "blue", "namespace": "here", "uid": "0af3"}, "spec": {"domain": {"devices": {}}, **spec}}
    return launcher_container.runnable(launcher_pod.launcher_pod(vmi), vmi, SETTINGS)


def test_a_pod_has_what_a_kubelet_needs_and_no_credentials() -> None:
    spec = pod()["spec"]
    [container] = spec["containers"]
    assert (container["image"], container["command"]) == ("registry/launcher:1", ["outfit", "launcher"])
    assert container["resources"]["limits"]["devices.kubevirt.io/kvm"] == "1"
    assert not spec["automountServiceAccountToken"]
    assert not any("hostPath" in volume for volume in spec["volumes"])
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in spec["volumes"]}
    assert container["args"][1].startswith(next(
        mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] == "sockets"))


@pytest.mark.parametrize(("spec", "root"), [
    pytest.param({}, False, id="no device"),
    pytest.param({"resourceClaims": [{"name": "a", "resourceClaimName": "a"}]}, True, id="a claim"),
    pytest.param({"domain": {"devices": {"hostDevices": [{"name": "a", "deviceName": "x.com/a"}]}}}, True, id="by resource"),
    pytest.param({"domain": {"devices": {"interfaces": [{"name": "a", "sriov": {}}]}}}, True, id="a VF"),
])
def test_only_vfio_needs_root_and_a_capability(spec: Object, root: bool) -> None:
    context = pod(**spec)["spec"]["containers"][0]["securityContext"]
    assert (context["runAsUser"] == 0, context["runAsNonRoot"]) == (root, not root)
    assert context["capabilities"] == {"drop": ["ALL"], **({"add": ["SYS_RESOURCE"]} if root else {})}


def test_secrets_are_mounted_and_of_the_host_only_its_disks() -> None:
    cloud = {"name": "seed", "cloudInitNoCloud": {"secretRef": {"name": "user"}, "networkDataSecretRef": {"name": "net"}}}
    disk = {"name": "disk", "hostDisk": {"path": "/disks/a.img", "type": "Disk"}}
    spec = pod(volumes=[cloud, disk])["spec"]
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    mounts = {mount["name"]: mount["mountPath"] for mount in spec["containers"][0]["volumeMounts"]}
    assert volumes["secret-0"]["projected"]["sources"] == [{"secret": {"name": "user"}}, {"secret": {"name": "net"}}]
    assert mounts["secret-0"] == "/var/run/kubevirt-private/secret/seed"
    assert (volumes["host-disk-0"]["hostPath"]["path"], mounts["host-disk-0"]) == ("/disks", "/disks")


@pytest.mark.parametrize(("state", "reason"), [
    pytest.param({"exitCode": 0, "message": Outcome.stopped("it shut down").termination_message()}, "Stopped", id="stopped"),
    pytest.param({"exitCode": 5, "message": Outcome.start_rejected("no: x").termination_message()}, "FailedStart", id="no"),
    pytest.param({"exitCode": 137, "reason": "OOMKilled"}, "LauncherFailed", id="killed"),
    pytest.param({"exitCode": 1, "message": "2026-01-01 INFO a: b\nerror: no libvirt"}, "LauncherFailed", id="a log"),
])
def test_the_end_of_a_container_is_the_reason_of_its_pod(state: Object, reason: str) -> None:
    ended = {"status": {"phase": "Failed", "containerStatuses": [{"name": "compute", "state": {"terminated": state}}]}}
    assert pod_end.reason_of(ended)[0] == reason
