"""What a person types wrong is reported without a server, and what needs none works without one."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
from pathlib import Path

import pytest

import outfitter
from outfitter.cli import version
from outfitter.store import rest_client
from tests.e2e.process import EXAMPLE, OUTFIT, PATIENCE, Typed, environment, typed

INSTANCE = """
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata: {name: blue}
spec:
  resourceClaims: [{name: c, resourceClaimName: mine}]
  domain: {devices: {hostDevices: [{name: nic0, claimName: c, requestName: nic}]}}
"""
STATUS = """
status:
  deviceStatus:
    hostDeviceStatuses:
    - name: nic0
      deviceResourceClaimStatus: {name: d, resourceClaimName: mine, attributes: {pciAddress: "0000:3b:01.0"}}
"""


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No kubeconfig anywhere: whoever looks for one fails with "no kubeconfig"."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("KUBECONFIG", "XDG_STATE_HOME", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)


# what is typed -> exit code, and words of the answer; {tmp} is a folder
TYPED: dict[str, tuple[list[str], int, list[str]]] = {
    "nothing at all": ([], 2, ["Usage: outfit", "Commands:"]),
    "an unknown command": (["grt"], 2, ["No such command 'grt'"]),
    "an unknown option": (["get", "vmi", "--colour"], 2, ["No such option", "--colour"]),
    "get without a kind": (["get"], 2, ["Missing argument 'KIND"]),
    "get of an unknown kind": (["get", "gpus"], 1, ["there is no kind 'gpus'", "virtualmachineinstances"]),
    "get of one known and one unknown kind": (["get", "nodes,gpus"], 1, ["there is no kind 'gpus'"]),
    "get of an unknown kind with a name": (["get", "gpu/x"], 1, ["there is no kind 'gpu'"]),
    "get mixes two ways of naming": (["get", "vmi/blue", "pods"], 2, ["'pods' is not KIND/NAME"]),
    "get mixes them the other way": (["get", "vmi", "pod/x"], 2, ["'vmi' is not KIND/NAME"]),
    "get without the name behind the slash": (["get", "vmi/"], 2, ["'vmi/' is not KIND/NAME"]),
    "get of a name everywhere": (["get", "vmi", "blue", "-A"], 2, ["-n NAMESPACE instead of -A"]),
    "get of a name with a selector": (["get", "vmi", "blue", "-l", "a=b"], 2, ["names and selectors cannot be combined"]),
    "get of an empty name": (["get", "vmi", ""], 2, ["NAME is empty"]),
    "describe of an empty name": (["describe", "vmi", ""], 2, ["NAME is empty"]),
    "delete of an empty name": (["delete", "vmi", ""], 2, ["NAME is empty"]),
    "delete of an empty name among others": (["delete", "vmi", "blue", ""], 2, ["NAME is empty"]),
    "get in an unknown format": (["get", "vmi", "-o", "xml"], 2, ["'xml' is not one of 'table', 'wide', 'yaml'"]),
    "describe without a name": (["describe", "vmi"], 2, ["outfit describe vmi NAME"]),
    "describe of an unknown kind": (["describe", "gpu", "x"], 1, ["there is no kind 'gpu'"]),
    "delete of nothing": (["delete"], 2, ["KIND NAME, KIND/NAME or -f FILE"]),
    "delete without a name": (["delete", "resourceclaim"], 2, ["outfit delete resourceclaim NAME"]),
    "delete that does not wait for long": (
        ["delete", "vmi", "a", "--no-wait", "--timeout", "5"],
        2,
        ["cannot be combined with --no-wait"],
    ),
    "delete of both": (["delete", "vmi", "blue", "-f", "x"], 2, ["KIND NAME, KIND/NAME or -f FILE"]),
    "delete of a file that is not there": (["delete", "-f", "{tmp}/none"], 1, ["{tmp}/none cannot be read"]),
    "apply of nothing": (["apply"], 2, ["Missing option '-f'"]),
    "apply of a file that is not there": (["apply", "-f", "{tmp}/none"], 1, ["{tmp}/none cannot be read", "No such file"]),
    "apply of an empty name": (["apply", "-f", ""], 2, ["'-f'", "it is empty"]),
    "delete of a file with an empty name": (["delete", "-f", ""], 2, ["'-f'", "it is empty"]),
    "plan of an empty name": (["plan", "-f", "{tmp}", "-f", ""], 2, ["'-f'", "it is empty"]),
    "devices in a file with an empty name": (["domxml", "-f", "x", "--devices", ""], 2, ["'--devices'", "it is empty"]),
    "data in an empty name": (["up", "--data", ""], 2, ["'--data'", "it is empty"]),
    "hosts of an empty name": (["up", "--simulate", ""], 2, ["'--simulate'", "it is empty"]),
    "hosts without functions": (["up", "--simulate", "2x"], 2, ["'2x' has no hosts or no VFs", "write for example 2x8"]),
    "hosts in capitals": (["up", "--simulate", "2X8"], 2, ["'2X8' has no hosts or no VFs", "write for example 2x8"]),
    "hosts with blanks": (["up", "--simulate", "2 x 8"], 2, ["'2 x 8' has no hosts or no VFs"]),
    "fewer hosts than none": (["up", "--simulate", "-1x2"], 2, ["'-1x2' has no hosts or no VFs"]),
    "no hosts": (["config", "check", "--simulate", "0x0"], 2, ["'0x0' has no hosts or no VFs"]),
    "too many hosts": (["up", "--simulate", "99999999x1"], 2, ["'99999999x1' is too large: at most"]),
    "a scan of an empty name": (["scan", "--sysfs", ""], 2, ["'--sysfs'", "it is empty"]),
    "a configuration of an empty name": (["config", "check", ""], 2, ["[FILE]", "it is empty"]),
    "why without a known name": (["why"], 2, ["Missing argument"]),
    "why of an unknown kind": (["why", "gpu/x"], 1, ["there is no kind 'gpu'"]),
    "why of a kind that does not wait": (["why", "node/x"], 1, ["why explains VMs, VMIs, pods, claims and migrations"]),
    "why without the name behind the slash": (["why", "vmi/"], 2, ["has no name"]),
    "domxml without a known name": (["domxml"], 2, ["NAME or -f FILE"]),
    "domxml of a pod": (["domxml", "pod/x"], 2, ["'pod/x' is not a VM or VMI"]),
    "domxml of an empty name": (["domxml", ""], 2, ["NAME or -f FILE\n"]),
    "domxml of a name and a file": (["domxml", "blue", "-f", "x"], 2, ["NAME or -f FILE, not both"]),
    "no kubeconfig": (["get", "vmi"], 1, ["no kubeconfig: looked for {tmp}/.kube/config"]),
    "a kubeconfig that is not there": (["--kubeconfig", "{tmp}/none", "get", "vmi"], 1, ["{tmp}/none"]),
    "and the same behind the command": (["get", "vmi", "--kubeconfig", "{tmp}/none"], 1, ["{tmp}/none"]),
}


@pytest.mark.parametrize("name", TYPED)
def test_mistake_is_reported(name: str, tmp_path: Path) -> None:
    words, code, says = TYPED[name]
    done = typed(*(word.format(tmp=tmp_path) for word in words))
    assert done.code == code, done
    for part in says:
        assert part.format(tmp=tmp_path) in done.err
    if name != "no kubeconfig":
        assert "no kubeconfig" not in done.err


@pytest.mark.parametrize("action", ["--apply", "--remove"])
def test_ctrl_c_while_a_cluster_is_changed_says_how_to_go_on(tmp_path: Path, action: str) -> None:
    config = tmp_path / "config"
    with socket.create_server(("127.0.0.1", 0)) as server:  # that never answers
        server.settimeout(PATIENCE)
        config.write_text(f"""{{
            clusters: [{{name: c, cluster: {{server: "http://127.0.0.1:{server.getsockname()[1]}"}}}}],
            contexts: [{{name: c, context: {{cluster: c}}}}], current-context: c}}""")
        with subprocess.Popen([OUTFIT, "install", action, "--kubeconfig", config], env=environment(tmp_path), text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True) as command:
            connection, _ = server.accept()
            with connection:
                assert connection.recv(1)
                command.send_signal(signal.SIGINT)
                out, err = command.communicate(timeout=PATIENCE)
    assert (command.returncode, out) == (130, "")
    assert err.strip() == "interrupted: some steps may be done; the same command goes on from there"


FILES: dict[str, tuple[str, list[str]]] = {
    "not YAML": ("a: [1, 2\n", ["{file} is not YAML", 'in "{file}", line 2']),
    "a tab": ("a:\n\tb: 1\n", ["{file} is not YAML", "line 2"]),
    "a list": ("- 1\n", ["{file}: an object starts with apiVersion and kind"]),
    "plain text": ("hello\n", ["{file}: an object starts with apiVersion and kind"]),
    "no kind": ("apiVersion: v1\n", ["an object starts with apiVersion and kind"]),
    "an unknown kind": ("apiVersion: v1\nkind: Gadget\nmetadata: {name: a}\n", ["there is no Gadget in v1", "Pod (v1)"]),
    "an unknown version": ("apiVersion: v9\nkind: Pod\nmetadata: {name: a}\n", ["there is no Pod in v9; there is Pod (v1)\n"]),
    "no name": ("apiVersion: v1\nkind: Pod\nmetadata: {}\n", ["{file}: metadata.name is missing"]),
    "no metadata": ("apiVersion: v1\nkind: Pod\n", ["{file}: metadata.name is missing"]),
    "a number for a name": ("apiVersion: v1\nkind: Pod\nmetadata: {name: 7}\n", ['write name: "7"']),
    "a key twice": (
        "apiVersion: v1\nkind: Pod\nkind: Node\nmetadata: {name: a}\n",
        ["the key 'kind' is a duplicate", "line 3"],
    ),
    "a number that is none": (
        "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {x: .nan}\n",
        [".nan is not a JSON number", 'in "{file}", line 4'],
    ),
    "a value that JSON has not": (
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {x: !!binary aGk=}\n",
        ["is not YAML", "bytes"],
    ),
    "the second of two documents": (
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n---\nx: 1\n",
        ["{file}, document 2: an object starts with"],
    ),
    "an item of a list": ("apiVersion: v1\nkind: List\nitems: [{kind: Pod}]\n", ["{file}, items[0]: an object starts with"]),
    "an empty file": ("", ["{file} contains no object"]),
    "nothing but comments": ("# to do\n---\n# and more\n", ["{file} contains no object"]),
}


@pytest.mark.parametrize("verb", ["apply", "delete"])
@pytest.mark.parametrize("name", FILES)
def test_mistake_in_a_file_is_reported_before_anything_is_sent(name: str, verb: str, tmp_path: Path) -> None:
    content, says = FILES[name]
    file = tmp_path / "it.yaml"
    file.write_text(content)
    good = tmp_path / "good.yaml"
    good.write_text("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: good}\n")
    done = typed(verb, "-f", str(good), "-f", str(file))
    assert (done.code, done.out) == (1, "")
    for part in says:
        assert part.format(file=file) in done.err


def test_plan_reports_misspelt_fields_before_it_connects(tmp_path: Path) -> None:
    file = tmp_path / "it.yaml"
    file.write_text(INSTANCE.replace("requestName", "requestNme"))
    done = typed("plan", "-f", str(file))
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith(f"error: {file}, VirtualMachineInstance blue: ")
    assert 'unknown field "spec.domain.devices.hostDevices[0].requestNme"' in done.err


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    file = tmp_path / "it.yaml"
    file.write_bytes(b"\xff\xfe\x00")
    done = typed("apply", "-f", str(file))
    assert done.code == 1
    assert f"{file} cannot be read" in done.err


def test_a_folder_without_files(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    done = typed("apply", "-f", str(tmp_path))
    assert done.code == 1
    assert f"{tmp_path} contains no object: no file in it ends with .yaml, .yml, .json" in done.err


def test_what_was_made_from_generate_name_is_not_deleted_by_file(tmp_path: Path) -> None:
    file = tmp_path / "it.yaml"
    file.write_text("apiVersion: v1\nkind: ConfigMap\nmetadata: {generateName: a-}\n")
    done = typed("delete", "-f", str(file))
    assert done.code == 1
    assert "metadata.name is missing; delete an object made from generateName by its name" in done.err


def test_the_client_knows_its_own_version() -> None:
    assert typed("version", "--client") == Typed(0, f"outfit {outfitter.__version__}\n", "")
    done = typed("version", "--client", "-o", "json")
    assert (done.code, json.loads(done.out), done.err) == (0, {"clientVersion": {"gitVersion": outfitter.__version__}}, "")


KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: it
contexts: [{name: it, context: {cluster: it}}]
clusters: [{name: it, cluster: {server: "http://127.0.0.1:1"}}]
"""


