"""What a machine got: status.deviceStatus, from its pod, the pod's claims and the slices of the drivers.

Driven by changes of all of them through the shared informers. Written once when everything is known, so that a machine costs
one patch. A machine that waits costs one more: the claims it waits for, and the reason in the condition DevicesReady. Another
reason is told once it has stood for a while: those that are on the way to the devices cost nothing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from outfitter.api import conditions, kinds
from outfitter.api.conditions import Condition
from outfitter.api.device import ADDRESS_NAMES, MDEV_NAMES, members, numa_node, text_attribute
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import device_refs, device_status, kubevirt_config, network_info, pod_claims, vm
from outfitter.controllers import launcher_resources, network_device_status
from outfitter.controllers.device_lookup import DeviceLookup
from outfitter.controllers.manager import ControllerContext, enqueue_on_change
from outfitter.controllers.vmi import LauncherPods, instance_of
from outfitter.store.informer import key_of, split_key
from outfitter.store.workqueue import WorkQueue

READY = "DevicesReady"
PATIENCE = timedelta(seconds=2)  # until a pod of which no scheduler speaks, or that waits for a gate or anew, is spoken of here
Find = Callable[[Mapping[str, Any], str | None], Mapping[str, Any] | str]  # a result, a host -> the device, or why not


@dataclass(frozen=True, slots=True)
class FoundDevices:
    """What is known of a machine's devices, and what is still missing (empty: everything is known)."""

    status: Object | None
    missing: tuple[str, ...]
    unnamed: bool = False  # some claim has not even a name yet
    gated: bool = False  # what is missing waits for a gate to be opened, and for nothing else


