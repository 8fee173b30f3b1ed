"""Who runs the pods of a host: a Protocol with two implementations. Where there is no kubelet (embedded mode, simulated nodes)
the agent does (`own_pods.py`): it prepares devices, writes the pod's status, stops the domain and deletes the pod. Where a
kubelet runs them (`kubelet_pods.py`) the agent drives the launcher in a pod that runs, and leaves the rest to the kubelet."""

from __future__ import annotations

from typing import Protocol

from outfitter.api.kinds import Object
from outfitter.api.rejection import Rejection
from outfitter.node.agent_host import AgentHost


class PodRuntime(Protocol):
    """Called by the agent, which holds the host's lock. Every call may be repeated; a number asks to be called again after so
    many seconds. HypervisorAway: the agent reports it with `waiting` and tries again."""

    async def run(self, host: AgentHost, pod: Object, instance: Object | None) -> float | None:
        """Bring a pod that is bound to the host one step further, up to a VMI that runs and whose action requests are done.
        `instance`: its VMI; None for another pod, or while the VMI is not known."""
        ...

    async def end(self, host: AgentHost, pod: Object) -> float | None:
        """End a pod that has terminated or whose deletion was requested."""
        ...

    async def sweep(self, host: AgentHost) -> float | None:
        """End what runs or is prepared on the host for pods that are gone."""
        ...

    async def waiting(self, pod: Object, why: Rejection, reason: str) -> None:
        """Report why a pod does not run yet, or does not end."""
        ...

    async def offer_devices(self, host: AgentHost) -> float | None:
        """Write the resources of device plugins into the Node."""
        ...

    def starts(self, uid: str) -> bool:
        """Whether the domain of a VMI is being started now: `run` looks at it afterwards."""
        ...

    def forget(self, pod: Object) -> None:
        """A pod object is gone."""
        ...
