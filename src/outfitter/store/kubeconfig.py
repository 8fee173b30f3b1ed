"""Loads a `RestConfig` by kubectl's rules: from kubeconfig files, or from the service account of the pod. Entry point: `load`.
Called by the CLI and by the app in cluster mode. Errors name the file, the entry and the field."""

from __future__ import annotations

import base64
import binascii
import ipaddress
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import yaml

from outfitter import errors
from outfitter.store.clock import Clock
from outfitter.store.rest_config import (
    EXEC_GROUP,
    EXEC_VERSIONS,
    ExecLogin,
    FileLogin,
    Login,
    Read,
    RestConfig,
    StaticLogin,
    Trust,
)

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")  # where Kubernetes mounts it into a pod
PROXY_SCHEMES = ("http", "https")


@dataclass(frozen=True, slots=True)
class KubeconfigEntry:
    """One cluster, user or context (or a part of one), with the place where it was read, for error messages."""

    origin: str  # "/home/ann/.kube/config: users[admin]"
    folder: Path  # base of relative paths in the entry
    values: Mapping[str, Any]

    def refused(self, key: str, why: str) -> errors.StartupRefused:
        return errors.StartupRefused(f"{self.origin}.{key}: {why}")

    def text(self, key: str) -> str:
        value = self.values.get(key)
        if value is None:
            return ""
        if not isinstance(value, str):
            raise self.refused(key, f"must be a string, not {value!r}; put it in quotes")
        return value

    def flag(self, key: str) -> bool:
        value = self.values.get(key)
        if not isinstance(value, bool | None):
            raise self.refused(key, f"must be true or false, not {value!r}")
        return bool(value)

    def texts(self, key: str) -> list[str]:
        value = self.values.get(key) or []
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.refused(key, "must be a list of strings")
        return value

    def part(self, key: str) -> KubeconfigEntry | None:
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.refused(key, "must be a mapping")
        return KubeconfigEntry(f"{self.origin}.{key}", self.folder, value)

    def file(self, key: str) -> Read | None:
        """Reads the file that the field names, at each call; None when the field is not set."""
        name = self.text(key)
        return FileLogin(self.folder / name, f"{self.origin}.{key}") if name else None

    def content(self, key: str) -> Read | None:
        """Reads KEY-data (base64), else the file that KEY names; None when neither is set."""
        text = self.text(f"{key}-data")
        if not text:
            return self.file(key)
        try:
            data = base64.b64decode("".join(text.split()), validate=True)
        except (binascii.Error, ValueError) as error:
            raise self.refused(f"{key}-data", f"must be base64: {error}") from error
        return lambda: data


@dataclass(frozen=True, slots=True)
class Kubeconfig:
    """One or more kubeconfig files merged; the first file that has an entry wins."""

    origin: str
    current: str
    clusters: Mapping[str, KubeconfigEntry]
    users: Mapping[str, KubeconfigEntry]
    contexts: Mapping[str, KubeconfigEntry]

    def find(self, section: str, name: str, origin: str) -> KubeconfigEntry:
        entries: Mapping[str, KubeconfigEntry] = getattr(self, section)
        if name not in entries:
            known = ", ".join(sorted(entries)) or "none"
            raise errors.StartupRefused(f"{origin}: there is no {section.removesuffix('s')} {name!r}; there are: {known}")
        return entries[name]


def load(
    path: Path | str | None = None,
    *,
    clock: Clock,
    context: str = "",
    env: Mapping[str, str] = os.environ,
    service_account: Path = SERVICE_ACCOUNT,
) -> RestConfig:
    """The configuration that kubectl would use: the given file, else the files of $KUBECONFIG, else ~/.kube/config, else the
    service account of this pod. NoKubeconfig when there is none, StartupRefused when it is invalid."""
    if path:
        return _rest_config(_merged([Path(path).expanduser()]), context, clock, env)
    listed = [Path(name) for name in env.get("KUBECONFIG", "").split(os.pathsep) if name]
    candidates = listed or [Path(env.get("HOME") or Path.home()) / ".kube" / "config"]
    if existing := [file for file in candidates if file.exists()]:
        return _rest_config(_merged(existing), context, clock, env)
    if env.get("KUBERNETES_SERVICE_HOST") and env.get("KUBERNETES_SERVICE_PORT") and not context:
        return _in_cluster(env, service_account)
    raise errors.NoKubeconfig(
        f"no kubeconfig: looked for {', '.join(map(str, candidates))} and for a pod's service account"
        " (KUBERNETES_SERVICE_HOST); name a file or set KUBECONFIG"
    )