class DeviceStatus:
    name = "devicestatus"

    def __init__(self, context: ControllerContext) -> None:
        self._context, self._store = context, context.store
        self._instances = context.informer(kinds.VMI)
        self.queue = WorkQueue(context.clock, age=self._instances.age)
        self._pods = context.informer(kinds.POD)
        self._claims = context.informer(kinds.RESOURCE_CLAIM)
        self._published = DeviceLookup(context)
        self._kubevirts = context.informer(kinds.KUBEVIRT)
        self._launchers = LauncherPods(self._pods)
        self._other: dict[str, tuple[tuple[str, ...], datetime]] = {}  # what is missing that is not told yet, and since when
        self._pods.add_index("claim", pod_claims.claim_keys)
        enqueue_on_change(self._instances, self.queue, self._in_a_pod)
        enqueue_on_change(self._pods, self.queue, instance_of)
        enqueue_on_change(self._claims, self.queue, self._of_claim)
        enqueue_on_change(self._published.slices, self.queue, self._waiting)
        enqueue_on_change(self._kubevirts, self.queue, self._waiting)
        self._published.nodes.on_change(self._labelled)

    def _in_a_pod(self, instance: Object) -> list[str]:
        """Before a machine has a pod there is nothing to say; a pod that comes is news itself."""
        return [key_of(instance)] if self._launchers.all(instance) else []

    def _of_claim(self, claim: Object) -> list[str]:
        key = f"{claim['metadata']['namespace']}/{claim['metadata']['name']}"
        return [instance for pod in self._pods.by("claim", key) for instance in instance_of(pod)]

    def _waiting(self, _: Object) -> list[str]:
        """A slice or a gate can only matter to machines that have not started with what it said before."""
        return [f"{instance['metadata']['namespace']}/{instance['metadata']['name']}" for instance in self._instances.items()
                if conditions.find(instance, READY) is not None and (
                    not conditions.is_true(instance, READY) or instance["status"].get("phase") in vm.BEFORE)]

    def _labelled(self, old: Object | None, new: Object | None) -> None:
        """A host can reach other devices once it has other labels; the rest of its news, and there is much, does not matter."""
        if new is not None and (old is None or old["metadata"].get("labels") != new["metadata"].get("labels")):
            for key in self._waiting(new):
                self.queue.add(key)

    async def reconcile(self, key: str) -> float | None:
        namespace, _ = split_key(key)
        other = self._other.pop(key, None)
        instance = self._instances.get(key)
        if instance is None or instance["metadata"].get("deletionTimestamp"):
            return None
        status = instance.get("status") or {}
        phase = status.get("phase")
        pod = self._launchers.current(instance) if phase not in vm.FINAL else None
        if pod is None:
            return None
        told, have = self._cards(instance, pod), (status.get("deviceStatus") or {}).get(network_info.STATUSES) or []
        runs = phase == "Running" and not device_status.missing_devices(instance)  # what is assigned stays assigned
        if runs or self._settled(instance, pod):
            if told != have and not (runs and have):
                await self._patch(instance, {"deviceStatus": {network_info.STATUSES: told or None}})
            return None
        record = vm.flavored(instance)
        own = self._claim(namespace, record["claimName"]) if record.get("claimName") else None
        if cells := pod_claims.cells_of(own or {}):
            record = {**record, **cells}
            instance = {**instance, "status": {**status, "flavor": record}}
        closed = self._closed()
        found = find_devices(instance, pod, self._claim, self._published.find, closed)
        waits = not pod["spec"].get("nodeName")
        past = conditions.is_true(instance, READY) or _tells_of_others(instance, pod)  # what is told was an earlier pod's
        if waits and found.unnamed and not past and conditions.find(pod, "PodScheduled") is not None:
            return None  # it says there what it waits for
        if (waits and conditions.find(pod, "PodScheduled") is None) or (found.gated and found.status is None):
            # A scheduler may not even look at a pod whose claims are not there, and then says nothing. A gate may be opened.
            age = self._context.clock.now() - datetime.fromisoformat(pod["metadata"]["creationTimestamp"])
            if not found.missing or age < PATIENCE:
                return (PATIENCE - age).total_seconds() if found.missing else None
        if found.missing and self._says_another(instance, found):
            since = other[1] if other is not None and other[0] == found.missing else self._context.clock.now()
            if (left := since + PATIENCE - self._context.clock.now()) > timedelta():
                self._other[key] = found.missing, since
                return left.total_seconds()
        change: Object = {"conditions": self._conditions(instance, found)}
        if past or not (found.missing and found.unnamed):
            change["deviceStatus"] = {**(found.status or {}), **({network_info.STATUSES: told} if told else {})} or None
        if cells:
            change["flavor"] = record
        if any(status.get(field) != value for field, value in change.items()):
            if change.get("deviceStatus") is not None:  # a list that a patch does not speak of would stay
                lists = (*device_status.STATUS_LISTS.values(), network_info.STATUSES)
                change["deviceStatus"] = {**dict.fromkeys(lists), **change["deviceStatus"]}
            await self._patch(instance, change)
            if found.missing and not waits:
                await self._context.events.warning(instance, "WaitingForDevices", _sentence(found))
        return None

    def _settled(self, instance: Object, pod: Object) -> bool:
        """Whether the status tells what the pod's claims got, where it is published now. Of a device that is no longer
        published, the last word stands."""
        if device_status.unsettled_devices(instance, pod, self._claim):
            return False
        found = find_devices(instance, pod, self._claim, self._published.find, self._closed())
        return bool(found.missing) or _places(found.status) == _places((instance.get("status") or {}).get("deviceStatus"))

    def _closed(self) -> list[device_refs.List]:
        open_ = kubevirt_config.of(kubevirt_config.chosen(self._kubevirts.items())).gates
        return [list_ for list_, gate in launcher_resources.GATES.items() if not open_.open(gate)]

    def _cards(self, instance: Object, pod: Object) -> list[Object]:
        nodes = vm.shows_nodes(instance)
        host = pod["spec"].get("nodeName")
        return network_device_status.entries(pod, self._claim, lambda name, claim, result: _entry(
            name, claim, result, self._published.find(result, host), nodes=nodes), self._published.find)

    async def _patch(self, instance: Object, change: Object) -> None:
        meta = instance["metadata"]
        body = {"metadata": {"resourceVersion": meta["resourceVersion"]}, "status": change}
        self._instances.put(
            await self._store.patch(kinds.VMI, meta["name"], body, meta["namespace"], subresource="status"))

    def _conditions(self, instance: Object, found: FoundDevices) -> list[Object]:
        have = (instance.get("status") or {}).get("conditions")
        if not found.missing and found.status is None and not vm.flavored(instance):
            return conditions.without_condition(have, READY)  # what an earlier pod got is gone, and this one has no claim
        ready = Condition(READY, True, "DevicesKnown") if not found.missing else Condition(
            READY, False, "WaitingForDevices", _sentence(found))
        return conditions.with_condition(have, ready, self._context.now())

    def _says_another(self, instance: Object, found: FoundDevices) -> bool:
        """Whether the status gives another reason to wait than there is now."""
        told = conditions.find(instance, READY)
        return told is not None and told.get("status") == "False" and told.get("message") != _sentence(found)

    def _claim(self, namespace: str, name: str) -> Object | None:
        return self._claims.get(f"{namespace}/{name}")


