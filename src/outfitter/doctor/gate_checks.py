"""Whether VMs depend on feature gates of the KubeVirt object that are off: they run on, and an earlier version of outfitter
without the gates would lose them. Pure; called by `cluster_checks`."""

from __future__ import annotations

from collections.abc import Iterator

from outfitter.api import kinds
from outfitter.api.kubevirt import gates_in_use, kubevirt_config
from outfitter.api.validate import readable
from outfitter.doctor import workload_settings
from outfitter.doctor.cluster_state import CONTROLLER, ClusterState
from outfitter.doctor.finding import Finding, ok, some, warning


def check(state: ClusterState) -> Iterator[Finding]:
    if not state.known("kubevirts", "virtualmachineinstances") or workload_settings.switched_on(
            state.readings, CONTROLLER, "companion"):
        return  # beside KubeVirt the gates are its own
    active = kubevirt_config.active_kubevirt(
        [obj for obj in state.items("kubevirts") if readable.problem(kinds.KUBEVIRT, obj) is None])
    vmis = [vmi for vmi in state.items("virtualmachineinstances") if readable.problem(kinds.VMI, vmi) is None]

    def users(gate: str) -> list[str]:
        return sorted(f"{vmi['metadata']['namespace']}/{vmi['metadata']['name']}" for vmi in vmis
                      if gate in gates_in_use.gates_of(vmi))

    blocking = gates_in_use.closed_in_use(kubevirt_config.read_config(active).gates, users)
    for gate, named in blocking:
        place, _, name = named[0].partition("/")
        yield warning("cluster-gates-in-use", f"the feature gate {gate} is off, and used by VMIs: {some(named)}.",
                      "They run on; before a rollback to a version without the gate, delete them (of a VM: stop it).",
                      f"kubectl -n {place} delete vmi {name}", subject=f"gate/{gate}")
    if not blocking:
        yield ok("cluster-gates-in-use", "no VMI uses a feature gate that is off")