def _in_cluster(env: Mapping[str, str], folder: Path) -> RestConfig:
    origin = f"service account in {folder}"
    host, port = env["KUBERNETES_SERVICE_HOST"], env["KUBERNETES_SERVICE_PORT"]
    token, ca = FileLogin(folder / "token", origin), FileLogin(folder / "ca.crt", origin)
    token()
    ca()
    namespace = env.get("POD_NAMESPACE", "")
    if not namespace and (folder / "namespace").exists():
        namespace = (folder / "namespace").read_text().strip()
    return RestConfig(
        server=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
        namespace=namespace or "default",
        origin=origin,
        login=StaticLogin(token=token),
        trust=Trust(ca, insecure=False, origin=origin),
    )


def _merged(files: Sequence[Path]) -> Kubeconfig:
    current = ""
    maps: dict[str, dict[str, KubeconfigEntry]] = {"clusters": {}, "users": {}, "contexts": {}}
    for file in files:
        document = _document(file)
        whole = KubeconfigEntry(str(file), file.absolute().parent, document)
        current = current or whole.text("current-context")
        for section, entries in maps.items():
            listed = document.get(section) or []
            if not isinstance(listed, list):
                raise errors.StartupRefused(f"{file}: {section} must be a list")
            for index, item in enumerate(listed):
                name = item.get("name") if isinstance(item, dict) else None
                if not isinstance(name, str):
                    raise errors.StartupRefused(f"{file}: {section}[{index}].name must be a string")
                values = item.get(section.removesuffix("s")) or {}
                if not isinstance(values, dict):
                    raise errors.StartupRefused(f"{file}: {section}[{name}].{section.removesuffix('s')} must be a mapping")
                entries.setdefault(name, KubeconfigEntry(f"{file}: {section}[{name}]", whole.folder, values))
    return Kubeconfig(", ".join(map(str, files)), current, **maps)


