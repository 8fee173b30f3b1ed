"""Checks of nodes and devices: agents that report, IOMMU, drivers, pools, claims and unreadable objects. Pure; called by
`cluster_checks` for every cluster and for the embedded server."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from datetime import datetime, timedelta

from outfitter.api import conditions, kinds
from outfitter.api.device import DRIVER
from outfitter.api.kinds import Kind, Object
from outfitter.api.validate import readable
from outfitter.doctor import workload_settings
from outfitter.doctor.cluster_state import CONTROLLER, NODE, ClusterState
from outfitter.doctor.finding import Finding, count, error, ok, some, warning

SIMULATED = "outfitter.dev/simulated"
REFUSED = (conditions.START_REFUSED, "NotServed")  # reasons of a node that is not Ready, written by us
LONG = timedelta(minutes=10)  # after which a claim that waits is reported
READ: dict[str, Kind] = {kind.plural: kind for kind in (
    kinds.RESOURCE_SLICE, kinds.RESOURCE_CLAIM, kinds.HOST_INVENTORY, kinds.LEDGER_PAGE, kinds.VMI, kinds.VM, kinds.FLAVOR)}


def check(state: ClusterState, node_name: str = "") -> list[Finding]:
    return [*_agents(state), *_names(state, node_name), *_iommu(state), *_drivers(state), *_kubevirt(state), *_classes(state),
            *_pools(state), *_claims(state), *_unreadable(state)]


def _readable(state: ClusterState, plural: str) -> list[Object]:
    """Objects without those that `cluster-unreadable-objects` reports."""
    return [obj for obj in state.items(plural) if readable.problem(READ[plural], obj) is None]


def _agents(state: ClusterState) -> Iterator[Finding]:
    if not state.known("nodes", "hostinventories"):
        return
    nodes = {node["metadata"]["name"]: node for node in state.items("nodes")}
    reported = {obj["metadata"]["name"] for obj in _readable(state, "hostinventories")}
    found = False
    for name, node in nodes.items():
        refused = conditions.find(node, "Ready")
        if refused is not None and refused.get("reason") in REFUSED and refused.get("status") != "True":
            found = True
            yield error("cluster-agents", f"node {name} is refused: {str(refused.get('message')).rstrip('.')}.",
                        "Correct what the message names on that host, and start its agent again.",
                        f"outfit describe node {name}", subject=f"node/{name}")
    agents = {(pod.get("spec") or {}).get("nodeName"): pod for pod in state.items("pods")
              if pod["metadata"]["name"].startswith(f"{NODE}-")}
    for name, pod in agents.items():
        ready = conditions.is_true(pod, "Ready")
        if name not in nodes or (ready and name in reported):
            continue
        found = True
        what = "is not ready" if not ready else "has not published its inventory"
        yield error("cluster-agents", f"the agent of node {name} {what}.", "The node offers no devices; see the agent's log.",
                    f"kubectl -n {state.namespace} logs {pod['metadata']['name']}", subject=f"node/{name}")
    silent = [name for name in sorted(reported & nodes.keys()) if state.known("pods") and not state.embedded
              and name not in agents and not (nodes[name]["metadata"].get("labels") or {}).get(SIMULATED)]
    if silent and state.items("daemonsets"):
        found = True
        yield warning("cluster-agents", f"no agent runs any more on {some(silent)}.",
                      "What these nodes offer may be out of date; see why the DaemonSet has no pod there.",
                      f"kubectl -n {state.namespace} describe daemonset {NODE}")
    if not found and reported:
        yield ok("cluster-agents", f"{count(len(reported), 'host inventory', 'host inventories')}")
    elif not found:
        yield warning("cluster-agents", "no host has published an inventory.",
                      "No agent runs: the cluster has no devices of ours.", f"kubectl -n {state.namespace} get pods -o wide")


def _names(state: ClusterState, node_name: str) -> Iterator[Finding]:
    if not state.known("nodes"):
        return
    nodes = {node["metadata"]["name"] for node in state.items("nodes")}
    hosts = {obj["metadata"]["name"]: "hostinventory" for obj in _readable(state, "hostinventories")}
    hosts |= {name: "resourceslice" for obj in _readable(state, "resourceslices")
              if obj["spec"].get("driver") == DRIVER and (name := obj["spec"].get("nodeName"))}
    if set_name := workload_settings.setting(state.readings, NODE, "node_name"):
        hosts[set_name] = "setting"
    if node_name:
        hosts[node_name] = "host"
    strangers = {name: source for name, source in hosts.items() if name not in nodes}
    for name, source in strangers.items():
        how = {"host": "this host is called", "setting": "the DaemonSet sets node_name to"}.get(source, "an agent reports as")
        known = some(sorted(nodes), 3) or "none"
        mend = {"host": f"outfit node --node-name NODE  # one of: {known}", "setting": "outfit install --apply"}.get(
            source, f"kubectl delete hostinventory,ledgerpage,providertree {name}")
        yield error("cluster-agent-names", f"{how} {name}, which is not a node.",
                    f"Nodes are {known}; start the agent with the name of its node, then remove what it published.", mend,
                    subject=f"host/{name}")
    if not strangers and hosts:
        yield ok("cluster-agent-names", "every agent has the name of a node")


def _iommu(state: ClusterState) -> Iterator[Finding]:
    known = {obj["metadata"]["name"]: bool(obj["spec"]["iommu"]) for obj in _readable(state, "hostinventories")
             if obj["spec"].get("iommu") is not None}
    without = [name for name, there in known.items() if not there]
    for name in without:
        level = error if len(without) == len(known) else warning
        yield level("cluster-node-iommu", f"node {name} has no IOMMU: its devices cannot be passed through.",
                    "Switch it on in the firmware and on the kernel command line, and reboot the node.",
                    f"outfit doctor --host  # on {name}", subject=f"node/{name}")
    if known and not without:
        yield ok("cluster-node-iommu", f"{count(len(known), 'node')} with an IOMMU")


def _drivers(state: ClusterState) -> Iterator[Finding]:
    if not state.known("resourceslices"):
        return
    devices: dict[str, int] = defaultdict(int)
    for obj in _readable(state, "resourceslices"):
        devices[obj["spec"]["driver"]] += len(obj["spec"].get("devices") or ())
    if devices:
        yield ok("cluster-drivers", "; ".join(f"{driver} publishes {count(number, 'device')}"
                                              for driver, number in sorted(devices.items())))
    else:
        yield warning("cluster-drivers", "no driver publishes devices.",
                      "Agents publish ResourceSlices of the devices that their hosts offer.", "outfit devices --all")


def _kubevirt(state: ClusterState) -> Iterator[Finding]:
    if not state.known("virt-controller"):
        return
    there = [obj for obj in state.items("virt-controller") if (obj.get("spec") or {}).get("replicas") != 0]
    companion = workload_settings.switched_on(state.readings, CONTROLLER, "companion")
    where = some({obj["metadata"]["namespace"] for obj in there})
    if there and not companion and state.items("deployments"):
        yield error("cluster-kubevirt", f"KubeVirt runs in namespace {where}, and our VM controllers run as well.",
                    "Both would control the same VMs; run outfitter in companion mode.", "outfit install --apply --companion")
    elif there and not companion:
        yield warning("cluster-kubevirt", f"KubeVirt runs in namespace {where}.", "Install outfitter in companion mode.",
                      "outfit install --apply --companion")
    elif there:
        yield ok("cluster-kubevirt", f"KubeVirt runs in namespace {where}, outfitter is its companion")
    elif companion:
        yield error("cluster-kubevirt", "outfitter is in companion mode, and KubeVirt does not run.",
                    "No process controls VMs; install KubeVirt, or leave companion mode.", "outfit install --apply")


def _classes(state: ClusterState) -> Iterator[Finding]:
    if not state.known("deviceclasses", "resourceslices"):
        return
    classes = [obj["metadata"]["name"] for obj in state.items("deviceclasses")]
    drivers = {obj["spec"]["driver"] for obj in _readable(state, "resourceslices")}
    if classes:
        yield ok("cluster-device-classes", f"{count(len(classes), 'DeviceClass', 'DeviceClasses')}: {some(classes)}")
    elif drivers:
        yield warning("cluster-device-classes", "there is no DeviceClass.",
                      "Claims name one; create a class for each kind of device.",
                      "outfit apply -f examples/01-one-vf/1-class.yaml")


def _pools(state: ClusterState) -> Iterator[Finding]:
    if not state.known("resourceslices"):
        return
    pools: dict[tuple[str, str], list[Object]] = defaultdict(list)
    for obj in _readable(state, "resourceslices"):
        pools[obj["spec"]["driver"], obj["spec"]["pool"]["name"]].append(obj["spec"]["pool"])
    incomplete = {}
    for pool, slices in pools.items():
        newest = max(each.get("generation") or 0 for each in slices)
        current = [each for each in slices if (each.get("generation") or 0) == newest]
        if len(current) != current[0].get("resourceSliceCount"):
            incomplete[pool] = f"{len(current)} of {current[0].get('resourceSliceCount')} slices"
    for (driver, name), text in incomplete.items():
        ours = driver == DRIVER
        yield warning("cluster-pools", f"pool {name} of {driver} is incomplete: it has {text}.",
                      "kube-scheduler does not allocate from it; " + ("the agent of that node publishes the rest." if ours else
                                                                      "its driver must publish the rest."),
                      f"kubectl -n {state.namespace} logs -l app.kubernetes.io/component=node" if ours
                      else f"kubectl get resourceslices --field-selector spec.driver={driver}", subject=f"pool/{name}")
    if pools and not incomplete:
        yield ok("cluster-pools", f"{count(len(pools), 'pool')}, all complete")


def _claims(state: ClusterState) -> Iterator[Finding]:
    if not state.known("resourceclaims", "resourceslices"):
        return
    claims = _readable(state, "resourceclaims")
    published = {(obj["spec"]["driver"], obj["spec"]["pool"]["name"], device["name"])
                 for obj in _readable(state, "resourceslices") for device in obj["spec"].get("devices") or ()}
    old = state.now - LONG
    deleting = [obj for obj in claims if _before(obj["metadata"].get("deletionTimestamp"), old)]
    waiting = [obj for obj in claims if not _results(obj) and not obj["metadata"].get("deletionTimestamp")
               and any(owner["kind"] in ("Pod", "VirtualMachine") for owner in obj["metadata"].get("ownerReferences") or ())
               and _before(obj["metadata"]["creationTimestamp"], old)]
    lost = [obj for obj in claims if any((each.get("driver"), each.get("pool"), each.get("device")) not in published
                                         for each in _results(obj))]
    for group, what, missing in (
            (deleting, "being deleted for more than ten minutes", "A finalizer or the pod that uses it keeps it."),
            (waiting, "waiting for devices for more than ten minutes", "No device is free that fits."),
            (lost, "allocated a device that is published no more", "Its host or driver does not report it any more.")):
        if group:
            names = [f"{obj['metadata']['namespace']}/{obj['metadata']['name']}" for obj in group]
            meta = group[0]["metadata"]
            yield warning("cluster-claims", f"{count(len(group), 'claim is', 'claims are')} {what}: {some(names)}.", missing,
                          f"outfit why claim/{meta['name']} -n {meta['namespace']}")
    if not deleting and not waiting and not lost:
        yield ok("cluster-claims", f"{count(len(claims), 'claim')}, none stuck")


def _results(claim: Object) -> list[Object]:
    allocation = (claim.get("status") or {}).get("allocation") or {}
    return (allocation.get("devices") or {}).get("results") or []


def _before(text: object, moment: datetime) -> bool:
    return readable.is_time(text) and datetime.fromisoformat(str(text)) < moment


def _unreadable(state: ClusterState) -> Iterator[Finding]:
    found = [problem for plural, kind in READ.items() for obj in state.items(plural)
             if (problem := readable.unreadable(kind, obj)) is not None]
    for problem in found[:20]:
        yield error("cluster-unreadable-objects", f"{problem}.", "It is skipped until it is repaired or deleted.",
                    problem.repair, subject=f"{problem.kind.singular}/{problem.key}")
    if not found and any(state.items(plural) for plural in READ):
        yield ok("cluster-unreadable-objects", "all objects can be read")
