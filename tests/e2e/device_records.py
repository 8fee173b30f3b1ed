"""Everything that `outfit up --simulate` records about devices of VMs, read at one moment: the API's objects, the checkpoint
and drivers of each host, and the files of its domains; and whether all of it agrees. Needs no pytest."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outfitter.api import conditions, kinds
from outfitter.api.hypervisor import Domain
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import attachment_pods, device_refs, device_status, migration
from outfitter.api.kubevirt import vm as vm_api
from outfitter.api.ledger_page.page import Page
from outfitter.api.rejection import RejectionCode
from outfitter.launcher import domain as domains
from outfitter.launcher.migration.simulated_migration import INCOMING
from outfitter.store.kube import Kube

NAMESPACE = "default"
Holding = tuple[str, str, str]  # host, device, uid of the claim
Entry = tuple[device_refs.List, str]  # a device of a VM's spec


@dataclass(frozen=True)
class HostRecords:
    """The files of one host."""

    domains: dict[str, Domain]  # by uid of the VMI
    incoming: frozenset[str]  # uids of VMIs that may arrive
    prepared: frozenset[tuple[str, str]]  # device and uid of the claim, by the checkpoint
    bound: frozenset[str]  # addresses that the host gave to vfio-pci


def read_hosts(data: Path) -> dict[str, HostRecords]:
    """Exact while no process uses the folder."""
    names = {folder.name for parent in ("domains", "hosts") for folder in data.glob(f"{parent}/*")}
    return {name: _read_host(data, name) for name in sorted(names)}


def _read_host(data: Path, name: str) -> HostRecords:
    running = dict[str, Domain]()
    for path in (data / "domains" / name).glob("*.xml"):
        with contextlib.suppress(FileNotFoundError):  # it has left
            arrives = path.with_suffix(INCOMING)  # it has arrived, and its own file is not renamed yet
            uid = path.stem.partition("_")[0]
            running[uid] = domains.read((arrives if arrives.exists() else path).read_text(), uid)
    incoming = {path.name.partition("_")[0] for path in (data / "domains" / name).glob(f"*{INCOMING}")} - set(running)
    host = data / "hosts" / name
    prepared = {(one["device"], one["uid"]) for one in _read(host / "state" / "checkpoint.json").get("taken", ())}
    bound = {path.split("/")[-2] for path, entry in _read(host / "kernel" / "kernel.json").get("new", {}).items()
             if path.endswith("/driver") and entry["l"].endswith("/vfio-pci")}
    return HostRecords(running, frozenset(incoming), frozenset(prepared), frozenset(bound))


def _read(path: Path) -> Object:
    """Nothing if it is not there (any more)."""
    with contextlib.suppress(FileNotFoundError):
        content: Object = json.loads(path.read_text())
        return content
    return {}


def never(hosts: dict[str, HostRecords]) -> Iterator[str]:
    """What must not be at any moment, of the files that a killed process left."""
    for name, host in hosts.items():
        used = Counter(address for domain in host.domains.values() for address in domain.devices)
        if twice := [address for address, count in used.items() if count > 1]:
            yield f"{twice} of {name} are in two domains: {host.domains}"
        if lost := used.keys() - host.bound:
            yield f"{sorted(lost)} of {name} are in a domain, and not with vfio-pci"
        devices = Counter(device for device, _ in host.prepared)
        if twice := [device for device, count in devices.items() if count > 1]:
            yield f"{twice} of {name} are prepared for two claims: {host.prepared}"
    for uid, count in Counter(uid for host in hosts.values() for uid in host.domains).items():
        if count > 1:
            yield f"VMI {uid} runs in {count} places"


@dataclass(frozen=True)
class DeviceRecords:
    vms: dict[str, Object]
    vmis: dict[str, Object]
    pods: dict[str, Object]  # by uid
    claims: dict[str, Object]  # by uid
    migrations: list[Object]
    pages: list[Object]
    names: dict[tuple[str, str], str]  # host and address -> name of the device that has the function
    hosts: dict[str, HostRecords]

    @classmethod
    async def read(cls, store: Kube, data: Path) -> DeviceRecords:
        async def listed(kind: kinds.Kind) -> list[Object]:
            return (await store.list(kind)).items

        vms, vmis, pods, claims, jobs, pages, slices = [await listed(kind) for kind in (
            kinds.VM, kinds.VMI, kinds.POD, kinds.RESOURCE_CLAIM, kinds.MIGRATION, kinds.LEDGER_PAGE, kinds.RESOURCE_SLICE)]
        names = {(piece["spec"]["pool"]["name"], address): device["name"] for piece in slices
                 for device in piece["spec"].get("devices") or () for address in _functions(device)}
        return cls({vm["metadata"]["name"]: vm for vm in vms}, {vmi["metadata"]["name"]: vmi for vmi in vmis},
                   {pod["metadata"]["uid"]: pod for pod in pods}, {claim["metadata"]["uid"]: claim for claim in claims},
                   jobs, pages, names, read_hosts(data))

    def text(self) -> str:
        """What explains a wait, for the message of a failure."""
        return "\n".join([
            *(line for name, vmi in self.vmis.items() for line in _vmi_lines(name, vmi)),
            *(f"migration {job['metadata']['name']}: {json.dumps(job.get('status'))}" for job in self.migrations
              if not migration.is_finished(job)),
            *map(_pod_line, self.pods.values()),
            *map(_claim_line, self.claims.values()),
            *(f"page of {page['metadata']['name']}: {booking.device.device} {booking.state} for {booking.holder}, "
              f"{booking.holder.uid}" for page in self.pages for booking in Page(page).bookings),
            *(f"files of {name}: domains {[(uid, domain.devices) for uid, domain in host.domains.items()]}, incoming "
              f"{sorted(host.incoming)}, prepared {sorted(host.prepared)}, vfio-pci {sorted(host.bound)}"
              for name, host in self.hosts.items())])

    def held(self, *states: str) -> list[Holding]:
        """Every booking in one of these states."""
        return sorted((booking.device.pool, booking.device.device, booking.holder.uid) for page in self.pages
                      for booking in Page(page).bookings if not states or booking.state in states)

    def allocated(self) -> list[Holding]:
        return sorted((result["pool"], result["device"], uid) for uid, claim in self.claims.items()
                      for result in _results(claim))

    def never(self) -> Iterator[str]:
        """What must not be at any moment, of the API's objects."""
        for (host, device), count in Counter((host, device) for host, device, _ in self.held()).items():
            if count > 1:
                yield f"{device} of {host} is booked twice: {self.held()}"
        reported = Counter(device for vmi in self.vmis.values() for device in self.reported(vmi).values())
        if twice := [device for device, count in reported.items() if count > 1]:
            yield f"{twice} are reported of two VMs"

    def reported(self, vmi: Object) -> dict[Entry, tuple[str, str]]:
        """What the status of a VMI shows as attached: host and device."""
        entries = {(list_, str(entry["name"])): entry for list_ in device_refs.LISTS
                   for entry in device_status.statuses(vmi, list_)}
        return {key: (entry["deviceResourceClaimStatus"]["pool"], entry["deviceResourceClaimStatus"]["name"])
                for key, entry in entries.items() if _phase(entry) == attachment_pods.ATTACHED}

    # -- at rest

    def unrest(self) -> str:
        """The first reason why this is not at rest; empty when it is."""
        return next(self._unrest(), "")

    def _unrest(self) -> Iterator[str]:
        for job in self.migrations:
            if not migration.is_finished(job) or job["metadata"].get("deletionTimestamp"):
                yield f"{job['metadata']['name']}: {job.get('status')}"
        for obj in (*self.vms.values(), *self.vmis.values(), *self.pods.values(), *self.claims.values()):
            if obj["metadata"].get("deletionTimestamp"):
                yield f"{obj['metadata']['name']} is being deleted: {obj}"
        if self.vms.keys() != self.vmis.keys():
            yield f"VMs {sorted(self.vms)} have the VMIs {sorted(self.vmis)}"
        for name, vmi in self.vmis.items():
            yield from self._vmi(name, vmi)
        yield from self._pods()
        yield from self._claims()
        yield from self._hosts()

    def _vmi(self, name: str, vmi: Object) -> Iterator[str]:
        status, uid = vmi.get("status") or {}, vmi["metadata"]["uid"]
        places = [host for host, records in self.hosts.items() if uid in records.domains]
        if status.get("phase") != "Running" or places != [status.get("nodeName")]:
            yield f"{name} is {status.get('phase')} on {status.get('nodeName')}, and runs on {places}"
            return
        [place] = places
        if arriving := [host for host, records in self.hosts.items() if uid in records.incoming]:
            yield f"{name} may still arrive on {arriving}"
        refs, template, reported = wanted(vmi), wanted(self.vms[name]["spec"]["template"]), self.reported(vmi)
        if refs != template:
            yield f"{name}: the template has {sorted(template)}, the VMI {sorted(refs)}: {self.vms[name].get('status')}"
        have = {(place, self.names[place, address]) for address in self.hosts[place].domains[uid].devices}
        if have != set(reported.values()):
            yield f"{name}: the status has {reported}, the domain {sorted(have)}"
        waits, missing, more = conditions.find(vmi, conditions.PLUGGED) or {}, refs - set(reported), set(reported) - refs
        if more or bool(missing) != bool(waits):
            yield f"{name} wants {sorted(refs)}, has {sorted(reported)}, and waits: {waits}"
        if missing:
            yield from self._waits(name, waits["reason"] if waits else "", place, missing)

    def _waits(self, name: str, code: str, place: str, missing: set[Entry]) -> Iterator[str]:
        """Whether a VM has a reason to wait."""
        free = {device for (host, _), device in self.names.items() if host == place} - {
            device for host, device, _ in self.held() if host == place}
        in_use = any((claim.get("status") or {}).get("reservedFor") for claim in self.claims.values()
                     if claim["metadata"]["name"] == "shared")
        proper = {str(RejectionCode.NO_FREE_DEVICE_ON_HOST): len(free) <= 1, str(RejectionCode.CLAIM_IN_USE): in_use and any(
            entry[1] == "shared" for entry in missing)}  # one that is free may be of a product that it does not want
        if not proper.get(code):
            yield f"{name} waits for {sorted(missing)} with {code or 'no reason'}, and {sorted(free)} of {place} are free"

    def _pods(self) -> Iterator[str]:
        launchers = {uid: pod for uid, pod in self.pods.items() if attachment_pods.held(pod) is None}
        alive = {uid for uid, pod in launchers.items() if pod["status"].get("phase") not in vm_api.FINAL}
        owners = Counter((vm_api.owner(launchers[uid], kinds.VMI.kind) or {}).get("name") for uid in alive)
        if owners != Counter(self.vmis.keys()):
            yield f"launcher pods run for {owners}"
        active = {uid for vmi in self.vmis.values() for uid in vmi["status"].get("activePods") or ()}
        if active != alive:
            yield f"VMIs name the pods {active}, and {alive} run"
        for pod in self.pods.values():
            if (attachment := attachment_pods.held(pod)) is None:
                continue
            launcher = attachment_pods.launcher_uid(pod)
            vmi = vm_api.owner(launchers[launcher], kinds.VMI.kind) if launcher in alive else None
            if vmi is None or attachment.name not in {ref.claim for ref in device_refs.written_refs(self.vmis[vmi["name"]])}:
                yield f"{pod['metadata']['name']} holds {attachment.name} for {vmi}, which does not want it"

    def _claims(self) -> Iterator[str]:
        if self.held() != self.allocated():
            yield f"pages have {self.held()}, claims have {self.allocated()}"
        for claim in self.claims.values():
            name, owners = claim["metadata"]["name"], claim["metadata"].get("ownerReferences") or ()
            there = {*self.pods, *(vm["metadata"]["uid"] for vm in self.vms.values())}
            if lost := [owner["name"] for owner in owners if owner["uid"] not in there]:
                yield f"claim {name} has outlived {lost}"
            users = {user["uid"] for user in (claim.get("status") or {}).get("reservedFor") or ()}
            if users - there or (_results(claim) and not users):
                yield f"claim {name} has {_results(claim)}, and its users are {users}"

    def _hosts(self) -> Iterator[str]:
        """A claim that a VM was started with stays with its launcher pod when its device is unplugged."""
        prepared = self.held("prepared")
        for name, host in self.hosts.items():
            mine = {(device, uid) for place, device, uid in prepared if place == name}
            if mine != host.prepared:
                yield f"{name}: the page has {sorted(mine)}, the checkpoint {sorted(host.prepared)}"
            used = {self.names[name, address] for domain in host.domains.values() for address in domain.devices}
            kept = {device for device, uid in mine if self._is_launchers(uid)}
            devices = {device for device, _ in mine}
            if not used <= devices <= used | kept:
                yield f"{name}: {sorted(devices)} are prepared, {sorted(used)} used, {sorted(kept)} kept by launcher pods"
            bound = {self.names[name, address] for address in host.bound}
            if bound != devices:
                yield f"{name}: {sorted(host.bound)} are with vfio-pci, and {sorted(devices)} prepared"

    def _is_launchers(self, claim_uid: str) -> bool:
        users = (self.claims[claim_uid].get("status") or {}).get("reservedFor") or ()
        return any(attachment_pods.held(self.pods[user["uid"]]) is None for user in users if user["uid"] in self.pods)


