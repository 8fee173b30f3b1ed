"""What people ask of a machine that runs, carried out on its host, and whether its processors run or stand still, told.

Pausing may be done twice without harm, so its note goes when it is done. A reset may not: its note goes first, and one that
could not be done soon is not done at all, for nobody expects it any more."""

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
        "SoftReboot": ("SoftRebooted", "VirtualMachineInstance soft rebooted")}  # what is told afterwards
KNOWN = (*vmi_actions.PAUSES, *DONE)


class VmiActions:
    def __init__(self, store: Store, report: StatusReporter, *, clock: Clock) -> None:
        self._store, self._report, self._clock = store, report, clock

    async def carry_out(self, host: AgentHost, pod: Object, instance: Object, domain: Domain) -> Object:
        """Everything that is asked of a machine that runs here. Its pod as it is then."""
        for note in vmi_actions.of(instance):
            if note.get("action") not in vmi_actions.PAUSES:
                instance = await self._press(host, instance, note)
        wanted = vmi_actions.pausing(instance)
        if wanted is not None and wanted != (domain.paused is not None):
            uid = instance["metadata"]["uid"]
            try:
                await (host.hypervisor.pause(uid) if wanted else host.hypervisor.unpause(uid))
            except HypervisorError as error:
                await self._report.not_done(instance, "Pause" if wanted else "Unpause", error.message)
            domain = (await host.hypervisor.domains()).get(uid, domain)
        await self._report.stands(instance, domain.paused)
        return await self._report.pod_stands(pod, domain.paused)

    async def _press(self, host: AgentHost, instance: Object, note: Object) -> Object:
        """A button, once. The instance without its note."""
        meta, left = instance["metadata"], [one for one in vmi_actions.of(instance) if one != note]
        fresh = await self._store.patch(kinds.VMI, meta["name"], {
            "metadata": {"resourceVersion": meta["resourceVersion"]}, "status": {vmi_actions.FIELD: left or None},
        }, meta["namespace"], subresource="status")
        action, uid = str(note.get("action")), meta["uid"]
        if action not in DONE:
            await self._report.not_done(instance, action, f"nobody here knows how to; what can be asked is {', '.join(KNOWN)}")
        elif self._late(note):
            await self._report.not_done(instance, action, f"{host.name} could not do it within {SOON.seconds} seconds of "
                                        f"{note['requestedAt']}; ask again if it is still wanted")
        else:
            try:
                await (host.hypervisor.reset(uid) if action == "Reset" else host.hypervisor.reboot(uid))
            except HypervisorError as error:
                await self._report.not_done(instance, action, error.message)
            else:
                await self._report.done(instance, *DONE[action])
        return fresh

    def _late(self, note: Object) -> bool:
        try:
            return self._clock.now() - datetime.fromisoformat(note["requestedAt"]) > SOON
        except (KeyError, TypeError, ValueError):  # somebody wrote the note by hand, and did not say when
            return False
