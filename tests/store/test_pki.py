"""Certificates: two sides that trust one authority really talk, and those that should not, do not."""

from __future__ import annotations

import os
import ssl
import stat
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from outfitter import errors
from outfitter.store import pki

NOW = datetime.now(UTC)  # OpenSSL judges certificates by the system time
BEGIN, END = NOW - timedelta(hours=1), NOW + timedelta(days=1)
CA = pki.authority("test", valid_from=BEGIN, valid_until=END)
OTHER = pki.authority("test", valid_from=BEGIN, valid_until=END)


def server(ca: pki.Pair = CA, hosts: tuple[str, ...] = ("api.local", "127.0.0.1", "::1"), until: datetime = END) -> pki.Pair:
    return pki.server(ca, "api", hosts=hosts, valid_from=BEGIN, valid_until=until)


def client(ca: pki.Pair = CA, until: datetime = END) -> pki.Pair:
    return pki.client(ca, "ann", groups=["dev", "ops"], valid_from=BEGIN, valid_until=until)


def greet(folder: Path, serving: pki.Pair, asking: pki.Pair | None, host: str) -> dict[str, object]:
    """A whole TLS handshake in memory, as strict as Python 3.13 is by default; who the server then sees."""
    back = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cadata=CA.cert.decode())
    back.verify_mode = ssl.CERT_REQUIRED
    back.load_cert_chain(*serving.save(folder, "server"))
    front = ssl.create_default_context(cadata=CA.cert.decode())
    if asking:
        front.load_cert_chain(*asking.save(folder, "client"))
    for context in (back, front):
        context.verify_flags |= ssl.VERIFY_X509_STRICT
    there, here = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [front.wrap_bio(here, there, server_hostname=host), back.wrap_bio(there, here, server_side=True)]
    for _ in range(4):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return dict(ends[1].getpeercert() or {})


@pytest.mark.parametrize("host", ["api.local", "127.0.0.1", "::1"])
def test_a_server_and_a_client_of_one_authority_talk(tmp_path: Path, host: str) -> None:
    subject = greet(tmp_path, server(), client(), host)["subject"]
    assert subject == ((("organizationName", "dev"),), (("organizationName", "ops"),), (("commonName", "ann"),))


DISTRUSTED: dict[str, tuple[Callable[[], pki.Pair], Callable[[], pki.Pair | None], str, str]] = {
    "another host": (server, client, "evil.local", "Hostname mismatch"),
    "another address": (server, client, "127.0.0.2", "IP address mismatch"),
    "a server of another authority with the same name": (lambda: server(OTHER), client, "api.local", "verify failed"),
    "a client of another authority": (server, lambda: client(OTHER), "api.local", "verify failed"),
    "no client certificate": (server, lambda: None, "api.local", "did not return a certificate"),
    "a server past its end": (lambda: server(until=NOW - timedelta(minutes=1)), client, "api.local", "expired"),
    "a client past its end": (server, lambda: client(until=NOW - timedelta(minutes=1)), "api.local", "expired"),
    "a client that plays server": (client, client, "api.local", "verify failed"),
    "a server that plays client": (server, server, "api.local", "verify failed"),
}


@pytest.mark.parametrize("name", DISTRUSTED)
def test_others_do_not_talk(tmp_path: Path, name: str) -> None:
    serving, asking, host, says = DISTRUSTED[name]
    with pytest.raises(ssl.SSLError, match=says):
        greet(tmp_path, serving(), asking(), host)


def test_keys_are_p256_and_times_are_the_ones_given() -> None:
    for pair in (CA, server(), client()):
        cert = x509.load_pem_x509_certificate(pair.cert)
        public = cert.public_key()
        assert isinstance(public, ec.EllipticCurvePublicKey)
        assert isinstance(public.curve, ec.SECP256R1)
        assert cert.not_valid_before_utc == BEGIN.replace(microsecond=0)
        assert cert.not_valid_after_utc == END.replace(microsecond=0)
    assert x509.load_pem_x509_certificate(CA.cert).subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value == "test"
    assert pki.key().startswith(b"-----BEGIN EC PRIVATE KEY-----")