def wanted(instance: Object) -> set[Entry]:
    return {(ref.list, ref.name) for ref in device_refs.written_refs(instance)}


def _vmi_lines(name: str, vmi: Object) -> Iterator[str]:
    status, spec = vmi.get("status") or {}, vmi["spec"]
    yield (f"vmi {name}, {vmi['metadata']['uid']}: {status.get('phase')} on {status.get('nodeName')}, pods "
           f"{status.get('activePods')}, wants {sorted(wanted(vmi))} of {json.dumps(spec.get('resourceClaims'))}")
    yield from (f"vmi {name}: {line}" for line in _conditions(vmi))
    yield from (f"vmi {name}: {list_} {json.dumps(entry)}" for list_ in device_refs.LISTS
                for entry in device_status.statuses(vmi, list_))
    yield f"vmi {name}: migration {json.dumps(migration.state(vmi))}"


def _pod_line(pod: Object) -> str:
    meta, spec, status = pod["metadata"], pod["spec"], pod.get("status") or {}
    holds = attachment_pods.held(pod)
    what = f"attachment pod for {holds.name} of {attachment_pods.launcher_uid(pod)}" if holds is not None else "pod"
    return (f"{what} {meta['name']}, {meta['uid']}, created {meta['creationTimestamp']}: {status.get('phase')} on "
            f"{spec.get('nodeName')}, {status.get('reason')}: {status.get('message')}, claims "
            f"{json.dumps(spec.get('resourceClaims'))} {json.dumps(status.get('resourceClaimStatuses'))}, "
            f"conditions {'; '.join(_conditions(pod))}")


