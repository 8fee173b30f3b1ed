"""What a live migration of each of many VMs would do, in one process: every VM has a GPU by a claim from a template, which
travels, and the plan of each is computed on the same objects, as `outfit plan migrate` does for one VM. Beside it the same
number of decisions of the scheduler for plain pods with one claim, which is the least that a plan contains.

    python -m bench.plan [HOSTS VMS]"""

from __future__ import annotations

import sys
import time
from typing import Any

from outfitter.api import kinds
from outfitter.api.device import DeviceId
from outfitter.api.kinds import Object
from outfitter.api.kubevirt.kubevirt_config import KubeVirtConfig
from outfitter.api.ledger_page.page import Booking, Holder, Page
from outfitter.controllers.migrations import migration_plan
from outfitter.scheduling.explain.cluster_objects import ClusterObjects
from outfitter.scheduling.placement import Waiting

HOSTS, VMS, DEVICES = 500, 1000, 4
DRIVER, SINCE = "pci.outfitter.dev", "2026-01-01T00:00:00Z"
MOST = 2.0  # seconds of CPU for all plans
CLASS = {"metadata": {"name": "gpu"}, "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]}}
SPEC = {"devices": {"requests": [{"name": "card", "exactly": {"deviceClassName": "gpu"}}]}}


def _meta(name: str, **more: Any) -> Object:
    return {"name": name, "namespace": "default", "uid": f"uid-{name}", "creationTimestamp": SINCE, **more}


def _node(name: str) -> Object:
    ready = {"type": "Ready", "status": "True"}
    amounts = {"cpu": "64", "memory": "256Gi", "pods": "110"}
    return {"metadata": {"name": name, "uid": f"uid-{name}", "labels": {"kubernetes.io/hostname": name}}, "spec": {},
            "status": {"conditions": [ready], "allocatable": amounts, "capacity": amounts}}


def _slice(host: str) -> Object:
    devices = [{"name": f"gpu-{number}", "attributes": {
        "liveMigratable": {"bool": True}, "product": {"string": "2235"},
        "resource.kubernetes.io/pciBusID": {"string": f"0000:{number + 1:02x}:00.0"}}} for number in range(DEVICES)]
    return {"metadata": {"name": f"{host}-{DRIVER}"}, "spec": {
        "driver": DRIVER, "nodeName": host, "devices": devices,
        "pool": {"name": host, "generation": 1, "resourceSliceCount": 1}}}


def _vm(number: int, host: str, device: str) -> tuple[Object, Object, Object, Booking]:
    """VMI, pod, claim and booking of a VM that runs."""
    name, claim = f"vm-{number}", f"claim-{number}"
    owner = {"kind": kinds.VMI.kind, "name": name, "uid": f"uid-{name}", "controller": True, "apiVersion": "kubevirt.io/v1"}
    vmi = {"apiVersion": "kubevirt.io/v1", "kind": kinds.VMI.kind, "metadata": _meta(name), "status": {
        "phase": "Running", "nodeName": host, "activePods": {f"uid-pod-{number}": host}}, "spec": {
        "resourceClaims": [{"name": "acc", "resourceClaimTemplateName": "one"}],
        "domain": {"memory": {"guest": "64Mi"}, "devices": {"gpus": [
            {"name": "g0", "claimName": "acc", "requestName": "card"}]}}}}
    pod = {"metadata": _meta(f"pod-{number}", ownerReferences=[owner]), "spec": {
        "nodeName": host, "containers": [], "resourceClaims": [{"name": "acc", "resourceClaimTemplateName": "one"}]},
        "status": {"phase": "Running", "resourceClaimStatuses": [{"name": "acc", "resourceClaimName": claim}]}}
    allocation = {"devices": {"results": [{"request": "card", "driver": DRIVER, "pool": host, "device": device}]}}
    stored = {"metadata": _meta(claim), "spec": SPEC, "status": {"allocation": allocation, "reservedFor": [
        {"resource": "pods", "name": f"pod-{number}", "uid": f"uid-pod-{number}"}]}}
    holder = Holder(kinds.RESOURCE_CLAIM.kind, "default", claim, f"uid-{claim}", f"vmi/{name}")
    return vmi, pod, stored, Booking(DeviceId(DRIVER, host, device), holder, "card", "prepared", SINCE, {"whole": True})


def _cluster(hosts: int, vms: int) -> ClusterObjects:
    names = [f"node-{number}" for number in range(hosts)]
    parts = [_vm(number, names[number % hosts], f"gpu-{number // hosts % DEVICES}") for number in range(vms)]
    pages = [{"metadata": {"name": name, "resourceVersion": "1"}, "spec": {}} for name in names]
    booked = {name: Page(page) for name, page in zip(names, pages, strict=True)}
    for *_, booking in parts:
        booked[booking.device.pool] = Page(booked[booking.device.pool].holding([booking], None))
    return ClusterObjects(
        instances=[vmi for vmi, *_ in parts], pods=[pod for _, pod, *_ in parts], claims=[claim for _, _, claim, _ in parts],
        classes=[CLASS], slices=[_slice(name) for name in names], pages=[page.object for page in booked.values()],
        nodes=[_node(name) for name in names])


def _decisions(cluster: ClusterObjects, count: int) -> float:
    """CPU of as many decisions for pods with one claim."""
    claim = {"metadata": _meta("reference"), "spec": SPEC}
    pod = {"metadata": _meta("reference"), "status": {"phase": "Pending"}, "spec": {
        "containers": [], "resourceClaims": [{"name": "acc", "resourceClaimName": "reference"}]}}
    cluster.choose(pod, lambda namespace, name: claim)  # the snapshot is made once, for both
    start = time.process_time()
    for _ in range(count):
        if isinstance(cluster.choose(pod, lambda namespace, name: claim), Waiting):
            raise SystemExit("the reference found no host")
    return time.process_time() - start


def main() -> None:
    hosts, vms = (int(word) for word in sys.argv[1:3]) if len(sys.argv) > 2 else (HOSTS, VMS)
    cluster = _cluster(hosts, vms)
    reference = _decisions(cluster, vms)
    start, config = time.process_time(), KubeVirtConfig()
    plans = [migration_plan.plan(vmi, config, lambda namespace, name: None, cluster) for vmi in cluster.instances]
    used = time.process_time() - start
    if any(not plan.possible or plan.target == plan.source for plan in plans):
        raise SystemExit(f"a plan failed: {next(plan for plan in plans if not plan.possible)}")
    print(f"{hosts} hosts: plans for {vms} VMs with a device in {used:.2f} s of CPU (aim: {MOST:.0f}), {used * 1e3 / vms:.2f} "
          f"ms each; {vms} decisions of the scheduler for pods with a claim: {reference:.2f} s", flush=True)
    if used > MOST:
        raise SystemExit(f"more than {MOST:.0f} s of CPU")


if __name__ == "__main__":
    main()
