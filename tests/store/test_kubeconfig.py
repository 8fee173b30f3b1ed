"""Kubeconfigs: every way to log in, merging, relative paths, exec plugins, and mistakes that are named."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import ssl
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from outfitter import errors
from outfitter.store import kubeconfig, pki
from outfitter.store.clock import ManualClock
from outfitter.store.rest_config import Credential, RestConfig

BEGIN = datetime.now(UTC) - timedelta(hours=1)
END = BEGIN + timedelta(days=1)
CA = pki.authority("test", valid_from=BEGIN, valid_until=END)
ANN = pki.client(CA, "ann", valid_from=BEGIN, valid_until=END)
BOB = pki.client(CA, "bob", valid_from=BEGIN, valid_until=END)
V1 = "client.authentication.k8s.io/v1"
V1BETA1 = "client.authentication.k8s.io/v1beta1"
ENV = {"PATH": os.environ.get("PATH", "")}


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def config(
    user: dict[str, Any] | None = None, cluster: dict[str, Any] | None = None, context: dict[str, Any] | None = None
) -> dict[str, Any]:
    return {
        "clusters": [{"name": "c", "cluster": {"server": "https://api.test:6443", **(cluster or {})}}],
        "users": [{"name": "u", "user": user or {}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", **(context or {})}}],
        "current-context": "x",
    }


def write(path: Path, content: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(content))
    return path


def load(
    tmp_path: Path, content: object, *, env: dict[str, str] | None = None, clock: ManualClock | None = None, context: str = ""
) -> RestConfig:
    path = write(tmp_path / "config", content)
    return kubeconfig.load(path, clock=clock or ManualClock(), env={**ENV, **(env or {})}, context=context)


async def headers(access: RestConfig) -> list[tuple[str, str]]:
    return access.headers_for(await access.credential())


# Users


@dataclass(frozen=True)
class Login:
    user: dict[str, Any]
    headers: list[tuple[str, str]] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)
    cert: bytes = b""
    key: bytes = b""


LOGINS = {
    "anonymous": Login({}),
    "a token": Login({"token": "t0"}, [("Authorization", "Bearer t0")]),
    "a token file beside the kubeconfig": Login(
        {"tokenFile": "sub/token"}, [("Authorization", "Bearer t1")], {"sub/token": b"t1\n"}),
    "a token file wins over a token": Login(
        {"tokenFile": "token", "token": "old"}, [("Authorization", "Bearer t1")], {"token": b"t1"}),
    "name and password": Login({"username": "ann", "password": "s:e"}, [("Authorization", f"Basic {b64(b'ann:s:e')}")]),
    "a certificate in the file": Login(
        {"client-certificate-data": b64(ANN.cert), "client-key-data": b64(ANN.key)}, cert=ANN.cert, key=ANN.key),
    "a certificate in files": Login(
        {"client-certificate": "ann.crt", "client-key": "ann.key"}, files={"ann.crt": ANN.cert, "ann.key": ANN.key},
        cert=ANN.cert, key=ANN.key),
    "certificate data wins over a file": Login(
        {"client-certificate": "none.crt", "client-certificate-data": b64(ANN.cert), "client-key": "ann.key"},
        files={"ann.key": ANN.key}, cert=ANN.cert, key=ANN.key),
    "a certificate and a token": Login(
        {"client-certificate-data": b64(ANN.cert), "client-key-data": b64(ANN.key), "token": "t"},
        [("Authorization", "Bearer t")], cert=ANN.cert, key=ANN.key),
    "a token before a plugin": Login(
        {"token": "t", "exec": {"apiVersion": V1, "command": "no-such-plugin", "interactiveMode": "Never"}},
        [("Authorization", "Bearer t")]),
    "impersonation": Login(
        {"token": "t", "as": "bob", "as-groups": ["dev", "ops"], "as-uid": "7",
         "as-user-extra": {"example.org/Team": ["a", "b"]}},
        [("Impersonate-User", "bob"), ("Impersonate-Group", "dev"), ("Impersonate-Group", "ops"),
         ("Impersonate-Uid", "7"), ("Impersonate-Extra-example.org%2FTeam", "a"),
         ("Impersonate-Extra-example.org%2FTeam", "b"), ("Authorization", "Bearer t")]),
}


@pytest.mark.parametrize("name", LOGINS)
async def test_logins(tmp_path: Path, name: str) -> None:
    case = LOGINS[name]
    for file, content in case.files.items():
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_bytes(content)
    access = load(tmp_path, config(case.user))
    assert await headers(access) == case.headers
    credential = await access.credential()
    assert (credential.cert, credential.key) == (case.cert, case.key)
    assert not await access.renew(credential)


def rewrite(path: Path, content: bytes) -> None:
    """In place, a second later: the clock of a file system may tick so seldom that two writes in a row have the same time."""
    before = path.stat()
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1_000_000_000))


async def test_a_token_file_is_read_again_when_it_changes(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("one")
    access = load(tmp_path, config({"tokenFile": "token"}))
    first = await access.credential()
    (tmp_path / "next").write_text("two")
    (tmp_path / "next").replace(token)
    assert await access.renew(first)
    assert dict(await headers(access))["Authorization"] == "Bearer two"
    token.unlink()  # being replaced
    assert dict(await headers(access))["Authorization"] == "Bearer two"


async def test_certificate_files_are_read_again_when_both_have_changed(tmp_path: Path) -> None:
    ANN.save(tmp_path, "me")
    access = load(tmp_path, config({"client-certificate": "me.crt", "client-key": "me.key"}))
    first = access.tls(await access.credential())
    assert access.tls(await access.credential()) is first
    rewrite(tmp_path / "me.crt", BOB.cert)
    assert access.tls(await access.credential()) is first, "half of a rotation is none"
    rewrite(tmp_path / "me.key", BOB.key)
    assert access.tls(await access.credential()) is not first


# Clusters


def test_a_cluster_without_an_authority_trusts_the_system(tmp_path: Path) -> None:
    access = load(tmp_path, config())
    tls = access.tls(Credential())
    assert tls is not None
    assert tls.verify_mode == ssl.CERT_REQUIRED
    assert (access.server, access.namespace, access.proxy, access.server_name) == ("https://api.test:6443", "default", "", "")
    assert access.origin == f"{tmp_path / 'config'}: contexts[x]"


@pytest.mark.parametrize("cluster", [
    {"certificate-authority-data": b64(CA.cert)}, {"certificate-authority": "ca.crt"},
], ids=["data", "file"])
def test_an_authority_is_the_only_one_trusted(tmp_path: Path, cluster: dict[str, Any]) -> None:
    CA.save(tmp_path, "ca")
    tls = load(tmp_path, config(cluster=cluster)).tls(Credential())
    assert tls is not None
    assert [cert["subject"] for cert in tls.get_ca_certs()] == [((("commonName", "test"),),)]


def test_insecure_checks_nothing(tmp_path: Path) -> None:
    tls = load(tmp_path, config(cluster={"insecure-skip-tls-verify": True})).tls(Credential())
    assert tls is not None
    assert (tls.verify_mode, tls.check_hostname) == (ssl.CERT_NONE, False)


SERVERS: dict[str, tuple[dict[str, Any], str]] = {
    "a slash at the end goes": ({"server": "https://h/"}, "https://h"),
    "a path stays": ({"server": "https://h/k8s/clusters/a"}, "https://h/k8s/clusters/a"),
    "no scheme, no TLS": ({"server": "localhost:8080"}, "http://localhost:8080"),
    "no scheme, but an authority": ({"server": "h:1", "insecure-skip-tls-verify": True}, "https://h:1"),
}


@pytest.mark.parametrize("name", SERVERS)
def test_servers(tmp_path: Path, name: str) -> None:
    cluster, server = SERVERS[name]
    access = load(tmp_path, config(cluster=cluster))
    assert access.server == server
    assert (access.tls(Credential()) is None) == server.startswith("http:")


PROXIES: dict[str, tuple[str, str, dict[str, str], str]] = {
    "named by the cluster": ("https://h", "http://p:3128", {"HTTPS_PROXY": "http://other"}, "http://p:3128"),
    "named by the environment": ("https://h", "", {"HTTPS_PROXY": "http://e:1"}, "http://e:1"),
    "in lower case and without a scheme": ("https://h", "", {"https_proxy": "e:1"}, "http://e:1"),
    "of the other scheme": ("https://h", "", {"HTTP_PROXY": "http://e:1"}, ""),
    "an exception by name": ("https://api.corp", "", {"HTTPS_PROXY": "http://e:1", "NO_PROXY": "x, api.corp"}, ""),
    "an exception by domain": ("https://api.corp", "", {"HTTPS_PROXY": "http://e:1", "NO_PROXY": ".corp"}, ""),
    "not by the end of a word": (
        "https://apicorp", "", {"HTTPS_PROXY": "http://e:1", "NO_PROXY": "corp"}, "http://e:1"),
    "an exception by network": ("https://10.1.2.3", "", {"HTTPS_PROXY": "http://e:1", "NO_PROXY": "10.0.0.0/8"}, ""),
    "an exception by port": ("https://h:6443", "", {"HTTPS_PROXY": "http://e:1", "NO_PROXY": "h:6443"}, ""),
    "loopback is never proxied": ("https://127.0.0.1:6443", "", {"HTTPS_PROXY": "http://e:1"}, ""),
    "but when the cluster reports it": ("https://127.0.0.1:6443", "http://p:1", {}, "http://p:1"),
}


@pytest.mark.parametrize("name", PROXIES)
def test_proxies(tmp_path: Path, name: str) -> None:
    server, named, env, proxy = PROXIES[name]
    cluster = {"server": server, **({"proxy-url": named} if named else {})}
    assert load(tmp_path, config(cluster=cluster), env=env).proxy == proxy


def test_server_name_and_namespace(tmp_path: Path) -> None:
    access = load(tmp_path, config(cluster={"tls-server-name": "inner"}, context={"namespace": "blue"}))
    assert (access.server_name, access.namespace) == ("inner", "blue")


# Which file


def test_the_first_file_wins_entry_by_entry(tmp_path: Path) -> None:
    first = write(tmp_path / "a" / "config", {
        "users": [{"name": "u", "user": {"token": "first"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", "namespace": "first"}}],
    })
    second = write(tmp_path / "b" / "config", {
        **config({"username": "second", "password": "second"}, {"certificate-authority": "ca.crt"}),
        "current-context": "x",
    })
    third = write(tmp_path / "c" / "config", {**config(), "current-context": "nowhere"})
    CA.save(tmp_path / "b", "ca")
    listed = os.pathsep.join(["", str(first), str(tmp_path / "missing"), str(second), str(third)])
    access = kubeconfig.load(clock=ManualClock(), env={"KUBECONFIG": listed})
    assert access.namespace == "first"
    assert dict(asyncio.run(headers(access)))["Authorization"] == "Bearer first"
    tls = access.tls(Credential())
    assert tls is not None
    assert len(tls.get_ca_certs()) == 1, "the authority is relative to the file that names it"


def service_account(folder: Path) -> Path:
    folder.mkdir()
    (folder / "token").write_text("pod-1\n")
    (folder / "ca.crt").write_bytes(CA.cert)
    (folder / "namespace").write_text("pods-own\n")
    return folder


def test_order_of_places(tmp_path: Path) -> None:
    account = service_account(tmp_path / "account")
    explicit = write(tmp_path / "explicit", config(cluster={"server": "https://explicit"}))
    listed = write(tmp_path / "listed", config(cluster={"server": "https://listed"}))
    in_home = write(tmp_path / "home" / ".kube" / "config", config(cluster={"server": "https://home"}))
    env = {"KUBECONFIG": str(listed), "HOME": str(tmp_path / "home"), "KUBERNETES_SERVICE_HOST": "10.0.0.1",
           "KUBERNETES_SERVICE_PORT": "443"}

    def server(path: Path | None = None) -> str:
        return kubeconfig.load(path, clock=ManualClock(), env=env, service_account=account).server

    assert server(explicit) == "https://explicit"
    assert server() == "https://listed"
    del env["KUBECONFIG"]
    assert server() == "https://home"
    in_home.unlink()
    assert server() == "https://10.0.0.1:443"
    env["KUBERNETES_SERVICE_HOST"] = "fd00::1"
    assert server() == "https://[fd00::1]:443"
    del env["KUBERNETES_SERVICE_HOST"]
    with pytest.raises(errors.StartupRefused, match=r"no kubeconfig: looked for .*home/\.kube/config and for a pod"):
        server()


async def test_a_pods_token_is_read_again_when_it_changes(tmp_path: Path) -> None:
    account = service_account(tmp_path / "account")
    env = {"HOME": str(tmp_path), "KUBERNETES_SERVICE_HOST": "h", "KUBERNETES_SERVICE_PORT": "1"}
    access = kubeconfig.load(clock=ManualClock(), env=env, service_account=account)
    assert access.namespace == "pods-own"
    assert dict(await headers(access))["Authorization"] == "Bearer pod-1"
    (account / "token").write_text("pod-2 is longer")
    assert dict(await headers(access))["Authorization"] == "Bearer pod-2 is longer"
    env["POD_NAMESPACE"] = "from-env"
    assert kubeconfig.load(clock=ManualClock(), env=env, service_account=account).namespace == "from-env"


def test_a_context_by_name(tmp_path: Path) -> None:
    content = config()
    content["contexts"].append({"name": "y", "context": {"cluster": "c", "namespace": "other"}})
    assert load(tmp_path, content, context="y").namespace == "other"


# Exec plugins

PLUGIN = f"""#!{sys.executable}
import json, os, pathlib, sys
here = pathlib.Path(__file__).parent
runs = int((here / "runs").read_text()) + 1 if (here / "runs").exists() else 1
(here / "runs").write_text(str(runs))
(here / "asked").write_text(json.dumps({{
    "argv": sys.argv[1:], "own": os.environ.get("OWN"), "info": json.loads(os.environ["KUBERNETES_EXEC_INFO"])}}))
