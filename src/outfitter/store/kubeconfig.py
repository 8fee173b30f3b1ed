"""How to reach a Kubernetes API server and as whom: reads kubeconfigs by kubectl's rules, or the service account of the
pod we run in. Files that change (tokens, certificates) are read again; exec plugins are run again when what they gave ends.

`load` is the door; what it gives is an `Access`, which `kube.Kube` asks before each request."""

from __future__ import annotations

import asyncio
import base64
import binascii
import ipaddress
import json
import os
import shutil
import ssl
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote, urlsplit

import yaml
from multidict import CIMultiDict

from outfitter import errors
from outfitter.store.clock import Clock

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")  # where Kubernetes mounts it into a pod
EXEC_GROUP = "client.authentication.k8s.io"
EXEC_VERSIONS = (f"{EXEC_GROUP}/v1", f"{EXEC_GROUP}/v1beta1")
PROXY_SCHEMES = ("http", "https")

Read = Callable[[], bytes]  # the present content of something that may change under us


@dataclass(frozen=True, slots=True)
class Credential:
    """By what the server knows us: a token, a name and password, a client certificate, or some of these."""

    token: str = field(default="", repr=False)
    username: str = ""
    password: str = field(default="", repr=False)
    cert: bytes = b""  # PEM
    key: bytes = field(default=b"", repr=False)  # PEM


class Login(Protocol):
    """Where the credential comes from."""

    async def current(self) -> Credential: ...

    async def renew(self, seen: Credential) -> bool:
        """The server did not know `seen`: is there, or can there be, another one?"""
        ...


@dataclass(frozen=True, slots=True)
class Access:
    """One server, one user, one namespace."""

    server: str  # "https://127.0.0.1:6443", perhaps with a path; no slash at the end
    namespace: str  # for those who name none
    origin: str  # where all this was read, for people
    login: Login = field(repr=False)
    trust: Trust = field(repr=False)
    impersonate: tuple[tuple[str, str], ...] = ()  # request headers
    proxy: str = ""
    server_name: str = ""  # what the server's certificate must be for, when it is not the host of `server`

    async def credential(self) -> Credential:
        return await self.login.current()

    async def headers(self) -> CIMultiDict[str]:
        """Who asks, as request headers; a multidict because a group is one header each."""
        return self.headers_for(await self.credential())

    def headers_for(self, credential: Credential) -> CIMultiDict[str]:
        headers = CIMultiDict(self.impersonate)
        if credential.token:
            headers["Authorization"] = f"Bearer {credential.token}"
        elif credential.username or credential.password:
            pair = f"{credential.username}:{credential.password}".encode()
            headers["Authorization"] = f"Basic {base64.b64encode(pair).decode()}"
        return headers

    def tls(self, credential: Credential) -> ssl.SSLContext | None:
        """The same context as last time unless a certificate changed; None when the server speaks plain HTTP."""
        return self.trust.context(credential) if self.server.startswith("https:") else None

    async def renew(self, seen: Credential) -> bool:
        """To be asked once after the server answered 401 to this credential: is it worth trying again?"""
        return await self.login.renew(seen)


class Trust:
    """Which servers we believe, and the TLS context made from that and a client certificate."""

    def __init__(self, ca: Read | None, *, insecure: bool, origin: str) -> None:
        self.ca = ca  # None: the authorities of this machine
        self.insecure = insecure
        self._origin = origin
        self._made: tuple[tuple[bytes, bytes, bytes], ssl.SSLContext] | None = None

    def context(self, credential: Credential) -> ssl.SSLContext:
        parts = (self.ca() if self.ca else b"", credential.cert, credential.key)
        if self._made is None:
            self._made = (parts, self._make(*parts))
        elif self._made[0] != parts:
            try:
                self._made = (parts, self._make(*parts))
            except errors.Refused:  # half of a rotation: the certificate is new, its key not yet
                return self._made[1]
        return self._made[1]

    def _make(self, ca: bytes, cert: bytes, key: bytes) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cadata=ca.decode() if ca else None)
        except (ssl.SSLError, ValueError) as error:
            raise errors.Refused(f"{self._origin}: certificate-authority holds no PEM certificates: {error}") from error
        if self.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if cert:
            # OpenSSL's binding reads client certificates from files only; this one is gone before we return.
            with tempfile.NamedTemporaryFile() as file:
                file.write(cert.rstrip() + b"\n" + key)
                file.flush()
                try:
                    context.load_cert_chain(file.name)
                except ssl.SSLError as error:
                    raise errors.Refused(
                        f"{self._origin}: the client certificate and its key must be PEM and belong together: {error}"
                    ) from error
        return context


