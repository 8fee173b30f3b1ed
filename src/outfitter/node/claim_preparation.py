"""Between the books and the hardware: what is prepared on a host's page is handed over, what is to be released is taken back,
and what a crash left half done is found by comparing page, checkpoint and machines. Whoever calls has the host's lock."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence

from outfitter.api.kinds import Object
from outfitter.api.kubevirt import device_refs, pod_claims
from outfitter.errors import NotReady, StartupRefused
from outfitter.inventory import scan
from outfitter.ledger import book, out_of_service
from outfitter.node import launcher_env, mdev, sriov
from outfitter.node.host import Host
from outfitter.node.host_audit import Keeper
from outfitter.node.host_env import HostEnv
from outfitter.node.prepare import AllocatedDevice, PreparedClaim, prepare
from outfitter.node.unprepare import release
from outfitter.store.base import Store
from outfitter.store.clock import Clock, rfc3339

log = logging.getLogger(__name__)


class ClaimPreparation:
    def __init__(self, store: Store, keeper: Keeper, *, clock: Clock) -> None:
        self._store, self._keeper, self._clock = store, keeper, clock
        self._ready: dict[tuple[str, str], PreparedClaim] = {}  # host and claim -> what was handed over since the start

    async def start(self) -> None:
        """Before a host says what it has: finish what a crash left, and make what the settings ask for. StartupRefused names
        every host whose checkpoint cannot be read."""
        refusals: list[str] = []
        for host in self._keeper.hosts.values():
            if host.station is None:
                continue
            try:
                await host.station.open()
            except (StartupRefused, NotReady) as error:
                refusals.append(f"host {host.name} does not start: {error.message}")
        if refusals:
            raise StartupRefused("\n".join(refusals), refusals)
        for host in self._keeper.hosts.values():
            if host.station is not None:
                async with self._keeper.locks[host.name]:
                    await self.leftovers(host)
                    await self._arrange(host, host.station)

    async def prepare(self, host: Host, claim: Object, results: Sequence[Mapping[str, object]]) -> PreparedClaim | None:
        """Hand over what the claim was given here, which its page says is prepared. NotReady: why it cannot be. None: the
        devices of this host are handed over by somebody else."""
        station, key = host.station, (host.name, claim["metadata"]["uid"])
        if station is None or key in self._ready:
            return self._ready.get(key)
        known = self._keeper.targets[host.name]
        wanted = []
        for result in results:
            if (target := known.get(str(result["device"]))) is None:
                if any(one.device == result["device"] for one in station.checkpoint.of(key[1])):
                    return None  # handed over before the start, and nothing more is to be done
                raise NotReady(f"{result['device']} is not known on {host.name} at the moment: it cannot be handed over")
            wanted.append(AllocatedDevice(target, str(result["request"]), bool(result.get("adminAccess"))))
        places = {where for one in wanted for where in (one.target.uuid, *one.target.functions)}
        others = [one for one in station.checkpoint.taken if one.uid != key[1] and not one.places.isdisjoint(places)]
        left = await self._undo(host) if others else {}
        running = await _running(host)
        try:
            self._ready[key] = await station.run(lambda: prepare(station, claim, wanted, running=running, left=left))
        except OSError as error:
            raise NotReady(f"claim {claim['metadata']['name']} cannot be prepared on {host.name}: {error}") from error
        return self._ready[key]

    def told(self, host: Host, pod: Object, claims: device_refs.Claims) -> launcher_env.LauncherDevices:
        """What the pod's launcher is told of the devices that were handed over for it."""
        found = [(name, claim) for name, claim_name in pod_claims.claim_names(pod)
                 if claim_name and (claim := claims(pod["metadata"]["namespace"], claim_name)) is not None]
        return launcher_env.tell(pod, [(name, claim, ready.given) for name, claim in found
                               if (ready := self._ready.get((host.name, claim["metadata"]["uid"]))) is not None])

    async def release(self, host: Host, uid: str) -> None:
        """Take back what a claim has here; then its bookings are released, and what did not come back whole is quarantined.
        NotReady: not while a machine has it."""
        await self._take_back(host, uid)
        await book.mark(self._store, host.name, uid, "released")
        await self._forget(host, uid)

    async def leftovers(self, host: Host) -> None:
        """Give back what was taken for a claim that has nothing prepared here: we died, or its bookings went without us."""
        for why in (await self._undo(host)).values():
            log.warning("%s: %s", host.name, why)

    async def _undo(self, host: Host) -> dict[str, str]:
        """As `leftovers`: claim -> why its devices are not back yet. One that did not come back whole is remembered as long as
        somebody waits for it who was promised it before it was quarantined."""
        left: dict[str, str] = {}
        if host.station is None or not host.station.checkpoint.taken:
            return left
        page = await book.read(self._store, host.name)
        for uid in dict.fromkeys(one.uid for one in host.station.checkpoint.taken):
            if any(booking.state == "prepared" for booking in page.of(uid)):
                continue
            try:
                trouble = await self._take_back(host, uid)
            except NotReady as error:
                left[uid] = error.message
                continue
            if promised := [why for device, why in trouble.items()
                            if any(booking.holder.uid != uid for booking in page.on(host.device(device)))]:
                left[uid] = "; ".join(promised)
            else:
                await self._forget(host, uid)
        return left

    async def _take_back(self, host: Host, uid: str) -> Mapping[str, str]:
        """Device -> why it did not come back whole."""
        if (station := host.station) is None:
            return {}
        self._ready.pop((host.name, uid), None)
        running = await _running(host)
        try:
            trouble = await station.run(lambda: release(station, uid, running=running))
        except OSError as error:
            raise NotReady(f"claim {uid} cannot be released on {host.name}: {error}") from error
        for device, reason in trouble.items():
            if await out_of_service.quarantine(
                self._store,
                host.name,
                host.device(device),
                by=f"host {host.name}",
                reason=reason,
                now=rfc3339(self._clock.now()),
            ):
                log.warning("%s: %s is quarantined: %s", host.name, device, reason)
        return trouble

    async def _forget(self, host: Host, uid: str) -> None:
        if (station := host.station) is not None:
            await station.run(lambda: station.checkpoint.forget(uid))

    async def _arrange(self, host: Host, station: HostEnv) -> None:
        settings = host.settings
        if not (settings.sriov or settings.mdev or station.checkpoint.made):
            return
        used = await _running(host)
        held = {booking.device.device for booking in (await book.read(self._store, host.name)).bookings}

        def work() -> Iterable[str]:
            found = scan.scan(station.root)
            busy = used | {address for one in found.devices if one.name in held or one.address in used
                           for address in (one.address, *one.members)}
            yield from sriov.arrange(station, settings.sriov, found.devices, busy)
            found = scan.scan(station.root)  # a virtual function may be a parent too
            busy = used | {one.uuid for one in found.mdevs if one.name in held}
            yield from mdev.arrange(station, settings.mdev, found, busy)

        try:
            self._keeper.notes[host.name] = tuple(await station.run(lambda: list(work())))
        except (OSError, NotReady) as error:
            raise StartupRefused(f"host {host.name} does not start: {error}", [str(error)]) from error


async def _running(host: Host) -> set[str]:
    """What machines on the host have: addresses and UUIDs."""
    return {source for domain in (await host.hypervisor.domains()).values() for source in domain.devices}
