"""Who asks, and whether they may. `authenticate` and `authorize` are the only places that decide it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from outfitter.apiserver.paths import RequestPath
from outfitter.errors import Forbidden, Unauthorized, shortened

MASTERS = "system:masters"  # may do everything
PEER = "outfitter.peercert"  # the ASGI extension under which the server hands in the client's certificate
MONITORING = "system:monitoring"  # may read metrics
METRICS, PODS = "/metrics", "/pods"
IMPERSONATE = b"impersonate-"  # Impersonate-User, -Group, -Uid and -Extra-*, as ASGI spells header names
IMPERSONATED = {b"impersonate-user": "users", b"impersonate-group": "groups", b"impersonate-uid": "uids"}
OPEN = frozenset({"/version", "/healthz", "/livez", "/readyz"})  # without authentication


@dataclass(frozen=True, slots=True)
class User:
    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()  # what else an authenticator of Kubernetes knows of the user


class Door:
    """Authenticates users by client certificate (verified by the TLS layer against our authority) or by token."""

    def __init__(self, tokens: Mapping[str, User] | None = None) -> None:
        self._tokens = {_digest(token): user for token, user in (tokens or {}).items()}

    def authenticate(self, scope: Mapping[str, Any], headers: Mapping[bytes, bytes]) -> User:
        if user := certificate_user(scope):
            return user
        scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
        if scheme.lower() == b"bearer" and (user := self._tokens.get(_digest(token.strip()))):
            return user
        raise Unauthorized("Unauthorized")


def _digest(token: str | bytes) -> bytes:
    return hashlib.sha256(token.encode() if isinstance(token, str) else token).digest()


def certificate_user(scope: Mapping[str, Any]) -> User | None:
    """The user of the client certificate: the common name is the user, the organisations are the groups, as Kubernetes reads
    certificates."""
    peer: Mapping[str, Any] | None = (scope.get("extensions") or {}).get(PEER)
    if not peer:
        return None
    names: list[str] = []
    groups: list[str] = []
    for part in peer.get("subject", ()):
        for field, value in part:
            if field == "commonName":
                names.append(value)
            elif field == "organizationName":
                groups.append(value)
    return User(names[-1], tuple(groups)) if names else None


class ImpersonationRefused(Forbidden):
    """The request was to run as another user."""


def refuse_impersonation(user: User | None, headers: Mapping[bytes, bytes]) -> None:
    """ImpersonationRefused if the request is to run as another user: ignored, it would run with the rights of its sender."""
    asked = sorted(name for name in headers if name.startswith(IMPERSONATE))
    if not asked:
        return
    about = IMPERSONATED.get(asked[-1], "userextras")  # the user, if one is named: it sorts last
    value = headers[asked[-1]].decode("latin-1")
    raise ImpersonationRefused(
        f'{about} "{shortened(value)}" is forbidden: User "{user.name if user else "system:anonymous"}" cannot impersonate '
        f'resource "{about}" in API group "" at the cluster scope: impersonation is not served, as the only users are those of '
        "client certificates and tokens; send the request without "
        f"{', '.join(shortened(name.decode('latin-1')) for name in asked[:4])} (kubectl: without --as)")


def authorize(user: User, verb: str, target: RequestPath | None, path: str) -> None:
    """Forbidden unless the user may do this. Every authenticated user may read what is served (discovery, OpenAPI), but not
    metrics and pods of nodes, which contain VMs of all namespaces."""
    if MASTERS in user.groups:
        return
    if target is None:
        if path == PODS or (path == METRICS and MONITORING not in user.groups):
            raise Forbidden(f'forbidden: User "{user.name}" cannot {verb} path "{path}"')
        return
    raise forbidden(user, verb, target)


def forbidden(user: User, verb: str, target: RequestPath, reason: str = "") -> Forbidden:
    """In Kubernetes' words. `reason`: what the authorizer gave as its reason."""
    kind = target.kind
    where = f' in the namespace "{target.namespace}"' if target.namespace else " at the cluster scope"
    resource = f"{kind.plural}/{target.subresource}" if target.subresource else kind.plural
    whole = f"{kind.plural}.{target.group}" if target.group else kind.plural
    return Forbidden(
        f'{whole}{" " + chr(34) + target.name + chr(34) if target.name else ""} is forbidden: User "{user.name}" '
        f'cannot {verb} resource "{resource}" in API group "{target.group}"{where}{": " + reason if reason else ""}'
    )
