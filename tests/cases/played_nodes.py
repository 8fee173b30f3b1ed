"""Played nodes (config.playNodes): kubelet, CNI and node agent of every given Node, each stage of which takes stageSeconds.

An actor of the step engine: it reads what the product has written, and writes status and annotations as nodes do."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from outfitter.api import conditions, kinds
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import live_migratable
from outfitter.api.kubevirt.network_info import interface_name
from outfitter.store.clock import rfc3339
from tests.cases.case_product import object_path
from tests.cases.step_engine import StepEngine, at_once

STAGE = 10.0  # seconds, unless config.stageSeconds says otherwise
STATUS, NETWORKS = "k8s.v1.cni.cncf.io/network-status", "k8s.v1.cni.cncf.io/networks"
MIGRATION_UID = "kubevirt.io/migrationJobUID"
FAILURE = "played failure"
FINAL = ("Succeeded", "Failed")


class PlayedNodes:
    def __init__(self, engine: StepEngine) -> None:
        config = engine.case.config
        self._engine = engine
        self._stage = float(config.get("stageSeconds", STAGE))
        fails = config.get("failMigrations") or {}
        self._fail_at, self._fails_left = fails.get("at"), int(fails.get("times", 1))
        self._since: dict[tuple[str, str], float] = {}  # stage and uid -> when it began
        self._nodes: set[str] = set()  # those that exist are alive
        engine.kubelets = True

    def due(self, now: float) -> float | None:
        ends = [begin + self._lasts(stage) for (stage, _), begin in self._since.items()]
        return min((end for end in ends if end > now), default=None)

    def _lasts(self, stage: str) -> float:
        return 1.0 if stage in ("gone", "abort") else self._stage

    async def act(self, now: float) -> bool:
        self._nodes = {node["metadata"]["name"] for node in self._engine.all(kinds.NODE)}
        pods = self._engine.all(kinds.POD)
        live = {pod["metadata"]["uid"] for pod in pods}
        for stage, uid in list(self._since):
            if stage in ("pod", "gone") and uid not in live:
                del self._since[stage, uid]
        acted = [self._pod(pod, now) for pod in pods if pod["spec"].get("nodeName") in self._nodes]
        acted += [self._vmi(vmi, now) for vmi in self._engine.all(kinds.VMI)]
        return any(acted)

    def _over(self, stage: str, uid: str, now: float) -> bool:
        """Whether a stage that is under way has lasted long enough; it begins when it is asked for first."""
        begin = self._since.setdefault((stage, uid), now)
        return now >= begin + self._lasts(stage) - 1e-6

    def _fails(self, stage: str) -> bool:
        """Whether the migration that reaches the end of this stage is one of those that fail there."""
        if self._fail_at != stage or self._fails_left <= 0:
            return False
        self._fails_left -= 1
        return True

    # -- pods

    def _pod(self, pod: Object, now: float) -> bool:
        meta, phase = pod["metadata"], (pod.get("status") or {}).get("phase")
        if meta.get("deletionTimestamp"):
            if not self._over("gone", meta["uid"], now):
                return False
            at_once(self._engine.api.send("DELETE", object_path(kinds.POD, _shaped(pod, kinds.POD)), {"gracePeriodSeconds": 0}))
            return True
        if phase not in (None, "", "Pending") or not self._over("pod", meta["uid"], now):
            return False
        if MIGRATION_UID in (meta.get("labels") or {}) and self._fails("pod"):
            self._status(kinds.POD, pod, {"phase": "Failed", "reason": "Played", "message": FAILURE})
            return True
        annotations = {STATUS: json.dumps(network_status(pod))}
        path = object_path(kinds.POD, _shaped(pod, kinds.POD))
        at_once(self._engine.api.send("PATCH", path, {"metadata": {"annotations": annotations}}))
        types = ("Initialized", "ContainersReady", "Ready")
        kept = [each for each in (pod.get("status") or {}).get("conditions") or () if each["type"] not in types]
        self._status(kinds.POD, pod, {"phase": "Running", "startTime": self._time(), "conditions": [
            *kept, *({"type": type_, "status": "True"} for type_ in types)]})
        return True

    # -- VMIs

    def _vmi(self, vmi: Object, now: float) -> bool:
        status = vmi.get("status") or {}
        if vmi["metadata"].get("deletionTimestamp") or status.get("phase") in FINAL:
            return False
        pods = self._engine.launchers(vmi)
        if status.get("phase") != "Running":
            return self._begin(vmi, pods)
        if self._unreported(vmi):
            return self._migratable(vmi)
        state = status.get("migrationState") or {}
        uid = str(state.get("migrationUid") or "")
        if not uid or state.get("endTimestamp") or state.get("completed"):
            return False
        if state.get("abortRequested"):
            return self._over("abort", uid, now) and self._end(vmi, {"abortStatus": "Succeeded", "failureReason": "aborted"})
        if not state.get("startTimestamp"):
            return bool(state.get("targetNode") and state.get("targetPod")) and self._prepare(vmi, uid, now)
        return self._copy(vmi, uid, pods, now)

    def _begin(self, vmi: Object, pods: list[Object]) -> bool:
        """A VMI whose only pod runs is Running."""
        running = [pod for pod in pods if (pod.get("status") or {}).get("phase") == "Running"]
        others = [pod for pod in pods if (pod.get("status") or {}).get("phase") not in (*FINAL, "Running")]
        if len(running) != 1 or others or running[0]["spec"].get("nodeName") not in self._nodes:
            return False
        self._status(kinds.VMI, vmi, {"phase": "Running", "nodeName": running[0]["spec"]["nodeName"],
                                      "interfaces": _interfaces(vmi, running[0])})
        return True

    def _unreported(self, vmi: Object) -> bool:
        return (vmi["status"].get("nodeName") in self._nodes and conditions.find(vmi, live_migratable.TYPE) is None
                and not live_migratable.depends_on_claims(vmi))

    def _migratable(self, vmi: Object) -> bool:
        """What the agent of the product reports of a VMI that runs; one that has claims is reported by a controller."""
        have = vmi["status"].get("conditions")
        self._status(kinds.VMI, vmi, {"conditions": conditions.with_condition(
            have, live_migratable.live_migratable(vmi), self._time())})
        return True

    def _prepare(self, vmi: Object, uid: str, now: float) -> bool:
        if not self._over("prepare", uid, now):
            return False
        if self._fails("prepare"):
            return self._end(vmi, {"failureReason": FAILURE})
        self._status(kinds.VMI, vmi, {"migrationState": {"targetNodeAddress": "10.0.0.2", "startTimestamp": self._time()}})
        return True

    def _copy(self, vmi: Object, uid: str, pods: list[Object], now: float) -> bool:
        if not self._over("copy", uid, now):
            return False
        if self._fails("copy"):
            return self._end(vmi, {"failureReason": FAILURE})
        state = vmi["status"]["migrationState"]
        target = next((pod for pod in pods if pod["metadata"]["name"] == state.get("targetPod")), None)
        source = [pod for pod in pods if pod is not target and (pod.get("status") or {}).get("phase") == "Running"]
        done = {"targetNodeDomainReadyTimestamp": self._time(), "completed": True, "endTimestamp": self._time()}
        self._status(kinds.VMI, vmi, {"migrationState": done, "nodeName": state["targetNode"],
                                      "interfaces": _interfaces(vmi, target or {})})
        for pod in source:
            self._status(kinds.POD, pod, {"phase": "Succeeded"})
        return True

    def _end(self, vmi: Object, how: Mapping[str, Any]) -> bool:
        self._status(kinds.VMI, vmi, {"migrationState": {**how, "failed": True, "completed": True,
                                                         "endTimestamp": self._time()}})
        return True

    # -- writes

    def _time(self) -> str:
        return rfc3339(self._engine.clock.now())

    def _status(self, kind: kinds.Kind, obj: Object, status: Mapping[str, Any]) -> None:
        path = object_path(kind, _shaped(obj, kind)) + "/status"
        answer = at_once(self._engine.api.send("PATCH", path, {"status": dict(status)}))
        assert answer.ok, answer.body


def network_status(pod: Object) -> list[Object]:
    """As Multus writes it: eth0, and each entry of the networks annotation."""
    text = (pod["metadata"].get("annotations") or {}).get(NETWORKS)
    asked = json.loads(text) if text else []
    return [{"name": "cni0", "interface": "eth0", "default": True, "ips": ["10.1.1.6"]}, *(
        {"name": f"{entry['namespace']}/{entry['name']}", "interface": entry["interface"]}
        for entry in asked if entry.get("interface"))]


def _interfaces(vmi: Object, pod: Object) -> list[Object]:
    """The primary NIC, the NICs in the pod's network-status and claim NICs, each with source domain."""
    text = ((pod.get("metadata") or {}).get("annotations") or {}).get(STATUS)
    there = {entry["interface"]: entry["name"] for entry in json.loads(text)} if text else {}
    asked = json.loads(pod["metadata"]["annotations"].get(NETWORKS) or "[]") if text else []
    by_network = {f"{entry['namespace']}/{entry['name']}": entry["interface"] for entry in asked if entry.get("interface")}
    out = []
    states = {each["name"]: each.get("state") for each in (vmi["spec"]["domain"].get("devices") or {}).get("interfaces") or ()}
    used: set[str] = set()
    for network in vmi["spec"].get("networks") or ():
        name = network["name"]
        if states.get(name) == "absent":
            continue
        if network.get("pod") is not None or (network.get("multus") or {}).get("default"):
            out.append({"name": name, "infoSource": "domain", "podInterfaceName": "eth0"})
        elif network.get("resourceClaim") is not None:
            out.append({"name": name, "infoSource": "domain"})
        else:
            hashed = interface_name(name)
            namespace, _, definition = network["multus"]["networkName"].rpartition("/")
            key = f"{namespace or vmi['metadata']['namespace']}/{definition}"
            interface = hashed if hashed in there else by_network.get(key)
            if interface in there and interface not in used:
                used.add(str(interface))
                out.append({"name": name, "infoSource": "domain", "podInterfaceName": interface})
    return out


def _shaped(obj: Object, kind: kinds.Kind) -> Object:
    return {**obj, "apiVersion": kind.api_version, "kind": kind.kind}
