"""Prepares and unprepares the devices of claims on a host: between the ledger's page, which says who holds a device, and the
hardware. Finds what a crash left half done by comparing page, checkpoint and running VMs.

Called by the agent and by `ClaimBookings`, which hold the host's lock. The steps on the hardware itself are in `prepare.py` and
`unprepare.py`."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence

from outfitter.api.kinds import Object
from outfitter.api.kubevirt import device_refs, pod_claims
from outfitter.api.ledger_page.page import Page
from outfitter.api.rejection import RejectionCode, carrying
from outfitter.errors import HypervisorError, NotReady, StartupRefused, Unreadable
from outfitter.inventory import scan
from outfitter.ledger import book, out_of_service
from outfitter.node import launcher_env
from outfitter.node.agent_host import AgentHost
from outfitter.node.devices import cdi, mdev, sriov
from outfitter.node.devices.prepare import AllocatedDevice, PreparedClaim, prepare
from outfitter.node.devices.unprepare import unprepare
from outfitter.node.host_env import HostEnv
from outfitter.store.base import Store
from outfitter.store.clock import Clock, rfc3339

log = logging.getLogger(__name__)


class ClaimPreparation:
    def __init__(self, store: Store, hosts: Sequence[AgentHost], *, clock: Clock) -> None:
        self._store, self._hosts, self._clock = store, hosts, clock
        self._prepared: dict[tuple[str, str], PreparedClaim] = {}  # host and claim -> what this process prepared

    async def start(self) -> None:
        """Before hosts are audited: `begin` each. A host that must not start has the reason in its `refusal`."""
        for host in self._hosts:
            async with host.lock:
                try:
                    await self.begin(host)
                except (StartupRefused, Unreadable) as error:
                    host.refusal = error

    async def begin(self, host: AgentHost) -> None:
        """Finish what a crash left, and create the VFs and mediated devices that the settings ask for. StartupRefused: the host
        must not start."""
        if (env := host.env) is None:
            return
        try:
            await env.open()
            await _remove_empty_cdi_specs(host.name, env)
            await self.unprepare_leftovers(host)
            await self._provision(host, env)
        except (NotReady, HypervisorError) as error:
            raise StartupRefused(f"host {host.name} does not start: {error.message}", [error.message]) from error

    async def prepare(self, host: AgentHost, claim: Object, results: Sequence[Mapping[str, object]]) -> PreparedClaim | None:
        """Prepare what is allocated to the claim here, which is recorded on the page as prepared. NotReady: why it cannot be.
        None: there is nothing to prepare here, as other drivers prepare their devices themselves."""
        env, key = host.env, (host.name, claim["metadata"]["uid"])
        if env is None or not results or (key in self._prepared and self._has_files(env, key[1])):
            return self._prepared.get(key)
        allocated = []
        for result in results:
            if (target := host.devices.get(str(result["device"]))) is None:
                if any(taken.device == result["device"] for taken in env.checkpoint.of(key[1])):
                    return None  # prepared by an earlier process, and nothing more is to be done
                raise carrying(NotReady(f"{result['device']} is not known on {host.name} at the moment: it cannot be "
                                        "prepared"), RejectionCode.DEVICE_MISSING)
            allocated.append(AllocatedDevice(target, str(result["request"]), bool(result.get("adminAccess"))))
        places = {place for device in allocated for place in (device.target.uuid, *device.target.functions)}
        others = [taken for taken in env.checkpoint.taken if taken.uid != key[1] and not taken.places.isdisjoint(places)]
        left = await self._unprepare_leftovers(host) if others else {}
        running = await _running(host)
        try:
            self._prepared[key] = await env.run(lambda: prepare(env, claim, allocated, running=running, left=left),
                                                {place for place in places if place is not None})
        except OSError as error:
            raise NotReady(f"claim {claim['metadata']['name']} cannot be prepared on {host.name}: {error}") from error
        return self._prepared[key]

    def _has_files(self, env: HostEnv, uid: str) -> bool:
        """Whether the files of a prepared claim are in place: their folders are often cleared by other programs."""
        names = {name for taken in env.checkpoint.of(uid) for name in taken.files}
        return env.cdi.read(cdi.file_name(env.driver, uid)) is not None and all(map(env.metadata.read, names))

    def launcher_devices(self, host: AgentHost, pod: Object, claims: device_refs.Claims) -> launcher_env.LauncherDevices:
        """What the pod's launcher gets to know about the devices that were prepared for it."""
        found = [(name, claim) for name, claim_name in pod_claims.claim_names(pod)
                 if claim_name and (claim := claims(pod["metadata"]["namespace"], claim_name)) is not None]
        return launcher_env.launcher_devices(pod, [
            (name, claim, prepared.devices) for name, claim in found
            if (prepared := self._prepared.get((host.name, claim["metadata"]["uid"]))) is not None])

    async def unprepare(self, host: AgentHost, uid: str, known: Page | None = None) -> None:
        """Unprepare what a claim has here, then release its bookings; a device that could not be restored is quarantined.
        NotReady: a VM still has one of them. `known`: the host's page as the caller has read it."""
        await self._unprepare(host, uid)
        await book.set_state(self._store, host.name, uid, "released", known=known)
        await self._forget(host, uid)

    async def unprepare_leftovers(self, host: AgentHost) -> None:
        """Unprepare what was taken for a claim that has nothing prepared on the page: this process was killed in between, or
        another one released the bookings."""
        for why in (await self._unprepare_leftovers(host)).values():
            log.warning("%s: %s", host.name, why)

    async def _unprepare_leftovers(self, host: AgentHost) -> dict[str, str]:
        """Claim -> why its devices are not restored yet. A device that was quarantined stays in the checkpoint as long as it is
        booked for another claim that was allocated it before the quarantine."""
        left: dict[str, str] = {}
        if host.env is None or not host.env.checkpoint.taken:
            return left
        page = await book.read(self._store, host.name)
        for uid in dict.fromkeys(taken.uid for taken in host.env.checkpoint.taken):
            if any(booking.state == "prepared" for booking in page.of(uid)):
                continue
            try:
                faults = await self._unprepare(host, uid)
            except NotReady as error:
                left[uid] = error.message
                continue
            if awaited := [why for device, why in faults.items()
                           if any(booking.holder.uid != uid for booking in page.on(host.device(device)))]:
                left[uid] = "; ".join(awaited)
            else:
                await self._forget(host, uid)
        return left

    async def _unprepare(self, host: AgentHost, uid: str) -> Mapping[str, str]:
        """Device -> why it could not be restored."""
        if (env := host.env) is None:
            return {}
        self._prepared.pop((host.name, uid), None)
        running = await _running(host)
        try:
            faults = await env.run(lambda: unprepare(env, uid, running=running),
                                   {place for taken in env.checkpoint.of(uid) for place in taken.places})
        except OSError as error:
            raise NotReady(f"claim {uid} cannot be unprepared on {host.name}: {error}") from error
        for device, reason in faults.items():
            if await out_of_service.quarantine(
                self._store,
                host.name,
                host.device(device),
                by=f"host {host.name}",
                reason=reason,
                now=rfc3339(self._clock.now()),
            ):
                log.warning("%s: %s is quarantined: %s", host.name, device, reason)
        return faults

    async def _forget(self, host: AgentHost, uid: str) -> None:
        if (env := host.env) is not None:
            await env.run(lambda: env.checkpoint.forget(uid))

    async def _provision(self, host: AgentHost, env: HostEnv) -> None:
        """Create and remove VFs and mediated devices as the settings ask for."""
        settings = host.settings
        if not (settings.sriov or settings.mdev or env.checkpoint.made):
            return
        used = await _running(host)
        booked = {booking.device.device for booking in (await book.read(self._store, host.name)).bookings}

        def work() -> Iterable[str]:
            found = scan.scan(env.root)
            busy = used | {address for device in found.devices if device.name in booked or device.address in used
                           for address in (device.address, *device.members)}
            yield from sriov.provision(env, settings.sriov, found.devices, busy)
            found = scan.scan(env.root)  # a VF may be the parent of mediated devices
            busy = used | {device.uuid for device in found.mdevs if device.name in booked}
            yield from mdev.provision(env, settings.mdev, found, busy)

        try:
            host.provisioning_warnings = tuple(await env.run(lambda: list(work())))
        except OSError as error:
            raise NotReady(str(error)) from error


async def _remove_empty_cdi_specs(name: str, env: HostEnv) -> None:
    """Remove what earlier versions wrote for claims on devices of other drivers alone."""

    def work() -> None:
        for file in env.cdi.names():
            if cdi.is_ours(env.driver, file) and cdi.names_no_device(env.cdi.read(file) or ""):
                env.cdi.remove(file)

    try:
        await env.run(work)
    except (OSError, NotReady) as error:
        log.warning("%s: CDI files without devices are not removed: %s", name, error)


async def _running(host: AgentHost) -> set[str]:
    """What VMs on the host have: PCI addresses, and UUIDs of mediated devices."""
    return {source for domain in (await host.hypervisor.domains()).values() for source in domain.devices}