class Given:
    """A login that stands in the kubeconfig or in files it names."""

    def __init__(
        self,
        *,
        token: Read | None = None,
        username: str = "",
        password: str = "",
        cert: Read | None = None,
        key: Read | None = None,
    ) -> None:
        self._token, self._cert, self._key = token, cert, key
        self._username, self._password = username, password

    def read(self) -> Credential:
        return Credential(
            token=self._token().decode(errors="replace").strip() if self._token else "",
            username=self._username,
            password=self._password,
            cert=self._cert() if self._cert else b"",
            key=self._key() if self._key else b"",
        )

    async def current(self) -> Credential:
        return self.read()

    async def renew(self, seen: Credential) -> bool:
        return self.read() != seen


class Exec:
    """A login that a program of the user's hands out, by the protocol client.authentication.k8s.io."""

    def __init__(
        self,
        argv: Sequence[str],
        *,
        api_version: str,
        env: Mapping[str, str],
        cluster: Mapping[str, Any] | None,
        interactive: str,
        install_hint: str,
        origin: str,
        clock: Clock,
    ) -> None:
        self._argv = tuple(argv)
        self._api_version = api_version
        self._env = env
        self._cluster = cluster
        self._interactive = interactive
        self._install_hint = install_hint
        self._origin = origin
        self._clock = clock
        self._lock = asyncio.Lock()
        self._held: Credential | None = None
        self._until: datetime | None = None

    async def current(self) -> Credential:
        async with self._lock:
            if self._held is None or (self._until is not None and self._clock.now() >= self._until):
                self._held, self._until = await self._run()
            return self._held

    async def renew(self, seen: Credential) -> bool:
        async with self._lock:
            if self._held is seen:  # else somebody else has renewed it already
                self._held = None
            return True

    def _speaks(self) -> bool:
        """May the program talk to the person at the terminal?"""
        present = sys.stdin is not None and sys.stdin.isatty()
        if self._interactive == "Always" and not present:
            raise self._refused("interactiveMode is Always, but there is no terminal to talk to")
        return present and self._interactive != "Never"

    async def _run(self) -> tuple[Credential, datetime | None]:
        speaks = self._speaks()
        spec: dict[str, Any] = {"interactive": speaks}
        if self._cluster is not None:
            spec["cluster"] = self._cluster
        info = {"apiVersion": self._api_version, "kind": "ExecCredential", "spec": spec}
        env = {**self._env, "KUBERNETES_EXEC_INFO": json.dumps(info)}
        found = shutil.which(self._argv[0], path=env.get("PATH"))
        if found is None:
            hint = f"\n{self._install_hint}" if self._install_hint else ""
            raise self._refused(f"the command {self._argv[0]} is not there or may not be executed{hint}")
        try:
            process = await asyncio.create_subprocess_exec(
                found,
                *self._argv[1:],
                env=env,
                stdin=None if speaks else asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=None if speaks else asyncio.subprocess.PIPE,
            )
        except OSError as error:
            raise self._refused(f"the command {self._argv[0]} did not start: {error}") from error
        try:
            out, err = await process.communicate()
        except asyncio.CancelledError:
            if process.returncode is None:
                process.kill()
                await process.wait()
            raise
        if process.returncode:
            said = (err or b"").decode(errors="replace").strip()
            raise self._refused(
                f"the command {self._argv[0]} ended with status {process.returncode}" + (f": {said}" if said else "")
            )
        return self._understand(out)

    def _understand(self, out: bytes) -> tuple[Credential, datetime | None]:
        said = f"the command {self._argv[0]} must print an ExecCredential with"
        try:
            answer = json.loads(out)
        except ValueError as error:
            raise self._refused(f"{said} apiVersion {self._api_version}, but printed no JSON: {error}") from error
        status = answer.get("status") if isinstance(answer, dict) else None
        if not isinstance(answer, dict) or answer.get("kind") != "ExecCredential":
            raise self._refused(f"{said} kind ExecCredential")
        if answer.get("apiVersion") != self._api_version:
            raise self._refused(f"{said} apiVersion {self._api_version}, not {answer.get('apiVersion')}")
        if not isinstance(status, dict):
            raise self._refused(f"{said} a status")
        values = [status.get(name) or "" for name in ("token", "clientCertificateData", "clientKeyData")]
        if not all(isinstance(value, str) for value in values):
            raise self._refused(f"{said} text in status.token, status.clientCertificateData and status.clientKeyData")
        token, cert, key = values
        if bool(cert) != bool(key) or not (token or cert):
            raise self._refused(f"{said} status.token, or both status.clientCertificateData and status.clientKeyData")
        until = None
        if text := status.get("expirationTimestamp"):
            try:
                until = datetime.fromisoformat(text)
            except (TypeError, ValueError):
                until = None
            if until is None or until.tzinfo is None:
                raise self._refused(f'{said} status.expirationTimestamp like "2026-01-01T00:00:00Z", not {text!r}')
        return Credential(token=token, cert=cert.encode(), key=key.encode()), until

    def _refused(self, why: str) -> errors.Refused:
        return errors.Refused(f"{self._origin}.exec: {why}")