@pytest.mark.parametrize(("kubeconfig", "reason"), {
    "no kubeconfig": (None, "no kubeconfig: looked for"),
    "a server that is not running": (KUBECONFIG, "http://127.0.0.1:1 cannot be reached"),
}.values(), ids=["no kubeconfig", "a server that is not running"])
def test_version_without_a_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kubeconfig: str | None, reason: str
) -> None:
    monkeypatch.setattr(rest_client, "BACKOFF", (0.0,))
    file = None
    if kubeconfig is not None:
        file = tmp_path / "kubeconfig"
        file.write_text(kubeconfig)
    done = typed("version", kubeconfig=file)
    assert (done.code, done.out) == (0, f"outfit {outfitter.__version__}\n")
    assert done.err.startswith(f"warning: the server's version is unknown: {reason}")
    assert len(done.err.splitlines()) == 1
    done = typed("version", "-o", "json", kubeconfig=file)
    assert (done.code, json.loads(done.out)) == (0, {"clientVersion": {"gitVersion": outfitter.__version__}})


def test_version_of_a_server_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(version, "PATIENCE", 0.2)
    file = tmp_path / "kubeconfig"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        server = f"http://127.0.0.1:{silent.getsockname()[1]}"
        file.write_text(KUBECONFIG.replace("http://127.0.0.1:1", server))
        done = typed("version", kubeconfig=file)
    assert (done.code, done.out) == (0, f"outfit {outfitter.__version__}\n")
    assert done.err == f"warning: the server's version is unknown: {server} did not answer within 0.2 s\n"


