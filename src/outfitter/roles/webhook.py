"""`outfit webhook`: the admission webhook of a cluster, on one TLS port with the aggregated API. All replicas work at the same
time. Its certificate is renewed while it serves."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import ssl
from collections.abc import Coroutine
from typing import Any

from outfitter.api import kinds
from outfitter.api.admission import AdmissionRules
from outfitter.apiserver.aggregated.app import AggregatedApi, warn_user
from outfitter.apiserver.server import TlsServer, server_context
from outfitter.inventory.server_limits import ServerLimits
from outfitter.roles.cluster_check import Right, check_cluster, reads
from outfitter.roles.process import RoleProcess
from outfitter.roles.webhook_app import WebhookApp
from outfitter.scheduling.nova import flavor_claim
from outfitter.scheduling.nova.flavor_claim import AliasSet
from outfitter.store.clock import Clock
from outfitter.webhook.admission_webhook import AdmissionWebhook
from outfitter.webhook.certificate import WebhookCertificates
from outfitter.webhook.certificate_rotation import CertificateRotation
from outfitter.webhook.reads import CACHED

CLIENT_IDLE = 90  # seconds after which kube-apiserver closes an idle connection
READ = (*(Right("get", kind) for kind in (kinds.RESOURCE_CLAIM, kinds.LEDGER_PAGE, kinds.NODE)),
        *(Right("list", kind) for kind in (kinds.POD, kinds.RESOURCE_SLICE)))


class ServerTls:
    """What the server shows and trusts: the certificate of the webhook, and the authority of client certificates."""

    def __init__(self, server: TlsServer) -> None:
        self._server = server
        self.certificates: WebhookCertificates | None = None  # in use
        self._client_ca = ""

    def use(self, certificates: WebhookCertificates) -> None:
        self.certificates = certificates
        self._apply()

    def trust(self, client_ca: str) -> None:
        self._client_ca = client_ca
        self._apply()
        self._server.end_connections()

    def _apply(self) -> None:
        if self.certificates is None:
            return
        context = server_context()
        if self._client_ca:
            context.load_verify_locations(cadata=self._client_ca)
        else:
            context.verify_mode = ssl.CERT_NONE  # or a client certificate would end the connection
        pair = self.certificates.serving
        memory = os.memfd_create("certificate", os.MFD_CLOEXEC)  # OpenSSL reads files; the key must not be on a disk
        try:
            os.write(memory, pair.cert + pair.key)
            context.load_cert_chain(f"/proc/self/fd/{memory}")
        finally:
            os.close(memory)
        self._server.use(context)


def webhook_server(app: WebhookApp, host: str, port: int, limits: ServerLimits, clock: Clock) -> TlsServer:
    """Its clients are the API servers, a few addresses with a connection for each write that is under way: no limit by address
    but that of all connections. And the client closes an idle connection first: what it sends on one that the server closes at
    that moment would be refused."""
    limits = dataclasses.replace(limits, max_connections_per_address=limits.max_connections)
    return TlsServer(app, name="the webhook", host=host, port=port, limits=limits, clock=clock, keep_alive=CLIENT_IDLE + 30,
                     remedy="set another --address, or port 0 for a free one")


async def run(process: RoleProcess) -> None:
    async with process.connect(warn=warn_user) as store:
        await check_cluster(store, "webhook", [*reads(CACHED), *READ])
        namespace, (host, port) = process.settings.namespace, process.settings.address
        aliases = AliasSet.of(process.config.default)
        webhook = AdmissionWebhook(store, admission=AdmissionRules({kinds.FLAVOR: flavor_claim.checked(aliases)}),
                                   clock=process.clock, namespace=namespace)
        aggregated = AggregatedApi(store, clock=process.clock)
        server = webhook_server(WebhookApp(webhook, aggregated), host, port, process.config.server, process.clock)
        tls = ServerTls(server)
        aggregated.front_proxy.on_client_ca(tls.trust)
        rotation = CertificateRotation(store, clock=process.clock, namespace=namespace, use=tls.use)
        await rotation.start()
        async with webhook.running():
            await webhook.synced()
            await server.start()
            try:
                await _serve(process, server, rotation.run(), aggregated.run())
            finally:
                await server.stop()


async def _serve(process: RoleProcess, server: TlsServer, *coroutines: Coroutine[Any, Any, None]) -> None:
    """Until a signal; raises what ends the work earlier."""
    work = [asyncio.create_task(coroutine) for coroutine in coroutines]
    stopped: asyncio.Task[bool] = asyncio.create_task(process.stop.wait())
    process.ready(f"it listens on {server.url}")
    try:
        await asyncio.wait([*work, stopped], return_when=asyncio.FIRST_COMPLETED)
        for ended in work:
            if ended.done():
                await ended
    finally:
        tasks: list[asyncio.Task[Any]] = [*work, stopped]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
