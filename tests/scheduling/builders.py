"""Hosts, pools, pages, claims and pods in few words, for tests of where a pod goes and why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from outfitter.api.device import DeviceId
from outfitter.api.kinds import Object
from outfitter.api.ledger_page.page import Booking, Holder, Page, State
from outfitter.api.rejection import Rejection
from outfitter.scheduling.dra.device_index import DeviceIndex
from outfitter.scheduling.filter.node_usage import NodeUsage
from outfitter.scheduling.placement import Placement, Waiting
from outfitter.scheduling.scheduler import place
from outfitter.scheduling.snapshot import SchedulingSnapshot
from tests.rejected import Code, no

DRIVER = "pci.example.com"
SINCE = "2026-01-01T12:04:00Z"


def dev(name: str, **attributes: Any) -> Object:
    kinds = {bool: "bool", int: "int", str: "string"}
    return {"name": name, "attributes": {key: {kinds[type(value)]: value} for key, value in attributes.items()}}


def part(node: str, *devices: Object, generation: int = 1, count: int = 1, name: str = "") -> Object:
    return {"metadata": {"name": name or f"{node}-{generation}"}, "spec": {
        "driver": DRIVER, "nodeName": node, "devices": list(devices),
        "pool": {"name": node, "generation": generation, "resourceSliceCount": count}}}


def node(name: str, ready: bool | None = True, cordoned: bool = False, **labels: str) -> Object:
    status: Object = {} if ready is None else {"conditions": [
        {"type": "Ready", "status": str(ready), "message": "" if ready else "the kubelet stopped posting"}]}
    status["allocatable"] = {"pods": "110", "cpu": "16", "memory": "64Gi"}
    return {"metadata": {"name": name, "labels": labels}, "spec": {"unschedulable": cordoned}, "status": status}


def page(host: str, *held: tuple[str, str], state: State = "booked") -> Page:
    bookings = [Booking(DeviceId(DRIVER, host, device), Holder("ResourceClaim", "here", claim, f"uid-{claim}", f"vmi/{claim}"),
                        "nic", state, SINCE).to_object() for device, claim in held]
    return Page({"metadata": {"name": host}, "spec": {"host": host, "bookings": bookings}})


def claim(name: str, *requests: Object, **status: Any) -> Object:
    return {"metadata": {"name": name, "namespace": "here", "uid": f"uid-{name}"}, "status": status,
            "spec": {"devices": {"requests": list(requests) or [ask("nic")]}}}


def ask(name: str, expression: str = "", **exactly: Any) -> Object:
    selectors = [{"cel": {"expression": expression}}] if expression else []
    return {"name": name, "exactly": {"deviceClassName": "vf", "selectors": selectors, **exactly}}


def allocated(host: str, *devices: str, users: Sequence[str] = ()) -> Object:
    return {"allocation": {"devices": {"results": [
        {"request": "nic", "driver": DRIVER, "pool": host, "device": device} for device in devices]}},
        "reservedFor": [{"resource": "pods", "name": user, "uid": f"uid-{user}"} for user in users]}


def pod(*claims: str, **spec: Any) -> Object:
    return {"metadata": {"name": "pod", "namespace": "here", "uid": "uid-pod"}, "spec": {
        "resourceClaims": [{"name": f"entry-{name}", "resourceClaimName": name} for name in claims], **spec}}


CLASSES: dict[str, Object] = {"vf": {"metadata": {"name": "vf"}, "spec": {"selectors": [{"cel": {
    "expression": f'device.attributes["{DRIVER}"].kind == "VF"'}}]}},
    "any": {"metadata": {"name": "any"}, "spec": {}}}


VF, PF = {"kind": "VF"}, {"kind": "PF"}


def taking(device: Object, amount: int) -> Object:
    return {**device, "consumesCounters": [{"counterSet": "card", "counters": {"functions": {"value": str(amount)}}}]}


CARD = [taking(dev("pf", **PF), 2), taking(dev("vf0", **VF), 1), taking(dev("vf1", **VF), 1)]
DRAINED = no(Code.COUNTER_EXHAUSTED, counter=f"functions of card ({DRIVER}/n)")
WHOLE = ask("card", deviceClassName="any", expression=f'device.attributes["{DRIVER}"].kind == "PF"')


def held(device: str, host: str = "n", *, by: str = "train", **detail: Any) -> Rejection:
    """A device of a `page`."""
    holder = Holder("ResourceClaim", "here", by, f"uid-{by}", f"vmi/{by}")
    return Rejection(Code.HELD, DeviceId(DRIVER, host, device), holder, SINCE, detail or {"request": "nic"})


def no_vf(device: str, host: str = "n", request: str = "nic") -> Rejection:
    """A PF, for the class vf."""
    return unlike(device, host, request, "class vf", 'kind == "VF"', kind="PF")


def no_pf(device: str, host: str = "n") -> Rejection:
    """A VF, for the request WHOLE."""
    return unlike(device, host, "card", "request card", 'kind == "PF"', kind="VF")


def unlike(device: str, host: str, request: str, owner: str, term: str, **has: str) -> Rejection:
    """A device of which the only selector is false."""
    return no(Code.SELECTOR_FALSE, DeviceId(DRIVER, host, device), request=request, owner=owner, selector=1, selectors=1,
              term=term, has=has, lacks=(), passed=0)


def too_few(wanted: int, match: int, free: int, request: str = "nic") -> Rejection:
    return no(Code.TOO_FEW_FREE, request=request, wanted=wanted, match=match, free=free)


def no_match(devices: int, request: str = "nic", class_: str = "vf") -> Rejection:
    return no(Code.NO_MATCH, devices=devices, alternatives=({"request": request, "class": class_},))


def counted(node: str, amount: int, *devices: Object, limit: str = "", name: str = "card") -> list[Object]:
    """Slices of a host whose devices share a counter."""
    sets = part(node, count=2, name=f"{node}-counters")
    sets["spec"]["sharedCounters"] = [{"name": name, "counters": {"functions": {"value": limit or str(amount)}}}]
    return [part(node, *devices, count=2), sets]


A, B = part("a", dev("a0", **VF)), part("b", dev("b0", **VF), dev("b1", **VF))
NODES = [node("a"), node("b")]


def snapshot(index: DeviceIndex, claims: Sequence[Object], **more: Any) -> SchedulingSnapshot:
    by_name = {entry["metadata"]["name"]: entry for entry in claims}
    return SchedulingSnapshot(devices=index, claim=lambda namespace, name: by_name.get(name), **{
        "usage": NodeUsage(), "device_class": CLASSES.get, **more})


def placed(wanted: Object, claims: Sequence[Object], index: DeviceIndex, *, every_host: bool = False, **more: Any
           ) -> Placement | Waiting:
    """`more`: of the snapshot."""
    return place(snapshot(index, claims, **more), wanted, every_host=every_host)
