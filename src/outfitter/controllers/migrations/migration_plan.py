"""What a live migration of a VMI would do: where it would go, what becomes of each of its devices, or why it is not possible.
Pure; called by `outfit plan migrate`. Nothing is written by asking.

Each kind of device contributes: `CONTRIBUTORS` is the list, and none knows the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from outfitter.api.kinds import Object
from outfitter.api.kubevirt import device_refs, live_migratable, migration, network_info
from outfitter.api.kubevirt.kubevirt_config import KubeVirtConfig
from outfitter.controllers import launcher_networks, launcher_pod
from outfitter.errors import NotReady
from outfitter.scheduling.explain.summary import summary
from outfitter.scheduling.scheduler import Placement, Waiting

How = Literal["travels", "reattached", "blocks"]
JOB: Object = {"metadata": {"name": "planned", "uid": "00000000-0000-0000-0000-000000000000"}, "spec": {}}


@dataclass(frozen=True, slots=True)
class PlannedDevice:
    """What becomes of a device of the VMI."""

    name: str  # as the spec names it
    how: How
    reason: str = ""


@dataclass(frozen=True, slots=True)
class MigrationPlan:
    vmi: str
    source: str
    possible: bool
    target: str = ""  # the host that it would go to
    reason: str = ""  # why it is not possible
    devices: tuple[PlannedDevice, ...] = ()

    def to_object(self) -> Object:
        out = {"vmi": self.vmi, "from": self.source, "possible": self.possible, "to": self.target, "reason": self.reason}
        devices = [{key: value for key, value in (("name", one.name), ("how", one.how), ("reason", one.reason)) if value}
                   for one in self.devices]
        return {**{key: value for key, value in out.items() if value != ""}, "devices": devices}


def host_devices(vmi: Mapping[str, Any]) -> Iterator[PlannedDevice]:
    """GPUs and host devices stay on their host."""
    for ref in device_refs.device_refs(vmi):
        yield PlannedDevice(ref.name, "blocks", "HostDeviceNotLiveMigratable: a passed-through device stays on its host")


def sriov_nics(vmi: Mapping[str, Any]) -> Iterator[PlannedDevice]:
    """A NIC on a virtual function is detached before the copy; the guest gets another on the target."""
    for interface in network_info.interfaces(vmi):
        if interface.get("sriov") is not None and interface.get("state") != "absent":
            yield PlannedDevice(str(interface["name"]), "reattached", "the guest has no such NIC while it is copied")


CONTRIBUTORS: tuple[Callable[[Mapping[str, Any]], Iterator[PlannedDevice]], ...] = (host_devices, sriov_nics)


def plan(
    vmi: Object, config: KubeVirtConfig, attachments: launcher_networks.Attachments,
    choose: Callable[[Object], Placement | Waiting], *, to: str = "",
) -> MigrationPlan:
    """`choose`: what the scheduler would do with a pod. `to`: the only host that it may go to."""
    name, status = vmi["metadata"]["name"], vmi.get("status") or {}
    source = str(status.get("nodeName") or "")
    devices = tuple(device for contributor in CONTRIBUTORS for device in contributor(vmi))

    def impossible(why: str) -> MigrationPlan:
        return MigrationPlan(name, source, possible=False, reason=why, devices=devices)

    if status.get("phase") != "Running":
        return impossible(f"it is not running (it is {status.get('phase') or 'Pending'})")
    if migration.under_way(vmi):
        return impossible(f"it migrates to {migration.state(vmi).get('targetNode')} already")
    condition = live_migratable.live_migratable(vmi)
    if not condition.status:
        return impossible(f"{condition.reason}: {condition.message}")
    job = {**JOB, "spec": {"addedNodeSelector": {migration.HOSTNAME: to}}} if to else JOB
    try:
        pod = launcher_pod.target_pod(launcher_pod.planned_pod(vmi, config, attachments), vmi, job, source)
    except NotReady as error:
        return impossible(error.message)
    pod["metadata"]["uid"] = JOB["metadata"]["uid"]
    verdict = choose(pod)
    if isinstance(verdict, Waiting):
        return impossible(summary(verdict))
    return MigrationPlan(name, source, possible=True, target=verdict.host, devices=devices)
