"""The pod in which a VM runs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from outfitter.api import kinds
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import kubevirt_config
from outfitter.api.kubevirt.kubevirt_config import KubeVirtConfig
from outfitter.controllers import launcher_pod
from tests.controllers import scenario as scenes


def rendered(name: str = "blue", **spec: Any) -> Object:
    return launcher_pod.launcher_pod({"metadata": {"name": name, "namespace": "here", "uid": "0af3", "labels": {"team": "net"}},
                                "spec": {"domain": {}, **spec}})


def test_a_launcher_pod() -> None:
    spread = [{"maxSkew": 1, "topologyKey": "rack", "whenUnsatisfiable": "DoNotSchedule"}]
    pod = rendered(nodeSelector={"zone": "east"}, schedulerName="other", tolerations=[{"key": "a"}],
                   topologySpreadConstraints=spread, priorityClassName="high",
                   terminationGracePeriodSeconds=7)
    assert (pod["spec"]["terminationGracePeriodSeconds"], rendered()["spec"]["terminationGracePeriodSeconds"]) == (7, 30)
    assert pod["metadata"]["labels"] == {"team": "net", "kubevirt.io": "virt-launcher", "kubevirt.io/created-by": "0af3",
                                         "vm.kubevirt.io/name": "blue"}
    assert pod["spec"]["nodeSelector"] == {"zone": "east"}
    assert pod["spec"]["schedulerName"] == "other"
    assert pod["spec"]["tolerations"] == [{"key": "a"}]
    assert (pod["spec"]["topologySpreadConstraints"], pod["spec"]["priorityClassName"]) == (spread, "high")
    assert "claims" not in pod["spec"]["containers"][0]["resources"]


def asks(settings: KubeVirtConfig = launcher_pod.DEFAULT, *, networks: dict[str, str] | None = None, **domain: Any) -> Object:
    """What the container asks for."""
    pod = launcher_pod.launcher_pod(
        {"metadata": {"name": "blue", "namespace": "here", "uid": "0af3"}, "spec": {"domain": domain}},
        settings,
        networks=networks,
    )
    found: Object = pod["spec"]["containers"][0]["resources"]
    return found


def test_an_entry_that_names_no_request_asks_for_the_whole_claim() -> None:
    """As it was stored before admission refused it. A request that is null would be none of the claim's."""
    assert asks(devices={"gpus": [{"name": "a", "claimName": "acc"}]})["claims"] == [{"name": "acc"}]


def mebibytes(resources: Object) -> int:
    return int(resources["requests"]["memory"].removesuffix("Mi"))


def test_memory_request_is_guest_memory_and_overhead() -> None:
    plain = mebibytes(asks(memory={"guest": "1Gi"}))
    assert 1024 + 200 < plain < 1024 + 400
    assert mebibytes(asks(resources={"requests": {"memory": "1Gi"}})) == plain
    assert mebibytes(asks(memory={"guest": "1Gi"}, resources={"requests": {"memory": "512Mi"}})) == plain - 512, "as written"
    assert mebibytes(asks()) == plain, "a VM that does not say has 1Gi"
    assert mebibytes(asks(memory={"guest": "3Gi"})) == plain + 2048 + 2048 // 512
    card = {"name": "a", "claimName": "e", "requestName": "f"}
    for devices in ({"gpus": [card]}, {"hostDevices": [card]}, {"interfaces": [{"name": "a", "sriov": {}}]},
                    {"gpus": [{"name": "a", "deviceName": "x.com/gpu"}]}):
        assert mebibytes(asks(memory={"guest": "1Gi"}, devices=devices)) == plain + 1024, "what VFIO maps"
    assert mebibytes(asks(memory={"guest": "1Gi"}, cpu={"cores": 3})) == plain + 16
    assert mebibytes(asks(memory={"guest": "1Gi"}, devices={"autoattachGraphicsDevice": False})) == plain - 32
    limited = asks(memory={"guest": "1Gi"}, resources={"limits": {"memory": "2Gi"}})["limits"]["memory"]
    assert limited == f"{plain + 1024}Mi", "a limit has room for what the VM costs besides"


def test_devices_of_a_flavor_cost_memory_like_those_of_the_spec() -> None:
    def pod(devices: list[Object]) -> Object:
        record = {"name": "f", "vcpus": 1, "memory": "1Gi", "claimName": "c", "devices": devices}
        return launcher_pod.launcher_pod({"metadata": {"name": "blue", "namespace": "here", "uid": "0af3"},
                                    "spec": {"domain": {}, "flavor": {"name": "f"}}, "status": {"flavor": record}})

    plain, more = (pod(devices)["spec"]["containers"][0]["resources"] for devices in ([], [{"name": "gpu", "count": 2}]))
    assert mebibytes(more) == mebibytes(plain) + 1024


def test_cpus_are_shared_unless_they_are_the_guests_own() -> None:
    assert asks(cpu={"cores": 4})["requests"]["cpu"] == "400m"
    assert asks(cpu={"cores": 4}, resources={"requests": {"cpu": "2"}})["requests"]["cpu"] == "2"
    own = asks(cpu={"cores": 2, "sockets": 2, "dedicatedCpuPlacement": True})
    assert own["requests"]["cpu"] == own["limits"]["cpu"] == "4"
    assert own["limits"]["memory"] == own["requests"]["memory"]


def test_explicit_requests_are_not_added_twice() -> None:
    named = {"gpus": [{"name": "a", "deviceName": "x.com/gpu"}]}
    written = asks(devices=named, resources={"limits": {"x.com/gpu": "1"}})
    assert written["limits"]["x.com/gpu"] == "1"
    assert written["requests"]["x.com/gpu"] == "1", "Kubernetes wants both sides equal"
    more = asks(devices=named, resources={"requests": {"x.com/gpu": "4"}})
    assert more["requests"]["x.com/gpu"] == more["limits"]["x.com/gpu"] == "4"
    assert asks(devices=named, networks={"a": "x.com/gpu", "b": "x.com/gpu"})["limits"]["x.com/gpu"] == "3"


