"""Carries out the action requests of running VMIs (pause, unpause, reset, soft reboot) and reports whether a VMI is paused.

A pause may be repeated without harm, so its request is removed when it is done. A reset may not: its request is removed first,
and one that could not be carried out within a minute is dropped, because its user no longer expects it."""

from __future__ import annotations

from datetime import datetime, timedelta

from outfitter.api import kinds
from outfitter.api.hypervisor import Domain
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import vmi_actions
from outfitter.errors import HypervisorError
from outfitter.node.agent_host import AgentHost
from outfitter.node.status_reporter import StatusReporter
from outfitter.store.base import Store
from outfitter.store.clock import Clock

SOON = timedelta(minutes=1)
DONE = {"Reset": ("Reset", "VirtualMachineInstance reset"),
        "SoftReboot": ("SoftRebooted", "VirtualMachineInstance soft rebooted")}  # action -> reason and message of its event
KNOWN = (*vmi_actions.PAUSES, *DONE)


class VmiActions:
    def __init__(self, store: Store, report: StatusReporter, *, clock: Clock) -> None:
        self._store, self._report, self._clock = store, report, clock

    async def carry_out(self, host: AgentHost, pod: Object, instance: Object, domain: Domain) -> Object:
        """All action requests of a VMI that runs here. Its pod as it is then."""
        for request in vmi_actions.action_requests(instance):
            if request.get("action") not in vmi_actions.PAUSES:
                instance = await self._run_once(host, instance, request)
        wanted = vmi_actions.requested_pause(instance)
        if wanted is not None and wanted != (domain.paused is not None):
            uid = instance["metadata"]["uid"]
            try:
                await (host.hypervisor.pause(uid) if wanted else host.hypervisor.unpause(uid))
            except HypervisorError as error:
                await self._report.action_failed(instance, "Pause" if wanted else "Unpause", error.message)
            domain = (await host.hypervisor.domains()).get(uid, domain)
        await self._report.vmi_paused(instance, domain.paused)
        return await self._report.pod_paused(pod, domain.paused)

    async def _run_once(self, host: AgentHost, instance: Object, request: Object) -> Object:
        """Reset or reboot, at most once. The VMI without the request."""
        meta, left = instance["metadata"], [other for other in vmi_actions.action_requests(instance) if other != request]
        fresh = await self._store.patch(kinds.VMI, meta["name"], {
            "metadata": {"resourceVersion": meta["resourceVersion"]}, "status": {vmi_actions.FIELD: left or None},
        }, meta["namespace"], subresource="status")
        action, uid = str(request.get("action")), meta["uid"]
        if action not in DONE:
            why = f"this action is not supported; supported are {', '.join(KNOWN)}"
            await self._report.action_failed(instance, action, why)
        elif self._late(request):
            await self._report.action_failed(instance, action, f"{host.name} could not do it within {SOON.seconds} seconds of "
                                        f"{request['requestedAt']}; request it again if it is still wanted")
        else:
            try:
                await (host.hypervisor.reset(uid) if action == "Reset" else host.hypervisor.reboot(uid))
            except HypervisorError as error:
                await self._report.action_failed(instance, action, error.message)
            else:
                await self._report.action_done(instance, *DONE[action])
        return fresh

    def _late(self, request: Object) -> bool:
        try:
            return self._clock.now() - datetime.fromisoformat(request["requestedAt"]) > SOON
        except (KeyError, TypeError, ValueError):  # written by hand, without a time
            return False
