"""examples/10-cni-plugin with a VF of a network card: a device plugin offers the VF by its PCI address, a pod of a simulated
host is assigned it, and the CNI plugin moves its network interface into a network namespace."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.e2e.process import OUTFIT, ROOT, OwnForkedUp
from tests.hardware import kernel
from tests.hardware.steps import Report, expect
from tests.hardware.story import PATIENCE, wait

PLUGIN = ROOT / "examples" / "10-cni-plugin" / "outfit-vf"
RESOURCE = "hardware.example/vf"
POD = f"""
apiVersion: v1
kind: Pod
metadata: {{name: plain}}
spec:
  containers: [{{name: main, image: example.com/main, resources: {{limits: {{{RESOURCE}: "1"}}}}}}]
"""
NODE = Path("kubelet") / "node-0"  # the kubelet's folder of the simulated host
NETNS = Path("/run/netns/plain")


async def _offer(folder: Path, function: str) -> None:
    from tests.cases.assignment.plugins import PlayedPlugin  # noqa: PLC0415  # gRPC is imported after the fork

    async def seen(method: str, name: str) -> None:
        print("device plugin:", method, flush=True)

    plugin = PlayedPlugin("vfs", {"resource": RESOURCE, "devices": {function: []}}, folder, seen)
    await plugin.listen()
    if (error := await plugin.register()) is not None:
        raise AssertionError(f"the device plugin is not registered: {error}")
    await asyncio.Event().wait()


def offer(folder: Path, function: str) -> None:
    """A device plugin with one VF, until it is killed."""
    asyncio.run(_offer(folder, function))


class Runtime:
    """What a container runtime does: calls the CNI plugin for one container."""

    def __init__(self, folder: Path) -> None:
        self._config = {"cniVersion": "1.0.0", "name": "fast", "type": "outfit-vf", "resources": [RESOURCE],
                        "kubeletDir": str(folder / NODE), "stateDir": str(folder / "cni"), "outfit": str(OUTFIT)}

    def call(self, command: str) -> Any:
        done = subprocess.run(
            [sys.executable, PLUGIN], input=json.dumps(self._config), text=True, capture_output=True, check=False,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "CNI_COMMAND": command, "CNI_CONTAINERID": "c1", "CNI_IFNAME": "net1",
                 "CNI_NETNS": str(NETNS), "CNI_ARGS": "K8S_POD_NAMESPACE=default;K8S_POD_NAME=plain"})
        expect((done.returncode, done.stderr), (0, ""), f"{command} of the CNI plugin ({done.stdout.strip()})")
        return json.loads(done.stdout) if done.stdout else None


def inside() -> dict[str, str]:
    """Interfaces of the network namespace and the functions behind them."""
    shown = subprocess.run(["ip", "-n", NETNS.name, "-d", "-j", "link"], check=True, capture_output=True, text=True).stdout
    return {link["ifname"]: link.get("parentdev", "") for link in json.loads(shown) if link["ifname"] != "lo"}


def pod_with_a_vf(report: Report, function: str) -> None:
    folder = Path("/run/cni")
    folder.mkdir()
    kernel.give_back(function, "igbvf")
    kernel.wait_for(kernel.PCI / function / "net")
    name = kernel.interface(function)
    with report.step("a pod of a simulated host is assigned a virtual function of a device plugin"):
        up = OwnForkedUp(folder / "data", "-v", "--kubelet-dir", str(folder / "kubelet"), patience=PATIENCE)
        with up:
            kernel.wait_for(folder / NODE / "device-plugins" / "kubelet.sock")
            plugin = multiprocessing.get_context("fork").Process(target=offer, args=(folder / NODE, function), daemon=True)
            plugin.start()
            try:
                up.ok("apply", "-f", "-", stdin=POD)
                wait(lambda: json.loads(up.ok("get", "pod", "plain", "-o", "json"))["status"].get("phase") == "Running",
                     "the pod runs")
                _calls(report, function, name, Runtime(folder))
            finally:
                plugin.kill()
                plugin.join()


def _calls(report: Report, function: str, name: str, runtime: Runtime) -> None:
    subprocess.run(["ip", "netns", "add", NETNS.name], check=True)
    with report.step("the CNI plugin moves its interface into a network namespace, and back"):
        added = runtime.call("ADD")
        expect([each["name"] for each in added["interfaces"]], ["net1"], "interfaces of the result")
        expect(inside(), {"net1": function}, "interfaces of the pod")
        expect(runtime.call("ADD"), added, "the result of a second ADD")
        runtime.call("CHECK")
        runtime.call("DEL")
        expect((inside(), kernel.interface(function)), ({}, name), "interfaces of the pod, and of the virtual function")
        runtime.call("DEL")
    with report.step("the interface has its name again when its network namespace ended first"):
        runtime.call("ADD")
        subprocess.run(["ip", "netns", "delete", NETNS.name], check=True)
        kernel.wait_for(kernel.PCI / function / "net" / "net1")
        runtime.call("DEL")
        expect(kernel.interface(function), name, "the interface of the virtual function")