def _document(file: Path) -> dict[str, Any]:
    try:
        document = yaml.safe_load(file.read_bytes())
    except OSError as error:
        raise errors.StartupRefused(f"kubeconfig {file} cannot be read: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise errors.StartupRefused(f"kubeconfig {file} is not YAML: {error}") from error
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise errors.StartupRefused(f"kubeconfig {file} must be a mapping with clusters, users and contexts")
    return document


def _rest_config(config: Kubeconfig, context: str, clock: Clock, env: Mapping[str, str]) -> RestConfig:
    name = context or config.current
    if not name:
        known = ", ".join(sorted(config.contexts)) or "none"
        raise errors.StartupRefused(f"{config.origin}: current-context is not set; name a context, there are: {known}")
    chosen = config.find("contexts", name, config.origin)
    cluster = config.find("clusters", chosen.text("cluster"), f"{chosen.origin}.cluster")
    anonymous = KubeconfigEntry(f"{chosen.origin}.user", chosen.folder, {})
    user = config.find("users", chosen.text("user"), f"{chosen.origin}.user") if chosen.text("user") else anonymous
    insecure = cluster.flag("insecure-skip-tls-verify")
    ca = cluster.content("certificate-authority")
    if insecure and ca:
        raise cluster.refused("insecure-skip-tls-verify", "cannot be combined with certificate-authority; remove one of them")
    cert, key = user.content("client-certificate"), user.content("client-key")
    if bool(cert) != bool(key):
        given, missing = ("client-certificate", "client-key") if cert else ("client-key", "client-certificate")
        raise user.refused(missing, f"is missing, but {given} is given; a client certificate needs both")
    server = _server(cluster, secure=bool(ca or cert or insecure))
    proxy = _proxy(cluster, server, env)
    rest_config = RestConfig(
        server=server,
        namespace=chosen.text("namespace") or "default",
        origin=chosen.origin,
        login=_login(user, cluster, cert, key, clock=clock, env=env),
        trust=Trust(ca, insecure=insecure, origin=cluster.origin),
        impersonate=_impersonate(user),
        proxy=proxy,
        server_name=cluster.text("tls-server-name"),
    )
    if isinstance(rest_config.login, StaticLogin):
        rest_config.tls(rest_config.login.read())  # report bad files and certificates now, not at the first request
    return rest_config


def _server(cluster: KubeconfigEntry, *, secure: bool) -> str:
    server = cluster.text("server")
    if not server:
        raise cluster.refused("server", 'is missing; it is a URL like "https://127.0.0.1:6443"')
    if "://" not in server:
        server = f"{'https' if secure else 'http'}://{server}"
    try:
        parts = urlsplit(server)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise cluster.refused("server", f'must be a URL like "https://127.0.0.1:6443", not {server!r}')
    return server.rstrip("/")


def _proxy(cluster: KubeconfigEntry, server: str, env: Mapping[str, str]) -> str:
    """The proxy named for this cluster, else the one of the environment, unless NO_PROXY or a loopback address."""
    proxy, parts = cluster.text("proxy-url"), urlsplit(server)
    if not proxy:
        name = f"{parts.scheme}_proxy"
        proxy = env.get(name.upper()) or env.get(name, "")
        if not proxy or _direct(parts.hostname or "", parts.port, env.get("NO_PROXY") or env.get("no_proxy", "")):
            return ""
        proxy = proxy if "://" in proxy else f"http://{proxy}"
    if urlsplit(proxy).scheme not in PROXY_SCHEMES:
        raise cluster.refused("proxy-url", f"must begin with http:// or https://, not {proxy!r}")
    return proxy


def _direct(host: str, port: int | None, exceptions: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        address = None
    if host == "localhost" or (address and address.is_loopback):
        return True
    for word in filter(None, (part.strip().lower() for part in exceptions.split(","))):
        if word in ("*", host, f"{host}:{port}"):
            return True
        if address:
            try:
                if address in ipaddress.ip_network(word, strict=False):
                    return True
            except ValueError:
                continue
        elif host.endswith("." + word.removeprefix("*").lstrip(".")):
            return True
    return False


def _login(
    user: KubeconfigEntry,
    cluster: KubeconfigEntry,
    cert: Read | None,
    key: Read | None,
    *,
    clock: Clock,
    env: Mapping[str, str],
) -> Login:
    token, username, password = user.text("token"), user.text("username"), user.text("password")
    exec_part = user.part("exec")
    if user.values.get("auth-provider") is not None:
        raise user.refused("auth-provider", "was removed from Kubernetes; use an exec plugin")
    if (token or user.text("tokenFile")) and (username or password):
        raise user.refused("token", "and username/password are both given; only one of them is allowed")
    if exec_part and not (token or user.text("tokenFile") or username or password or cert):
        return _exec(exec_part, user.origin, cluster, clock, env)
    read = user.file("tokenFile")  # takes precedence over token, as in client-go: the file is rotated
    if read is None and token:
        read = token.encode
    return StaticLogin(token=read, username=username, password=password, cert=cert, key=key)


def _exec(part: KubeconfigEntry, origin: str, cluster: KubeconfigEntry, clock: Clock, env: Mapping[str, str]) -> ExecLogin:
    api_version, command = part.text("apiVersion"), part.text("command")
    if api_version not in EXEC_VERSIONS:
        raise part.refused("apiVersion", f"must be {' or '.join(EXEC_VERSIONS)}, not {api_version!r}")
    if not command:
        raise part.refused("command", "is missing; it is the program that prints the credential")
    interactive = part.text("interactiveMode")
    if not interactive and api_version.endswith("/v1beta1"):
        interactive = "IfAvailable"
    if interactive not in ("Never", "IfAvailable", "Always"):
        raise part.refused("interactiveMode", f"must be Never, IfAvailable or Always, not {interactive!r}")
    plugin_env: dict[str, str] = {}
    listed = part.values.get("env") or []
    if not isinstance(listed, list):
        raise part.refused("env", "must be a list of name and value")
    for index, item in enumerate(listed):
        entry = KubeconfigEntry(f"{part.origin}.env[{index}]", part.folder, item if isinstance(item, dict) else {})
        if not entry.text("name"):
            raise entry.refused("name", "is missing")
        plugin_env[entry.text("name")] = entry.text("value")
    if os.sep in command:
        command = str(part.folder / command)
    return ExecLogin(
        [command, *part.texts("args")],
        api_version=api_version,
        env={**env, **plugin_env},
        cluster=_cluster_info(cluster) if part.flag("provideClusterInfo") else None,
        interactive=interactive,
        install_hint=part.text("installHint").strip(),
        origin=origin,
        clock=clock,
    )


def _cluster_info(cluster: KubeconfigEntry) -> dict[str, Any]:
    """spec.cluster of KUBERNETES_EXEC_INFO, for a plugin with provideClusterInfo."""
    info: dict[str, Any] = {"server": cluster.text("server")}
    for key in ("tls-server-name", "proxy-url"):
        if cluster.text(key):
            info[key] = cluster.text(key)
    if cluster.flag("insecure-skip-tls-verify"):
        info["insecure-skip-tls-verify"] = True
    if ca := cluster.content("certificate-authority"):
        info["certificate-authority-data"] = base64.b64encode(ca()).decode()
    extensions = cluster.values.get("extensions")
    for item in extensions if isinstance(extensions, list) else ():
        if isinstance(item, dict) and item.get("name") == f"{EXEC_GROUP}/exec":
            info["config"] = item.get("extension")
    return info


def _impersonate(user: KubeconfigEntry) -> tuple[tuple[str, str], ...]:
    name, uid, groups = user.text("as"), user.text("as-uid"), user.texts("as-groups")
    extra = user.part("as-user-extra")
    if not name:
        if uid or groups or extra:
            raise user.refused("as", "is missing, but as-uid, as-groups or as-user-extra is given")
        return ()
    headers = [("Impersonate-User", name), *(("Impersonate-Group", group) for group in groups)]
    if uid:
        headers.append(("Impersonate-Uid", uid))
    if extra:
        for key in extra.values:
            headers += [(f"Impersonate-Extra-{quote(key, safe='')}", value) for value in extra.texts(key)]
    return tuple(headers)
