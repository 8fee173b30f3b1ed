"""What the agent knows of pods and their VMIs and claims: lookups on informers, and which of these objects this process wrote.
No I/O. Called by the agent and by who runs its pods (`pod_runtime.py`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from outfitter.api import kinds
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import attachment_pods, pod_claims, vm
from outfitter.api.validate.readable import UnreadableObject
from outfitter.node.agent_host import AgentHost
from outfitter.node.pods.followed_vmis import FollowedVmis
from outfitter.store.informer import Informer, key_of


class PodCache:
    def __init__(
        self, pods: Informer[Object], instances: Informer[Object], claims: Informer[Object] | None = None,
        followed: FollowedVmis | None = None,
    ) -> None:
        """`claims` is None where claims are read one by one (`kubelet_pods.py`). `followed`: VMIs that are on other nodes,
        where `instances` has those of this node alone."""
        self.pods, self.instances, self.claims, self.followed = pods, instances, claims, followed
        self._written: dict[str, str] = {}  # pod or VMI -> the revision at which this process wrote that it runs
        pods.add_index("node", lambda pod: [pod["spec"].get("nodeName") or ""])
        pods.add_index("instance", lambda pod: [vm.launches(pod) or ""])
        pods.add_index("claim", pod_claims.claim_keys)
        pods.add_index("launcher", lambda pod: [attachment_pods.launcher_uid(pod) or ""])
        instances.add_index("uid", lambda instance: [instance["metadata"]["uid"]])

    # -- what this process wrote

    def put(self, kind: kinds.Kind, obj: Object) -> None:
        """The answer to a write of this process, in a reconcile that goes on with it: its watch update is nothing new."""
        self._written[obj["metadata"]["uid"]] = obj["metadata"]["resourceVersion"]
        (self.pods if kind == kinds.POD else self.instances).put(obj)

    def wrote(self, obj: Object) -> bool:
        return bool(self._written.get(obj["metadata"]["uid"]) == obj["metadata"]["resourceVersion"])

    def forget(self, obj: Object) -> None:
        """It is gone."""
        self._written.pop(obj["metadata"]["uid"], None)

    # -- pods and VMIs

    def vmi(self, pod: Object) -> Object | None:
        """The VMI that runs in a pod; None if it is not known, or if another VMI has its name or it runs in another pod."""
        key = vm.launches(pod)
        instance = self.instances.get(key) if key else None
        return instance if instance is not None and instance["metadata"]["uid"] == self.vmi_uid(pod) else None

    def vmi_named(self, pod: Object) -> Object | None:
        """The VMI of which a pod is a launcher, wherever it runs; None if it is not known."""
        key, reference = vm.launches(pod), vm.owner(pod, kinds.VMI.kind)
        if key is None or reference is None:
            return None
        vmi = self.instances.get(key)
        if vmi is None and self.followed is not None:
            vmi = self.followed.get(key)
        return vmi if vmi is not None and vmi["metadata"]["uid"] == reference["uid"] else None

    def put_vmi(self, vmi: Object) -> None:
        """The answer to a write of this process."""
        if self.followed is None or not self.followed.put(vmi):
            self.instances.put(vmi)

    def vmi_uid(self, pod: Object) -> str | None:
        """The uid of the VMI that runs in a pod. An owner reference alone proves nothing: anyone who may create pods can write
        one. A pod that was orphaned (`--cascade=orphan`) is accepted where the VMI's status names the pod."""
        reference, key = vm.owner(pod, kinds.VMI.kind), vm.launches(pod)
        if reference is None:
            uid = (pod["metadata"].get("labels") or {}).get(vm.CREATED_BY)
            named = any(instance["metadata"]["namespace"] == pod["metadata"]["namespace"]
                        and pod["metadata"]["uid"] in ((instance.get("status") or {}).get("activePods") or ())
                        for instance in self.instances.by("uid", uid or ""))
            return uid if named else None
        if key is None:
            return None
        known = self.instances.by("uid", reference["uid"])  # none: the VMI is deleted, and no other has its uid
        its = all(key_of(instance) == key and vm.is_its(pod, instance.get("status") or {}) for instance in known)
        return str(reference["uid"]) if its else None

    def attachments(self, launcher: Object) -> list[Object]:
        """The attachment pods of a launcher pod, in its namespace and on its host."""
        meta, node = launcher["metadata"], launcher["spec"].get("nodeName")
        return [pod for pod in self.pods.by("launcher", meta["uid"]) if pod["metadata"]["namespace"] == meta["namespace"]
                and pod["spec"].get("nodeName") in (None, "", node)]

    def alive(self, host: AgentHost) -> list[Object]:
        return [pod for pod in self.pods.by("node", host.name) if (pod.get("status") or {}).get("phase") not in vm.FINAL]

    def unreadable(self, host: AgentHost) -> Iterator[UnreadableObject]:
        """Pods that cannot be read and may be on the host."""
        for found in self.pods.unreadable.values():
            spec = found.object.get("spec")
            node = spec.get("nodeName") if isinstance(spec, dict) else None
            if not isinstance(node, str) or node == host.name:
                yield found

    # -- claims

    def claim(self, namespace: str, name: str) -> Object | None:
        return self.claims.get(f"{namespace}/{name}") if self.claims is not None else None

    def claims_of_unreadable_pods(self, pod: Object) -> set[tuple[str, str]]:
        """Those of a pod's claims that are reserved for another pod too, which cannot be read."""
        namespace = pod["metadata"]["namespace"]
        claims = [(name, self.claim(namespace, name)) for _, name in pod_claims.claim_names(pod) if name]
        return {(namespace, name) for name, claim in claims if claim is not None
                for user in (claim.get("status") or {}).get("reservedFor") or ()
                if f"{namespace}/{user.get('name')}" in self.pods.unreadable}


def claims_in_use(pods: Iterable[Object]) -> set[tuple[str, str]]:
    """Namespace and name of every claim of these pods."""
    return {(pod["metadata"]["namespace"], name) for pod in pods for _, name in pod_claims.claim_names(pod) if name}


def vmi_runs(instance: Object) -> bool:
    """Whether a VMI is reported as Running and is not being deleted."""
    return (instance.get("status") or {}).get("phase") == "Running" and not instance["metadata"].get("deletionTimestamp")