def _sentence(found: FoundDevices) -> str:
    return "; ".join(found.missing)


def _tells_of_others(instance: Object, pod: Object) -> bool:
    """Whether the status has a device of a claim that the pod does not use."""
    mine = {name for _, name in pod_claims.claim_names(pod)}
    return any((entry.get("deviceResourceClaimStatus") or {}).get("resourceClaimName") not in mine
               for list_ in device_refs.LISTS for entry in device_status.statuses(instance, list_))


def _places(status: Mapping[str, Any] | None) -> dict[str, list[Any]]:
    """Where a device status says that devices are, by list; in whichever order several of one name are told."""

    def place(entry: Mapping[str, Any]) -> tuple[str, ...]:
        said = (entry.get("deviceResourceClaimStatus") or {}).get("attributes") or {}
        return str(entry.get("name")), *(device_status.address_of(entry) or ()), str(said.get("pciAddress"))

    return {list_: sorted(map(place, entries)) for list_ in device_status.STATUS_LISTS.values()
            if (entries := (status or {}).get(list_))}


def find_devices(
    instance: Object, pod: Object, claims: device_refs.Claims, find: Find, closed: Collection[device_refs.List] = (),
) -> FoundDevices:
    """The device status of an instance in its pod. Lists whose gate is closed keep what they have and get nothing new. Pure but
    for the look-ups handed in."""
    names = dict(pod_claims.claim_names(pod))
    nodes = vm.shows_nodes(instance)
    missing: list[str] = []
    shut: list[str] = []
    unnamed = False
    out: dict[str, list[Object]] = {}
    for ref in device_refs.refs_in(instance, pod):
        if not ref.by_claim:
            continue
        if ref.list in closed and ref.number is None:
            told = [dict(entry) for entry in device_status.statuses(instance, ref.list) if entry.get("name") == ref.name]
            if told:
                out.setdefault(device_status.STATUS_LISTS[ref.list], []).extend(told)
            else:
                shut.append(f"{ref.name}: the feature gate {launcher_resources.GATES[ref.list]} is closed")
                missing.append(shut[-1])
            continue
        claim_name = names.get(ref.claim or "")
        if not claim_name:
            unnamed = True
            missing.append(f"{ref.name}: claim {ref.claim} has not been made yet")
            continue
        entries, why = _entries(ref, claim_name, pod, claims, find, nodes=nodes)
        if why:
            missing.append(f"{ref.name}: {why}")
        if entries:
            out.setdefault(device_status.STATUS_LISTS[ref.list], []).extend(entries)
    return FoundDevices(out or None, tuple(missing), unnamed, bool(missing) and missing == shut)


