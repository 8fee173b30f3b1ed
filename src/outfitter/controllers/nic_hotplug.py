"""NICs of a running VMI that come and go: the pod's network annotation, the VMI's interface status, and condition
MigrationRequired, which asks for a migration where the node does not do it in place.

`decide` holds the rules. The clock of the grace period is the condition's lastTransitionTime: a restart does not reset it. What
needs a migration is decided by the contributors of `api/live_update`; `workload_update` creates it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from outfitter.api import conditions, kinds
from outfitter.api.conditions import Condition
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import interface_status, kubevirt_config, network_info
from outfitter.api.kubevirt.kubevirt_config import KubeVirtConfig
from outfitter.api.live_update import automatic_migration, evaluator
from outfitter.api.live_update.automatic_migration import DUE, PENDING, REQUIRED, migrating, moment
from outfitter.api.live_update.contribution import Contributor, MigrationNeed
from outfitter.api.rejection import RejectionCode
from outfitter.controllers import launcher_networks
from outfitter.controllers.manager import ControllerContext, enqueue_on_change
from outfitter.controllers.vmi import LauncherPods, instance_of
from outfitter.store.informer import key_of
from outfitter.store.workqueue import WorkQueue

MIGRATES = str(RejectionCode.VM_MIGRATES)
PLUGGED, UNPLUGGED, ASKED = "NetworkInterfacePlugged", "NetworkInterfaceUnplugged", "MigrationRequired"  # reasons of events


@dataclass(frozen=True, slots=True)
class NicDecision:
    """What to write; None: as it is."""

    annotation: str | None = None  # the pod's networks
    interfaces: list[Object] | None = None  # status.interfaces
    conditions: list[Object] | None = None
    wait: float | None = None  # seconds until the grace period is over


def decide(
    vmi: Object, pod: Object, config: KubeVirtConfig, now: datetime,
    contributors: Sequence[Contributor] = evaluator.CONTRIBUTORS, *, in_place: bool = False,
) -> NicDecision:
    """For a VMI that runs in this pod. `in_place`: its node also plugs VFs and swaps networks in place, and is given the grace
    period for them too."""
    reported = list((vmi.get("status") or {}).get("interfaces") or ())
    interfaces = interface_status.computed(vmi, pod)
    seen = {**vmi, "status": {**vmi["status"], "interfaces": interfaces}}
    have = vmi["status"].get("conditions") or []
    wanted, wait = have, None
    if not migrating(vmi, now):
        need = evaluator.migration_need(seen, pod, contributors)
        if in_place and need.level == "immediate":
            need = replace(need, level="pending")
        wanted, wait = _with_need(_settled(have), vmi, need, config, now)
    elif waiting := evaluator.migration_need(seen, pod, contributors).waiting:
        wanted = _until_migrated(have, vmi, waiting, config, now)
    annotation = networks_annotation(seen, pod, config)
    return NicDecision(annotation, interfaces if interfaces != reported else None, wanted if wanted != have else None, wait)


def _with_need(
    have: Sequence[Object], vmi: Object, need: MigrationNeed, config: KubeVirtConfig, now: datetime
) -> tuple[list[Object], float | None]:
    """The conditions, and the seconds after which they may change."""
    old = next((each for each in have if each.get("type") == REQUIRED), None)
    if need.level == "none":
        return (conditions.without_condition(have, REQUIRED) if old is not None else list(have)), None
    due, wait = need.level == "immediate" or (old is not None and old.get("status") == "True"), None
    since = moment((old or {}).get("lastTransitionTime")) or now
    if not due:
        age = int((now.replace(microsecond=0) - since).total_seconds())  # times of conditions are whole seconds
        due = old is not None and age > config.plug_grace
        wait = None if due else max(1.0, config.plug_grace + 1 - (now - since).total_seconds())
    if not due:
        return _pending(have, vmi, need.waiting, config, now), wait
    if old is not None and old.get("status") == "True":
        return list(have), None  # the workload updater writes its message
    message = automatic_migration.message(need.waiting, "a migration is required")
    return conditions.with_condition(have, Condition(REQUIRED, True, DUE, message), _text(now)), None


def _pending(
    have: Sequence[Object], vmi: Object, waiting: Sequence[str], config: KubeVirtConfig, now: datetime
) -> list[Object]:
    why = f"the node may do it in place within {config.plug_grace} seconds, then {_or_else(vmi, config)}"
    condition = Condition(REQUIRED, False, PENDING, automatic_migration.message(waiting, why))
    return conditions.with_condition(have, condition, _text(now))


def _until_migrated(
    have: Sequence[Object], vmi: Object, waiting: Sequence[str], config: KubeVirtConfig, now: datetime
) -> list[Object]:
    """The conditions of a VMI that migrates while NICs of it wait: what is required before it migrated says so itself."""
    required = next((each for each in have if each.get("type") == REQUIRED), None)
    if required is not None:
        return list(have) if required.get("status") == "True" else _pending(have, vmi, waiting, config, now)
    message = automatic_migration.message(waiting, "the VM migrates, and it is done when that has ended")
    return conditions.with_condition(have, Condition(conditions.INTERFACES, False, MIGRATES, message), _text(now))


def _settled(have: Sequence[Object]) -> list[Object]:
    """The conditions without that of a migration that has ended."""
    return [each for each in have if (each.get("type"), each.get("reason")) != (conditions.INTERFACES, MIGRATES)]


def _or_else(vmi: Object, config: KubeVirtConfig) -> str:
    migratable = conditions.find(vmi, "LiveMigratable") or {}
    if migratable.get("status") == "False":
        return f"nothing can: it cannot migrate ({migratable.get('reason')}: {migratable.get('message')})"
    return "the VM migrates" if config.may_migrate else "it waits for a migration by hand (no update method LiveMigrate)"


def _text(now: datetime) -> str:
    return now.strftime("%Y-%m-%dT%H:%M:%SZ")


def networks_annotation(vmi: Object, pod: Object, config: KubeVirtConfig) -> str | None:
    """The networks annotation that the pod is to have; None: as it is. It changes when NICs come and go, and not when only the
    definition of a network changes: that takes another pod. VFs that the pod has not got come with another pod, too."""
    reported = interface_status.entries(vmi)
    networks = {network["name"]: network for network in network_info.networks(vmi)}
    cards = [card for card in network_info.interfaces(vmi)
             if networks.get(card["name"]) and not interface_status.is_primary(networks[card["name"]])]
    counted = interface_status.counts_interfaces(vmi, pod)
    known = {interface for _, interface in interface_status.pod_interface_names(vmi, counted=counted)}
    changing = any(card.get("state") == "absent" or card["name"] not in reported for card in cards)
    if not changing and launcher_networks.listed_interfaces(pod) <= known:
        return None
    left_out = [card["name"] for card in cards if card.get("sriov") is not None and card["name"] not in reported]
    wanted = launcher_networks.of_running_pod(
        vmi, config, pod, counted=counted, left_out=left_out, plugged=list(reported))
    have = (pod["metadata"].get("annotations") or {}).get(launcher_networks.NETWORKS)
    return None if launcher_networks.same_networks(wanted, have) else wanted


class NicHotplug:
    name = "nic_hotplug"
    kind = kinds.VMI  # of its keys

    def __init__(
        self, context: ControllerContext, contributors: Sequence[Contributor] = evaluator.CONTRIBUTORS,
        in_place: Callable[[str], bool] = lambda host: False,
    ) -> None:
        """`in_place`: whether the host of this name plugs VFs and swaps networks in place."""
        self._context, self._contributors, self._in_place = context, contributors, in_place
        self.queue = WorkQueue(context.clock)
        self._vmis, self._kubevirts = context.informer(kinds.VMI), context.informer(kinds.KUBEVIRT)
        self._pods = LauncherPods(context.informer(kinds.POD))
        self._done: dict[str, list[tuple[str, str]]] = {}  # key -> events about NICs that came and went
        enqueue_on_change(self._vmis, self.queue, lambda vmi: [key_of(vmi)] if _runs(vmi) else [])
        enqueue_on_change(context.informer(kinds.POD), self.queue, lambda pod: instance_of(pod) if _runs(pod) else [])
        enqueue_on_change(self._kubevirts, self.queue, self._waiting)
        self._vmis.on_change(self._changed)

    def _waiting(self, _: Object) -> list[str]:
        return [key_of(vmi) for vmi in self._vmis.items() if conditions.find(vmi, REQUIRED) is not None]

    def _changed(self, old: Object | None, new: Object | None) -> None:
        if old is not None and new is not None and (done := list(plugged_and_unplugged(old, new))):
            self._done.setdefault(key_of(new), []).extend(done)

    async def reconcile(self, key: str) -> float | None:
        vmi = self._vmis.get(key)
        done = self._done.pop(key, [])
        if vmi is None or vmi["metadata"].get("deletionTimestamp") or (vmi.get("status") or {}).get("phase") != "Running":
            return None
        for reason, message in done:
            await self._context.events.normal(vmi, reason, message)
        pod = self._pods.current(vmi)
        if pod is None or pod["metadata"].get("deletionTimestamp") or (pod.get("status") or {}).get("phase") != "Running":
            return None
        config = kubevirt_config.read_config(kubevirt_config.active_kubevirt(self._kubevirts.items()))
        in_place = self._in_place(str(pod["spec"].get("nodeName")))
        decision = decide(vmi, pod, config, self._context.clock.now(), self._contributors, in_place=in_place)
        if decision.annotation is not None:
            await self._context.patch_metadata(
                kinds.POD, pod, {"annotations": {launcher_networks.NETWORKS: decision.annotation}})
        change = {"interfaces": decision.interfaces, "conditions": decision.conditions}
        if any(value is not None for value in change.values()):
            await self._context.patch_status(
                kinds.VMI, vmi, {field: value for field, value in change.items() if value is not None})
            await self._report(vmi, decision)
        return decision.wait

    async def _report(self, vmi: Object, decision: NicDecision) -> None:
        """An event when a migration becomes required."""
        new = next((each for each in decision.conditions or () if each["type"] == REQUIRED), None)
        if new is not None and new["status"] == "True" and not conditions.is_true(vmi, REQUIRED):
            await self._context.events.normal(vmi, ASKED, str(new.get("message")))


def _runs(vmi_or_pod: Object) -> bool:
    """Before it runs there is nothing to plug, and it is a watch update that it does."""
    return bool((vmi_or_pod.get("status") or {}).get("phase") == "Running")


def plugged_and_unplugged(old: Object, new: Object) -> list[tuple[str, str]]:
    """Reason and message for each NIC that the guest of a running VM got or lost between two states."""
    if any((vmi.get("status") or {}).get("phase") != "Running" for vmi in (old, new)):
        return []
    was, is_ = _in_guest(old), _in_guest(new)
    if not was and not old["status"].get("interfaces"):
        return []  # nothing was reported of it before
    wanted = {str(card.get("name")): str(card.get("state") or "") for card in network_info.interfaces(new)}
    node = new["status"].get("nodeName")
    plugged = [(PLUGGED, f'NIC "{name}" is plugged on {node}') for name in is_
               if name not in was and wanted.get(name) != "absent"]
    gone = [(UNPLUGGED, f'NIC "{name}" is unplugged on {node}') for name in was
            if name not in is_ and wanted.get(name, "absent") == "absent"]
    return [*plugged, *gone]


def _in_guest(vmi: Object) -> list[str]:
    return [name for name, entry in interface_status.entries(vmi).items()
            if interface_status.DOMAIN in interface_status.sources(entry)]
