"""Authenticates requests by the headers of kube-apiserver's front proxy, as every aggregated API server does: the TLS layer has
verified the client certificate against the front proxy's authority, its common name must be an allowed one, and only then are
the headers accepted. Authority, names and headers are in the ConfigMap `extension-apiserver-authentication`, which
kube-apiserver writes; it is watched, because all of them may change."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import unquote

from outfitter.api import kinds
from outfitter.api.kinds import Object
from outfitter.apiserver import auth
from outfitter.apiserver.auth import User
from outfitter.apiserver.request import Scope
from outfitter.errors import Unauthorized, Unavailable
from outfitter.store.base import Store
from outfitter.store.clock import Clock
from outfitter.store.informer import Informer

NAMESPACE, NAME = "kube-system", "extension-apiserver-authentication"
CLIENT_CA = "requestheader-client-ca-file"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RequestHeaderConfig:
    """From whom request headers are accepted, and which. Names of headers are in lower case, as ASGI has them."""

    client_ca: str  # PEM
    allowed_names: frozenset[str]  # common names of the client certificate; empty: all that the authority has signed
    user: tuple[str, ...]
    uid: tuple[str, ...]
    group: tuple[str, ...]
    extra_prefix: tuple[str, ...]

    @classmethod
    def read(cls, config_map: Object) -> RequestHeaderConfig:
        """ValueError: it lacks something, or cannot be read."""
        data: Mapping[str, str] = config_map.get("data") or {}
        if not data.get(CLIENT_CA):
            raise ValueError(f"{CLIENT_CA} is missing: kube-apiserver runs without --requestheader-client-ca-file, and so "
                             "without its aggregation layer")
        config = cls(
            data[CLIENT_CA], frozenset(_names(data, "requestheader-allowed-names")),
            *(tuple(name.lower() for name in _names(data, f"requestheader-{key}"))
              for key in ("username-headers", "uid-headers", "group-headers", "extra-headers-prefix")),
        )
        if not config.user:
            raise ValueError("requestheader-username-headers is empty: kube-apiserver would not say who asks")
        return config

    def read_user(self, headers: Sequence[tuple[bytes, bytes]]) -> User | None:
        """None: no header names a user."""
        texts = [(name.decode("latin-1").lower(), value.decode("utf-8", "replace")) for name, value in headers]
        user = _first(texts, self.user)
        if not user:
            return None
        extra: dict[str, list[str]] = {}
        for name, value in texts:
            for prefix in self.extra_prefix:
                if name.startswith(prefix):
                    extra.setdefault(unquote(name[len(prefix):]), []).append(value)
        groups = tuple(value for wanted in self.group for name, value in texts if name == wanted and value)
        return User(user, groups, _first(texts, self.uid), tuple((key, tuple(values)) for key, values in sorted(extra.items())))


class FrontProxy:
    """The configuration as it was read last: also while the ConfigMap is away or cannot be read."""

    def __init__(self, store: Store, *, clock: Clock) -> None:
        self.config: RequestHeaderConfig | None = None
        self._informer: Informer[Object] = Informer(
            store, kinds.CONFIG_MAP, clock=clock, namespace=NAMESPACE, fields=f"metadata.name={NAME}")
        self._informer.on_change(self._changed)
        self._problem = f"ConfigMap {NAMESPACE}/{NAME} has not been read yet"
        self._handlers: list[Callable[[str], None]] = []

    async def run(self) -> None:
        """Keep it current until cancelled."""
        await self._informer.run()

    def on_client_ca(self, handler: Callable[[str], None]) -> None:
        """`handler` is called with the front proxy's authority (PEM), when it is known and whenever it changes."""
        self._handlers.append(handler)
        if self.config is not None:
            handler(self.config.client_ca)

    def authenticate(self, scope: Scope) -> User:
        """Unauthorized: the request does not come from the front proxy."""
        if self.config is None:
            raise Unavailable(f"requests cannot be authenticated: {self._problem}")
        proxy = auth.certificate_user(scope)
        if proxy is None:
            raise Unauthorized("Unauthorized: this server is asked through kube-apiserver, which has a client certificate")
        if self.config.allowed_names and proxy.name not in self.config.allowed_names:
            raise Unauthorized(f'Unauthorized: the client certificate is of "{proxy.name}", and not of kube-apiserver\'s front '
                               "proxy: ask through kube-apiserver")
        user = self.config.read_user(scope["headers"])
        if user is None:
            raise Unauthorized(f"Unauthorized: no user in {', '.join(self.config.user)}")
        return user

    def _changed(self, _: Object | None, config_map: Object | None) -> None:
        if config_map is None:
            return
        try:
            config = RequestHeaderConfig.read(config_map)
        except ValueError as error:
            self._problem = f"ConfigMap {NAMESPACE}/{NAME}: {error}"
            log.warning("%s; %s", self._problem, "the last one that was read stays in use" if self.config else
                        "no request can be authenticated")
            return
        before, self.config = self.config, config
        if before is None or before.client_ca != config.client_ca:
            for handler in self._handlers:
                handler(config.client_ca)


def _names(data: Mapping[str, str], key: str) -> list[str]:
    """A list as kube-apiserver writes it: JSON."""
    try:
        names = json.loads(data.get(key) or "[]")
    except ValueError as error:
        raise ValueError(f"{key} is not JSON: {error}") from error
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"{key} is not a list of names: {data[key]}")
    return names


def _first(texts: Sequence[tuple[str, str]], wanted: Sequence[str]) -> str:
    return next((value for want in wanted for name, value in texts if name == want and value), "")