class Watched:
    """The content of a file, read again when the file changes. A file that cannot be read for a moment, because somebody
    is replacing it, keeps its last content."""

    def __init__(self, path: Path, origin: str) -> None:
        self._path, self._origin = path, origin
        self._stamp: tuple[int, int, int] | None = None
        self._content = b""

    def __call__(self) -> bytes:
        try:
            stat = self._path.stat()
            stamp = (stat.st_mtime_ns, stat.st_ino, stat.st_size)
            if stamp != self._stamp:
                self._content = self._path.read_bytes()
                self._stamp = stamp
        except OSError as error:
            if self._stamp is None:
                raise errors.Refused(f"{self._origin}: cannot read {self._path}: {error.strerror}") from error
        return self._content


@dataclass(frozen=True, slots=True)
class Entry:
    """One cluster, user or context (or a part of one), and where it was read, so that each mistake can be named."""

    origin: str  # "/home/ann/.kube/config: users[admin]"
    folder: Path  # relative paths in it begin here
    values: Mapping[str, Any]

    def refused(self, key: str, why: str) -> errors.Refused:
        return errors.Refused(f"{self.origin}.{key}: {why}")

    def text(self, key: str) -> str:
        value = self.values.get(key)
        if value is None:
            return ""
        if not isinstance(value, str):
            raise self.refused(key, f"must be text, not {value!r}; put it in quotes")
        return value

    def flag(self, key: str) -> bool:
        value = self.values.get(key)
        if not isinstance(value, bool | None):
            raise self.refused(key, f"must be true or false, not {value!r}")
        return bool(value)

    def texts(self, key: str) -> list[str]:
        value = self.values.get(key) or []
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.refused(key, "must be a list of texts")
        return value

    def part(self, key: str) -> Entry | None:
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.refused(key, "must be a mapping")
        return Entry(f"{self.origin}.{key}", self.folder, value)

    def file(self, key: str) -> Read | None:
        """What is in the file named here, whenever it is asked for."""
        name = self.text(key)
        return Watched(self.folder / name, f"{self.origin}.{key}") if name else None

    def content(self, key: str) -> Read | None:
        """What stands in KEY-data (base64), else in the file that KEY names; the data wins."""
        text = self.text(f"{key}-data")
        if not text:
            return self.file(key)
        try:
            data = base64.b64decode("".join(text.split()), validate=True)
        except (binascii.Error, ValueError) as error:
            raise self.refused(f"{key}-data", f"must be base64: {error}") from error
        return lambda: data


@dataclass(frozen=True, slots=True)
class Config:
    """One or more kubeconfig files as one; the first file that names something wins."""

    origin: str
    current: str
    clusters: Mapping[str, Entry]
    users: Mapping[str, Entry]
    contexts: Mapping[str, Entry]

    def find(self, what: str, name: str, asker: str) -> Entry:
        entries: Mapping[str, Entry] = getattr(self, what)
        if name not in entries:
            known = ", ".join(sorted(entries)) or "none"
            raise errors.Refused(f"{asker}: there is no {what.removesuffix('s')} {name!r}; there are: {known}")
        return entries[name]


def load(
    path: Path | str | None = None,
    *,
    clock: Clock,
    context: str = "",
    env: Mapping[str, str] = os.environ,
    service_account: Path = SERVICE_ACCOUNT,
) -> Access:
    """The access that kubectl would use: the file given, else the files of $KUBECONFIG, else ~/.kube/config, else the
    service account of this pod. Refused when there is none, or when what there is has a mistake."""
    if path:
        return _access(_merged([Path(path).expanduser()]), context, clock, env)
    listed = [Path(name) for name in env.get("KUBECONFIG", "").split(os.pathsep) if name]
    looked = listed or [Path(env.get("HOME") or Path.home()) / ".kube" / "config"]
    if found := [file for file in looked if file.exists()]:
        return _access(_merged(found), context, clock, env)
    if env.get("KUBERNETES_SERVICE_HOST") and env.get("KUBERNETES_SERVICE_PORT") and not context:
        return _in_cluster(env, service_account)
    raise errors.Refused(
        f"no kubeconfig: looked for {', '.join(map(str, looked))} and for a pod's service account"
        " (KUBERNETES_SERVICE_HOST); name a file or set KUBECONFIG"
    )


def _in_cluster(env: Mapping[str, str], folder: Path) -> Access:
    origin = f"service account in {folder}"
    host, port = env["KUBERNETES_SERVICE_HOST"], env["KUBERNETES_SERVICE_PORT"]
    token, ca = Watched(folder / "token", origin), Watched(folder / "ca.crt", origin)
    token()
    ca()
    namespace = env.get("POD_NAMESPACE", "")
    if not namespace and (folder / "namespace").exists():
        namespace = (folder / "namespace").read_text().strip()
    return Access(
        server=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
        namespace=namespace or "default",
        origin=origin,
        login=Given(token=token),
        trust=Trust(ca, insecure=False, origin=origin),
    )


def _merged(files: Sequence[Path]) -> Config:
    current = ""
    maps: dict[str, dict[str, Entry]] = {"clusters": {}, "users": {}, "contexts": {}}
    for file in files:
        document = _document(file)
        whole = Entry(str(file), file.absolute().parent, document)
        current = current or whole.text("current-context")
        for what, entries in maps.items():
            listed = document.get(what) or []
            if not isinstance(listed, list):
                raise errors.Refused(f"{file}: {what} must be a list")
            for place, item in enumerate(listed):
                name = item.get("name") if isinstance(item, dict) else None
                if not isinstance(name, str):
                    raise errors.Refused(f"{file}: {what}[{place}].name must be text")
                values = item.get(what.removesuffix("s")) or {}
                if not isinstance(values, dict):
                    raise errors.Refused(f"{file}: {what}[{name}].{what.removesuffix('s')} must be a mapping")
                entries.setdefault(name, Entry(f"{file}: {what}[{name}]", whole.folder, values))
    return Config(", ".join(map(str, files)), current, **maps)


