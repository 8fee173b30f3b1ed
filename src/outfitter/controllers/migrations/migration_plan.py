"""What a live migration of a VMI would do: where it would go, what becomes of each of its devices, or why it is not possible.
Pure; called by `outfit plan migrate` and `outfit vm migrate`. Nothing is written by asking.

The devices are those of `scheduling.device_migration`, the target's pod and claims those that the migration controller would
create, and the host is what the scheduler would choose for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from outfitter.api.kinds import Object
from outfitter.api.kubevirt import attachment_pods, live_migratable, migration, vm
from outfitter.api.kubevirt.kubevirt_config import KubeVirtConfig
from outfitter.controllers import device_lookup, launcher_networks, launcher_pod
from outfitter.controllers.embedded import pod_claims as template_claims
from outfitter.controllers.migrations import target_claims
from outfitter.errors import NotReady
from outfitter.scheduling import device_migration, device_twins
from outfitter.scheduling.device_migration import DeviceMigration, SourceView
from outfitter.scheduling.device_twins import PublishedTwins
from outfitter.scheduling.explain.cluster_objects import ClusterObjects
from outfitter.scheduling.explain.summary import summary
from outfitter.scheduling.placement import Waiting

JOB: Object = {"metadata": {"name": "planned", "uid": "00000000-0000-0000-0000-000000000000"}, "spec": {}}


@dataclass(frozen=True, slots=True)
class MigrationPlan:
    vmi: str
    source: str
    possible: bool
    target: str = ""  # the host that it would go to
    reason: str = ""  # why it is not possible
    devices: tuple[DeviceMigration, ...] = ()

    def to_object(self) -> Object:
        out = {"vmi": self.vmi, "from": self.source, "possible": self.possible, "to": self.target, "reason": self.reason}
        devices = [one.to_object() for one in self.devices]
        return {**{key: value for key, value in out.items() if value != ""}, "devices": devices}


def plan(
    vmi: Object, config: KubeVirtConfig, attachments: launcher_networks.Attachments, cluster: ClusterObjects, *, to: str = ""
) -> MigrationPlan:
    """`to`: the only host that it may go to."""
    name, status = vmi["metadata"]["name"], vmi.get("status") or {}
    source, view = str(status.get("nodeName") or ""), source_view(vmi, config, cluster)
    devices = device_migration.device_migrations(vmi, view)

    def impossible(why: str) -> MigrationPlan:
        return MigrationPlan(name, source, possible=False, reason=why, devices=devices)

    if status.get("phase") != "Running":
        return impossible(f"it is not running (it is {status.get('phase') or 'Pending'})")
    if migration.under_way(vmi):
        return impossible(f"it migrates to {migration.state(vmi).get('targetNode')} already")
    condition = live_migratable.live_migratable(vmi, [one.reason for one in device_migration.blocking(devices)])
    if not condition.status:
        return impossible(f"{condition.reason}: {condition.message}")
    if to and (why := _no_target(to, source, cluster)):
        return impossible(why)
    job = {**JOB, "spec": {"addedNodeSelector": {migration.HOSTNAME: to}}} if to else JOB
    try:
        pod = launcher_pod.target_pod(
            launcher_pod.planned_pod(vmi, config, attachments, source=view.pod), vmi, job, source)
    except NotReady as error:
        return impossible(error.message)
    pod["metadata"]["uid"] = JOB["metadata"]["uid"]
    pod = target_claims.with_reattached(target_claims.without_unplugged(vmi, pod, view), devices)
    second = target_claims.target_claims(vmi, job, pod, view)
    pod, made = _with_template_claims(target_claims.with_target_claims(pod, second), cluster)
    known = {(claim["metadata"]["namespace"], claim["metadata"]["name"]): claim for claim in (*second, *made)}
    verdict = cluster.choose(pod, lambda namespace, claim: known.get((namespace, claim)) or cluster.claim(namespace, claim))
    if isinstance(verdict, Waiting):
        published = PublishedTwins(cluster.slices, cluster.pages, cluster.claims)
        devices = device_twins.with_twins(devices, vmi, view, published)
        return impossible(summary(verdict))
    return MigrationPlan(name, source, possible=True, target=verdict.host, devices=devices)


def _no_target(host: str, source: str, cluster: ClusterObjects) -> str:
    """Why a migration to this host is refused whatever is free there, as admission would; "": it is not."""
    if host == source:
        return f"it runs on {host} already: name another host, or none"
    known = any(host in (node["metadata"]["name"], (node["metadata"].get("labels") or {}).get(migration.HOSTNAME))
                for node in cluster.nodes)
    return "" if known else f"there is no host {host}: outfit get nodes lists them"


def source_view(vmi: Object, config: KubeVirtConfig, cluster: ClusterObjects) -> SourceView:
    """What is known of a VMI on its host, by what was read of the cluster."""
    meta, host = vmi["metadata"], (vmi.get("status") or {}).get("nodeName")
    pods = [pod for pod in cluster.pods_of(meta["uid"]) if (vm.owner(pod, vmi["kind"]) or {}).get("uid") == meta["uid"]
            and pod["metadata"]["namespace"] == meta["namespace"]]
    launcher = vm.current_pod(pods, vmi) if host else None
    pod = attachment_pods.with_claims(launcher, cluster.pods_of(launcher["metadata"]["uid"])) if launcher is not None else None

    def find(result: Mapping[str, Any], on: str | None) -> Mapping[str, Any] | str:
        return device_lookup.find(result, cluster.pool(result["driver"], result["pool"]), on, cluster.node(on) if on else None)

    in_place = attachment_pods.plugs_in_place(cluster.node(host) if host else None)
    return SourceView(pod, cluster.claim, find, config.gates, in_place)


def _with_template_claims(pod: Object, cluster: ClusterObjects) -> tuple[Object, list[Object]]:
    """The pod with the claims that its templates would make, and these."""
    made, names = [], []
    for entry in template_claims.missing_claims(pod):
        if (template := cluster.template(pod["metadata"]["namespace"], entry["resourceClaimTemplateName"])) is not None:
            made.append(template_claims.planned_claim(pod, entry, template))
            names.append({"name": entry["name"], "resourceClaimName": made[-1]["metadata"]["name"]})
    return {**pod, "status": {"resourceClaimStatuses": names}} if names else pod, made