answer = json.loads((here / "answer").read_text())
if isinstance(answer, dict) and "token" in (answer.get("status") or {{}}):
    answer["status"]["token"] += str(runs)
if answer == "fail":
    sys.exit("no ticket: run kinit first")
print("garbage" if answer == "garbage" else json.dumps(answer))
"""


def plugin(folder: Path, status: Any, *, api_version: str = V1, answer: Any = None, **more: Any) -> dict[str, Any]:
    """A user whose plugin stands beside the kubeconfig; what it prints."""
    folder.mkdir(exist_ok=True)
    script = folder / "plugin"
    script.write_text(PLUGIN)
    script.chmod(0o755)
    printed = {"apiVersion": api_version, "kind": "ExecCredential", "status": status} if answer is None else answer
    (folder / "answer").write_text(json.dumps(printed))
    return {"exec": {"apiVersion": api_version, "command": f"{folder.name}/plugin", "interactiveMode": "Never", **more}}


def runs(folder: Path) -> int:
    return int((folder / "runs").read_text())


@pytest.mark.parametrize("version", [V1, V1BETA1])
async def test_credential_plugin_is_called_once_with_its_input(tmp_path: Path, version: str) -> None:
    user = plugin(tmp_path / "bin", {"token": "t"}, api_version=version, args=["get", "it"],
                  env=[{"name": "OWN", "value": "mine"}], provideClusterInfo=True)
    cluster = {
        "certificate-authority-data": b64(CA.cert), "tls-server-name": "inner", "proxy-url": "http://p:1",
        "extensions": [{"name": "other", "extension": 1},
                       {"name": "client.authentication.k8s.io/exec", "extension": {"audience": "a"}}],
    }
    access = load(tmp_path, config(user, cluster), env={"OWN": "ours"})
    answers = await asyncio.gather(*(headers(access) for _ in range(5)))
    assert answers == [[("Authorization", "Bearer t1")]] * 5
    asked = json.loads((tmp_path / "bin" / "asked").read_text())
    assert (asked["argv"], asked["own"]) == (["get", "it"], "mine")
    assert asked["info"] == {
        "apiVersion": version, "kind": "ExecCredential",
        "spec": {"interactive": False, "cluster": {
            "server": "https://api.test:6443", "certificate-authority-data": b64(CA.cert), "tls-server-name": "inner",
            "proxy-url": "http://p:1", "config": {"audience": "a"}}}}


async def test_a_plugin_is_asked_again_when_its_answer_ends(tmp_path: Path) -> None:
    clock = ManualClock(datetime(2026, 1, 1, tzinfo=UTC))
    user = plugin(tmp_path / "bin", {"token": "t", "expirationTimestamp": "2026-01-01T01:00:00Z"})
    access = load(tmp_path, config(user), clock=clock)
    assert dict(await headers(access))["Authorization"] == "Bearer t1"
    clock.advance(3599)
    assert dict(await headers(access))["Authorization"] == "Bearer t1"
    clock.advance(1)
    assert dict(await headers(access))["Authorization"] == "Bearer t2"
    asked = json.loads((tmp_path / "bin" / "asked").read_text())
    assert asked["info"]["spec"] == {"interactive": False}, "cluster info only with provideClusterInfo"


async def test_a_refused_answer_is_asked_for_again_once_for_all(tmp_path: Path) -> None:
    access = load(tmp_path, config(plugin(tmp_path / "bin", {"token": "t"})))
    seen = await access.credential()
    assert all([await access.renew(seen), await access.renew(seen)])
    await access.credential()
    assert await access.renew(seen), "another one has been got since: try that"
    await access.credential()
    assert runs(tmp_path / "bin") == 2


async def test_a_plugin_may_give_a_certificate(tmp_path: Path) -> None:
    status = {"clientCertificateData": ANN.cert.decode(), "clientKeyData": ANN.key.decode()}
    access = load(tmp_path, config(plugin(tmp_path / "bin", status)))
    credential = await access.credential()
    assert (credential.cert, credential.key) == (ANN.cert, ANN.key)
    assert "Authorization" not in dict(await headers(access))
    assert access.tls(credential) is access.tls(await access.credential())


async def test_a_plugin_is_found_in_the_path(tmp_path: Path) -> None:
    user = plugin(tmp_path / "bin", {"token": "t"}, command="plugin")
    access = load(tmp_path, config(user), env={"PATH": str(tmp_path / "bin")})
    assert dict(await headers(access))["Authorization"] == "Bearer t1"


PLUGIN_MISTAKES: dict[str, tuple[Callable[[Path], dict[str, Any]], str]] = {
    "missing, with a hint": (
        lambda folder: plugin(folder, {}, command="no-such-plugin", installHint="Get it from example.org.\n"),
        r"users\[u\]\.exec: the command no-such-plugin does not exist or is not executable\nGet it from example\.org\.$"),
    "fails": (lambda folder: plugin(folder, {}, answer="fail"), r"ended with status 1: no ticket: run kinit first"),
    "prints garbage": (lambda folder: plugin(folder, {}, answer="garbage"), "printed no JSON"),
    "prints a list": (lambda folder: plugin(folder, {}, answer=[]), "kind ExecCredential"),
    "prints another version": (
        lambda folder: plugin(folder, {}, answer={"kind": "ExecCredential", "apiVersion": V1BETA1}), f"{V1}, not {V1BETA1}"),
    "prints no status": (lambda folder: plugin(folder, None), "with a status"),
    "prints nothing useful": (lambda folder: plugin(folder, {}), "status.token, or both"),
    "prints a certificate without its key": (
        lambda folder: plugin(folder, {"clientCertificateData": "x"}), "status.token, or both"),
    "prints a number": (lambda folder: plugin(folder, {"clientKeyData": 5}), "strings in status.token"),
    "prints a bad time": (
        lambda folder: plugin(folder, {"token": "t", "expirationTimestamp": "soon"}), "expirationTimestamp like"),
    "prints a time of no zone": (
        lambda folder: plugin(folder, {"token": "t", "expirationTimestamp": "2026-01-01T00:00:00"}), "like"),
    "wants a terminal": (
        lambda folder: plugin(folder, {"token": "t"}, interactiveMode="Always"), "stdin is not a terminal"),
}


@pytest.mark.parametrize("name", PLUGIN_MISTAKES)
async def test_plugin_mistakes(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", None)
    user, says = PLUGIN_MISTAKES[name]
    access = load(tmp_path, config(user(tmp_path / "bin")))
    with pytest.raises(errors.Unauthorized, match=says):
        await headers(access)


# Mistakes in the file

MISTAKES: dict[str, tuple[Any, str]] = {
    "not a mapping": (["x"], "must be a mapping with clusters"),
    "a list that is none": ({**config(), "users": {"u": {}}}, "config: users must be a list"),
    "an entry without a name": ({**config(), "clusters": [{}]}, r"clusters\[0\]\.name must be a string"),
    "an entry that is none": ({**config(), "users": [{"name": "u", "user": "ann"}]}, r"users\[u\]\.user must be a mapping"),
    "no current context": ({**config(), "current-context": ""}, "current-context is not set.*there are: x"),
    "a context that is not there": ({**config(), "current-context": "z"}, "no context 'z'; there are: x"),
    "a cluster that is not there": (
        config(context={"cluster": "d"}), r"contexts\[x\]\.cluster: there is no cluster 'd'; there are: c"),
    "a user that is not there": (config(context={"user": "v"}), r"contexts\[x\]\.user: there is no user 'v'"),
    "no server": (config(cluster={"server": None}), r"clusters\[c\]\.server: is missing"),
    "a server that is no URL": (config(cluster={"server": "ftp://x"}), r"clusters\[c\]\.server: must be a URL"),
    "a server with a bad port": (config(cluster={"server": "https://x:http"}), r"clusters\[c\]\.server: must be a URL"),
    "a socks proxy": (config(cluster={"proxy-url": "socks5://p"}), r"proxy-url: must begin with http"),
    "a flag that is text": (
        config(cluster={"insecure-skip-tls-verify": "yes"}), "insecure-skip-tls-verify: must be true or false"),
    "insecure with an authority": (
        config(cluster={"insecure-skip-tls-verify": True, "certificate-authority-data": b64(CA.cert)}), "remove one of them"),
    "an authority that is not there": (
        config(cluster={"certificate-authority": "no.crt"}),
        r"clusters\[c\]\.certificate-authority: cannot read .*no\.crt: No such file"),
    "an authority that is not base64": (
        config(cluster={"certificate-authority-data": "%"}), r"certificate-authority-data: must be base64"),
    "an authority that is no certificate": (
        config(cluster={"certificate-authority-data": b64(b"hello")}), r"clusters\[c\]: .* no PEM certificates"),
    "a token that is a number": (config({"token": 5}), r"users\[u\]\.token: must be a string, not 5; put it in quotes"),
    "a token and a password": (config({"token": "t", "username": "u"}), r"users\[u\]\.token: and username/password"),
    "a token file that is not there": (config({"tokenFile": "no"}), r"users\[u\]\.tokenFile: cannot read"),
    "a certificate without its key": (
        config({"client-certificate-data": b64(ANN.cert)}), r"users\[u\]\.client-key: is missing"),
    "a key without its certificate": (
        config({"client-key-data": b64(ANN.key)}), r"users\[u\]\.client-certificate: is missing"),
    "the key of another": (
        config({"client-certificate-data": b64(ANN.cert), "client-key-data": b64(BOB.key)}), "belong together"),
    "a provider that is gone": (config({"auth-provider": {"name": "gcp"}}), "auth-provider: was removed from Kubernetes"),
    "groups without a name": (config({"as-groups": ["a"]}), r"users\[u\]\.as: is missing"),
    "groups that are no list": (config({"as": "a", "as-groups": "b"}), "as-groups: must be a list of strings"),
    "a plugin of an unknown version": (
        config({"exec": {"apiVersion": "client.authentication.k8s.io/v1alpha1", "command": "x"}}),
        rf"users\[u\]\.exec\.apiVersion: must be {V1} or {V1BETA1}, not"),
    "a plugin without a command": (config({"exec": {"apiVersion": V1}}), r"exec\.command: is missing"),
    "a plugin without its manners": (
        config({"exec": {"apiVersion": V1, "command": "x"}}), r"exec\.interactiveMode: must be Never, IfAvailable"),
    "a plugin's environment without a name": (
        config({"exec": {"apiVersion": V1BETA1, "command": "x", "env": [{"value": "v"}]}}), r"exec\.env\[0\]\.name"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(tmp_path: Path, name: str) -> None:
    content, says = MISTAKES[name]
    with pytest.raises(errors.StartupRefused, match=says) as caught:
        load(tmp_path, content)
    assert str(tmp_path / "config") in caught.value.message


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(errors.StartupRefused, match="none cannot be read: No such file"):
        kubeconfig.load(tmp_path / "none", clock=ManualClock(), env={})
    (tmp_path / "bad").write_text("a: [")
    with pytest.raises(errors.StartupRefused, match="bad is not YAML"):
        kubeconfig.load(tmp_path / "bad", clock=ManualClock(), env={})
    (tmp_path / "empty").write_text("")
    with pytest.raises(errors.StartupRefused, match="current-context is not set; name a context, there are: none"):
        kubeconfig.load(tmp_path / "empty", clock=ManualClock(), env={})


async def test_what_pki_writes_is_read(tmp_path: Path) -> None:
    with_cert = pki.kubeconfig("https://h:1", ca=CA.cert, client=ANN, namespace="n", cluster="k", user="ann")
    access = load(tmp_path, with_cert)
    assert (access.server, access.namespace) == ("https://h:1", "n")
    assert (await access.credential()).cert == ANN.cert
    access = load(tmp_path, pki.kubeconfig("http://h:1", token="t"))
    assert dict(await headers(access))["Authorization"] == "Bearer t"


async def test_secrets_are_not_printed(tmp_path: Path) -> None:
    access = load(tmp_path, pki.kubeconfig("http://h:1", token="t0p"))
    assert "t0p" not in repr(access) + repr(await access.credential())
