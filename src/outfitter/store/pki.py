"""Certificates for an API server and its clients: a certificate authority, server and client certificates, and the kubeconfig
that contains them. ECDSA P-256; returns PEM; reads no clock, times are arguments. Used by the embedded API server, and by tests
that start a real one."""

from __future__ import annotations

import base64
import contextlib
import errno
import ipaddress
import os
import stat
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

MOST_BYTES = 1 << 20  # of a key, certificate or token
LONGEST_NAME = 64  # what X.509 allows for a common name and for an organisation


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its private key."""

    cert: bytes  # PEM
    key: bytes  # PEM (SEC 1), not encrypted

    def save(self, folder: Path, name: str) -> tuple[Path, Path]:
        """Write NAME.crt and NAME.key; only the owner can read the key."""
        cert, key = folder / f"{name}.crt", folder / f"{name}.key"
        save_private(cert, self.cert, mode=0o644)
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


def save_private(path: Path, content: bytes, *, mode: int = 0o600) -> None:
    """Write a file that only its owner may write and, by default, read, from its first byte on. A link is replaced, not
    followed."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)


def read_private(path: Path) -> bytes:
    """The content of a key or token. StartupRefused when other users can read or replace it: it may be known to them."""
    return _read_own(path, 0o077, f"chmod 600 {path}")


def read_certificate(path: Path) -> bytes:
    """The content of a certificate, which all may read. StartupRefused when every user can replace it."""
    return _read_own(path, 0o002, f"chmod 644 {path}")


def check_folder(folder: Path) -> None:
    """StartupRefused when other users can replace the keys in a folder."""
    _check_owner(folder, folder.stat(), 0o022, f"chmod 700 {folder}")


def _read_own(path: Path, forbidden: int, remedy: str) -> bytes:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise errors.StartupRefused(f"{path} is a symbolic link: keys, certificates and the token are files in their folder; "
                                    f"put the file there, or delete the link to have a new one made") from error
    with contextlib.ExitStack() as opened:
        opened.callback(os.close, handle)
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise errors.StartupRefused(f"{path} is not a file: delete it to have a new one made")
        _check_owner(path, status, forbidden, remedy)
        return os.read(handle, MOST_BYTES)


def _check_owner(path: Path, status: os.stat_result, forbidden: int, remedy: str) -> None:
    user = os.geteuid()
    if status.st_uid not in (user, 0):
        raise errors.StartupRefused(f"{path} belongs to user {status.st_uid}, outfitter runs as user {user}: chown {user} "
                                    f"{path} if that user may be trusted with it, or delete it to have a new one made")
    if status.st_mode & forbidden:
        may = "read" if forbidden & 0o044 else "write"
        raise errors.StartupRefused(
            f"{path} has mode {stat.S_IMODE(status.st_mode):04o}, other users can {may} it: {remedy} if none of them did, or "
            "delete it to have a new one made")


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