def _document(file: Path) -> dict[str, Any]:
    try:
        document = yaml.safe_load(file.read_bytes())
    except OSError as error:
        raise errors.Refused(f"kubeconfig {file} cannot be read: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise errors.Refused(f"kubeconfig {file} is not YAML: {error}") from error
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise errors.Refused(f"kubeconfig {file} must be a mapping with clusters, users and contexts")
    return document


def _access(config: Config, context: str, clock: Clock, env: Mapping[str, str]) -> Access:
    name = context or config.current
    if not name:
        known = ", ".join(sorted(config.contexts)) or "none"
        raise errors.Refused(f"{config.origin}: current-context is not set; name a context, there are: {known}")
    chosen = config.find("contexts", name, config.origin)
    cluster = config.find("clusters", chosen.text("cluster"), f"{chosen.origin}.cluster")
    nobody = Entry(f"{chosen.origin}.user", chosen.folder, {})
    user = config.find("users", chosen.text("user"), f"{chosen.origin}.user") if chosen.text("user") else nobody
    insecure = cluster.flag("insecure-skip-tls-verify")
    ca = cluster.content("certificate-authority")
    if insecure and ca:
        raise cluster.refused("insecure-skip-tls-verify", "cannot stand beside a certificate-authority; drop one")
    cert, key = user.content("client-certificate"), user.content("client-key")
    if bool(cert) != bool(key):
        there, missing = ("client-certificate", "client-key") if cert else ("client-key", "client-certificate")
        raise user.refused(missing, f"is missing, but {there} is given; a client certificate needs both")
    server = _server(cluster, secure=bool(ca or cert or insecure))
    proxy = _proxy(cluster, server, env)
    access = Access(
        server=server,
        namespace=chosen.text("namespace") or "default",
        origin=chosen.origin,
        login=_login(user, cluster, cert, key, clock=clock, env=env),
        trust=Trust(ca, insecure=insecure, origin=cluster.origin),
        impersonate=_impersonate(user),
        proxy=proxy,
        server_name=cluster.text("tls-server-name"),
    )
    if isinstance(access.login, Given):
        access.tls(access.login.read())  # bad files and certificates are named now, not at the first request
    return access


def _server(cluster: Entry, *, secure: bool) -> str:
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


def _proxy(cluster: Entry, server: str, env: Mapping[str, str]) -> str:
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
    user: Entry, cluster: Entry, cert: Read | None, key: Read | None, *, clock: Clock, env: Mapping[str, str]
) -> Login:
    token, username, password = user.text("token"), user.text("username"), user.text("password")
    exec_part = user.part("exec")
    if user.values.get("auth-provider") is not None:
        raise user.refused("auth-provider", "has left Kubernetes; use an exec plugin")
    if (token or user.text("tokenFile")) and (username or password):
        raise user.refused("token", "and username/password are both given; only one of them is allowed")
    if exec_part and not (token or user.text("tokenFile") or username or password or cert):
        return _exec(exec_part, user.origin, cluster, clock, env)
    read = user.file("tokenFile")  # wins over token, because it is the one that is kept fresh
    if read is None and token:
        read = token.encode
    return Given(token=read, username=username, password=password, cert=cert, key=key)


def _exec(part: Entry, origin: str, cluster: Entry, clock: Clock, env: Mapping[str, str]) -> Exec:
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
    own: dict[str, str] = {}
    listed = part.values.get("env") or []
    if not isinstance(listed, list):
        raise part.refused("env", "must be a list of name and value")
    for place, item in enumerate(listed):
        entry = Entry(f"{part.origin}.env[{place}]", part.folder, item if isinstance(item, dict) else {})
        if not entry.text("name"):
            raise entry.refused("name", "is missing")
        own[entry.text("name")] = entry.text("value")
    if os.sep in command:
        command = str(part.folder / command)
    return Exec(
        [command, *part.texts("args")],
        api_version=api_version,
        env={**env, **own},
        cluster=_cluster_info(cluster) if part.flag("provideClusterInfo") else None,
        interactive=interactive,
        install_hint=part.text("installHint").strip(),
        origin=origin,
        clock=clock,
    )


def _cluster_info(cluster: Entry) -> dict[str, Any]:
    """The cluster as KUBERNETES_EXEC_INFO tells it to a plugin that asks for it."""
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


def _impersonate(user: Entry) -> tuple[tuple[str, str], ...]:
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
