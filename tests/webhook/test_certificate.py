"""The webhook's certificate: when it is renewed, what the API server trusts meanwhile, and replicas that share it."""

from __future__ import annotations

import asyncio
import base64
import logging
import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from cryptography import x509

from outfitter.api import kinds
from outfitter.api.kinds import Object
from outfitter.errors import Forbidden, StartupRefused
from outfitter.store.clock import ManualClock
from outfitter.store.memory import Memory
from outfitter.webhook import certificate, certificate_rotation
from outfitter.webhook.certificate import Renewal, WebhookCertificates
from outfitter.webhook.certificate_rotation import API_SERVICE, MUTATING, SECRET, VALIDATING, CertificateRotation
from tests.webhook.reviews import NAMESPACE

HOSTS = ("outfitter-webhook.outfitter-system.svc", "127.0.0.1")
DAY = 86_400.0
TURNS = 1000  # of the event loop, until what does not happen has failed


def made(clock: ManualClock) -> WebhookCertificates:
    renewal = certificate.renewal(None, HOSTS, clock.now())
    assert renewal is not None
    return renewal.certificates


def after(clock: ManualClock, current: WebhookCertificates) -> Renewal | None:
    return certificate.renewal(current, HOSTS, clock.now())


def trusts(current: WebhookCertificates, bundle: bytes) -> bool:
    """Whether a client with this bundle accepts the serving certificate, by its signature."""
    issuers = x509.load_pem_x509_certificates(bundle)
    served = x509.load_pem_x509_certificate(current.serving.cert)
    for issuer in issuers:
        try:
            served.verify_directly_issued_by(issuer)
        except Exception:
            continue
        return True
    return False


def test_it_is_read_as_it_was_written(clock: ManualClock) -> None:
    current = made(clock)
    assert certificate.read(current.data()) == current
    assert certificate.renewal(current, HOSTS, clock.now()) is None


def test_the_serving_certificate_is_renewed_before_it_ends_by_the_same_ca(clock: ManualClock) -> None:
    current = made(clock)
    clock.advance(59 * DAY)
    assert after(clock, current) is None
    clock.advance(2 * DAY)
    renewal = after(clock, current)
    assert renewal is not None
    assert (renewal.reason, renewal.lapsed) == ("the former one ends soon", False)
    assert renewal.certificates.bundle == current.bundle
    assert trusts(renewal.certificates, current.bundle)


def test_it_is_renewed_for_years_and_never_served_before_it_is_trusted(clock: ManualClock) -> None:
    """A client that has the bundle of an hour ago accepts every certificate, and one with the newest bundle the one that
    another replica still serves."""
    current = made(clock)
    authorities = {current.ca.cert}
    for _ in range(4 * 18):
        clock.advance(20 * DAY)
        before = current
        for _ in range(3):  # checks an hour apart
            if renewal := after(clock, current):
                assert not renewal.lapsed
                assert trusts(renewal.certificates, before.bundle)
                assert trusts(before, renewal.certificates.bundle)
                current = renewal.certificates
            clock.advance(3600)
            before = current
        authorities.add(current.ca.cert)
        assert len(current.older) <= 1
    assert len(authorities) == 3


def later(clock: ManualClock, days: float, current: WebhookCertificates) -> WebhookCertificates:
    clock.advance(days * DAY)
    return current


UNUSABLE: dict[str, tuple[Callable[[ManualClock, WebhookCertificates], WebhookCertificates], str]] = {
    "expired": (lambda clock, current: later(clock, 91, current), "the former one expired at 2026-04-01"),
    "both expired": (lambda clock, current: later(clock, 800, current), "the former one expired at 2026-04-01"),
    "made by a clock that was ahead": (
        lambda clock, current: made(ManualClock(clock.now() + timedelta(days=2))),
        "is not valid before 2026-01-02 23:00:00 UTC"),
    "a key of another": (
        lambda clock, current: replace(current, serving=replace(current.serving, key=made(clock).serving.key)),
        "does not match its key or its CA"),
    "a CA of another": (lambda clock, current: replace(current, ca=made(clock).ca), "does not match its key or its CA"),
    "cut off": (
        lambda clock, current: replace(current, serving=replace(current.serving, cert=current.serving.cert[:100])),
        "cannot be read"),
}


