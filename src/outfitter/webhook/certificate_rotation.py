"""Keeps the certificate of the webhook: in a Secret that all replicas share, in use by this process, and its CA in everything
by which the API server calls us (both webhook configurations, the APIServices of the aggregated API).

Replicas need no lease: the Secret is replaced at the revision at which it was read, and a replica that comes second uses what
the first one wrote. Runs in `roles.webhook`."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from outfitter.api import kinds
from outfitter.api.kinds import Kind, Object
from outfitter.api.served import aggregated_apis
from outfitter.errors import AlreadyExists, Conflict, Forbidden, NotFound, OutfitterError, StartupRefused, Unavailable
from outfitter.store.base import Store
from outfitter.store.clock import Clock
from outfitter.store.informer import Informer
from outfitter.webhook import certificate, rules
from outfitter.webhook.certificate import WebhookCertificates

log = logging.getLogger(__name__)
SECRET, SERVICE = "outfitter-webhook-cert", "outfitter-webhook"
VALIDATING = Kind("admissionregistration.k8s.io", "v1", "ValidatingWebhookConfiguration", "validatingwebhookconfigurations",
                  namespaced=False, has_status=False)
MUTATING = Kind("admissionregistration.k8s.io", "v1", "MutatingWebhookConfiguration", "mutatingwebhookconfigurations",
                namespaced=False, has_status=False)
API_SERVICE = Kind("apiregistration.k8s.io", "v1", "APIService", "apiservices", namespaced=False)
TRIES = 20  # of a write that other replicas win
RETRY = 5.0  # seconds after an error of the API server


@dataclass(frozen=True, slots=True)
class CaTarget:
    """An object of the API server that holds our CA."""

    kind: Kind
    name: str


TARGETS = (CaTarget(VALIDATING, rules.CONFIGURATION), CaTarget(MUTATING, rules.CONFIGURATION),
           *(CaTarget(API_SERVICE, aggregated_apis.api_service(*served)) for served in aggregated_apis.SERVED))


def server_names(namespace: str) -> list[str]:
    """The names by which the webhook is called: through its Service, and on this host."""
    service = f"{SERVICE}.{namespace}"
    return [f"{service}.svc", f"{service}.svc.cluster.local", service, "localhost", "127.0.0.1", "::1"]


class CertificateRotation:
    def __init__(self, store: Store, *, clock: Clock, namespace: str, use: Callable[[WebhookCertificates], None]) -> None:
        """`use` is called with the certificates to serve with, at the start and whenever they change."""
        self._store, self._clock, self._namespace, self._use = store, clock, namespace, use
        self._hosts: Sequence[str] = server_names(namespace)
        self._in_use: WebhookCertificates | None = None
        self._changed = asyncio.Event()
        self._secret: Informer[Object] = Informer(store, kinds.SECRET, clock=clock, namespace=namespace,
                                                  fields=f"metadata.name={SECRET}")
        self._targets: dict[CaTarget, Informer[Object]] = {
            target: Informer(store, target.kind, clock=clock, fields=f"metadata.name={target.name}") for target in TARGETS}
        for informer in (self._secret, *self._targets.values()):
            informer.on_change(lambda old, new: self._changed.set())

    async def start(self) -> None:
        """Until there is a certificate, and it is in use. StartupRefused: the Secret cannot be read or written."""
        try:
            await self._renew()
        except (Forbidden, NotFound) as error:
            raise StartupRefused(
                f"the certificate of the webhook is kept in Secret {self._namespace}/{SECRET}, which cannot be used: "
                f"{error.message}; outfit install --apply creates it and grants the rights") from error

    async def run(self) -> None:
        """Renew the certificate, use what other replicas renewed, and keep our CA where the API server reads it; until
        cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for informer in (self._secret, *self._targets.values()):
                tasks.create_task(informer.run())
            tasks.create_task(self._keep())

    async def _keep(self) -> None:
        while True:
            self._changed.clear()
            try:
                current = await self._renew()
                for target, informer in self._targets.items():
                    if (obj := informer.readable(target.name)) is not None:
                        await self._publish(target, informer, obj, current.bundle)
                wait = certificate.next_check(current, self._clock.now()).total_seconds()
            except OutfitterError as error:
                log.warning("the certificate of the webhook: %s; trying again in %.0f s", error, RETRY)
                wait = RETRY
            await self._until_changed(wait)

    async def _until_changed(self, seconds: float) -> None:
        waits = [asyncio.ensure_future(self._changed.wait()), asyncio.ensure_future(self._clock.sleep(seconds))]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for waiting in waits:
                waiting.cancel()

    # -- the Secret

    async def _renew(self) -> WebhookCertificates:
        for _ in range(TRIES):
            secret = await self._read()
            current = certificate.read(secret.get("data") if secret else None)
            renewal = certificate.renewal(current, self._hosts, self._clock.now())
            if renewal is not None:
                with contextlib.suppress(AlreadyExists, Conflict):  # another replica was faster
                    await self._write(secret, renewal.certificates)
                    level = logging.WARNING if renewal.lapsed and current is not None else logging.INFO
                    log.log(level, "made a new certificate for the webhook: %s%s", renewal.reason,
                            "; the API server refuses writes of our kinds until it has the new CA" if renewal.lapsed else "")
                continue
            assert current is not None
            if current != self._in_use:
                self._use(current)
                self._in_use = current
            return current
        raise Unavailable(f"Secret {self._namespace}/{SECRET} was changed by others {TRIES} times while it was written", RETRY)

    async def _read(self) -> Object | None:
        try:
            return await self._store.get(kinds.SECRET, SECRET, self._namespace)
        except NotFound:
            return None

    async def _write(self, secret: Object | None, new: WebhookCertificates) -> None:
        if secret is None:
            await self._store.create(kinds.SECRET, {
                "metadata": {"name": SECRET, "namespace": self._namespace}, "type": "kubernetes.io/tls", "data": new.data()})
        else:
            await self._store.replace(kinds.SECRET, {**secret, "data": {**(secret.get("data") or {}), **new.data()}})

    # -- the CA

    async def _publish(self, target: CaTarget, informer: Informer[Object], obj: Object, bundle: bytes) -> None:
        text = base64.b64encode(bundle).decode()
        if target.kind == API_SERVICE:
            spec = obj.get("spec") or {}
            service = spec.get("service") or {}
            if (service.get("namespace"), service.get("name")) != (self._namespace, SERVICE):
                return  # that of another, as KubeVirt's own
            places = [] if spec.get("caBundle") == text else ["/spec"]
        else:
            places = [f"/webhooks/{index}/clientConfig" for index, entry in enumerate(obj.get("webhooks") or ())
                      if (entry.get("clientConfig") or {}).get("caBundle") != text]
        if not places:
            return
        patch = [{"op": "replace", "path": "/metadata/resourceVersion", "value": obj["metadata"]["resourceVersion"]},
                 *({"op": "add", "path": f"{place}/caBundle", "value": text} for place in places)]
        try:
            informer.put(await self._store.patch(target.kind, target.name, patch, how="json"))
        except (Conflict, NotFound):
            return  # it changed, and the next change of it is on its way
        log.info("%s %s has the CA of the webhook", target.kind.kind, target.name)