GPU = [{"name": "a", "claimName": "e", "requestName": "f"}]


@pytest.mark.parametrize(("gate", "devices"), [
    ("GPUsWithDRA", {"gpus": GPU}), ("HostDevicesWithDRA", {"hostDevices": GPU})])
def test_a_closed_gate_asks_for_nothing(gate: str, devices: Object) -> None:
    closed = kubevirt_config.read_config({"metadata": {"name": "kubevirt"}, "spec": {"configuration": {
        "developerConfiguration": {"disabledFeatureGates": [gate]}}}})
    assert asks(devices=devices)["claims"] == [{"name": "e", "request": "f"}]
    assert "claims" not in asks(closed, devices=devices)


NETWORKS = [{"name": "default", "pod": {}}, {"name": "blue", "multus": {"networkName": "vlan10"}},
            {"name": "red", "multus": {"networkName": "prod/vlan20"}}, {"name": "old", "multus": {"networkName": "vlan30"}}]
INTERFACES = [{"name": "default", "masquerade": {}}, {"name": "blue", "bridge": {}, "macAddress": "02:00:00:00:00:01"},
              {"name": "red", "sriov": {}}, {"name": "old", "bridge": {}, "state": "absent"}]


def networks(**more: Any) -> Any:
    pod = rendered(domain={"devices": {"interfaces": INTERFACES}}, networks=NETWORKS, **more)
    return json.loads(pod["metadata"]["annotations"]["k8s.v1.cni.cncf.io/networks"])


def test_networks_stand_in_an_annotation_under_names_that_stay() -> None:
    assert networks() == [
        {"name": "vlan10", "namespace": "here", "mac": "02:00:00:00:00:01", "interface": "pod16477688c0e"},
        {"name": "vlan20", "namespace": "prod", "interface": "podb1f51a511f1"}]
    assert "k8s.v1.cni.cncf.io/networks" not in rendered(networks=NETWORKS[:1])["metadata"]["annotations"]
    default = rendered(networks=[{"name": "own", "multus": {"networkName": "vlan10", "default": True}}])["metadata"]
    assert default["annotations"] == {"kubevirt.io/domain": "blue", "v1.multus-cni.io/default-network": "here/vlan10"}


@pytest.mark.parametrize(("upgrade", "names"), [
    (True, ["pod16477688c0e", "podb1f51a511f1"]), (False, ["net1", "net2", "net3"])])
def test_migrating_vmi_keeps_its_device_names(upgrade: bool, names: list[str]) -> None:
    source = {"metadata": {"annotations": {"k8s.v1.cni.cncf.io/network-status": '[{"interface": "net1"}]'}}}
    gates = {"featureGates" if upgrade else "disabledFeatureGates": ["PodSecondaryInterfaceNamingUpgrade"]}
    now = kubevirt_config.read_config(
        {"metadata": {"name": "kubevirt"}, "spec": {"configuration": {"developerConfiguration": gates}}}
    )
    pod = launcher_pod.launcher_pod({"metadata": {"name": "blue", "namespace": "here", "uid": "0af3"}, "spec": {
        "domain": {"devices": {"interfaces": INTERFACES}}, "networks": NETWORKS}}, now, source=source)
    told = json.loads(pod["metadata"]["annotations"]["k8s.v1.cni.cncf.io/networks"])
    assert [entry["interface"] for entry in told] == names


async def test_a_network_that_comes_later_is_found_and_what_it_takes_is_asked_for() -> None:
    async with scenes.embedded(1) as scene:
        await scene.create(kinds.VMI, "blue", {"domain": {"devices": {"interfaces": [{"name": "red", "sriov": {}}]}},
                                                    "networks": [{"name": "red", "multus": {"networkName": "vf-net"}}]})
        await scene.waits("blue", "Synchronized", "network attachment definition here/vf-net")
        assert not await scene.all(kinds.POD)
        await scene.create(kinds.NETWORK_ATTACHMENT, "vf-net", {"config": "{}"},
                           annotations={"k8s.v1.cni.cncf.io/resourceName": "x.com/vf"})

        async def made() -> list[Object]:
            return await scene.all(kinds.POD)

        [pod] = await scene.reach(made, "the pod is made")
        assert pod["spec"]["containers"][0]["resources"]["limits"] == {"x.com/vf": "1"}


def test_devices_by_resource_name_are_asked_for_together() -> None:
    """In limits and requests, as device plugins want it; the two lists count as one."""
    pod = rendered(domain={"devices": {"gpus": [{"name": "a", "deviceName": "x.com/gpu"}],
                                       "hostDevices": [{"name": "b", "deviceName": "x.com/gpu"},
                                                       {"name": "c", "deviceName": "x.com/nic"},
                                                       {"name": "d", "claimName": "e", "requestName": "f"}]}})
    resources = pod["spec"]["containers"][0]["resources"]
    assert resources["limits"] == {"x.com/gpu": "2", "x.com/nic": "1"}
    assert resources["claims"] == [{"name": "e", "request": "f"}]
    assert resources["limits"].items() <= resources["requests"].items()


def test_the_name_of_a_pod_depends_on_the_instance_alone() -> None:
    assert rendered()["metadata"]["name"] == rendered()["metadata"]["name"]
    assert rendered()["metadata"]["name"] != rendered("green")["metadata"]["name"]
    long = rendered("x" * 42 + "-" + "y" * 100)["metadata"]
    assert len(long["name"]) <= 63
    assert "--" not in long["name"]
