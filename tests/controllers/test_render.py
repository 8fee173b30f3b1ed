"""The pod in which a machine runs."""

from __future__ import annotations

from typing import Any

from outfitter.api.kinds import Object
from outfitter.controllers import render


def rendered(name: str = "blue", **spec: Any) -> Object:
    return render.launcher_pod({"metadata": {"name": name, "namespace": "here", "uid": "0af3", "labels": {"team": "net"}},
                                "spec": {"domain": {}, **spec}})


def test_a_launcher_pod() -> None:
    pod = rendered(nodeSelector={"zone": "east"}, schedulerName="other", tolerations=[{"key": "a"}])
    assert pod["metadata"]["labels"] == {"team": "net", "kubevirt.io": "virt-launcher", "kubevirt.io/created-by": "0af3",
                                         "vm.kubevirt.io/name": "blue"}
    assert pod["spec"]["nodeSelector"] == {"zone": "east"}
    assert pod["spec"]["schedulerName"] == "other"
    assert pod["spec"]["tolerations"] == [{"key": "a"}]
    assert "claims" not in pod["spec"]["containers"][0]["resources"]
    assert pod["spec"]["containers"][0]["resources"]["requests"] == {"memory": "1Gi"}
    assert rendered(domain={"memory": {"guest": "3Gi"}})["spec"]["containers"][0]["resources"]["requests"] == {"memory": "3Gi"}
    assert rendered(domain={"resources": {"requests": {"memory": "2Gi"}}})["spec"]["containers"][0]["resources"] == {
        "requests": {"memory": "2Gi"}}


def test_devices_by_resource_name_are_asked_for_together() -> None:
    """In limits and requests, as device plugins want it; the two lists count as one."""
    pod = rendered(domain={"devices": {"gpus": [{"name": "a", "deviceName": "x.com/gpu"}],
                                       "hostDevices": [{"name": "b", "deviceName": "x.com/gpu"},
                                                       {"name": "c", "deviceName": "x.com/nic"},
                                                       {"name": "d", "claimName": "e", "requestName": "f"}]}})
    assert pod["spec"]["containers"][0]["resources"] == {
        "limits": {"x.com/gpu": "2", "x.com/nic": "1"}, "claims": [{"name": "e", "request": "f"}],
        "requests": {"memory": "1Gi", "x.com/gpu": "2", "x.com/nic": "1"}}


def test_the_name_of_a_pod_depends_on_the_instance_alone() -> None:
    assert rendered()["metadata"]["name"] == rendered()["metadata"]["name"]
    assert rendered()["metadata"]["name"] != rendered("green")["metadata"]["name"]
    long = rendered("x" * 42 + "-" + "y" * 100)["metadata"]
    assert len(long["name"]) <= 63
    assert "--" not in long["name"]
