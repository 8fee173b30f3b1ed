"""KubeVirt's feature gates for devices, as the KubeVirt object sets them: a gate in featureGates is on, else one in
disabledFeatureGates is off, else its default applies. Two names of the design documents stand for all claim gates. Used by
admission and controllers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from outfitter.api.kubevirt import device_refs

GPUS = "GPUsWithDRA"  # gpus by claim
HOST_DEVICES = "HostDevicesWithDRA"  # hostDevices by claim
NETWORKS = "NetworkDevicesWithDRA"  # networks by claim
PASSTHROUGH = "HostDevices"  # hostDevices at all
CLAIMS = (GPUS, HOST_DEVICES, NETWORKS)
KNOWN = (*CLAIMS, PASSTHROUGH)  # checked at admission
OF_DOCUMENT = (GPUS, HOST_DEVICES)  # one of them must be on for a claim that no network uses
# Gates that affect launcher pods, not admission.
INJECTION = "ExternalNetResourceInjection"  # on: a webhook adds the resource requests of networks; default off
NAMING = "PodSecondaryInterfaceNamingUpgrade"  # on: ordinal interface names are upgraded to hashed names at migration
IOMMUFD = "IOMMUFD"  # on: a pod requests the iommufd device too; default off
OF_PODS = (INJECTION, NAMING, IOMMUFD)
PERSISTENT = "PersistentDRAClaims"  # resourceClaimTemplates of a VM that name a ResourceClaimTemplate
VGPU_MIGRATION = "VGPULiveMigration"  # on: a mediated device that is the only GPU of a VM travels with it; default off
OF_VMS = (PERSISTENT, VGPU_MIGRATION)
STAND_FOR: Mapping[str, tuple[str, ...]] = {"DynamicResourceAllocation": CLAIMS, "DRADevices": CLAIMS}


@dataclass(frozen=True, slots=True)
class Gates:
    """The enabled and disabled gates. A gate in neither set is enabled."""

    on: frozenset[str] = frozenset()
    off: frozenset[str] = frozenset()
    through: tuple[tuple[str, str], ...] = ()  # (gate, collective name in disabledFeatureGates that disables it)

    def open(self, name: str) -> bool:
        return name in self.on or name not in self.off

    def closed(self, names: Iterable[str]) -> list[str]:
        return [name for name in names if not self.open(name)]

    def refusal(self, name: str, sentence: str) -> str:
        """The message of a rejected VMI: KubeVirt's sentence, what disables the gate, and how to enable it."""
        return self.refusal_of_all((name,), sentence)

    def refusal_of_all(self, names: Sequence[str], sentence: str) -> str:
        """The same where one of several gates, all of them disabled, would do."""
        stands = " and ".join(dict.fromkeys(stands for gate, stands in self.through if gate in names))
        it = "it" if len(names) == 1 else "them"
        return (f"{sentence}: " + (f"{stands} in disabledFeatureGates disables {it}; " if stands else "")
                + f"list {' or '.join(names)} in spec.configuration.developerConfiguration.featureGates of the KubeVirt object")


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
    """The gates that a VMI spec depends on, in the order of `KNOWN`."""
    refs = device_refs.device_refs({"spec": spec})
    passes = {
        GPUS: any(ref.by_claim for ref in refs if ref.list == "gpus"),
        HOST_DEVICES: any(ref.by_claim for ref in refs if ref.list == "hostDevices"),
        NETWORKS: any(network.get("resourceClaim") is not None for network in spec.get("networks") or ()),
        PASSTHROUGH: any(ref.list == "hostDevices" for ref in refs),
    }
    return [name for name in KNOWN if passes[name]]


def used_by_networks(spec: Mapping[str, Any]) -> set[str | None]:
    """The claims that networks of a VMI spec use."""
    return {(network.get("resourceClaim") or {}).get("claimName") for network in spec.get("networks") or ()
            if network.get("resourceClaim") is not None}


def disallowed_claims(spec: Mapping[str, Any], claims: Iterable[str], gates: Gates) -> list[str]:
    """Those claims of a VMI spec, or of its VM, that no gate allows: the gates of GPUs and host devices are both off, and no
    network uses the claim whose gate is on. None, where a list that uses claims is rejected for its own gate."""
    if any(map(gates.open, OF_DOCUMENT)) or gates.closed(set(used(spec)).intersection(CLAIMS)):
        return []
    by_network = used_by_networks(spec) if gates.open(NETWORKS) else set()
    return [name for name in claims if name not in by_network]
