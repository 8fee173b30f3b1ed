"""examples/10-cni-plugin: the plugin as a container runtime calls it, in network namespaces of its own; interfaces without
hardware stand for those of VFs. The same with a VF of a network card: tests/hardware."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.e2e.process import OUTFIT, ROOT
from tests.node.kubelet.driver_host import short_folder
from tests.node.readers.shown_pods import node, pod, served

PLUGIN = ROOT / "examples" / "10-cni-plugin" / "outfit-vf"
VF = "example.com/vf"
ADDRESSES = {"0000:3b:10.0": "vf0", "0000:3b:10.2": "vf1"}
CONFIG = {"cniVersion": "1.0.0", "name": "fast", "type": "outfit-vf", "resources": [VF]}


class Answer(NamedTuple):
    code: int
    result: Any


def call(command: str, config: Any, *prefix: str, **environment: str) -> Answer:
    given = {"PATH": os.environ["PATH"], "CNI_COMMAND": command, **environment}
    done = subprocess.run([*prefix, sys.executable, PLUGIN], input=config if isinstance(config, str) else json.dumps(config),
                          env=given, capture_output=True, text=True, check=False)
    assert not done.stderr
    return Answer(done.returncode, json.loads(done.stdout) if done.stdout else None)


@contextlib.contextmanager
def namespace(*prefix: str) -> Iterator[int]:
    """A process in a network namespace of its own, as root of a user namespace where this is not root."""
    mapped = [] if os.geteuid() == 0 or prefix else ["--map-root-user"]
    process = subprocess.Popen([*prefix, "unshare", *mapped, "--net", "sh", "-c", "echo there; exec sleep 600"],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        if not process.stdout.readline():
            pytest.skip(f"needs network namespaces: {process.stderr.read().decode().strip()}")
        yield process.pid
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()


class Node(NamedTuple):
    enter: tuple[str, ...]  # the command that runs another one in the host's namespace
    netns: str  # of the pod
    config: Mapping[str, Any]

    def call(self, command: str, interface: str = "net1", name: str = "p") -> Answer:
        return call(command, self.config, *self.enter, CNI_CONTAINERID="c1", CNI_IFNAME=interface, CNI_NETNS=self.netns,
                    CNI_ARGS=f"K8S_POD_NAMESPACE=blue;K8S_POD_NAME={name}")

    def interfaces(self, netns: str = "") -> dict[str, str]:
        """MAC addresses by name, without the loopback."""
        inside = ("nsenter", f"--net={netns}") if netns else ()
        shown = subprocess.run([*self.enter, *inside, "ip", "-j", "link"], check=True, capture_output=True, text=True).stdout
        return {link["ifname"]: link["address"] for link in json.loads(shown) if link["ifname"] != "lo"}


def run(*words: str) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


@contextlib.contextmanager
def one_host(folder: Path, kubelet: Path) -> Iterator[Node]:
    """A host with two interfaces, and a network namespace for a pod."""
    if shutil.which("ip") is None or shutil.which("nsenter") is None:
        pytest.skip("needs ip and nsenter (on Debian: apt install iproute2 util-linux)")
    with namespace() as host:
        users = () if os.geteuid() == 0 else ("--user", "--preserve-credentials")
        enter = ("nsenter", *users, "--net", "--target", str(host))
        for address, name in ADDRESSES.items():
            run(*enter, "ip", "tuntap", "add", name, "mode", "tap")
            shown = folder / "sys" / "bus" / "pci" / "devices" / address / "net" / name
            shown.mkdir(parents=True)
            link = run(*enter, "ip", "-j", "link", "show", name)
            (shown / "address").write_text(json.loads(link)[0]["address"] + "\n")
        with namespace(*enter) as container:
            config = {**CONFIG, "kubeletDir": str(kubelet), "stateDir": str(folder / "state"), "sysfs": str(folder / "sys"),
                      "outfit": str(OUTFIT)}
            yield Node(enter, f"/proc/{container}/ns/net", config)


async def with_a_pod(folder: Path, check: Callable[[Node], None]) -> None:
    """With the sockets of a node whose pod has both devices."""
    pods, _ = node()
    pods.admit(pod("p", {"c": {VF: tuple(ADDRESSES)}}, "blue"))
    with short_folder() as kubelet, one_host(folder, kubelet) as here:
        async with served(pods, kubelet):
            await asyncio.to_thread(check, here)


async def test_a_vf_is_in_the_pod_between_add_and_del(tmp_path: Path) -> None:
    def check(here: Node) -> None:
        before = here.interfaces()
        added = here.call("ADD")
        assert added == Answer(0, {"cniVersion": "1.0.0", "ips": [], "dns": {}, "interfaces": [
            {"name": "net1", "mac": before["vf0"], "sandbox": here.netns}]})
        assert here.interfaces(here.netns) == {"net1": before["vf0"]}
        assert here.interfaces() == {"vf1": before["vf1"]}
        assert here.call("ADD") == added
        assert here.call("CHECK") == Answer(0, None)
        inside = (*here.enter, "nsenter", f"--net={here.netns}", "ip", "link", "set")
        run(*inside, "net1", "down", "name", "other")
        broken = here.call("CHECK")
        assert (broken.code, broken.result["code"]) == (1, 103)
        run(*inside, "other", "name", "net1")
        for _ in range(2):
            assert here.call("DEL") == Answer(0, None)
            assert (here.interfaces(), here.interfaces(here.netns)) == (before, {})

    await with_a_pod(tmp_path, check)


@pytest.mark.thorough
async def test_each_interface_of_a_pod_gets_another_vf_until_none_is_left(tmp_path: Path) -> None:
    def check(here: Node) -> None:
        before = here.interfaces()
        (tmp_path / "state").mkdir()
        (tmp_path / "state" / "c0-net1.json").touch()  # what a power failure left of another container
        for interface in ("net1", "net2"):
            assert here.call("ADD", interface).code == 0
        both = {"net1": before["vf0"], "net2": before["vf1"]}
        assert here.interfaces(here.netns) == both
        lacking = here.call("ADD", "net3")
        assert (lacking.code, lacking.result["code"]) == (1, 101)
        unknown = here.call("ADD", "net4", "unknown")
        assert (unknown.code, unknown.result["code"]) == (1, 100)
        assert here.interfaces(here.netns) == both

    await with_a_pod(tmp_path, check)


NAMED = {"CNI_CONTAINERID": "c1", "CNI_IFNAME": "net1"}
WRONG: dict[str, tuple[str, Any, dict[str, str], int]] = {
    "no command": ("", CONFIG, NAMED, 4),
    "an unknown command": ("MOVE", CONFIG, NAMED, 4),
    "no JSON": ("ADD", "{", NAMED, 7),
    "not an object": ("ADD", "[]", NAMED, 7),
    "a version that it does not know": ("ADD", {**CONFIG, "cniVersion": "9.0.0"}, NAMED, 1),
    "no container": ("DEL", CONFIG, {"CNI_IFNAME": "net1"}, 4),
    "a container's id that is a path": ("DEL", CONFIG, {**NAMED, "CNI_CONTAINERID": "../c1"}, 4),
    "no network namespace": ("ADD", CONFIG, {**NAMED, "CNI_NETNS": "/proc/0/ns/net"}, 4),
    "never added": ("CHECK", CONFIG, NAMED, 103),
}


@pytest.mark.parametrize(("command", "config", "environment", "code"), WRONG.values(), ids=WRONG.keys())
def test_a_wrong_call_is_an_error_of_cni(
    command: str, config: Any, environment: dict[str, str], code: int, tmp_path: Path
) -> None:
    given = {**config, "stateDir": str(tmp_path)} if isinstance(config, dict) else config
    answer = call(command, given, **environment)
    assert (answer.code, answer.result["code"], set(answer.result)) == (1, code, {"cniVersion", "code", "msg"})


def test_what_was_never_added_is_deleted_without_an_error(tmp_path: Path) -> None:
    assert call("DEL", {**CONFIG, "stateDir": str(tmp_path)}, **NAMED) == Answer(0, None)


def test_a_state_file_without_content_is_removed(tmp_path: Path) -> None:
    (tmp_path / "c1-net1.json").touch()
    assert call("CHECK", {**CONFIG, "stateDir": str(tmp_path)}, **NAMED).result["code"] == 103
    assert call("DEL", {**CONFIG, "stateDir": str(tmp_path)}, **NAMED) == Answer(0, None)
    assert not list(tmp_path.glob("*.json"))


def test_it_names_its_versions() -> None:
    assert call("VERSION", {"cniVersion": "1.0.0"}) == Answer(
        0, {"cniVersion": "1.0.0", "supportedVersions": ["0.4.0", "1.0.0"]})
