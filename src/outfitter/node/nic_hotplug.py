"""Plugs, unplugs and changes the network interfaces of running VMIs in place, and reports them in status.interfaces.

Everything is decided by the spec and by what the domain has (`nic_plan.py`), so that a step that was done before a crash is
found done. Nothing waits for a guest: an unplug that the guest has not answered is looked at again. Nothing is done while a
VMI migrates. Called by who runs the pods of a host, with the host's lock."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Protocol

from outfitter.api import rejection
from outfitter.api.hypervisor import Domain, DomainNic, NicBuilder
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import attachment_pods, migration, network_info
from outfitter.api.kubevirt.network_info import Wire
from outfitter.api.launcher.launcher_protocol import PlugNic
from outfitter.api.rejection import Rejection, RejectionCode
from outfitter.errors import HypervisorError, NotReady, OutfitterError
from outfitter.node import nic_plan
from outfitter.node.agent_host import AgentHost
from outfitter.node.hotplug.booking_patience import BookingPatience
from outfitter.node.launchers import Launchers
from outfitter.node.networks import Networks, PluggedNics
from outfitter.node.pods.launcher_request import LauncherRequests
from outfitter.node.pods.pod_cache import PodCache
from outfitter.node.status_reporter import StatusReporter
from outfitter.store.clock import Clock

TRY_AGAIN = 5.0  # seconds after a NIC could not be plugged


class NicSource(Protocol):
    """How a NIC of a running VM gets what it is attached to."""

    multus: bool  # whether it also sets up the pod's networks, and reports that

    async def attach(self, host: AgentHost, pod: Object, instance: Object, domain: Domain, name: str) -> None:
        """NotReady, HypervisorError: it cannot be plugged, with the reason; nothing is left of it."""
        ...

    async def swap(self, host: AgentHost, pod: Object, instance: Object, name: str, nic: DomainNic) -> None:
        """Its network definition may be another one by now."""
        ...

    async def wire(self, host: AgentHost, pod: Object, instance: Object, domain: Domain, name: str) -> Wire | None:
        """What a NIC that is to be plugged is attached to. Called where `multus` is set."""
        ...

    async def reported(
        self, pod: Object, instance: Object, nics: Mapping[str, DomainNic], kept: Collection[str], ready: Collection[Wire]
    ) -> None:
        """The domain has these NICs now. Of `kept` the pod keeps the networks that it has: they may be on another network than
        their VMI wants, or are not plugged. `ready`: networks that it has from now on, for NICs that the guest has no port for.
        Called where `multus` is set."""
        ...


class NicSync:
    def __init__(self, source: NicSource, report: StatusReporter, *, clock: Clock) -> None:
        self._source, self._report, self._clock = source, report, clock
        self._patience: BookingPatience[str] = BookingPatience(clock)
        self._unplugging: dict[tuple[str, str], float] = {}  # VMI and alias -> when its guest was first asked, monotonic

    async def sync(self, host: AgentHost, pod: Object, instance: Object, domain: Domain) -> float | None:
        """Bring the NICs of a running domain one step further; when to look again."""
        status = instance.get("status") or {}
        if not network_info.interfaces(instance) and not domain.nics and not status.get("interfaces"):
            return None
        if migration.under_way(instance):
            return None
        in_place = host.settings.plug_in_place
        planned = nic_plan.plan(instance, domain.nics)
        waits: dict[str, Rejection] = {}
        again = await self._unplug(host, instance, planned, waits)
        for name, nic, up in planned.links:
            try:
                await host.hypervisor.set_link(domain.uid, nic.alias, up=up)
            except HypervisorError as error:
                waits[name] = _why(error, name)
        unswapped: set[str] = set()
        if in_place:
            unswapped = await self._swap(host, pod, instance, domain, waits)
        for name in planned.attach:
            if not in_place and not _made_with(pod, instance, name):
                continue  # the VM is migrated for it, into a pod that has the network
            try:
                await self._source.attach(host, pod, instance, domain, name)
            except (NotReady, HypervisorError) as error:
                waits[name] = _why(error, name)
            domain = await self._fresh(host, domain)
        domain = await self._fresh(host, domain)
        nics = nic_plan.named(domain.nics, [str(entry["name"]) for entry in network_info.interfaces(instance)])
        multus = self._source.multus and in_place
        kept, ready = await self._in_pod(host, pod, instance, domain, waits) if multus else ([], [])
        if multus:
            await self._source.reported(pod, instance, nics, {*unswapped, *kept}, ready)
        statuses = nic_plan.statuses(instance, nics, multus=multus, kept=[*kept, *(wire.network for wire in ready)])
        reported, later = self._patience.reported(
            instance["metadata"]["uid"], waits,
            {name for name, why in waits.items() if why.code is RejectionCode.VF_NOT_BOOKED})
        await self._report.interfaces(instance, statuses, nics, reported)
        retries = [again, later, TRY_AGAIN if waits else None]
        return min((each for each in retries if each is not None), default=None)

    async def _in_pod(
        self, host: AgentHost, pod: Object, instance: Object, domain: Domain, waits: Mapping[str, Rejection]
    ) -> tuple[list[str], list[Wire]]:
        """NICs that the guest has not got though the pod has their networks; and the wires of those that the guest has no PCI
        port for, whose networks would be there. Another pod has no more of either, so no migration is required for them."""
        missing = nic_plan.plan(instance, domain.nics).attach
        kept = [name for name in missing if network_info.pod_interface(pod, name) is not None]
        wires = [await self._source.wire(host, pod, instance, domain, name) for name in missing
                 if name not in kept and name in waits and waits[name].code is RejectionCode.NO_PCI_PORT]
        return kept, [wire for wire in wires if wire is not None]

    async def _unplug(
        self, host: AgentHost, instance: Object, planned: nic_plan.NicPlan, waits: dict[str, Rejection]
    ) -> float | None:
        uid, patience, again = instance["metadata"]["uid"], host.settings.unplug_timeout.total_seconds(), None
        for name, nic in planned.detach:
            try:
                left = await host.hypervisor.detach_device(uid, nic.alias)
            except HypervisorError as error:
                waits[name] = _why(error, name)
                continue
            if left is None:
                self._unplugging.pop((uid, nic.alias), None)
                continue
            now = self._clock.monotonic()
            since = self._unplugging.setdefault((uid, nic.alias), now)
            if now - since >= patience:
                waits[name] = Rejection.of(RejectionCode.NIC_KEPT_BY_GUEST, message=(
                    f"interface {name}: the guest was asked to release it and has not for {patience:.0f} s; it is asked "
                    "again. A guest that is paused, still boots or has no driver for PCI hotplug does not answer"))
            again = left if again is None else min(again, left)
        return again

    async def _swap(
        self, host: AgentHost, pod: Object, instance: Object, domain: Domain, waits: dict[str, Rejection]
    ) -> set[str]:
        """The names of NICs whose network could not be looked at or swapped."""
        failed: set[str] = set()
        interfaces = {str(entry["name"]): entry for entry in network_info.interfaces(instance)}
        for name, nic in nic_plan.named(domain.nics, interfaces).items():
            if nic.bridge and name in interfaces and interfaces[name].get("state") != "absent":
                try:
                    await self._source.swap(host, pod, instance, name, nic)
                except (NotReady, HypervisorError) as error:
                    waits[name] = _why(error, name)
                    failed.add(name)
        return failed

    async def _fresh(self, host: AgentHost, domain: Domain) -> Domain:
        return (await host.hypervisor.domains()).get(domain.uid, domain)

    def forget(self, uid: str) -> None:
        """A VMI is gone."""
        self._patience.forget(uid)
        self._unplugging = {key: since for key, since in self._unplugging.items() if key[0] != uid}


class HostNics:
    """Where the agent runs the pods: taps on bridges of the host by the hypervisor, and VFs of attachment pods."""

    multus = True

    def __init__(self, networks: Networks, cache: PodCache, build: NicBuilder) -> None:
        self._networks, self._cache, self._build = networks, cache, build

    async def attach(self, host: AgentHost, pod: Object, instance: Object, domain: Domain, name: str) -> None:
        wire = await self.wire(host, pod, instance, domain, name)
        skipped = network_info.wires_of_pod(pod).get(name)
        if wire is None or (host.simulated and skipped is not None and skipped.type == "none"):
            return  # a simulated VM was started without it
        await host.hypervisor.attach_device(domain.uid, self._build(domain.xml, instance, name, wire))

    async def wire(self, host: AgentHost, pod: Object, instance: Object, domain: Domain, name: str) -> Wire | None:
        attachments = {attachment: other for other in self._cache.attachments(pod)
                       if (attachment := attachment_pods.held(other)) and not other["metadata"].get("deletionTimestamp")}
        plugged = PluggedNics(frozenset({name}), frozenset(domain.devices), attachments)
        return (await self._networks.plugged(host, pod, instance, plugged)).get(name)

    async def swap(self, host: AgentHost, pod: Object, instance: Object, name: str, nic: DomainNic) -> None:
        network = next((each for each in network_info.networks(instance) if each.get("name") == name), {})
        if network.get("multus") is None:
            return
        recorded, wire = network_info.attached_name(pod, name), network_info.wires_of_pod(pod).get(name)
        if recorded == "/".join(network_info.attachment(instance, network)) and wire is not None and wire.bridge == nic.bridge:
            return  # as it was found before
        wires = await self._networks.plugged(host, pod, instance, PluggedNics(frozenset({name}), frozenset(), {}))
        if (wire := wires.get(name)) is not None and wire.type == "bridge" and wire.bridge != nic.bridge:
            await host.hypervisor.set_bridge(instance["metadata"]["uid"], nic.alias, wire.bridge)

    async def reported(
        self, pod: Object, instance: Object, nics: Mapping[str, DomainNic], kept: Collection[str], ready: Collection[Wire]
    ) -> None:
        await self._networks.annotate(pod, instance, nic_plan.wires(nics), kept, ready)


class PodNics:
    """Where a kubelet runs the pods: the dynamic-networks-controller has a network plugin make the tap in the pod, and reports
    that in the pod's network-status."""

    multus = False

    def __init__(self, launchers: Launchers, requests: LauncherRequests) -> None:
        self._launchers, self._requests = launchers, requests

    async def attach(self, host: AgentHost, pod: Object, instance: Object, domain: Domain, name: str) -> None:
        if _by_claim(instance, name):
            if _made_with(pod, instance, name) and (
                    found := await self._requests.plugged(host, pod, instance, domain, name)) is not None:
                await self._launchers.plug_nic(PlugNic(instance, name, network_info.write([found])))
            return  # without its claim it is plugged on the target of a migration
        entry = network_info.pod_interface(pod, name)
        interface = next((each for each in network_info.interfaces(instance) if each.get("name") == name), {})
        if entry is None:
            return  # the annotation wakes the pod
        address = ((entry.get("device-info") or {}).get("pci") or {}).get("pci-address")
        if interface.get("sriov") is not None and not address:
            return  # it is plugged on the target of a migration
        mac = network_info.mac(instance, interface) if not address else None
        wire = Wire(name, "device" if address else None, entry.get("mac") or mac, str(address) if address else None)
        await self._launchers.plug_nic(PlugNic(instance, name, network_info.write([wire])))

    async def swap(self, host: AgentHost, pod: Object, instance: Object, name: str, nic: DomainNic) -> None:
        """A pod's network is not swapped while it runs: the VM is migrated."""

    async def wire(self, host: AgentHost, pod: Object, instance: Object, domain: Domain, name: str) -> Wire | None:
        """The network plugin decides."""
        return None

    async def reported(
        self, pod: Object, instance: Object, nics: Mapping[str, DomainNic], kept: Collection[str], ready: Collection[Wire]
    ) -> None:
        """The network plugin writes the pod's annotations."""


def _made_with(pod: Object, instance: Object, name: str) -> bool:
    """Whether a pod has the network of an interface: by Multus, or by a claim that it was created with."""
    if (network := _by_claim(instance, name)) is not None:
        return attachment_pods.has_vf(pod, network)
    return network_info.pod_interface(pod, name) is not None


def _by_claim(instance: Object, name: str) -> Mapping[str, Any] | None:
    """The network of an interface whose VF comes by a claim."""
    return next((each for each in network_info.networks(instance)
                 if each.get("name") == name and each.get("resourceClaim") is not None), None)


def _why(error: OutfitterError, name: str) -> Rejection:
    default = RejectionCode.NETWORK_NOT_READY if isinstance(error, NotReady) else RejectionCode.NIC_NOT_PLUGGED
    found = rejection.of_error(error, default)
    message = str(found.detail.get("message") or error.message)
    return found.with_detail(message=message if name in message else f"interface {name}: {message}")