@pytest.mark.parametrize(("text", "reason"), {
    "not there": (None, "cannot be read"), "with a mistake": ("clusters: 1", "clusters must be a list"),
}.values(), ids=["not there", "with a mistake"])
def test_version_with_a_broken_kubeconfig_is_an_error(tmp_path: Path, text: str | None, reason: str) -> None:
    file = tmp_path / "kubeconfig"
    if text is not None:
        file.write_text(text)
    done = typed("version", kubeconfig=file)
    assert (done.code, done.out) == (1, "")
    assert reason in done.err


def test_a_domain_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "blue.yaml"
    file.write_text(INSTANCE + STATUS)
    done = typed("domxml", "-f", str(file))
    assert (done.code, done.err) == (0, "")
    assert "<name>default_blue</name>" in done.out
    assert 'bus="0x3b" slot="0x01" function="0x0"' in done.out
    assert "<name>red_blue</name>" in typed("-n", "red", "domxml", "-f", str(file)).out
    assert "<name>red_blue</name>" in typed("domxml", "-n", "red", "-f", str(file)).out


DOMAINLESS = {
    "no status": (INSTANCE, "vmi/blue has no domain yet: status.deviceStatus does not name nic0; pass its devices with --"),
    "no VM in it": ((EXAMPLE / "1-class.yaml").read_text(), "has no VirtualMachineInstance"),
}


@pytest.mark.parametrize("name", DOMAINLESS)
def test_no_domain_from_a_file(name: str, tmp_path: Path) -> None:
    content, says = DOMAINLESS[name]
    (tmp_path / "it.yaml").write_text(content)
    done = typed("domxml", "-f", str(tmp_path / "it.yaml"))
    assert (done.code, done.out) == (1, "")
    assert says in done.err
