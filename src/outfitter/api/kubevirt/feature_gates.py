"""Feature gates: which ways of asking for devices are open.

The KubeVirt object says it, in KubeVirt's order: a gate that is listed as on is on, else one that is listed as off is off,
else its default counts. Two names of the design documents stand for all gates of claims."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from outfitter.api.kubevirt import device_refs

GPUS = "GPUsWithDRA"  # gpus by claim
HOST_DEVICES = "HostDevicesWithDRA"  # hostDevices by claim
NETWORKS = "NetworkDevicesWithDRA"  # networks by claim
PASSTHROUGH = "HostDevices"  # hostDevices at all
CLAIMS = (GPUS, HOST_DEVICES, NETWORKS)
KNOWN = (*CLAIMS, PASSTHROUGH)  # what the door asks for
# Gates that change nothing at the door, but the pods of machines.
INJECTION = "ExternalNetResourceInjection"  # on: somebody else adds what networks take of the host; off unless it is listed
NAMING = "PodSecondaryInterfaceNamingUpgrade"  # on: interfaces that are counted get names made from the network's by moving
IOMMUFD = "IOMMUFD"  # on: a pod asks for that device too; off unless it is listed
OF_PODS = (INJECTION, NAMING, IOMMUFD)
PERSISTENT = "PersistentDRAClaims"  # resourceClaimTemplates of a VM that name a ResourceClaimTemplate
OF_VMS = (PERSISTENT,)
STAND_FOR: Mapping[str, tuple[str, ...]] = {"DynamicResourceAllocation": CLAIMS, "DRADevices": CLAIMS}


@dataclass(frozen=True, slots=True)
class Gates:
    """Which gates are listed as on and as off. Nothing listed: everything is open."""

    on: frozenset[str] = frozenset()
    off: frozenset[str] = frozenset()
    through: tuple[tuple[str, str], ...] = ()  # a gate and the name that stands for it and is listed as off

    def open(self, name: str) -> bool:
        return name in self.on or name not in self.off

    def closed(self, names: Iterable[str]) -> list[str]:
        return [name for name in names if not self.open(name)]

    def refusal(self, name: str, sentence: str) -> str:
        """Why a machine is refused: the sentence that its users know, what closed the gate, and how it is opened."""
        names = " and ".join(stands for gate, stands in self.through if gate == name)
        return (f"{sentence}: " + (f"{names} in disabledFeatureGates closes it; " if names else "")
                + f"list {name} in spec.configuration.developerConfiguration.featureGates of the KubeVirt object")


def listed(on: Iterable[str], off: Iterable[str]) -> Gates:
    off = tuple(off)
    through = tuple((gate, name) for name in off for gate in STAND_FOR.get(name, ()))
    return Gates(frozenset(_meant(on)), frozenset(_meant(off)), through)


def _meant(names: Iterable[str]) -> Iterator[str]:
    for name in names:
        yield name
        yield from STAND_FOR.get(name, ())


def unknown(names: Iterable[str]) -> list[str]:
    return [name for name in names if name not in (*KNOWN, *STAND_FOR, *OF_PODS, *OF_VMS)]


def used(spec: Mapping[str, Any]) -> list[str]:
    """The gates that a machine with this spec (of an instance) passes, in the order of `KNOWN`."""
    refs = device_refs.device_refs({"spec": spec})
    passes = {
        GPUS: any(ref.by_claim for ref in refs if ref.list == "gpus"),
        HOST_DEVICES: any(ref.by_claim for ref in refs if ref.list == "hostDevices"),
        NETWORKS: any(network.get("resourceClaim") is not None for network in spec.get("networks") or ()),
        PASSTHROUGH: any(ref.list == "hostDevices" for ref in refs),
    }
    return [name for name in KNOWN if passes[name]]
