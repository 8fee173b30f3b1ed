"""What an installation of this version contains, taken from its manifests: the checks compare the cluster with it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from outfitter.api.kinds import Object
from outfitter.doctor.cluster_state import AccessRight, Expected


def from_manifests(manifests: Sequence[Object]) -> Expected:
    """`manifests`: the objects that `outfit install` would create."""
    definitions = {obj["metadata"]["name"]: obj for obj in manifests if obj["kind"] == "CustomResourceDefinition"}
    roles = {(obj["kind"], obj["metadata"].get("namespace", ""), obj["metadata"]["name"]): obj.get("rules") or ()
             for obj in manifests if obj["kind"] in ("ClusterRole", "Role")}
    rights: dict[str, list[AccessRight]] = {}
    for binding in manifests:
        if binding["kind"] not in ("ClusterRoleBinding", "RoleBinding"):
            continue
        place, ref = binding["metadata"].get("namespace", ""), binding["roleRef"]
        rules = roles.get((ref["kind"], place if ref["kind"] == "Role" else "", ref["name"]), ())
        for subject in binding.get("subjects") or ():
            if subject["kind"] == "ServiceAccount":
                rights.setdefault(subject["name"], []).extend(_rights(rules, place))
    return Expected(definitions, rights)


def _rights(rules: Sequence[Object], namespace: str) -> Iterator[AccessRight]:
    for rule in rules:
        for group in rule.get("apiGroups") or ():
            for resource in rule.get("resources") or ():
                for verb in rule.get("verbs") or ():
                    for name in rule.get("resourceNames") or ("",):
                        yield AccessRight(verb, group, resource, namespace, name)
