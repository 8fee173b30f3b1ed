"""How to reach one Kubernetes API server: its address, the CA that signs it, and the credential of the client.

Credentials may change during the process: token and certificate files are read again when they change, exec plugins run again
when their credential expires, and a rotated certificate leads to a new TLS context. `kubeconfig.load` creates a `RestConfig`;
`rest_client.RestClient` asks it for the credential before each request."""

from __future__ import annotations

import asyncio
import base64
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

from outfitter import errors
from outfitter.store.clock import Clock

EXEC_GROUP = "client.authentication.k8s.io"
EXEC_VERSIONS = (f"{EXEC_GROUP}/v1", f"{EXEC_GROUP}/v1beta1")

Read = Callable[[], bytes]  # returns the current content of a file or value that may be rotated


@dataclass(frozen=True, slots=True)
class Credential:
    """A token, a user name and password, a client certificate, or several of these."""

    token: str = field(default="", repr=False)
    username: str = ""
    password: str = field(default="", repr=False)
    cert: bytes = b""  # PEM
    key: bytes = field(default=b"", repr=False)  # PEM


class Login(Protocol):
    """A source of credentials."""

    async def current(self) -> Credential: ...

    async def renew(self, seen: Credential) -> bool:
        """The server answered 401 to `seen`. Whether a different credential is or may be available."""
        ...


@dataclass(frozen=True, slots=True)
class RestConfig:
    """One server, one user, one namespace."""

    server: str  # "https://127.0.0.1:6443", perhaps with a path; no slash at the end
    namespace: str  # used when a command names none
    origin: str  # where the configuration was read, for messages
    login: Login = field(repr=False)
    trust: Trust = field(repr=False)
    impersonate: tuple[tuple[str, str], ...] = ()  # request headers
    proxy: str = ""
    server_name: str = ""  # the name in the server's certificate, when it is not the host of `server`

    async def credential(self) -> Credential:
        return await self.login.current()

    def headers_for(self, credential: Credential) -> list[tuple[str, str]]:
        """Authentication and impersonation headers; each group is a header of its own."""
        headers = list(self.impersonate)
        if credential.token:
            headers.append(("Authorization", f"Bearer {credential.token}"))
        elif credential.username or credential.password:
            pair = f"{credential.username}:{credential.password}".encode()
            headers.append(("Authorization", f"Basic {base64.b64encode(pair).decode()}"))
        return headers

    def tls(self, credential: Credential) -> ssl.SSLContext | None:
        """The same context as last time unless a certificate changed; None for a plain HTTP server."""
        return self.trust.context(credential) if self.server.startswith("https:") else None

    async def renew(self, seen: Credential) -> bool:
        """Called once after the server answered 401 to this credential. Whether to retry the request."""
        return await self.login.renew(seen)


class Trust:
    """The trusted CA, and the TLS context made of it and a client certificate."""

    def __init__(self, ca: Read | None, *, insecure: bool, origin: str) -> None:
        self.ca = ca  # None: the CAs that the operating system trusts
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
            except errors.StartupRefused:  # in the middle of a rotation: the certificate is new, the key is still old
                return self._made[1]
        return self._made[1]

    def _make(self, ca: bytes, cert: bytes, key: bytes) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cadata=ca.decode() if ca else None)
        except (ssl.SSLError, ValueError) as error:
            raise errors.StartupRefused(f"{self._origin}: certificate-authority has no PEM certificates: {error}") from error
        if self.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if cert:
            # The ssl module loads client certificates from files only. The file is deleted before this function returns.
            with tempfile.NamedTemporaryFile() as file:
                file.write(cert.rstrip() + b"\n" + key)
                file.flush()
                try:
                    context.load_cert_chain(file.name)
                except ssl.SSLError as error:
                    raise errors.StartupRefused(
                        f"{self._origin}: the client certificate and its key must be PEM and belong together: {error}"
                    ) from error
        return context


class StaticLogin:
    """Credentials from the kubeconfig, or from files that it names."""

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
        self._last: tuple[tuple[bytes, bytes, bytes], Credential] | None = None  # what was read, and what was made of it

    def read(self) -> Credential:
        token, cert, key = (read() if read else b"" for read in (self._token, self._cert, self._key))
        if self._last is None or self._last[0] != (token, cert, key):
            credential = Credential(
                token=token.decode(errors="replace").strip(), username=self._username, password=self._password, cert=cert,
                key=key)
            self._last = (token, cert, key), credential
        return self._last[1]

    async def current(self) -> Credential:
        return self.read()

    async def renew(self, seen: Credential) -> bool:
        return self.read() != seen