def _claim_line(claim: Object) -> str:
    meta, status = claim["metadata"], claim.get("status") or {}
    devices = [f"{result['pool']}/{result['device']}" for result in _results(claim)]
    owners = [owner["name"] for owner in meta.get("ownerReferences") or ()]
    return (f"claim {meta['name']}, {meta['uid']}: {', '.join(devices) or 'not allocated'}, reserved for "
            f"{json.dumps(status.get('reservedFor'))}, owners {owners}, "
            f"finalizers {meta.get('finalizers')}, deleted {meta.get('deletionTimestamp')}")


def _conditions(obj: Object) -> list[str]:
    return [f"{entry['type']} {entry.get('status')} {entry.get('reason') or ''}: {entry.get('message') or ''} "
            f"({entry.get('lastTransitionTime')})" for entry in (obj.get("status") or {}).get("conditions") or ()]


def _phase(entry: Mapping[str, Any]) -> str:
    """An entry of a device that the VM was started with has no phase of its own."""
    return str(entry.get(attachment_pods.HOTPLUG, {"phase": attachment_pods.ATTACHED}).get("phase") or "")


def _results(claim: Object) -> list[Object]:
    return list((((claim.get("status") or {}).get("allocation") or {}).get("devices") or {}).get("results") or ())


def _functions(device: Object) -> list[str]:
    attributes = device.get("attributes") or {}
    members = ",".join(value["string"] for key, value in attributes.items() if key.startswith("members"))
    address = attributes["resource.kubernetes.io/pciBusID"]["string"]
    return members.split(",") if members else [address]
