"""Builds the domain of a VMI from what was prepared for its pod: devices, networks and secrets. Called by the agent, which
starts it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from outfitter.api.hypervisor import BY_USER, Builder, Domain
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import device_refs, network_info, pod_claims, vmi_actions
from outfitter.api.launcher import launcher_environment
from outfitter.node.agent_host import AgentHost
from outfitter.node.claim_preparation import ClaimPreparation
from outfitter.node.device_manager.container_edits import ContainerEdits
from outfitter.node.networks import Networks
from outfitter.node.pool_slices import slices_of
from outfitter.store.base import Store

NO_EDITS = ContainerEdits()


class DomainBuilder:
    def __init__(
        self, store: Store, build: Builder, preparation: ClaimPreparation, networks: Networks, claim: device_refs.Claims
    ) -> None:
        self._store, self._build, self._preparation = store, build, preparation
        self._networks, self._claim = networks, claim

    async def build(
        self, host: AgentHost, pod: Object, instance: Object, secret_files: Mapping[str, str], edits: ContainerEdits = NO_EDITS,
    ) -> Domain:
        """The domain to start, paused if that is asked for. `edits`: what device plugins add to its launcher. StartFailed:
        there is none, on whichever host."""
        prepared = self._preparation.launcher_devices(host, pod, self._claim)
        interfaces = self._networks.of(pod)
        published = await published_environment(self._store, host.name, pod, self._claim)
        merged = launcher_environment.merged_environment({**edits.env, **published}, prepared.env)
        env = network_info.without_interface_functions(merged, pod, interfaces.values())
        network_files = {network_info.FILE: network_info.write(interfaces.values())} if interfaces else {}
        files = {**edits.files, **prepared.files, **network_files, **secret_files}
        domain = self._build(instance, env, files, await host.hypervisor.abilities())
        return dataclasses.replace(domain, paused=BY_USER) if vmi_actions.starts_paused(instance) else domain


async def published_environment(store: Store, host: str, pod: Object, claims: device_refs.Claims) -> dict[str, str]:
    """The environment for the pod's extended resources, from what drivers publish."""
    made = dict(pod_claims.claim_names(pod)).get(device_refs.EXTENDED)
    if made is None or (claim := claims(pod["metadata"]["namespace"], made)) is None:
        return {}
    pools = {(result["driver"], result["pool"]) for result in pod_claims.allocation_results(claim)}
    return launcher_environment.resource_variables(pod, claim, await slices_of(store, host, pools))
