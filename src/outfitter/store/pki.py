"""Certificates for an API server and its clients: a certificate authority, server and client certificates, and the kubeconfig
that contains them. ECDSA P-256; returns PEM; reads no clock, times are arguments. Used by the embedded API server, and by tests
that start a real one."""

from __future__ import annotations

import base64
import ipaddress
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from outfitter import errors
from outfitter.api.kinds import Object

LONGEST_NAME = 64  # what X.509 allows for a common name and for an organisation


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its private key."""

    cert: bytes  # PEM
    key: bytes  # PEM (SEC 1), not encrypted

    def save(self, folder: Path, name: str) -> tuple[Path, Path]:
        """Write NAME.crt and NAME.key; only the owner can read the key."""
        cert, key = folder / f"{name}.crt", folder / f"{name}.key"
        cert.write_bytes(self.cert)
        save_private(key, self.key)
        return cert, key


def key() -> bytes:
    """A private key without a certificate, for signing tokens."""
    return _pem(ec.generate_private_key(ec.SECP256R1()))


def authority(name: str, *, valid_from: datetime, valid_until: datetime) -> Pair:
    """A new self-signed certificate authority. It can sign server and client certificates, no further authorities."""
    private = ec.generate_private_key(ec.SECP256R1())
    subject = _name(name)
    builder = (
        _builder(subject, subject, private.public_key(), valid_from, valid_until)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
    )
    return Pair(_signed(builder, private), _pem(private))


def server(ca: Pair, name: str, *, hosts: Sequence[str], valid_from: datetime, valid_until: datetime) -> Pair:
    """A certificate for a server reached by any of these host names and IP addresses."""
    if not hosts:
        raise errors.StartupRefused(f"a server certificate for {name} needs at least one host name or IP address")
    names = x509.SubjectAlternativeName([_host(host) for host in hosts])
    return _leaf(
        ca, _name(name), ExtendedKeyUsageOID.SERVER_AUTH, valid_from=valid_from, valid_until=valid_until, names=names
    )


def client(ca: Pair, name: str, *, groups: Sequence[str] = (), valid_from: datetime, valid_until: datetime) -> Pair:
    """A client certificate. Kubernetes reads the user from its common name and the groups from its organisations."""
    subject = _name(name, groups)
    return _leaf(ca, subject, ExtendedKeyUsageOID.CLIENT_AUTH, valid_from=valid_from, valid_until=valid_until)


def usable(pair: Pair, ca: Pair, *, now: datetime, until: datetime) -> bool:
    """Whether a certificate matches its key, is signed by `ca` and is valid from `now` to `until`. False for a truncated file,
    or one that was created while the clock was ahead."""
    try:
        cert, issuer = x509.load_pem_x509_certificate(pair.cert), x509.load_pem_x509_certificate(ca.cert)
        private = serialization.load_pem_private_key(pair.key, password=None)
        cert.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, UnsupportedAlgorithm, InvalidSignature):
        return False
    return private.public_key() == cert.public_key() and cert.not_valid_before_utc <= now and until < cert.not_valid_after_utc


def kubeconfig(
    server: str,
    *,
    ca: bytes | None = None,
    client: Pair | None = None,
    token: str = "",
    namespace: str = "",
    cluster: str = "outfitter",
    user: str = "admin",
) -> Object:
    """A kubeconfig for `server`, with a client certificate or a token (anonymous with neither)."""
    if client and token:
        raise errors.StartupRefused(f"the kubeconfig for {server} takes a client certificate or a token, not both")
    cluster_entry: Object = {"server": server}
    if ca:
        cluster_entry["certificate-authority-data"] = base64.b64encode(ca).decode()
    user_entry: Object = {}
    if client:
        user_entry["client-certificate-data"] = base64.b64encode(client.cert).decode()
        user_entry["client-key-data"] = base64.b64encode(client.key).decode()
    if token:
        user_entry["token"] = token
    context: Object = {"cluster": cluster, "user": user}
    if namespace:
        context["namespace"] = namespace
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": cluster, "cluster": cluster_entry}],
        "users": [{"name": user, "user": user_entry}],
        "contexts": [{"name": cluster, "context": context}],
        "current-context": cluster,
    }


def save_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner may read, from its first byte on."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)


def _leaf(
    ca: Pair,
    subject: x509.Name,
    usage: x509.ObjectIdentifier,
    *,
    valid_from: datetime,
    valid_until: datetime,
    names: x509.SubjectAlternativeName | None = None,
) -> Pair:
    issuer = x509.load_pem_x509_certificate(ca.cert)
    signer = serialization.load_pem_private_key(ca.key, password=None)
    if not isinstance(signer, ec.EllipticCurvePrivateKey):
        raise errors.StartupRefused(f"the key of the authority {issuer.subject.rfc4514_string()} must be an ECDSA key")
    private = ec.generate_private_key(ec.SECP256R1())
    builder = (
        _builder(subject, issuer.subject, private.public_key(), valid_from, valid_until)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )
    if names:
        builder = builder.add_extension(names, critical=False)
    return Pair(_signed(builder, signer), _pem(private))


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    public: ec.EllipticCurvePublicKey,
    valid_from: datetime,
    valid_until: datetime,
) -> x509.CertificateBuilder:
    if valid_until <= valid_from:
        raise errors.StartupRefused(
            f"the certificate for {subject.rfc4514_string()} would end ({valid_until}) before it begins ({valid_from})"
        )
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(valid_from)
        .not_valid_after(valid_until)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _name(common: str, groups: Sequence[str] = ()) -> x509.Name:
    for word in (common, *groups):
        if not 1 <= len(word) <= LONGEST_NAME:
            raise errors.StartupRefused(f"the name {word!r} in a certificate must have 1 to {LONGEST_NAME} characters")
    organisations = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    return x509.Name([*organisations, x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _signed(builder: x509.CertificateBuilder, signer: ec.EllipticCurvePrivateKey) -> bytes:
    return builder.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def _pem(private: ec.EllipticCurvePrivateKey) -> bytes:
    return private.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )
