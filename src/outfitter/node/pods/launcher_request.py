"""What the launcher of a pod that a kubelet runs is sent to build the domain of its VMI: for a start and for an arrival by
migration. Called by `kubelet_pods.py` and `vmi_arrivals.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from outfitter.api import kinds
from outfitter.api.hypervisor import Domain
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import device_status, network_info, pod_claims, vmi_actions
from outfitter.api.kubevirt.network_info import Wire
from outfitter.api.launcher.launcher_protocol import StartVmi
from outfitter.errors import NotFound
from outfitter.node import networks
from outfitter.node.agent_host import AgentHost
from outfitter.node.pods import domain_builder
from outfitter.store.base import Store


class LauncherRequests:
    def __init__(self, store: Store) -> None:
        self._store = store

    async def settled(self, pod: Object, instance: Object) -> bool:
        """Whether the VMI's status has its devices."""
        claims = await self._claims(pod)
        return not device_status.unsettled_devices(instance, pod, lambda namespace, name: claims.get((namespace, name)))

    async def of(self, host: AgentHost, pod: Object, instance: Object) -> tuple[StartVmi, Sequence[Wire]]:
        """The request, and how its network interfaces are attached. NotReady: why they cannot be yet."""
        claims = await self._claims(pod)

        def claim(namespace: str, name: str) -> Object | None:
            return claims.get((namespace, name))

        wires: Sequence[Wire] = ()
        if network_info.interfaces(instance):
            wires = await networks.decided(self._store, host, pod, instance, claim, isolated=True)
        env = await domain_builder.published_environment(self._store, host.name, pod, claim)
        return StartVmi(_for_launcher(instance), network_info.write(wires) if wires else "", env,
                        vmi_actions.starts_paused(instance)), wires

    async def plugged(
        self, host: AgentHost, pod: Object, instance: Object, domain: Domain, name: str
    ) -> Wire | None:
        """How an interface by claim is attached that is plugged into the running VM of this pod. NotReady: why it cannot be."""
        claims = await self._claims(pod)
        wires = await networks.decided(
            self._store, host, pod, instance, lambda namespace, claim: claims.get((namespace, claim)), isolated=True,
            plugged=networks.PluggedNics(frozenset({name}), frozenset(domain.devices), {}))
        return next((wire for wire in wires if wire.network == name), None)

    async def _claims(self, pod: Object) -> Mapping[tuple[str, str], Object]:
        """Read one by one when they are needed: a node agent does not watch the claims of the whole cluster."""
        namespace, out = pod["metadata"]["namespace"], {}
        for name in dict.fromkeys(name for _, name in pod_claims.claim_names(pod) if name):
            try:
                out[namespace, name] = await self._store.get(kinds.RESOURCE_CLAIM, name, namespace)
            except NotFound:
                continue
        return out


def _for_launcher(instance: Object) -> Object:
    """Without the record of who wrote which field, which is larger than the rest."""
    return {**instance, "metadata": {key: value for key, value in instance["metadata"].items() if key != "managedFields"}}
