"""What a launcher's container asks of its host: memory with the overhead of the VM, CPUs, claims, and devices by
resource name. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from outfitter.api.kinds import Object
from outfitter.api.kubevirt import device_refs, feature_gates, vm
from outfitter.api.kubevirt.feature_gates import Gates
from outfitter.api.kubevirt.kubevirt_config import KubeVirtConfig
from outfitter.api.quantity import to_int
from outfitter.errors import NotReady

MI = 1 << 20
PROGRAMS = 220 * MI  # the launcher, the hypervisor's daemons and the emulator themselves
PER_CPU = 8 * MI
PAGES = 512  # a page table's share of the memory that it maps
VIDEO = 32 * MI
PASSTHROUGH = 1024 * MI  # what VFIO maps besides the guest's memory
IOMMUFD_DEVICE = "devices.kubevirt.io/iommufd"
SHARES = 10  # guest CPUs to one of the host, where they are not the guest's own
WORDS: Mapping[device_refs.List, str] = {"gpus": "GPU", "hostDevices": "HostDevice"}
GATES: Mapping[device_refs.List, str] = {"gpus": feature_gates.GPUS, "hostDevices": feature_gates.HOST_DEVICES}


def resources(instance: Mapping[str, Any], settings: KubeVirtConfig, networks: Mapping[str, int]) -> Object:
    """The `resources` of the container. `networks`: what its network cards ask for by resource name. NotReady names every
    device that is not permitted."""
    spec = instance["spec"]
    guest = spec["domain"].get("resources") or {}
    requests, limits = dict(guest.get("requests") or {}), dict(guest.get("limits") or {})
    mine = to_int(str(requests.get("memory") or limits.get("memory") or vm.memory(instance)))
    requests["memory"] = _bytes(mine + (0 if guest.get("overcommitGuestOverhead") else overhead(instance)))
    if "memory" in limits:
        limits["memory"] = _bytes(to_int(str(limits["memory"])) + overhead(instance))
    cpus = vm.vcpus(instance)
    if (spec["domain"].get("cpu") or {}).get("dedicatedCpuPlacement"):
        requests["cpu"] = limits["cpu"] = str(cpus)
        limits["memory"] = requests["memory"]
    else:
        requests.setdefault("cpu", f"{1000 * cpus // SHARES}m")
    wanted = by_name(instance, settings) + Counter(networks)
    if feature_gates.IOMMUFD in settings.gates.on:
        wanted[IOMMUFD_DEVICE] += 1
    for name, count in wanted.items():
        # An amount in the spec is not added to; one that is set as request or limit only holds for both, as Kubernetes demands.
        written = requests.get(name, limits.get(name, str(count)))
        requests[name], limits[name] = written, limits.get(name, written)
    out: Object = {"requests": requests}
    if limits:
        out["limits"] = limits
    if asked := list(claims(instance, settings.gates)):
        out["claims"] = asked
    return out


def claims(instance: Mapping[str, Any], open_: Gates) -> Iterator[Object]:
    """Requests of claims: those of GPUs, of host devices, of networks, then all of the flavor's; each in the order of the
    spec, and each once."""
    seen = []
    for ref in device_refs.written_refs(instance):
        if ref.by_claim and open_.open(GATES[ref.list]):
            seen.append((f"{ref.path}.{ref.claim_at}: {WORDS[ref.list]} {ref.name}", ref.claim, ref.request))
    for index, network in enumerate(instance["spec"].get("networks") or () if open_.open(feature_gates.NETWORKS) else ()):
        if given := network.get("resourceClaim"):
            who = f"spec.networks[{index}].resourceClaim.claimName: network {network.get('name')}"
            seen.append((who, given.get("claimName"), given.get("requestName")))
    if nameless := [who for who, claim, _ in seen if not claim]:
        raise NotReady(f"{nameless[0]} does not say which of spec.resourceClaims it is from")
    for claim, request in dict.fromkeys((claim, request) for _, claim, request in seen):
        yield {"name": claim, "request": request} if request else {"name": claim}
    if vm.flavored(instance).get("claimName"):
        yield {"name": device_refs.FLAVOR_CLAIM}


def by_name(instance: Mapping[str, Any], settings: KubeVirtConfig) -> Counter[str]:
    """Devices that are asked for by resource name."""
    refs = [ref for ref in device_refs.written_refs(instance) if ref.device_name]
    wrong = [f"{ref.path}: {WORDS[ref.list]} {ref.device_name} is not permitted in permittedHostDevices configuration"
             for ref in refs if settings.permitted is not None and ref.device_name not in settings.permitted]
    if wrong:
        known = ", ".join(sorted(settings.permitted or ())) or "nothing"
        raise NotReady(f"{' '.join(wrong)}; permitted is {known}: list it in the KubeVirt object")
    return Counter(ref.device_name for ref in refs if ref.device_name)


def overhead(instance: Mapping[str, Any]) -> int:
    """Bytes of memory that a VM costs its host besides its own."""
    devices = instance["spec"]["domain"].get("devices") or {}
    total = PROGRAMS + to_int(vm.memory(instance)) // PAGES + PER_CPU * vm.vcpus(instance)
    if devices.get("autoattachGraphicsDevice") is not False:
        total += VIDEO
    cards = [each for each in devices.get("interfaces") or () if each.get("sriov") is not None]
    return total + (PASSTHROUGH if cards or device_refs.device_refs(instance) else 0)


def _bytes(count: int) -> str:
    return f"{-(-count // MI)}Mi"
