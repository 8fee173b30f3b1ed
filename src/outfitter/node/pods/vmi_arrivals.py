"""How a host gets ready for a VMI that arrives by a migration: a Protocol with two implementations, one for each who runs the
pods of a host (`pod_runtime.py`). Called by `vmi_migrations.py`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from outfitter.api import kinds, rejection
from outfitter.api.hypervisor import MigrationTarget
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import migration
from outfitter.api.kubevirt.network_info import Wire
from outfitter.api.rejection import RejectionCode
from outfitter.errors import NotReady, OutfitterError, StartFailed
from outfitter.node import status_reporter
from outfitter.node.agent_host import AgentHost
from outfitter.node.launchers import Launchers
from outfitter.node.networks import Networks
from outfitter.node.pods import secrets
from outfitter.node.pods.domain_builder import DomainBuilder
from outfitter.node.pods.launcher_request import LauncherRequests
from outfitter.node.pods.pod_cache import PodCache
from outfitter.node.pods.pod_preparation import PodPreparation
from outfitter.node.status_reporter import StatusReporter
from outfitter.store.base import Store

RETRY = 1.0  # seconds


class VmiArrivals(Protocol):
    @property
    def certificate(self) -> str:
        """PEM, by which the agent of the other node knows this one; "": hypervisors reach each other without agents."""
        ...

    async def pod_runs(self, host: AgentHost, pod: Object) -> Object | float | None:
        """The pod, once it runs; before, when to look again."""
        ...

    async def prepare(self, host: AgentHost, pod: Object, vmi: Object) -> MigrationTarget:
        """Have everything ready after the hand-over. StartFailed, HypervisorError, NotReady: it cannot arrive."""
        ...

    def admit(self, pod: Object, vmi: Object) -> None:
        """The source has begun. HypervisorError: what it wrote about itself is wrong."""
        ...

    async def wires(self, host: AgentHost, pod: Object, vmi: Object) -> Mapping[str, Wire]:
        """How the network interfaces of a VMI that has arrived are attached."""
        ...

    def ended(self, pod: Object, *, arrived: bool) -> None:
        """The migration into a pod has ended."""
        ...


class OwnArrivals:
    """Where the agent runs the pods itself."""

    certificate = ""

    def __init__(
        self, store: Store, cache: PodCache, report: StatusReporter, *, devices: PodPreparation, attached: Networks,
        domains: DomainBuilder,
    ) -> None:
        self._store, self._cache, self._report = store, cache, report
        self._devices, self._networks, self._domains = devices, attached, domains

    async def pod_runs(self, host: AgentHost, pod: Object) -> Object | float | None:
        """Prepare devices and networks, report the pod as Running."""
        vmi = self._cache.vmi_named(pod)
        if vmi is None:
            return None
        if missing := await self._devices.prepare(host, pod):
            if missing.final or self._devices.gives_up(host.name, pod, missing):
                await self._report.pod_rejected(pod, missing.rejection, status_reporter.FAILED_PREPARE)
                return None
            await self._report.waiting(pod, missing.rejection)
            return RETRY
        try:
            annotations = await self._networks.decide(host, pod, vmi)
        except NotReady as error:
            network = rejection.of_error(error, RejectionCode.NETWORK_NOT_READY)
            await self._report.waiting(pod, network, status_reporter.FAILED_NETWORKS)
            return RETRY
        if pod["status"].get("phase") != "Running":
            try:
                pod = await self._report.pod_running(pod, "", annotations)
            except OutfitterError:
                self._networks.forget(pod)  # they were not written
                raise
            self._cache.put(kinds.POD, pod)
        return pod

    async def prepare(self, host: AgentHost, pod: Object, vmi: Object) -> MigrationTarget:
        secret_files = await secrets.files(self._store, vmi)
        if isinstance(secret_files, str):
            raise StartFailed(secret_files)
        domain = await self._domains.build(host, pod, migration.on_target(vmi), secret_files)
        return await host.hypervisor.prepare_incoming(domain)

    def admit(self, pod: Object, vmi: Object) -> None:
        """Hypervisors reach each other."""

    async def wires(self, host: AgentHost, pod: Object, vmi: Object) -> Mapping[str, Wire]:
        return self._networks.of(pod)

    def ended(self, pod: Object, *, arrived: bool) -> None:
        if arrived:
            self._networks.forget(pod)


class KubeletArrivals:
    """Where a kubelet runs the pods: the launcher of the target's pod gets ready, and the agents of both nodes pass on what
    the launchers send."""

    def __init__(self, launchers: Launchers, requests: LauncherRequests) -> None:
        self._launchers, self._requests = launchers, requests

    @property
    def certificate(self) -> str:
        return self._launchers.proxy.certificate

    async def pod_runs(self, host: AgentHost, pod: Object) -> Object | float | None:
        return pod if pod["status"].get("phase") == "Running" else None  # the kubelet's watch update brings it back

    async def prepare(self, host: AgentHost, pod: Object, vmi: Object) -> MigrationTarget:
        self._launchers.assign(vmi["metadata"]["uid"], pod["metadata"]["uid"])
        request, _ = await self._requests.of(host, pod, migration.on_target(vmi))
        return await self._launchers.expect_vmi(request, migration.job_uid(pod))

    def admit(self, pod: Object, vmi: Object) -> None:
        source = migration.state(vmi).get("sourceCertificate")
        if source:
            self._launchers.proxy.expect(migration.job_uid(pod), pod["metadata"]["uid"], str(source))

    async def wires(self, host: AgentHost, pod: Object, vmi: Object) -> Mapping[str, Wire]:
        _, wires = await self._requests.of(host, pod, vmi)
        return {wire.network: wire for wire in wires}

    def ended(self, pod: Object, *, arrived: bool) -> None:
        if job := migration.job_uid(pod):
            self._launchers.proxy.close_target(job, arrived=arrived)