@pytest.mark.parametrize("name", UNUSABLE)
def test_what_cannot_be_used_is_replaced(clock: ManualClock, name: str) -> None:
    spoil, words = UNUSABLE[name]
    renewal = after(clock, spoil(clock, made(clock)))
    assert renewal is not None
    assert (renewal.lapsed, words in renewal.reason) == (True, True), renewal.reason
    assert trusts(renewal.certificates, renewal.certificates.bundle)
    assert after(clock, renewal.certificates) is None


@pytest.mark.parametrize("data", [
    None, {}, {"ca.crt": ""}, {"tls.crt": "x"}, dict.fromkeys(certificate.KEYS, "not base64"),
    dict.fromkeys(certificate.KEYS, base64.b64encode(b"no PEM").decode()), dict.fromkeys(certificate.KEYS, 5)])
def test_a_secret_with_something_else_holds_none(data: Any) -> None:
    assert certificate.read(data) is None


def test_a_name_that_it_lacks_is_added(clock: ManualClock) -> None:
    renewal = certificate.renewal(made(clock), (*HOSTS, "other.example.com"), clock.now())
    assert renewal is not None
    assert renewal.reason == "the former one lacks a name of the server"


# -- in the Secret, with other replicas

@pytest.fixture
async def store(clock: ManualClock) -> AsyncIterator[Memory]:
    home = Memory(clock=clock)
    yield home
    await home.close()


class Replica:
    def __init__(self, store: Memory, clock: ManualClock) -> None:
        self.used: list[WebhookCertificates] = []
        self.rotation = CertificateRotation(store, clock=clock, namespace=NAMESPACE, use=self.used.append)
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Replica:
        await self.rotation.start()
        self._task = asyncio.create_task(self.rotation.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


async def until(holds: Callable[[], Any]) -> None:
    for _ in range(TURNS):
        if await holds():
            return
        await asyncio.sleep(0)
    raise AssertionError("it did not happen")


def configuration(*names: str) -> Object:
    return {"metadata": {"name": "outfitter"}, "webhooks": [
        {"name": name, "clientConfig": {"url": "https://127.0.0.1:1/validate"}} for name in names]}


async def bundles(store: Memory) -> set[str]:
    """Every caBundle that the API server has of us; "" where there is none."""
    found = [entry["clientConfig"].get("caBundle", "") for kind in (VALIDATING, MUTATING)
             for obj in (await store.list(kind)).items for entry in obj["webhooks"]]
    return {*found, *(obj["spec"].get("caBundle", "") for obj in (await store.list(API_SERVICE)).items)}


async def test_replicas_that_start_together_use_one_certificate(store: Memory, clock: ManualClock) -> None:
    replicas = [Replica(store, clock) for _ in range(5)]
    await asyncio.gather(*(replica.rotation.start() for replica in replicas))
    assert len({replica.used[-1] for replica in replicas}) == 1
    secret = await store.get(kinds.SECRET, SECRET, NAMESPACE)
    assert (secret["type"], certificate.read(secret["data"])) == ("kubernetes.io/tls", replicas[0].used[-1])
    for name in certificate_rotation.server_names(NAMESPACE):
        assert name in _names(replicas[0].used[-1].serving.cert)


def _names(cert: bytes) -> set[str]:
    names = x509.load_pem_x509_certificate(cert).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return {*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))}


