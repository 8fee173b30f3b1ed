"""How a launcher ended: the exit status of its process, and a termination message in which Kubernetes keeps the reason. Written
by `launcher.process`, read from the pod's container status by the VMI controller (`kubevirt.pod_end`). Pure."""

from __future__ import annotations

from dataclasses import dataclass

from outfitter.api.kubevirt import failed_launches

MAX_MESSAGE = 4000  # bytes of a termination message that the kubelet keeps, less some for the reason
# Exit statuses. 1 and 2 are those of every command: it could not begin, or was called wrongly.
STOPPED, DOMAIN_FAILED, VMI_INVALID, START_REJECTED, HYPERVISOR_LOST = 0, 3, 4, 5, 6


@dataclass(frozen=True, slots=True)
class Outcome:
    status: int  # of the process
    reason: str  # of the pod's end, as the node agent writes it where there is no kubelet
    message: str

    @classmethod
    def stopped(cls, message: str) -> Outcome:
        return cls(STOPPED, "Stopped", message)

    @classmethod
    def migrated(cls) -> Outcome:
        return cls(STOPPED, "Migrated", "the VM runs in another pod")

    @classmethod
    def domain_failed(cls, message: str) -> Outcome:
        return cls(DOMAIN_FAILED, "DomainFailed", message)

    @classmethod
    def vmi_invalid(cls, message: str) -> Outcome:
        """No host could start it."""
        return cls(VMI_INVALID, "SyncFailed", message)

    @classmethod
    def start_rejected(cls, message: str) -> Outcome:
        """Another host may start it."""
        return cls(START_REJECTED, failed_launches.START_FAILED, message)

    @classmethod
    def hypervisor_lost(cls, message: str) -> Outcome:
        return cls(HYPERVISOR_LOST, "HypervisorLost", message)

    def termination_message(self) -> str:
        return f"{self.reason}: {self.message}".encode()[:MAX_MESSAGE].decode(errors="ignore")