class ExecLogin:
    """Credentials from an exec plugin, by the protocol client.authentication.k8s.io."""

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
        self._credential: Credential | None = None
        self._until: datetime | None = None

    async def current(self) -> Credential:
        async with self._lock:
            if self._credential is None or (self._until is not None and self._clock.now() >= self._until):
                self._credential, self._until = await self._run()
            return self._credential

    async def renew(self, seen: Credential) -> bool:
        async with self._lock:
            if self._credential is seen:  # otherwise another request has renewed it already
                self._credential = None
            return True

    def _interactive_allowed(self) -> bool:
        """Whether the plugin may prompt on the terminal."""
        present = sys.stdin is not None and sys.stdin.isatty()
        if self._interactive == "Always" and not present:
            raise self._failed("interactiveMode is Always, but stdin is not a terminal")
        return present and self._interactive != "Never"

    async def _run(self) -> tuple[Credential, datetime | None]:
        interactive = self._interactive_allowed()
        spec: dict[str, Any] = {"interactive": interactive}
        if self._cluster is not None:
            spec["cluster"] = self._cluster
        info = {"apiVersion": self._api_version, "kind": "ExecCredential", "spec": spec}
        env = {**self._env, "KUBERNETES_EXEC_INFO": json.dumps(info)}
        program = shutil.which(self._argv[0], path=env.get("PATH"))
        if program is None:
            hint = f"\n{self._install_hint}" if self._install_hint else ""
            raise self._failed(f"the command {self._argv[0]} does not exist or is not executable{hint}")
        try:
            process = await asyncio.create_subprocess_exec(
                program,
                *self._argv[1:],
                env=env,
                stdin=None if interactive else asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=None if interactive else asyncio.subprocess.PIPE,
            )
        except OSError as error:
            raise self._failed(f"the command {self._argv[0]} did not start: {error}") from error
        try:
            out, err = await process.communicate()
        except asyncio.CancelledError:
            if process.returncode is None:
                process.kill()
                await process.wait()
            raise
        if process.returncode:
            stderr = (err or b"").decode(errors="replace").strip()
            raise self._failed(
                f"the command {self._argv[0]} ended with status {process.returncode}" + (f": {stderr}" if stderr else "")
            )
        return self._parse(out)

    def _parse(self, out: bytes) -> tuple[Credential, datetime | None]:
        expected = f"the command {self._argv[0]} must print an ExecCredential with"
        try:
            answer = json.loads(out)
        except ValueError as error:
            raise self._failed(f"{expected} apiVersion {self._api_version}, but printed no JSON: {error}") from error
        status = answer.get("status") if isinstance(answer, dict) else None
        if not isinstance(answer, dict) or answer.get("kind") != "ExecCredential":
            raise self._failed(f"{expected} kind ExecCredential")
        if answer.get("apiVersion") != self._api_version:
            raise self._failed(f"{expected} apiVersion {self._api_version}, not {answer.get('apiVersion')}")
        if not isinstance(status, dict):
            raise self._failed(f"{expected} a status")
        values = [status.get(name) or "" for name in ("token", "clientCertificateData", "clientKeyData")]
        if not all(isinstance(value, str) for value in values):
            raise self._failed(f"{expected} strings in status.token, status.clientCertificateData and status.clientKeyData")
        token, cert, key = values
        if bool(cert) != bool(key) or not (token or cert):
            raise self._failed(f"{expected} status.token, or both status.clientCertificateData and status.clientKeyData")
        until = None
        if text := status.get("expirationTimestamp"):
            try:
                until = datetime.fromisoformat(text)
            except (TypeError, ValueError):
                until = None
            if until is None or until.tzinfo is None:
                raise self._failed(f'{expected} status.expirationTimestamp like "2026-01-01T00:00:00Z", not {text!r}')
        return Credential(token=token, cert=cert.encode(), key=key.encode()), until

    def _failed(self, why: str) -> errors.Unauthorized:
        return errors.Unauthorized(f"{self._origin}.exec: {why}")


class FileLogin:
    """The content of a file, read again when the file changes. While the file cannot be read, because it is being replaced, the
    last content is returned."""

    def __init__(self, path: Path, origin: str) -> None:
        self._path, self._origin = path, origin
        self._stamp: tuple[int, int, int] | None = None
        self._content = b""

    def __call__(self) -> bytes:
        try:
            stat = os.stat(self._path)  # before every request: half the time of Path.stat
            stamp = (stat.st_mtime_ns, stat.st_ino, stat.st_size)
            if stamp != self._stamp:
                self._content = self._path.read_bytes()
                self._stamp = stamp
        except OSError as error:
            if self._stamp is None:
                raise errors.StartupRefused(f"{self._origin}: cannot read {self._path}: {error.strerror}") from error
        return self._content