MIDDLE, SOON = BEGIN + (END - BEGIN) / 2, END - timedelta(seconds=10)
OTHER = pki.authority("test", valid_from=BEGIN, valid_until=END)
USABLE: dict[str, tuple[pki.Pair, pki.Pair, datetime, datetime, bool]] = {
    "a server's": (server(), CA, MIDDLE, SOON, True),
    "the authority's own": (CA, CA, MIDDLE, SOON, True),
    "one that ends too soon": (server(), CA, MIDDLE, END, False),
    "one from a clock that was ahead": (server(), CA, BEGIN - timedelta(hours=2), SOON, False),
    "one of another authority of the same name": (server(), OTHER, MIDDLE, SOON, False),
    "with the key of another": (pki.Pair(server().cert, client().key), CA, MIDDLE, SOON, False),
    "half of it": (pki.Pair(server().cert[:100], server().key), CA, MIDDLE, SOON, False),
    "an empty file": (pki.Pair(server().cert, b""), CA, MIDDLE, SOON, False),
    "an authority that cannot be read": (server(), pki.Pair(b"x", CA.key), MIDDLE, SOON, False),
}


@pytest.mark.parametrize("name", USABLE)
def test_what_is_of_use(name: str) -> None:
    pair, ca, now, until, usable = USABLE[name]
    assert pki.usable(pair, ca, now=now, until=until) is usable


def test_only_the_owner_reads_a_saved_key(tmp_path: Path) -> None:
    (tmp_path / "api.key").write_text("an older one that all could read")
    cert, key = server().save(tmp_path, "api")
    assert (cert.name, key.name) == ("api.crt", "api.key")
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert b"EC PRIVATE KEY" in key.read_bytes()


REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "a server without hosts": (lambda: server(hosts=()), "at least one host name"),
    "an end before the beginning": (lambda: client(until=BEGIN), "before it begins"),
    "a name that is too long": (
        lambda: pki.client(CA, "x" * 65, valid_from=BEGIN, valid_until=END), "1 to 64 characters"),
    "an empty group": (
        lambda: pki.client(CA, "ann", groups=[""], valid_from=BEGIN, valid_until=END), "1 to 64 characters"),
    "a certificate and a token": (lambda: pki.kubeconfig("https://x", client=client(), token="t"), "not both"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    call, says = REFUSED[name]
    with pytest.raises(errors.StartupRefused, match=says):
        call()


# -- files that other users can read or replace


def opened_to_others(mode: int) -> Callable[[Path], None]:
    return lambda path: path.chmod(mode)


def owned_by_another(path: Path) -> None:
    if os.geteuid():
        pytest.skip("only root can give files away")
    os.chown(path, 12345, -1)


def linked(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def folder_instead(path: Path) -> None:
    path.unlink()
    path.mkdir()


EXPOSED: dict[str, tuple[Callable[[Path], None], str]] = {
    "all can read it": (opened_to_others(0o604), r"has mode 0604, other users can read it: chmod 600 \S+api.key"),
    "a group can read it": (opened_to_others(0o640), "has mode 0640, other users can read it: chmod 600"),
    "another user owns it": (owned_by_another, r"belongs to user 12345, .*: chown \d+ \S+api.key"),
    "a link": (linked, "is a symbolic link"),
    "a folder": (folder_instead, "is not a file"),
}


@pytest.mark.parametrize("case", EXPOSED)
def test_a_key_that_others_may_know_is_refused(tmp_path: Path, case: str) -> None:
    expose, says = EXPOSED[case]
    _, key = server().save(tmp_path, "api")
    assert pki.read_private(key)
    expose(key)
    with pytest.raises(errors.StartupRefused, match=says):
        pki.read_private(key)


def test_a_certificate_may_be_read_by_all_and_written_by_its_owner(tmp_path: Path) -> None:
    cert, _ = server().save(tmp_path, "api")
    assert stat.S_IMODE(cert.stat().st_mode) & 0o022 == 0
    assert pki.read_certificate(cert)
    cert.chmod(0o646)
    with pytest.raises(errors.StartupRefused, match="other users can write it: chmod 644"):
        pki.read_certificate(cert)


def test_a_folder_of_keys_that_others_can_write_is_refused(tmp_path: Path) -> None:
    pki.check_folder(tmp_path)
    tmp_path.chmod(0o770)
    with pytest.raises(errors.StartupRefused, match="other users can write it: chmod 700"):
        pki.check_folder(tmp_path)


def test_saving_replaces_a_link_and_does_not_follow_it(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("of another program")
    for name in ("api.crt", "api.key"):
        (tmp_path / name).symlink_to("other")
    server().save(tmp_path, "api")
    assert (tmp_path / "other").read_text() == "of another program"
    assert not (tmp_path / "api.crt").is_symlink()
