"""`outfit install` without a cluster: what it prints, what it refuses, and what a server below the requirements is answered."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from outfitter.install import names
from outfitter.install.names import InstallOptions
from outfitter.roles import commands as role_commands
from outfitter.roles import settings
from outfitter.store import pki
from tests import fake_http
from tests.e2e.process import typed

CLUSTER_PAGE = Path(__file__).parents[2] / "docs" / "cluster.md"


@functools.cache
def printed(*words: str) -> Sequence[Mapping[str, Any]]:
    done = typed("install", "--dry-run", *words)
    assert done.code == 0, done.err
    return list(yaml.load_all(done.out, Loader=yaml.CSafeLoader))


def test_dry_run_prints_every_object_in_order() -> None:
    kinds = [obj["kind"] for obj in printed()]
    assert kinds[0] == "Namespace"
    assert kinds.index("CustomResourceDefinition") < kinds.index("ClusterRole") < kinds.index("Deployment")


def test_options_reach_the_objects(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("scheduling: {policy: pack}\n")
    objects = printed(
        "--image",
        "r.example.com/o:1",
        "--replicas",
        "3",
        "--image-pull-policy",
        "Always",
        "-n",
        "elsewhere",
        "--config",
        str(config),
    )
    by_kind = {(obj["kind"], obj["metadata"]["name"]): obj for obj in objects}
    controller = by_kind["Deployment", names.CONTROLLER]
    assert controller["metadata"]["namespace"] == "elsewhere"
    assert controller["spec"]["replicas"] == 3
    assert controller["spec"]["template"]["spec"]["containers"][0]["image"] == "r.example.com/o:1"
    assert by_kind["ConfigMap", names.CONFIG]["data"]["config.yaml"] == config.read_text()
    assert by_kind["ClusterRoleBinding", names.NODE]["subjects"][0]["namespace"] == "elsewhere"
    policy = by_kind["ValidatingAdmissionPolicy", names.NODE]["spec"]["matchConditions"][0]["expression"]
    assert "system:serviceaccount:elsewhere:outfitter-node" in policy


def test_a_changed_configuration_restarts_the_pods(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("scheduling: {policy: pack}\n")
    digests = [
        [
            obj["spec"]["template"]["metadata"]["annotations"]
            for obj in printed(*words)
            if obj["kind"] in ("Deployment", "DaemonSet")
        ]
        for words in ((), ("--config", str(tmp_path / "config.yaml")))
    ]
    assert len(digests[0]) == 3
    assert all(before != after for before, after in zip(*digests, strict=True))


WRONG = {
    "no action": ((), "name one of --dry-run, --apply, --diff, --remove", 2),
    "two actions": (("--apply", "--remove"), "name one of --dry-run, --apply, --diff, --remove", 2),
    "force without remove": (("--apply", "--force"), "--force goes with --remove", 2),
    "no replicas": (("--dry-run", "--replicas", "0"), "0 is not in the range", 2),
    "a name that no namespace has": (("--dry-run", "-n", "Mine"), "Invalid value for --namespace", 2),
    "no image": (("--dry-run", "--image", ""), "Invalid value for --image: '' is no image", 2),
    "two words as an image": (("--apply", "--launcher-image", "a b"), "--launcher-image: 'a b' is no image", 2),
    "a webhook without TLS": (("--dry-run", "--webhook-url", "http://a:1"), "must begin with https://", 2),
    "a webhook at a path": (("--dry-run", "--webhook-url", "https://a:1/x"), "a host and a port, and nothing else", 2),
    "a webhook at an IPv6 address": (("--apply", "--webhook-url", "https://[::1]:8443"), "DNS name or an IPv4 address", 2),
    "a webhook at no port": (("--dry-run", "--webhook-url", "https://a:99999"), "Port out of range", 2),
    "a configuration that no role can read": (("--dry-run", "--config", "{folder}/wrong.yaml"), "nonsense", 1),
    "no configuration": (("--dry-run", "--config", "{folder}/missing.yaml"), "cannot be read", 1),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_calls(name: str, tmp_path: Path) -> None:
    words, message, code = WRONG[name]
    (tmp_path / "wrong.yaml").write_text("nonsense: 1\n")
    done = typed("install", *(word.format(folder=tmp_path) for word in words))
    assert (done.code, message in done.err, done.out) == (code, True, "")


def test_containers_state_what_they_may_do() -> None:
    for obj in printed():
        if obj["kind"] in ("Deployment", "DaemonSet"):
            spec = obj["spec"]["template"]["spec"]
            for container in spec["containers"]:
                security = container["securityContext"]
                assert security["readOnlyRootFilesystem"]
                assert not security["allowPrivilegeEscalation"]
                assert security["capabilities"]["drop"] == ["ALL"]
                assert security.get("privileged", False) is False
                assert security["seccompProfile"] == {"type": "RuntimeDefault"}
            assert not spec.get("hostNetwork")
            assert obj["kind"] == "DaemonSet" or not spec.get("hostPID")
            assert obj["kind"] == "DaemonSet" or not [volume for volume in spec["volumes"] if "hostPath" in volume]


def test_containers_run_roles_with_flags_and_variables_that_exist() -> None:
    commands = {command.name: command for command in role_commands.commands()}
    variables = {setting.variable for setting in settings.TABLE}
    for obj in printed():
        for container in obj["spec"]["template"]["spec"]["containers"] if obj["kind"] in ("Deployment", "DaemonSet") else ():
            role, *flags = container["args"]
            command = commands[role]
            command.make_parser(click.Context(command)).parse_args(list(flags))
            env = container.get("env", ())
            parts = {name for entry in env for name in re.findall(r"\$\((\w+)\)", entry.get("value", ""))}  # of other values
            assert {entry["name"] for entry in env} - parts <= variables


def test_the_folders_of_the_host_are_those_that_the_document_lists() -> None:
    row = next(line for line in CLUSTER_PAGE.read_text().splitlines() if line.startswith("| DaemonSet"))
    spec = next(obj["spec"]["template"]["spec"] for obj in printed() if obj["kind"] == "DaemonSet")
    assert set(re.findall(r"`(/[^`]+)`", row)) == {
        volume["hostPath"]["path"] for volume in spec["volumes"] if "hostPath" in volume}


def test_nothing_depends_on_the_kubeconfig_s_namespace() -> None:
    assert {obj["metadata"].get("namespace") for obj in printed()} == {None, InstallOptions().namespace, "kube-system"}


class Answers(BaseHTTPRequestHandler):
    """A server that has some paths and no others; nothing may be written to it."""

    paths: dict[str, Any]

    def do_GET(self) -> None:
        self._answer(*((200, self.paths[self.path]) if self.path in self.paths else (404, {})))

    def do_POST(self) -> None:
        review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self._answer(201, {**review, "status": {"allowed": False, "userInfo": {"username": "eve"}}})

    def do_PATCH(self) -> None:
        raise AssertionError(self.path)

    def _answer(self, status: int, body: Any) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *words: Any) -> None:
        pass


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[dict[str, Any], Path]]:
    """Paths of a server, to be filled, and its kubeconfig."""
    paths: dict[str, Any] = {}
    handler = type("Handler", (Answers,), {"paths": paths})
    with fake_http.serving(handler) as port:
        kubeconfig = tmp_path / "kubeconfig"
        kubeconfig.write_text(json.dumps(pki.kubeconfig(f"http://127.0.0.1:{port}", token="none")))
        yield paths, kubeconfig


NEW = {"/version": {"major": "1", "minor": "36+"}, "/apis/resource.k8s.io/v1": {}}
REFUSED = {
    "no Kubernetes": ({}, "reports no version of Kubernetes"),
    "too old": (
        {"/version": {"major": "1", "minor": "33"}},
        "runs Kubernetes 1.33, and outfitter needs 1.34 or newer: upgrade",
    ),
    "without devices": ({"/version": {"major": "1", "minor": "34"}}, "does not serve resource.k8s.io/v1"),
    "without rights": (NEW, "eve (of"),
}


@pytest.mark.parametrize("action", ["--apply", "--diff"])
@pytest.mark.parametrize("name", REFUSED)
def test_a_cluster_that_cannot_have_it_is_refused_before_anything_is_written(
    name: str, action: str, served: tuple[dict[str, Any], Path]
) -> None:
    paths, kubeconfig = served
    answers, message = REFUSED[name]
    paths.update(answers)
    done = typed("install", action, kubeconfig=kubeconfig)
    assert (done.code, done.out) == (1 if action == "--apply" else 2, "")
    assert message in done.err


def test_missing_rights_are_named(served: tuple[dict[str, Any], Path]) -> None:
    paths, kubeconfig = served
    paths.update(NEW)
    done = typed("install", "--apply", kubeconfig=kubeconfig)
    assert "may not get namespaces, list namespaces, create namespaces" in done.err
    assert "bind the ClusterRole cluster-admin" in done.err
