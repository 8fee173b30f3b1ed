"""Renders launcher pods by the KubeVirt object as it is now, with the definitions of their networks looked up. Called by the
VMI controller and, for the target's pod, by the migration controller."""

from __future__ import annotations

from outfitter.api import kinds
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import kubevirt_config
from outfitter.api.launcher import launcher_container
from outfitter.api.launcher.launcher_container import LauncherSettings
from outfitter.controllers import launcher_networks, launcher_pod
from outfitter.controllers.manager import ControllerContext
from outfitter.errors import NotFound


class PodRenderer:
    def __init__(self, context: ControllerContext, launcher: LauncherSettings | None) -> None:
        """`launcher`: how kubelets run launcher pods; None: no kubelet does."""
        self._store, self._launcher = context.store, launcher
        self._kubevirts = context.informer(kinds.KUBEVIRT)

    def config(self) -> kubevirt_config.KubeVirtConfig:
        return kubevirt_config.read_config(kubevirt_config.active_kubevirt(self._kubevirts.items()))

    async def render(self, instance: Object, *, source: Object | None = None) -> Object:
        """`source`: the pod that the VMI migrates away from. NotReady: what is missing, or not permitted now: it may have
        changed since the VMI was admitted."""
        known = {place: await self._attachment(*place) for place in launcher_networks.asked_for(instance)}
        pod = launcher_pod.planned_pod(instance, self.config(), lambda namespace, name: known.get((namespace, name)),
                                       source=source)
        return launcher_container.runnable(pod, instance, self._launcher) if self._launcher is not None else pod

    async def _attachment(self, namespace: str, name: str) -> Object | None:
        """Asked of the store when it is needed: a cluster without such networks does not know the kind."""
        try:
            return await self._store.get(kinds.NETWORK_ATTACHMENT, name, namespace)
        except NotFound:
            return None