def _entries(
    ref: device_refs.DeviceRef, claim_name: str, pod: Object, claims: device_refs.Claims, find: Find, *, nodes: bool
) -> tuple[list[Object], str]:
    """One status entry for each device that answers a reference, as far as it is known, and what is missing."""
    blank = [{"name": ref.name, "deviceResourceClaimStatus": {"resourceClaimName": claim_name}}]
    claim = claims(pod["metadata"]["namespace"], claim_name)
    if claim is None:
        # One by resource name is waited for because the status speaks of it, by claim because the spec does.
        return blank if ref.by_resource else [], f"claim {claim_name} does not exist"
    status = claim.get("status") or {}
    users = status.get("reservedFor") or ()
    ours = any(user.get("uid") == pod["metadata"]["uid"] for user in users)
    if claim["metadata"].get("deletionTimestamp") and not ours:
        return blank, f"claim {claim_name} is being deleted"
    if not ref.request:
        return blank, f"it does not say which request of claim {claim_name} it means: write {ref.path}.{ref.request_at}"
    results = pod_claims.answers(claim, ref)
    asked = [str(each.get("name")) for each in ((claim.get("spec") or {}).get("devices") or {}).get("requests") or ()]
    if not results and ref.request not in asked:
        return blank, f"claim {claim_name} has no request {ref.request}; it has {', '.join(asked) or 'none'}"
    if not status.get("allocation"):
        return blank, f"claim {claim_name} has no devices yet"
    others = users and all(user.get("resource") == "pods" for user in users)  # of a group the pod may be a part
    if not ours and (others or not pod["spec"].get("nodeName")):  # what others have, or may get, is not shown as this machine's
        return blank, f"claim {claim_name} is not given to it yet"
    if not pod_claims.claimed(ref, claim):
        return [], ""  # whoever starts the machine says that there are too few
    if not results:
        return blank, f"claim {claim_name} got no device for request {ref.request}"
    out: list[Object] = []
    missing = []
    for result in results:
        entry, why = _entry(ref.name, claim_name, result, find(result, pod["spec"].get("nodeName")), nodes=nodes)
        out.append(entry)
        missing += [why] if why else []
    return out, "; ".join(missing)


def _entry(
    name: str, claim_name: str, result: Mapping[str, Any], found: Mapping[str, Any] | str, *, nodes: bool
) -> tuple[Object, str]:
    """What the status says of one result of a claim, and what it cannot say yet. `found`: the device, or why not."""
    device = {} if isinstance(found, str) else found
    attributes = _attributes(device, result["driver"], nodes=nodes)
    why = found if isinstance(found, str) else "" if attributes else (
        f"device {result['device']} of {result['driver']} has neither a PCI address nor a mediated device's UUID")
    return {"name": name, "deviceResourceClaimStatus": {
        "name": result["device"], "resourceClaimName": claim_name, "driver": result["driver"], "pool": result["pool"],
        **_product(device, result["driver"]), "attributes": attributes}}, why


def _attributes(device: Mapping[str, Any], driver: str, *, nodes: bool) -> Object:
    """Where a device is: all functions if it has several, and with `nodes` its NUMA node."""
    address, uuid = text_attribute(device, driver, ADDRESS_NAMES), text_attribute(device, driver, MDEV_NAMES)
    out: Object = {}
    if address:
        out["pciAddress"] = address
    if uuid:
        out["mdevUUID"] = uuid
    if address and not uuid and len(functions := members(device, driver)) > 1:
        out["members"] = functions
    node = numa_node(device)
    if out and nodes and node is not None:
        out["numaNode"] = node
    return out


def _product(device: Mapping[str, Any], driver: str) -> Object:
    """What hardware it is, for people, where the driver says so."""
    name = text_attribute(device, driver, ("productName", "product", "model"))
    return {"product": name} if name else {}
