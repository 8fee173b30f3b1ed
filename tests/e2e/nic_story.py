"""VM blue whose NICs a user changes with kubectl, and what is read of it: embedded and on a real control plane."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tests.e2e import nic_changes
from tests.e2e.kubectl import Kubectl
from tests.e2e.process import Up, until

ASKED, STATUS = "k8s.v1.cni.cncf.io/networks", "k8s.v1.cni.cncf.io/network-status"  # annotations of pods


class Story:
    """What a user types, and what is read."""

    def __init__(self, up: Up) -> None:
        self.up, self.kubectl = up, Kubectl(up)

    def begin(self, grace: str, speed: str = "64Gi") -> Story:
        objects = nic_changes.settings(grace, speed), nic_changes.NETWORKS, nic_changes.BLUE
        self.kubectl("apply", "-f", "-", stdin="---".join(objects))
        until(lambda: self.up.phase("blue") == "Running", "blue runs")
        self.uid, self.source = self.vmi()["metadata"]["uid"], self.host()
        self.other = {"node-0": "node-1", "node-1": "node-0"}[self.source]
        return self

    def get(self, *words: str) -> Any:
        return json.loads(self.kubectl("get", *words, "-o", "json"))

    def vmi(self) -> Any:
        return self.get("vmi", "blue")

    def host(self) -> str:
        return str(self.vmi()["status"].get("nodeName"))

    def pod(self) -> Any:
        """The launcher pod on the host of the VMI."""
        [found] = [pod for pod in self.get("pods", "-l", "kubevirt.io=virt-launcher")["items"]
                   if pod["metadata"]["labels"].get("vm.kubevirt.io/name") == "blue"
                   and pod["spec"].get("nodeName") == self.host() and pod["status"].get("phase") == "Running"]
        return found

    def condition(self, name: str, kind: str = "vmi") -> Any:
        found = self.get(kind, "blue").get("status", {}).get("conditions") or ()
        return next((each for each in found if each["type"] == name), {})

    def message(self, name: str = "MigrationRequired") -> str:
        return str(self.condition(name).get("message") or "")

    def sources(self, name: str) -> set[str]:
        """infoSource of an interface."""
        found = [each.get("infoSource") for each in self.vmi()["status"].get("interfaces") or () if each.get("name") == name]
        return {word.strip() for text in found for word in str(text or "").split(",") if word.strip()}

    def migrations(self) -> list[Any]:
        return list(self.get("vmim")["items"])

    def events(self) -> set[str]:
        return {event["reason"] for event in self.get("events")["items"] if event["involvedObject"]["name"] == "blue"}

    def patch(self, patch: str) -> None:
        self.kubectl("patch", "vm", "blue", "--type=json", "-p", patch)

    def plug(self, name: str, **interface: object) -> None:
        """A NIC on the network of its name."""
        self.patch(nic_changes.plug(name, name, **interface))

    def unplug(self, name: str) -> None:
        self.patch(nic_changes.unplug(self.get("vm", "blue"), name))

    def template_networks(self) -> str:
        return self.kubectl("get", "vm", "blue", "-o", "jsonpath={.spec.template.spec.networks}")

    def listed(self, annotation: str) -> list[Any]:
        return list(json.loads(self.pod()["metadata"].get("annotations", {}).get(annotation) or "[]"))

    def dynamic_networks_controller(self) -> None:
        """Report that the pod has the networks that its annotation asks for."""
        pod = self.pod()
        entries = [{"name": f"{one['namespace']}/{one['name']}", "interface": one["interface"], "mac": "02:00:00:00:00:09"}
                   for one in self.listed(ASKED)]
        self.kubectl("annotate", "pod", pod["metadata"]["name"], "--overwrite",
                     f"{STATUS}={json.dumps([{'name': 'pod', 'interface': 'eth0', 'default': True}, *entries])}")

    def untouched(self) -> None:
        """It is the same VM, and nothing of it waits."""
        assert self.vmi()["metadata"]["uid"] == self.uid
        until(lambda: not self.condition("MigrationRequired"), "nothing requires a migration")
        assert not self.condition("RestartRequired", "vm")


def story_of(up: Up) -> Iterator[Story]:
    with up:
        story = Story(up)
        yield story
        story.kubectl("delete", "kubevirt", "-n", "kubevirt", "--all")  # the control plane is shared
        assert not up.log()
