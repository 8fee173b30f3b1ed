"""The webhook, called by a real kube-apiserver over TLS: the same bad objects are refused with the same causes as in embedded
mode, nothing bad gets in while it is away, and its certificate is replaced while it serves."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from outfitter.api import admission, kinds
from outfitter.api.kinds import Kind, Object
from outfitter.api.kubevirt import reattached_devices
from outfitter.apiserver.app import App
from outfitter.apiserver.auth import MASTERS, User
from outfitter.errors import NotFound
from outfitter.inventory.server_limits import DEFAULT
from outfitter.roles.webhook import ServerTls, webhook_server
from outfitter.roles.webhook_app import WebhookApp
from outfitter.store.clock import ManualClock, SystemClock
from outfitter.store.kube import Kube
from outfitter.store.memory import Memory
from outfitter.webhook import rules
from outfitter.webhook.admission_webhook import AdmissionWebhook
from outfitter.webhook.certificate_rotation import MUTATING, SECRET, VALIDATING, CertificateRotation
from tests import control_planes, kubernetes
from tests.apiserver.asgi import Client, Reply
from tests.cluster_roles import ClusterRoles
from tests.e2e.process import until as wait_until
from tests.webhook import reviews
from tests.webhook.reviews import NAMESPACE, kubevirt

pytestmark = pytest.mark.cluster
HERE = "here"
PATIENCE = 120.0  # seconds until what does not happen has failed
AT_ONCE = 16  # requests
CONFIGURATIONS = {VALIDATING: False, MUTATING: True}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[kubernetes.Cluster]:
    """One of its own: its webhook configurations would be in the way of other tests. Outfitter is installed on it, but for
    these, which each test creates."""
    folder = tmp_path_factory.mktemp("webhook")
    with control_planes.started(folder, learn=()) as running:
        ClusterRoles(running, folder / "roles").install()
        for name in (HERE, "kubevirt"):
            running.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        yield running


class Replica:
    """`outfit webhook` in this process, on a port of its own."""

    def __init__(self, store: Kube, clock: Any) -> None:
        self.webhook = AdmissionWebhook(store, admission=admission.AdmissionRules(), clock=SystemClock(), namespace=NAMESPACE)
        self.server = webhook_server(WebhookApp(self.webhook), "127.0.0.1", 0, DEFAULT, SystemClock())
        self.tls = ServerTls(self.server)
        self.rotation = CertificateRotation(store, clock=clock, namespace=NAMESPACE, use=self.tls.use)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Replica]:
        await self.rotation.start()
        async with self.webhook.running():
            await self.webhook.synced()
            await self.server.start()
            task = asyncio.create_task(self.rotation.run())
            try:
                yield self
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                await self.server.stop()

    async def served(self) -> x509.Certificate:
        """The certificate that it shows now."""
        shown = await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", self.server.port), timeout=PATIENCE)
        return x509.load_pem_x509_certificate(shown.encode())


@pytest.fixture
async def store(cluster: kubernetes.Cluster) -> AsyncIterator[Kube]:
    warnings: list[str] = []
    kube = Kube(cluster.access(), clock=SystemClock(), warn=warnings.append)
    yield kube
    await uninstall(kube)
    await kube.close()


async def install(store: Kube, url: str) -> None:
    for kind, mutating in CONFIGURATIONS.items():
        await store.create(kind, {"metadata": {"name": rules.CONFIGURATION}, "webhooks": rules.entries(
            NAMESPACE, lambda path: {"url": f"{url}{path}"}, mutating=mutating)})


async def uninstall(store: Kube) -> None:
    for kind, name, namespace in ((VALIDATING, rules.CONFIGURATION, ""), (MUTATING, rules.CONFIGURATION, ""),
                                  (kinds.SECRET, SECRET, NAMESPACE)):
        with contextlib.suppress(NotFound):
            await store.delete(kind, name, namespace)


async def until(holds: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not await holds():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.02)


def path(kind: Kind) -> str:
    return kind.path(HERE)


async def create(store: Kube, kind: Kind, obj: Object, user: str = "", **query: str) -> tuple[int, Object]:
    whole = {"apiVersion": kind.api_version, "kind": kind.kind, **obj}
    status, _, body = await store.raw("POST", path(kind), body=json.dumps(whole).encode(), query=query,
                                      headers={**headers_of(user), "Content-Type": "application/json"})
    return status, json.loads(body)


async def patch(store: Kube, at: str, change: Object, user: str = "") -> tuple[int, Object]:
    status, _, body = await store.raw("PATCH", at, body=json.dumps(change).encode(), headers={
        **headers_of(user), "Content-Type": "application/merge-patch+json"})
    return status, json.loads(body)


def headers_of(user: str) -> dict[str, str]:
    """So that a request is that of another user, who may do everything."""
    return {"Impersonate-User": user, "Impersonate-Group": "system:masters"} if user else {}


def causes(status: Object) -> list[tuple[str, str]]:
    listed = (status.get("details") or {}).get("causes") or []
    return [(cause.get("field", ""), cause.get("message", "")) for cause in listed]


def vm(name: str, **devices: Any) -> Object:
    return {"metadata": {"name": name, "namespace": HERE}, "spec": {"runStrategy": "Halted", "template": {
        "spec": {"domain": {"memory": {"guest": "1Gi"}, "devices": devices}}}}}


GOOD, BAD = vm("good"), vm("bad", gpus=[{"name": "g", "claimName": "none", "requestName": "card"}])


async def refuses(store: Kube) -> bool:
    """Whether the API server calls the webhook by now."""
    status, body = await create(store, kinds.VM, BAD, dryRun="All")
    return status == 422 and 'admission webhook "vms.outfitter.dev" denied the request' in body["message"]


@contextlib.asynccontextmanager
async def installed(store: Kube, clock: Any = None) -> AsyncIterator[Replica]:
    async with Replica(store, clock or SystemClock()).running() as replica:
        await install(store, replica.server.url)
        await until(lambda: refuses(store), "the API server does not call the webhook")
        yield replica


async def test_every_case_is_decided_as_in_embedded_mode(store: Kube) -> None:
    """What the API server refuses by itself, before it asks (by the definition of the kind), is compared by the verdict."""
    memory = Memory(rules=admission.AdmissionRules())
    for name in (HERE, "kubevirt"):
        await memory.create(kinds.NAMESPACE, {"metadata": {"name": name}})
    embedded = Client(App(memory, tokens={"admin": User("admin", (MASTERS,))}))
    compared = 0
    async with installed(store):
        for gates in (False, True):
            config = kubevirt(gates)
            if gates:
                await memory.patch(kinds.KUBEVIRT, "kubevirt", config, "kubevirt")
                await store.patch(kinds.KUBEVIRT, "kubevirt", config, "kubevirt")
            else:
                await memory.create(kinds.KUBEVIRT, config)
                await store.create(kinds.KUBEVIRT, config)
            probe = {"metadata": {"name": "probe", "namespace": HERE}, "spec": {
                "domain": {"memory": {"guest": "1Gi"}, "devices": {"hostDevices": []}}}}

            async def seen(wanted: bool = gates, probe: Object = probe) -> bool:
                status, _ = await create(store, kinds.VMI, probe, dryRun="All")
                return (status == 201) == wanted

            await until(seen, "the webhook does not see the feature gates")
            asked = [(name, kind, {**obj, "metadata": {**obj["metadata"], "namespace": HERE}})
                     for name, (kind, obj) in reviews.case_objects().items()][::1 if gates else 3]
            for start in range(0, len(asked), AT_ONCE):
                part = asked[start:start + AT_ONCE]
                answers = await asyncio.gather(*(create(store, kind, obj, dryRun="All") for _, kind, obj in part))
                for (name, kind, obj), (status, theirs) in zip(part, answers, strict=True):
                    ours: Reply = await embedded.post(path(kind), obj, dryRun="All")
                    assert (ours.status, ours.json.get("reason")) == (status, theirs.get("reason")), f"{name}: {theirs}"
                    if "denied the request" in theirs.get("message", ""):
                        assert causes(theirs) == causes(ours.json), name
                        assert theirs["message"].partition("denied the request: ")[2] == ours.json["message"], name
                        compared += 1
    await store.delete(kinds.KUBEVIRT, "kubevirt", "kubevirt")
    await memory.close()
    assert compared > 50


async def test_defaults_updates_status_and_deletes(store: Kube) -> None:
    async with installed(store):
        vmi = await store.create(kinds.VMI, {"metadata": {"generateName": "blue-", "namespace": HERE},
                                             "spec": GOOD["spec"]["template"]["spec"]})
        assert vmi["metadata"]["finalizers"], "the mutating webhook adds the finalizer"
        at = f"{path(kinds.VMI)}/{vmi['metadata']['name']}"
        status, body = await patch(store, at, {"spec": {"terminationGracePeriodSeconds": 5}})
        assert (status, causes(body)[0][0]) == (422, "spec.terminationGracePeriodSeconds"), body
        for text, expected in (("gpu1,", 422), ("gpu1", 200), (None, 200)):
            status, body = await patch(store, at, {"metadata": {"annotations": {reattached_devices.DECLARED: text}}})
            assert status == expected, body
            if status == 422:
                assert causes(body)[0][0] == f"metadata.annotations[{reattached_devices.DECLARED}]", body
        status, body = await patch(store, f"{at}/status", {"status": {"phase": "Dreaming"}})
        assert (status, causes(body)[0][0]) == (422, "status.phase"), body
        assert (await patch(store, f"{at}/status", {"status": {"phase": "Running"}}))[0] == 200
        page = {"metadata": {"name": "node-0"}, "spec": {"bookings": [{
            "device": {"driver": "d", "pool": "node-0", "device": "vf0"}, "request": "r", "state": "prepared",
            "since": "2026-01-01T00:00:00Z", "amount": {"whole": True},
            "holder": {"kind": "ResourceClaim", "namespace": HERE, "name": "c", "uid": "u"}}]}}
        status, body = await create(store, kinds.LEDGER_PAGE, page)
        assert (status, [field for field, _ in causes(body)]) == (422, [
            "spec.bookings[0].state", "spec.bookings[0].holder", "spec.bookings[0].device"]), body
        await uninstall(store)
        await until(lambda: unrefused(store), "the webhook is still called")
        await store.create(kinds.LEDGER_PAGE, page)  # as a node agent writes it
        await store.create(kinds.NODE, {"metadata": {"name": "node-0"}})
    async with installed(store):
        status, _, raw = await store.raw("DELETE", f"{path(kinds.LEDGER_PAGE)}/node-0")
        assert (status, "kubectl delete node node-0" in json.loads(raw)["message"]) == (403, True)
        await store.delete(kinds.NODE, "node-0")
        await store.delete(kinds.LEDGER_PAGE, "node-0")


async def unrefused(store: Kube) -> bool:
    return (await create(store, kinds.VM, BAD, dryRun="All"))[0] == 201


async def test_with_the_webhook_away_nothing_gets_in_and_what_runs_goes_on(store: Kube, cluster: kubernetes.Cluster) -> None:
    async with installed(store):
        await store.create(kinds.VM, GOOD)
        await store.create(kinds.VMI, {**GOOD, "spec": GOOD["spec"]["template"]["spec"]})
    for obj in (BAD, vm("other")):
        status, body = await create(store, kinds.VM, obj)
        assert (status, 'failed calling webhook "vms.outfitter.dev"' in body["message"]) == (500, True), body
        with pytest.raises(NotFound):
            await store.get(kinds.VM, obj["metadata"]["name"], HERE)
    # what our controllers do for running VMs, as the service account of the controller
    for at, change in ((f"{path(kinds.VMI)}/good/status", {"status": {"phase": "Running"}}),
                      (f"{path(kinds.VMI)}/good", {"metadata": {"finalizers": None}}),
                      (f"{path(kinds.VM)}/good", {"spec": {"runStrategy": "Always"}})):
        status, body = await patch(store, at, change, reviews.CONTROLLER)
        assert status == 200, body
    page = {"metadata": {"name": "node-1"}, "spec": {"bookings": []}}
    assert (await create(store, kinds.LEDGER_PAGE, page))[0] == 500
    assert (await create(store, kinds.LEDGER_PAGE, page, user=reviews.CONTROLLER))[0] == 201
    # what the garbage collector and users do: metadata, and deletes; and all that is no kind of ours
    status, body = await patch(store, f"{path(kinds.VM)}/good", {"metadata": {"labels": {"a": "b"}}})
    assert status == 200, body
    await store.create(kinds.CONFIG_MAP, {"metadata": {"name": "a", "namespace": HERE}})
    await store.create(kinds.POD, {"metadata": {"name": "p", "namespace": HERE}, "spec": {"containers": [
        {"name": "c", "image": "i"}]}})
    await store.delete(kinds.VMI, "good", HERE)
    await store.delete(kinds.VM, "good", HERE)


async def test_a_renewed_certificate_is_used_without_a_restart(store: Kube) -> None:
    """Also by the replica that did not renew it, and by an API server that connects anew."""
    clock = ManualClock(SystemClock().now() - timedelta(days=61))  # the API server has the real time
    async with installed(store, clock) as replica, Replica(store, clock).running() as other:
        before = await replica.served()
        assert before == await other.served()
        clock.advance(61 * 86_400)

        async def renewed() -> bool:
            return await replica.served() == await other.served() != before

        await until(renewed, "the certificate is not renewed")
        # a new configuration makes the API server connect again, with the bundle that it has
        await store.delete(VALIDATING, rules.CONFIGURATION)
        await store.delete(MUTATING, rules.CONFIGURATION)
        await until(lambda: unrefused(store), "the webhook is still called")
        await install(store, other.server.url)
        await until(lambda: refuses(store), "the API server does not accept the new certificate")


async def test_an_expired_certificate_is_replaced_at_the_start(store: Kube) -> None:
    past = ManualClock(SystemClock().now() - timedelta(days=91))
    async with Replica(store, past).running() as expired:
        assert (await expired.served()).not_valid_after_utc < SystemClock().now()
    async with installed(store) as replica:
        assert (await replica.served()).not_valid_after_utc > SystemClock().now()


async def test_replicas_that_start_together_use_one_certificate(store: Kube) -> None:
    replicas = [Replica(store, SystemClock()) for _ in range(6)]
    await asyncio.gather(*(replica.rotation.start() for replica in replicas))
    secret = await store.get(kinds.SECRET, SECRET, NAMESPACE)
    used = {replica.tls.certificates for replica in replicas}
    assert len(used) == 1
    assert base64.b64decode(secret["data"]["tls.crt"]) == used.pop().serving.cert  # type: ignore[union-attr]


def test_the_process_needs_no_more_than_the_rights_of_an_installation(
    cluster: kubernetes.Cluster, tmp_path: Path
) -> None:
    """Two replicas with the token of their service account, called by the API server; the aggregated API on the same port."""
    roles = ClusterRoles(cluster, tmp_path)
    roles.install()  # again: the Secret, which other tests delete
    try:
        first, second = (roles.start("webhook", "--address", "127.0.0.1:0", name=name).ready() for name in ("one", "two"))
        url, other = (run.until_said("it listens on").rpartition(" ")[2] for run in (first, second))
        for kind, mutating in CONFIGURATIONS.items():
            cluster.request("POST", kind.path(), {
                "apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": rules.CONFIGURATION},
                "webhooks": rules.entries(NAMESPACE, lambda path: {"url": f"{url}{path}"}, mutating=mutating)})
        bad = {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", **BAD}

        def refused() -> bool:
            try:
                cluster.request("POST", f"{path(kinds.VM)}?dryRun=All", bad)
            except urllib.error.HTTPError as error:
                return "denied the request: VirtualMachine.kubevirt.io" in json.loads(error.read())["message"]
            return False

        wait_until(refused, "the API server calls the webhook")
        assert first.healthy("/readyz")
        ports = [int(where.rpartition(":")[2]) for where in (url, other)]
        assert len({ssl.get_server_certificate(("127.0.0.1", port), timeout=PATIENCE) for port in ports}) == 1
        assert b'"kind":"APIResourceList"' in _as_front_proxy(cluster, f"{url}/apis/subresources.kubevirt.io/v1")
        assert (roles.forbidden(), first.stop(), second.stop()) == ([], 0, 0)
    finally:
        roles.stop()
        for kind in CONFIGURATIONS:
            with contextlib.suppress(urllib.error.HTTPError):
                cluster.request("DELETE", kind.path(name=rules.CONFIGURATION))


def _as_front_proxy(cluster: kubernetes.Cluster, url: str) -> bytes:
    """A request with kube-apiserver's client certificate and the user in a header, as its aggregation layer sends it."""
    secret = json.loads(cluster.request("GET", f"/api/v1/namespaces/{NAMESPACE}/secrets/{SECRET}"))
    context = ssl.create_default_context(cadata=base64.b64decode(secret["data"]["ca.crt"]).decode())
    context.load_cert_chain(cluster.folder / "pki" / "front-proxy.crt", cluster.folder / "pki" / "front-proxy.key")
    return kubernetes.fetch(urllib.request.Request(url, headers={"X-Remote-User": "admin"}), context)