async def test_an_empty_secret_of_the_installation_is_filled(store: Memory, clock: ManualClock) -> None:
    made_by_install = {"metadata": {"name": SECRET, "namespace": NAMESPACE, "labels": {"a": "b"}}, "type": "Opaque"}
    await store.create(kinds.SECRET, made_by_install)
    replica = Replica(store, clock)
    await replica.rotation.start()
    secret = await store.get(kinds.SECRET, SECRET, NAMESPACE)
    assert (secret["type"], secret["metadata"]["labels"]) == ("Opaque", {"a": "b"})
    assert certificate.read(secret["data"]) == replica.used[-1]


async def test_an_expired_certificate_is_replaced_at_the_start_with_a_message(
    store: Memory, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    await Replica(store, clock).rotation.start()
    clock.advance(91 * DAY)
    replica = Replica(store, clock)
    with caplog.at_level(logging.WARNING):
        await replica.rotation.start()
    assert "made a new certificate for the webhook: the former one expired at 2026-04-01 00:00:00 UTC" in caplog.text
    assert after(clock, replica.used[-1]) is None
    assert len(replica.used) == 1, "the expired one was never served"


async def test_the_ca_reaches_everything_by_which_the_api_server_calls_us(store: Memory, clock: ManualClock) -> None:
    """Also what is created, or replaced without it, later; and no object of KubeVirt's."""
    await store.create(VALIDATING, configuration("a", "b"))
    async with Replica(store, clock) as first, Replica(store, clock):
        wanted = {base64.b64encode(first.used[-1].bundle).decode()}

        async def everywhere() -> bool:
            return await bundles(store) == wanted

        await until(everywhere)
        await store.create(MUTATING, configuration("c"))
        await store.create(API_SERVICE, {"metadata": {"name": "v1.subresources.kubevirt.io"}, "spec": {
            "service": {"namespace": NAMESPACE, "name": "outfitter-webhook"}}})
        await until(everywhere)
        fresh = await store.get(VALIDATING, "outfitter")
        await store.replace(VALIDATING, {**configuration("a", "b", "d"), "metadata": fresh["metadata"]})
        await until(everywhere)
        theirs = {"service": {"namespace": "kubevirt", "name": "virt-api"}, "caBundle": "theirs"}
        await store.create(API_SERVICE, {"metadata": {"name": "v1alpha3.subresources.kubevirt.io"}, "spec": theirs})
        await store.patch(VALIDATING, "outfitter", {"metadata": {"labels": {"x": "y"}}})
        for _ in range(TURNS):
            await asyncio.sleep(0)
        assert (await store.get(API_SERVICE, "v1alpha3.subresources.kubevirt.io"))["spec"] == theirs


async def test_what_one_replica_renews_the_others_use_without_a_restart(store: Memory, clock: ManualClock) -> None:
    async with Replica(store, clock) as first, Replica(store, clock) as second:
        old = first.used[-1]
        assert old == second.used[-1]
        clock.advance(61 * DAY)

        async def renewed() -> bool:
            return first.used[-1] == second.used[-1] != old

        await until(renewed)
        assert (first.used[-1].ca, len(first.used), len(second.used)) == (old.ca, 2, 2)
        await store.delete(kinds.SECRET, SECRET, NAMESPACE)

        async def again() -> bool:
            return first.used[-1] == second.used[-1] != old and first.used[-1].ca != old.ca

        await until(again)


async def test_a_secret_that_may_not_be_read_ends_the_start_with_the_remedy(
    store: Memory, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def forbidden(*_: Any) -> Object:
        raise Forbidden('secrets "outfitter-webhook-cert" is forbidden')

    monkeypatch.setattr(store, "get", forbidden)
    with pytest.raises(StartupRefused, match=r"outfitter-system/outfitter-webhook-cert, .*outfit install --apply"):
        await Replica(store, clock).rotation.start()


def test_openssl_accepts_it(clock: ManualClock) -> None:
    context = ssl.create_default_context(cadata=made(clock).bundle.decode())
    assert context.cert_store_stats()["x509_ca"] == 1
