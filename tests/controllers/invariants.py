"""What must be true of pages, claims, pods and domains: at every moment, of every change of a page, and at rest. Each function
gives sentences, one for each thing that is wrong. They know the objects that users see and nothing of how they came about."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from outfitter.api import conditions, kinds, rejection_conditions
from outfitter.api.device import DeviceId
from outfitter.api.hypervisor import Domain
from outfitter.api.kinds import Kind, Object
from outfitter.api.kubevirt import failed_launches, pod_claims, vmi_actions
from outfitter.api.kubevirt import vm as vm_api
from outfitter.api.ledger_page.page import OUT_OF_SERVICE_STATES, Booking, Page
from outfitter.api.rejection import RejectionCode
from outfitter.cel.library import quantity

Key = tuple[str, str]  # namespace and name
CLASHES = {RejectionCode.HARDWARE_HELD, RejectionCode.DEVICE_IN_USE}
RETRIED = (failed_launches.PREPARE_FAILED, failed_launches.START_FAILED)
KEPT = "example.com/kept"  # a finalizer of another owner


@dataclass
class Books:
    """Everything there is at one moment."""

    objects: dict[Kind, dict[Key, Object]] = field(default_factory=lambda: defaultdict(dict))
    domains: Mapping[str, Collection[Domain]] = field(default_factory=dict)  # host -> what runs there
    names: Mapping[tuple[str, str], str] = field(default_factory=dict)  # (host, address) -> device, of all that ever was there
    twins: Mapping[DeviceId, str] = field(default_factory=dict)  # a device of another driver -> that of ours which it is
    parents: Mapping[tuple[str, str], str] = field(default_factory=dict)  # (host, VF) -> the function that it is a part of
    served: Collection[str] = ()  # hosts whose node agent runs
    asked: dict[str, str] = field(default_factory=dict)  # uid of a VirtualMachine -> what was last asked of it
    counters: dict[tuple[str, str, str], str] = field(default_factory=dict)  # (pool, set, counter) -> the most ever published

    def all(self, kind: Kind) -> list[Object]:
        return list(self.objects[kind].values())

    @property
    def pages(self) -> list[Page]:
        return [Page(obj) for obj in self.all(kinds.LEDGER_PAGE)]

    @property
    def bookings(self) -> list[Booking]:
        return [booking for page in self.pages for booking in page.bookings]

    def had(self, host: str, domain: Domain) -> set[str]:
        """The devices of a domain; functions that travel together are one."""
        return {self.names[host, address] for address in domain.devices}

    def hardware(self, device: DeviceId) -> str:
        """What a device is on its host, whichever name it has."""
        return self.twins.get(device, device.device)

    def parent(self, device: DeviceId) -> DeviceId | None:
        name = self.parents.get((device.pool, device.device))
        return DeviceId(device.driver, device.pool, name) if name else None


def results(claim: Object) -> list[DeviceId]:
    given = ((claim.get("status") or {}).get("allocation") or {}).get("devices") or {}
    return [DeviceId(one["driver"], one["pool"], one["device"]) for one in given.get("results") or ()]


# -- at every moment


def moment(books: Books) -> Iterator[str]:
    holders: dict[DeviceId, list[Booking]] = defaultdict(list)
    for booking in books.bookings:
        holders[booking.device].append(booking)
    for device, those in holders.items():
        if len(those) > 1 and not all(booking.shared for booking in those):
            yield f"{device.short} is held by {' and by '.join(str(booking.holder) for booking in those)}"
        if (parent := books.parent(device)) in holders:
            yield f"{device.short} is held, and so is {parent.short}, of which it is a part"
    yield from _prepared_twice(books)
    yield from _counters(books)
    yield from _domains(books)
    held = {(booking.holder.uid, booking.device) for booking in books.bookings}
    for claim in books.all(kinds.RESOURCE_CLAIM):
        for device in results(claim):
            if (claim["metadata"]["uid"], device) not in held:
                yield f"claim {claim['metadata']['name']} has {device.short}, and no page says so"


def _counters(books: Books) -> Iterator[str]:
    used: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for booking in books.bookings:
        for name, counters in (booking.amount.get("counters") or {}).items():
            for counter, amount in counters.items():
                used[booking.device.pool, name, counter].append(str(amount))
    for place, amounts in used.items():
        total = sum(map(quantity.parse, amounts), quantity.from_int(0))
        if total > quantity.parse(books.counters.get(place, "0")):
            yield f"{total} of {place} are booked and {books.counters.get(place, 'none')} were published"


def _prepared_twice(books: Books) -> Iterator[str]:
    """Of hardware, under whichever names."""
    holders: dict[tuple[str, str], list[Booking]] = defaultdict(list)
    for booking in books.bookings:
        for key in booking.hardware if booking.state == "prepared" else ():
            holders[user_of(booking), key].append(booking)
    for (host, key), those in holders.items():
        if len(those) > 1:
            yield f"{key} of {host} is prepared as {' and as '.join(f'{one.device} for {one.holder}' for one in those)}"


def _domains(books: Books) -> Iterator[str]:
    prepared = {(user_of(booking), key) for booking in books.bookings if booking.state == "prepared"
                for key in booking.hardware}
    for host, domains in books.domains.items():
        seen: dict[str, str] = {}
        for domain in domains:
            for address in sorted(domain.devices):
                if (host, address) not in prepared:
                    yield f"{address} is used by {domain.name} on {host} and not prepared"
                if address in seen:
                    yield f"{address} is used by {seen[address]} and by {domain.name} on {host}"
                seen[address] = domain.name


def change(old: Page, new: Page) -> Iterator[str]:
    """Of one write of a page: what was out of service is not given to a new holder, and neither is hardware that is recorded as
    held under another name."""
    had = {booking.key for booking in old.bookings}
    marked = {mark.device: which for which in OUT_OF_SERVICE_STATES for mark in old.records(which)}
    for booking in new.bookings:
        if booking.key not in had and booking.device in marked:
            yield f"{booking.device.short} is {marked[booking.device]} and was booked for {booking.holder}"
        for other in old.bookings if booking.key not in had else ():
            if other.device != booking.device and not set(booking.hardware).isdisjoint(other.hardware):
                yield f"{booking.device} was booked for {booking.holder}, and is {other.device}, which {other.holder} has"


# -- at rest


def rest(books: Books) -> Iterator[str]:
    """When all controllers are idle. What is on a host that is not served cannot move, and is skipped."""
    yield from _agree(books)
    yield from _leaks(books)
    yield from _machines(books)
    yield from _wanted(books)
    yield from _waiting(books)


def _agree(books: Books) -> Iterator[str]:
    claims = books.all(kinds.RESOURCE_CLAIM)
    promised = sorted((claim["metadata"]["uid"], device) for claim in claims for device in results(claim))
    booked = sorted((booking.holder.uid, booking.device) for booking in books.bookings)
    if promised != booked:
        yield f"claims say {promised}, pages say {booked}"


def _leaks(books: Books) -> Iterator[str]:
    claims = {claim["metadata"]["uid"]: claim for claim in books.all(kinds.RESOURCE_CLAIM)}
    for booking in books.bookings:
        claim = claims.get(booking.holder.uid)
        if user_of(booking) in books.served and (claim is None or (booking.state == "released" and not _kept(books, claim))):
            yield f"{booking.device.short} is {booking.state} for {booking.holder}, which no longer has a use for it"
    for claim in books.all(kinds.RESOURCE_CLAIM):
        meta, status = claim["metadata"], claim.get("status") or {}
        uid = meta["uid"]
        here = {user_of(booking) for booking in books.bookings if booking.holder.uid == uid} <= set(books.served)
        users = [user for user in status.get("reservedFor") or () if _alive(books, meta["namespace"], user)]
        if here and status.get("allocation") and not users:
            yield f"claim {meta['name']} has devices and no user: {status}"
        if here and meta.get("deletionTimestamp") and not users and KEPT not in (meta.get("finalizers") or ()):
            yield f"claim {meta['name']} was deleted, nobody uses it, and it is still there: {claim}"
        for owner in meta.get("ownerReferences") or ():
            kind = kinds.POD if owner["kind"] == kinds.POD.kind else kinds.VM
            if here and (meta["namespace"], owner["name"]) not in books.objects[kind]:
                yield f"claim {meta['name']} outlived its {kind.singular}"


def user_of(booking: Booking) -> str:
    """The host that uses what is booked."""
    return booking.node or booking.device.pool


def _kept(books: Books, claim: Object) -> bool:
    """By a VM, which may be stopped."""
    return any(user["resource"] == kinds.VM.plural and _alive(books, claim["metadata"]["namespace"], user)
               for user in (claim.get("status") or {}).get("reservedFor") or ())


def _alive(books: Books, namespace: str, user: Mapping[str, Any]) -> bool:
    if user["resource"] == kinds.VM.plural:
        vm = books.objects[kinds.VM].get((namespace, user["name"]))
        return vm is not None and bool(vm["metadata"]["uid"] == user["uid"])
    pod = books.objects[kinds.POD].get((namespace, user["name"]))
    return (pod is not None and pod["metadata"]["uid"] == user["uid"]
            and (pod.get("status") or {}).get("phase") not in vm_api.FINAL)


def _machines(books: Books) -> Iterator[str]:
    instances = {obj["metadata"]["uid"]: obj for obj in books.all(kinds.VMI)}
    running = {uid for uid, obj in instances.items() if (obj.get("status") or {}).get("phase") == "Running"
               and obj["status"].get("nodeName") in books.served}
    there = {domain.uid for host in books.served for domain in books.domains.get(host, ())}
    if running != there:
        yield f"machines that run: {sorted(running)}; domains: {sorted(there)}"
    for host in books.served:
        for domain in books.domains.get(host, ()):
            if domain.uid in instances:
                wanted = sorted(_given(books, instances[domain.uid]))
                have = sorted(books.had(host, domain))
                if wanted != have:
                    yield f"{domain.name} has {have}, and its claims {wanted}"
    for pod in books.all(kinds.POD):
        status, name = pod.get("status") or {}, pod["metadata"]["name"]
        if pod["spec"].get("nodeName") not in books.served:
            continue
        if pod["metadata"].get("deletionTimestamp"):
            if KEPT not in (pod["metadata"].get("finalizers") or ()):
                yield f"pod {name} was deleted and is still there"
        elif status.get("phase") == "Pending" and not _has_clash(books, pod):
            yield f"pod {name} has a host and does not run: {status}"
        elif status.get("reason") in ("SyncFailed", "DomainGone") or (
                status.get("reason") in RETRIED and not _launched_enough(instances, pod) and not _has_clash(books, pod)):
            yield f"pod {name} failed: {status}"
        if not conditions.is_true(pod, "PodScheduled"):
            yield f"pod {name} has a host and says that it has none: {status}"


def _has_clash(books: Books, pod: Object) -> bool:
    """Whether a pod is rejected because hardware is held on its host under another name, by another claim or its own."""
    if not CLASHES & set(rejection_conditions.of(pod)):
        return False
    names = {(pod["metadata"]["namespace"], name) for _, name in pod_claims.claim_names(pod) if name}
    mine = [books.hardware(device) for name in names for device in results(books.objects[kinds.RESOURCE_CLAIM].get(name) or {})]
    return len(set(mine)) < len(mine) or any(
        books.hardware(booking.device) in mine and user_of(booking) == pod["spec"]["nodeName"]
        and (booking.holder.namespace, booking.holder.name) not in names for booking in books.bookings)


def _launched_enough(instances: Mapping[str, Object], pod: Object) -> bool:
    """Whether no launch is left for the VMI of a pod that failed on its host."""
    vmi = instances.get((vm_api.owner(pod, kinds.VMI.kind) or {}).get("uid", "")) or {}
    return (vmi.get("status") or {}).get("phase") == "Failed" and pod["metadata"]["uid"] in [
        launch.pod_uid for launch in failed_launches.of(vmi)]


def _wanted(books: Books) -> Iterator[str]:
    """VirtualMachines and their instances, and what was asked of those."""
    for vm in books.all(kinds.VM):
        meta, strategy = vm["metadata"], vm["spec"]["runStrategy"]
        instance = books.objects[kinds.VMI].get((meta["namespace"], meta["name"]))
        if meta.get("deletionTimestamp") or (instance or {}).get("metadata", {}).get("deletionTimestamp"):
            continue
        alive = instance is not None and (instance.get("status") or {}).get("phase") not in vm_api.FINAL
        if strategy == "Always" and not alive and not (vm.get("status") or {}).get("startFailure"):
            yield f"machine {meta['name']} is to run, and there is no instance: {vm['status']}"
        stopped = strategy == "Halted" or (strategy == "Manual" and books.asked.get(meta["uid"]) in (None, "stop"))
        if instance is not None and stopped:
            yield f"machine {meta['name']} is {strategy}, and there is an instance: {vm['status']}"
    for instance in books.all(kinds.VMI):
        status = instance.get("status") or {}
        if status.get("phase") != "Running" or status.get("nodeName") not in books.served:
            continue
        if vmi_actions.action_requests(instance):
            yield f"of {instance['metadata']['name']} was asked {vmi_actions.action_requests(instance)}, and nobody did it"
        for domain in books.domains.get(status["nodeName"], ()):
            if domain.uid == instance["metadata"]["uid"] and conditions.is_true(instance, vmi_actions.PAUSED) != bool(
                domain.paused
            ):
                yield f"{domain.name} is paused: {domain.paused}, and its status says {status['conditions']}"


def _given(books: Books, instance: Object) -> Iterator[str]:
    for pod in books.all(kinds.POD):
        reference = vm_api.owner(pod, kinds.VMI.kind)
        if reference is not None and reference["uid"] == instance["metadata"]["uid"]:
            for name in {name for _, name in pod_claims.claim_names(pod) if name}:
                claim = books.objects[kinds.RESOURCE_CLAIM].get((pod["metadata"]["namespace"], name))
                yield from (books.hardware(device) for device in results(claim or {}))


def _waiting(books: Books) -> Iterator[str]:
    for pod in books.all(kinds.POD):
        meta, status = pod["metadata"], pod.get("status") or {}
        if pod["spec"].get("nodeName") or meta.get("deletionTimestamp") or status.get("phase") != "Pending":
            continue
        said = conditions.find(pod, "PodScheduled") or {}
        if said.get("status") != "False" or not said.get("message"):
            yield f"pod {meta['name']} waits and does not say why: {status}"
        names = [name for _, name in pod_claims.claim_names(pod)]
        claim = books.objects[kinds.RESOURCE_CLAIM].get((meta["namespace"], names[0] or "")) if len(names) == 1 else None
        if claim is None or claim["metadata"].get("deletionTimestamp"):
            continue
        given = claim.get("status") or {}
        if given.get("allocation"):
            if not any(user["uid"] != meta["uid"] for user in given.get("reservedFor") or ()):
                yield f"pod {meta['name']} waits for its own claim: {given}"
            continue
        [request] = claim["spec"]["devices"]["requests"]
        wanted, count = request["exactly"]["deviceClassName"], request["exactly"].get("count", 1)
        for host in _only_hosts(pod) or books.served:
            free = sorted(_free(books, host, wanted.upper())) if _takes_pods(books, host) else []
            if len(free) >= count:
                yield f"pod {meta['name']} waits for {count} {wanted}, and on {host} {free} are free: {said.get('message')}"


def _only_hosts(pod: Object) -> list[str]:
    """The host that a pod may run on by its name alone, as attachment pods; empty: any."""
    affinity = (pod["spec"].get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    return [host for term in required.get("nodeSelectorTerms") or () for field in term.get("matchFields") or ()
            if field["key"] == "metadata.name" and field["operator"] == "In" for host in field["values"]]


def _takes_pods(books: Books, host: str) -> bool:
    node = books.objects[kinds.NODE][("", host)]
    return conditions.is_true(node, "Ready") and not (node.get("spec") or {}).get("unschedulable")


def _free(books: Books, host: str, kind: str) -> Iterator[str]:
    """Devices of a host that are free. Whether one may be had while a part of it, or what it is a part of, is marked
    is for the scheduler to say: nothing is asked of it then."""
    out = {booking.device for booking in books.bookings}
    out |= {mark.device for page in books.pages for which in OUT_OF_SERVICE_STATES for mark in page.records(which)}
    wholes = {books.parent(device) for device in out}
    used = {(device.pool, books.hardware(device)) for device in out}  # under whichever name
    for piece in books.all(kinds.RESOURCE_SLICE):
        spec = piece["spec"]
        for device in spec.get("devices") or () if spec.get("nodeName") == host or spec.get("allNodes") else ():
            name = DeviceId(spec["driver"], spec["pool"]["name"], device["name"])
            if device["attributes"]["kind"]["string"] == kind and not device.get("taints") and name not in out | wholes and (
                    books.parent(name) not in out and (name.pool, books.hardware(name)) not in used):
                used.add((name.pool, books.hardware(name)))
                yield device["name"]
