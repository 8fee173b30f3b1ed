"""The flavor of a VMI, or its request for dedicated CPUs: looked up once, made into a claim that the VMI owns, and
kept in its status.

The claim is created first and contains everything; the status is written from it. So a flavor that changes while a VMI is being
created changes nothing of it, and a crash between the two loses nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from outfitter.api import kinds
from outfitter.api.conditions import Condition
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import device_refs, pod_claims, vm
from outfitter.controllers import launcher_pod
from outfitter.controllers.manager import ControllerContext, enqueue_on_change
from outfitter.errors import AlreadyExists, BadRequest, Forbidden, Invalid, NotFound
from outfitter.inventory import numa_cells
from outfitter.scheduling.nova import flavor_claim
from outfitter.scheduling.nova.flavor_claim import AliasSet
from outfitter.store.informer import key_of
from outfitter.store.workqueue import WorkQueue

WAITING = "Synchronized"  # the condition with the reason why a VMI has no pod
WAITS = ("Pending", "Scheduling")  # phases in which it has no host


def claim_name(instance: Mapping[str, Any]) -> str:
    """The same for the same VMI, so that creating the claim twice creates it once."""
    meta = instance["metadata"]
    return (
        f"{meta['name']}-{device_refs.FLAVOR_CLAIM}"[:247].rstrip("-.")
        + "-"
        + launcher_pod.suffix(meta["uid"], device_refs.FLAVOR_CLAIM)
    )


def planned_flavor(instance: Object, flavor: Object, aliases: AliasSet) -> tuple[Object | None, Object]:
    """The claim that a VMI's flavor becomes (None: it asks for no devices), and what the status keeps of the flavor.
    BadRequest, Invalid: the flavor cannot be understood."""
    claim = flavor_claim.claim(flavor, instance, aliases, claim_name(instance))
    return claim, flavor_claim.settled(flavor, claim)


def flavor_of(instance: Object, flavors: Callable[[str], Object | None]) -> Object | None:
    """The flavor that a VMI names, or the one that dedicated CPUs imply; None: the named one does not exist."""
    name = vm.flavor_name(instance)
    return flavors(name) if name else flavor_claim.implied(instance)


class FlavorClaims:
    """Settles flavors for the VMI controller, and wakes the VMIs that wait for one."""

    def __init__(self, context: ControllerContext, aliases: AliasSet, queue: WorkQueue, *, exact: bool) -> None:
        self._store, self._events, self._aliases = context.store, context.events, aliases
        self._exact = exact  # the scheduler honours everything in the claim; else an event names what is lost
        self._instances = context.informer(kinds.VMI)
        self._instances.add_index("flavor", _unsettled)
        self._flavors = context.informer(kinds.FLAVOR)
        self._claims = context.informer(kinds.RESOURCE_CLAIM)
        self._inventories = context.informer(kinds.HOST_INVENTORY) if exact else None
        enqueue_on_change(self._flavors, queue, self._waiting_for)
        self._queue = queue
        self._claims.on_change(self._claim_changed)

    def _claim_changed(self, old: Object | None, new: Object | None) -> None:
        if new is None and old is not None and (reference := vm.owner(old, kinds.VMI.kind)) is not None:
            self._queue.add(f"{old['metadata']['namespace']}/{reference['name']}")

    def _waiting_for(self, flavor: Object) -> Sequence[str]:
        return [key_of(instance) for instance in self._instances.by("flavor", flavor["metadata"]["name"])]

    def unsettled(self, instance: Object, pod: Object | None) -> bool:
        """Whether there is something to settle. A VMI whose pod was created without dedicated CPUs goes on without."""
        if record := vm.flavored(instance):
            return self._lost(instance, pod, record)
        if vm.flavor_name(instance):
            return True
        if self._inventories is None or not vm.dedicated(instance):
            return False
        if pod is None:  # where no host publishes its NUMA cells there are none to give
            return ((instance.get("status") or {}).get("phase") not in ("Scheduled", "Running")
                    and any(any(numa_cells.read(inventory)) for inventory in self._inventories.items()))
        return device_refs.FLAVOR_CLAIM in dict(pod_claims.claim_names(pod))

    def _lost(self, instance: Object, pod: Object | None, record: Mapping[str, Any]) -> bool:
        """Its claim was deleted while it waits for a host: it is made again, as it was."""
        waits = (instance.get("status") or {}).get("phase") in WAITS and (pod is None or not pod["spec"].get("nodeName"))
        return bool(waits and record.get("claimName")
                    and self._claims.get(f"{instance['metadata']['namespace']}/{record['claimName']}") is None)

    async def settle(self, instance: Object) -> Object | Condition:
        """What the status is to keep of the flavor, with the claim created; or why the VMI waits."""
        name, claim = vm.flavor_name(instance), claim_name(instance)
        if (made := await self._made(instance, claim)) is not None:
            return flavor_claim.settled({}, made)
        flavor = flavor_of(instance, self._flavors.get)
        if flavor is None or flavor["metadata"].get("deletionTimestamp"):
            return Condition(WAITING, False, "FlavorNotFound",
                             f"flavor {name} does not exist; the VMI goes on when it does")
        try:
            wanted, record = planned_flavor(instance, flavor, self._aliases)
            kept = vm.flavored(instance)
            if kept and not _same(kept, record):
                return Condition(WAITING, False, "FlavorChanged", f"claim {claim} was deleted, and flavor {name} is no longer "
                                 "what the VMI was created with; change it back, or recreate the VMI")
            if wanted is None:
                return record
            made = await self._store.create(kinds.RESOURCE_CLAIM, wanted)
            self._claims.put(made)
            if not self._exact and (lost := flavor_claim.beyond(made)):
                await self._events.warning(instance, "FlavorNotExact", f"flavor {name} asks for more than kube-scheduler knows "
                                                                       f"of: {'; '.join(lost)}")
        except AlreadyExists:
            made = await self._made(instance, claim)
        except (BadRequest, Invalid, Forbidden) as error:
            what = f"flavor {name}" if name else "spec.domain.cpu.dedicatedCpuPlacement"
            return Condition(WAITING, False, "FlavorNotUnderstood", f"{what}: {error.message}")
        return flavor_claim.settled(flavor, made) if made is not None else Condition(
            WAITING, False, "FailedClaim", f"claim {claim} has another owner; delete it, and the VMI goes on")

    async def _made(self, instance: Object, claim: str) -> Object | None:
        """The claim, if it was created for this VMI. Asks the store: it may have been made before a crash."""
        try:
            found = await self._store.get(kinds.RESOURCE_CLAIM, claim, instance["metadata"]["namespace"])
        except NotFound:
            return None
        owner = vm.owner(found, kinds.VMI.kind)
        return found if owner is not None and owner["uid"] == instance["metadata"]["uid"] else None


def _unsettled(instance: Object) -> list[str]:
    """The flavor that a VMI waits for, or would need again if its claim were lost."""
    name = vm.flavor_name(instance)
    return [name] if name and (not vm.flavored(instance) or instance["status"].get("phase") in WAITS) else []


def _same(kept: Mapping[str, Any], record: Mapping[str, Any]) -> bool:
    """Whether a VMI would be created as it was; the NUMA cells it is on are not part of that."""
    return all(kept.get(key) == record.get(key) for key in ("vcpus", "memory", "disk", "devices", "claimName"))
