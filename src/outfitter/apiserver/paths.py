"""What a path refers to: /apis/{group}/{version}/namespaces/{namespace}/{resource}/{name}/{subresource}."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from outfitter.api import kinds
from outfitter.api.kinds import Kind
from outfitter.api.kubevirt import vm_actions, vmi_actions


@dataclass(frozen=True, slots=True)
class RequestPath:
    """The object, or collection of objects, that a request is about."""

    kind: Kind
    version: str  # the one in the path; differs from kind.version when an older one is asked for
    namespace: str = ""  # "" for all namespaces, and for kinds that have none
    name: str = ""  # "" for the collection
    subresource: str = ""

    @property
    def group(self) -> str:
        """The API group in the path: actions on an object stand in another one than the object."""
        return ACTIONS_GROUP if self.subresource in ACTIONS.get(self.kind, ()) else self.kind.group

    @property
    def api_version(self) -> str:
        return self.kind.api_version_of(self.version)

    @property
    def stored(self) -> bool:
        """The version asked for is the stored one, so that bytes can be served as they are."""
        return self.version == self.kind.version


# Which verb a method is, on a collection and on one object; subresources besides status say theirs in SUBRESOURCES.
COLLECTION: Mapping[str, str] = {"GET": "list", "HEAD": "list", "POST": "create", "DELETE": "deletecollection"}
ONE: Mapping[str, str] = {"GET": "get", "HEAD": "get", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
SUBRESOURCES: Mapping[str, Mapping[str, str]] = {
    "status": {"GET": "get", "HEAD": "get", "PUT": "update", "PATCH": "patch"},
    "finalize": {"PUT": "update"},
    "binding": {"POST": "create"},
    **{action: {"PUT": "update"} for action in (*vm_actions.ACTIONS, vm_actions.MIGRATE, *vmi_actions.ACTIONS)},
}
OWN_KINDS: Mapping[str, str] = {"binding": "Binding"}  # subresources whose bodies are not of the kind that they belong to
# Where KubeVirt's tools ask for actions: /apis/{group}/{version}/namespaces/{namespace}/{resource}/{name}/{action}.
ACTIONS_GROUP = vm_actions.GROUP
ACTIONS: Mapping[Kind, tuple[str, ...]] = {
    kinds.VM: (*vm_actions.ACTIONS, vm_actions.MIGRATE), kinds.VMI: vmi_actions.ACTIONS}
# What KubeVirt's tools also ask there, and why it is not to be had.
UNSERVED: Mapping[str, str] = {
    **dict.fromkeys(("console", "vnc", "usbredir", "vsock", "portforward"),
                    "outfitter does not open a console of a VM: use virsh console, or the tools of the network it is in"),
    **dict.fromkeys(("guestosinfo", "userlist", "filesystemlist", "freeze", "unfreeze"), "it takes an agent in the guest, and "
                    "outfitter speaks with none"),
    **dict.fromkeys(("addvolume", "removevolume", "memorydump", "removememorydump", "backup", "redefine-checkpoint"),
                    "outfitter does not keep disks"),
    "evacuate": "VMs are not moved away from a host that is drained yet: migrate them",
    "sev": "VMs with encrypted memory are not supported",
    "expand-spec": "there are no instance types here that could be written out",
    "objectgraph": "use outfit why, which shows what a VM holds and waits for",
}
# Subresources that kubectl requests of pods and VMs, and why they are not served.
_NO_WAY_IN = "outfitter runs VMs, not containers"
UNSERVED_OF: Mapping[tuple[str, str], str] = {
    ("pods", "log"): f"{_NO_WAY_IN}: kubectl describe and outfit why show what happened to one",
    **{("pods", action): _NO_WAY_IN for action in ("exec", "attach", "portforward", "proxy", "ephemeralcontainers")},
    ("serviceaccounts", "token"): "no user but the administrator is known yet; the kubeconfig in the data folder is theirs",
    **{(kind.plural, "scale"): "a VM is one: apply another, with another name" for kind in (kinds.VM, kinds.VMI)},
}


class Paths:
    """The kinds by where they are served."""

    def __init__(self, served: Iterable[Kind]) -> None:
        self.kinds = tuple(served)
        self._by_place = {(kind.group, version, kind.plural): kind for kind in self.kinds for version in kind.versions}
        self._versions = {(group, version) for group, version, _ in self._by_place}

    def served(self, group: str, version: str) -> bool:
        return (group, version) in self._versions

    def resolve(self, words: list[str]) -> RequestPath | None:
        """What the words of a path mean; None when nothing is served there. Empty words are never part of a good path."""
        if words[0] == "api" and len(words) > 2:
            group, version, rest = "", words[1], words[2:]
        elif words[0] == "apis" and len(words) > 3:
            group, version, rest = words[1], words[2], words[3:]
        else:
            return None
        if "" in rest:
            return None
        if group == ACTIONS_GROUP:
            return self._action(version, rest)
        spot = self._place(group, version, rest)
        if spot is None and len(rest) > 2 and rest[0] == "namespaces":
            spot = self._place(group, version, rest[2:], rest[1])
        return spot

    @property
    def actions(self) -> Mapping[Kind, tuple[str, ...]]:
        """What can be asked of which of the kinds that are served."""
        return {kind: known for kind, known in ACTIONS.items() if kind in self.kinds}

    def _action(self, version: str, rest: list[str]) -> RequestPath | None:
        match rest:
            case ["namespaces", namespace, plural, name, action]:
                for kind, known in self.actions.items():
                    if plural == kind.plural and version in kind.versions and action in known:
                        return RequestPath(kind, version, namespace, name, action)
        return None

    def unserved(self, words: list[str]) -> str | None:
        """Why what Kubernetes or KubeVirt serve at a path is not served here; None: it is nothing of theirs."""
        match words:
            case ["api", _, "namespaces", _, plural, _, action, *_] | [
                    "apis", kinds.VM.group, _, "namespaces", _, plural, _, action] if (plural, action) in UNSERVED_OF:
                return f"{plural}/{action} is not served: {UNSERVED_OF[plural, action]}"
            case ["apis", group, _, "namespaces", _, plural, _, action, *_] if group == ACTIONS_GROUP and action in UNSERVED:
                if plural in (kind.plural for kind in self.actions):
                    return f"{plural}/{action} is not served: {UNSERVED[action]}"
        return None

    def _place(self, group: str, version: str, rest: list[str], namespace: str = "") -> RequestPath | None:
        kind = self._by_place.get((group, version, rest[0]))
        if kind is None or len(rest) > 3 or (namespace and not kind.namespaced):
            return None
        name, subresource = (*rest[1:], "", "")[:2]
        if kind.namespaced and name and not namespace:
            return None
        if subresource and subresource not in subresources(kind):
            return None
        return RequestPath(kind, version, namespace, name, subresource)


def subresources(kind: Kind) -> tuple[str, ...]:
    return (*(["status"] if kind.has_status else []), *(name for name in kind.subresources if name in SUBRESOURCES))


def verb(target: RequestPath, method: str) -> str | None:
    """The verb of a method here; None when it is not allowed."""
    if target.subresource:
        return SUBRESOURCES[target.subresource].get(method)
    if target.name:
        return ONE.get(method)
    word = COLLECTION.get(method)
    if word in ("create", "deletecollection") and target.kind.namespaced and not target.namespace:
        return None
    return word
