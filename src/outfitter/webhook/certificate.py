"""The certificates of the webhook as one value, kept in a Secret, and when they are renewed. Pure: time is an argument.

The serving certificate is renewed by the same CA. Before that CA ends, a new one is put into the bundle that the API server
trusts, and signs the serving certificate only `OVERLAP` later, when every API server has the bundle. A replaced CA stays in the
bundle until it ends; its key is not kept."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from outfitter.store import pki
from outfitter.store.pki import Pair

CA_LASTS, NEW_CA_BEFORE = timedelta(days=730), timedelta(days=180)
SERVING_LASTS, RENEW_BEFORE = timedelta(days=90), timedelta(days=30)
OVERLAP = timedelta(hours=1)
SKEW = timedelta(hours=1)  # by which clocks of other hosts may be behind
CA_NAME = "outfitter-webhook-ca"
KEYS = ("ca.crt", "ca.key", "tls.crt", "tls.key")  # of the Secret


@dataclass(frozen=True, slots=True)
class WebhookCertificates:
    """What the Secret holds."""

    ca: Pair  # the newest; signs
    older: tuple[bytes, ...]  # certificates of earlier CAs that have not ended, newest first
    serving: Pair

    @property
    def bundle(self) -> bytes:
        """What the API server trusts."""
        return b"".join((self.ca.cert, *self.older))

    def data(self) -> dict[str, str]:
        """`data` of the Secret."""
        values = (self.bundle, self.ca.key, self.serving.cert, self.serving.key)
        return {key: base64.b64encode(value).decode() for key, value in zip(KEYS, values, strict=True)}


@dataclass(frozen=True, slots=True)
class Renewal:
    certificates: WebhookCertificates
    reason: str  # why the former ones are replaced
    lapsed: bool = False  # the API server could not use the former ones


def read(data: Mapping[str, Any] | None) -> WebhookCertificates | None:
    """What `data` of a Secret holds; None: nothing that can be used."""
    try:
        bundle, ca_key, cert, key = (base64.b64decode(str((data or {})[name]), validate=True) for name in KEYS)
        newest, *older = (found.public_bytes(Encoding.PEM) for found in x509.load_pem_x509_certificates(bundle))
    except (KeyError, ValueError, binascii.Error):
        return None
    return WebhookCertificates(Pair(newest, ca_key), tuple(older), Pair(cert, key))


def renewal(current: WebhookCertificates | None, hosts: Sequence[str], now: datetime) -> Renewal | None:
    """What replaces the current certificates now; None: they are good for longer."""
    if current is None:
        return Renewal(_all_new(hosts, now), "there was none", lapsed=True)
    trusted = [cert for cert in (current.ca.cert, *current.older) if _ends(cert) > now]
    signer = next((cert for cert in trusted if pki.usable(current.serving, Pair(cert, b""), now=now, until=now)), None)
    ca_good = pki.usable(current.ca, current.ca, now=now, until=now + SERVING_LASTS)
    if signer is None:
        reason = _unusable(current, now)
        fresh = _served(current, hosts, now) if ca_good else _all_new(hosts, now)
        return Renewal(fresh, reason, lapsed=True)
    if not pki.usable(current.ca, current.ca, now=now, until=now + NEW_CA_BEFORE):
        return Renewal(replace(current, ca=_new_ca(now), older=tuple(trusted)), "the CA of the former one ends soon")
    current = replace(current, older=tuple(trusted[1:]))
    if signer != current.ca.cert:
        everywhere = _begins(current.ca.cert) + SKEW + OVERLAP <= now
        return Renewal(_served(current, hosts, now), "its CA was replaced") if everywhere else None
    if not pki.usable(current.serving, current.ca, now=now, until=now + RENEW_BEFORE):
        return Renewal(_served(current, hosts, now), "the former one ends soon")
    if set(hosts) - _hosts(current.serving.cert):
        return Renewal(_served(current, hosts, now), "the former one lacks a name of the server")
    return None


def next_check(current: WebhookCertificates, now: datetime) -> timedelta:
    """When `renewal` is asked again, at the latest."""
    return max(min(timedelta(hours=1), _ends(current.serving.cert) - now), timedelta(seconds=1))


def _all_new(hosts: Sequence[str], now: datetime) -> WebhookCertificates:
    ca = _new_ca(now)
    return WebhookCertificates(ca, (), _serving(ca, hosts, now))


def _served(current: WebhookCertificates, hosts: Sequence[str], now: datetime) -> WebhookCertificates:
    return replace(current, serving=_serving(current.ca, hosts, now))


def _new_ca(now: datetime) -> Pair:
    return pki.authority(CA_NAME, valid_from=now - SKEW, valid_until=now + CA_LASTS)


def _serving(ca: Pair, hosts: Sequence[str], now: datetime) -> Pair:
    return pki.server(ca, "outfitter-webhook", hosts=hosts, valid_from=now - SKEW, valid_until=now + SERVING_LASTS)


def _unusable(current: WebhookCertificates, now: datetime) -> str:
    try:
        begins, ends = _begins(current.serving.cert), _ends(current.serving.cert)
    except ValueError:
        return "the former one cannot be read"
    if ends <= now:
        return f"the former one expired at {ends:%Y-%m-%d %H:%M:%S} UTC"
    if begins > now:
        return f"the former one is not valid before {begins:%Y-%m-%d %H:%M:%S} UTC: the clock of this host may be wrong"
    return "the former one does not match its key or its CA"


def _begins(cert: bytes) -> datetime:
    return x509.load_pem_x509_certificate(cert).not_valid_before_utc


def _ends(cert: bytes) -> datetime:
    return x509.load_pem_x509_certificate(cert).not_valid_after_utc


def _hosts(cert: bytes) -> set[str]:
    try:
        names = x509.load_pem_x509_certificate(cert).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return set()
    return {*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))}
