"""Why a change of a running VM has not taken effect yet, such as a NIC or a device that is to be plugged: a part of
`outfit why`. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from outfitter.api import conditions, kinds
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import kubevirt_config, migration
from outfitter.api.kubevirt import vm as vm_api
from outfitter.api.live_update import automatic_migration as automatic
from outfitter.api.live_update import evaluator
from outfitter.api.live_update.automatic_migration import UpdateDecision, UpdateView
from outfitter.api.rejection import RejectionCode
from outfitter.scheduling.explain.cluster_objects import ClusterObjects
from outfitter.scheduling.explain.explanation import Explanation
from outfitter.scheduling.explain.object_state import pods_of
from outfitter.scheduling.explain.pod import pod as pod_explanation

CHANGE = "change"  # what such a VM waits for


def of_running_vmi(cluster: ClusterObjects, vmi: Mapping[str, Any], answer: Explanation) -> Explanation:
    """The explanation of a VMI that runs, with what has not reached it yet."""
    required = conditions.find(vmi, automatic.REQUIRED)
    in_place = [found for type_ in (conditions.INTERFACES, conditions.PLUGGED)
                if (found := conditions.find(vmi, type_) or {}).get("status") == "False"]
    if required is None and not in_place:
        return answer
    pod = next((pod for pod in pods_of(cluster, vmi)
                if pod["spec"].get("nodeName") == (vmi.get("status") or {}).get("nodeName")), None)
    waiting = evaluator.migration_need(dict(vmi), pod).waiting if pod is not None else ()
    lines, todo = (*answer.lines, *waiting), answer.todo
    sentence = f"{answer.sentence.removesuffix(': nothing is wrong')}; a change of it has not taken effect yet"
    lines = (*lines, *(f"{found.get('reason')}: {found['message']}" for found in in_place if found.get("message")))
    todo = (*todo, *(text for found in in_place for text in _plug_advice(vmi, found)))
    if required is None:
        pass  # the node does it in place, or when a migration has ended
    elif required.get("status") != "True":
        lines = (*lines, str(required.get("message") or "the node may do it in place"))
    elif cluster.now is not None:
        view = _view(cluster, dict(vmi), cluster.now)
        decision = automatic.decide(view)
        if decision.code == automatic.MIGRATING and view.target is not None and automatic.unschedulable(view.target):
            target = pod_explanation(cluster, view.target)
            sentence = f"{sentence}: the target of its migration, {target.about}, {target.sentence}"
            answer = replace(answer, waiting=target.waiting)
            lines, todo = (*lines, *target.lines), (*todo, *target.todo)
        elif decision.code:
            lines = (*lines, f"{decision.code}: {decision.message}")
        todo = (*todo, *_advice(vmi, decision))
    return replace(answer, sentence=sentence, waits_for=CHANGE, lines=lines, todo=todo)


def _plug_advice(vmi: Mapping[str, Any], condition: Mapping[str, Any]) -> tuple[str, ...]:
    """What helps a device or a NIC that is not plugged or unplugged."""
    name, code = vmi["metadata"]["name"], condition.get("reason")
    of_vm, noun = vm_api.owner(vmi, kinds.VM.kind), "device" if condition.get("type") == conditions.PLUGGED else "nic"
    cancel = f"outfit vm {noun} remove {name} {noun.upper()} cancels the plug" if of_vm else ""
    advice = _device_advice(name, cancel) if noun == "device" else _nic_advice(name, cancel)
    return tuple(filter(None, next((texts for each, texts in advice.items() if each == code), ())))


def _device_advice(name: str, cancel: str) -> Mapping[RejectionCode, tuple[str, ...]]:
    return {
        RejectionCode.NO_FREE_DEVICE_ON_HOST: ("free a device of that host: outfit devices", cancel),
        RejectionCode.CLAIM_IN_USE: ("use a claim of its own, or a ResourceClaimTemplate", cancel),
        RejectionCode.DEVICE_KEPT_BY_GUEST: ("stop using the device in the guest; it is asked again every few seconds",),
        RejectionCode.VM_PAUSED: (f"outfit vm unpause {name}",),
    }


def _nic_advice(name: str, cancel: str) -> Mapping[RejectionCode, tuple[str, ...]]:
    return {
        RejectionCode.NO_PCI_PORT: (
            f"outfit vm nic remove {name} NIC, of one that it can do without" if cancel else "unplug a NIC",
            f"outfit vm restart {name}, with which it gets more ports" if cancel else ""),
        RejectionCode.VF_NOT_BOOKED: ("free a VF of that host: outfit devices", cancel),
        RejectionCode.NIC_NOT_PLUGGED: (cancel,),
        RejectionCode.NIC_KEPT_BY_GUEST: (
            "see that the guest runs and has a driver for PCI hotplug; it is asked again every few seconds",),
        RejectionCode.VM_MIGRATES: (f"outfit vm migrate {name} --cancel, with which it is done at once",),
    }


def _view(cluster: ClusterObjects, vmi: Object, now: datetime) -> UpdateView:
    meta = vmi["metadata"]
    jobs = [job for job in cluster.migrations if migration.vmi_key(job) == f"{meta['namespace']}/{meta['name']}"]
    targets = {migration.job_uid(pod): pod for pod in cluster.pods if migration.job_uid(pod)}
    open_jobs = [job for job in cluster.migrations if not migration.is_finished(job)]
    target = next((targets.get(job["metadata"]["uid"]) for job in jobs if not migration.is_finished(job)), None)
    hosts = [node["metadata"]["name"] for node in cluster.nodes if automatic.takes_pods(node)]
    config = kubevirt_config.read_config(kubevirt_config.active_kubevirt(cluster.kubevirts))
    return UpdateView(vmi, config, now, jobs, len(open_jobs), target,
                      None if kinds.NODE.plural in cluster.unread or not cluster.nodes else hosts)


def _advice(vmi: Mapping[str, Any], decision: UpdateDecision) -> tuple[str, ...]:
    """What helps beside waiting."""
    name = vmi["metadata"]["name"]
    restart = f"outfit vm restart {name}, with which it takes effect too" if vm_api.owner(vmi, kinds.VM.kind) else ""
    advice = {
        automatic.NO_METHOD: (
            "let the system migrate VMs: kubectl patch kubevirt -n kubevirt kubevirt --type merge -p "
            '\'{"spec": {"workloadUpdateStrategy": {"workloadUpdateMethods": ["LiveMigrate"]}}}\'', restart),
        automatic.NOT_MIGRATABLE: (restart,),
        automatic.NO_OTHER_HOST: ("add a host, or uncordon one: kubectl get nodes", restart),
        automatic.BACKING_OFF: (f"kubectl get virtualmachineinstancemigrations -n {vmi['metadata']['namespace']} shows why the "
                                "last ones failed", restart),
    }.get(decision.code, ())
    return tuple(filter(None, advice))
