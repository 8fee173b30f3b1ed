"""The CustomResourceDefinitions before they had schemas: every field of any type is kept."""

from __future__ import annotations

from outfitter.api.kinds import Kind, Object
from outfitter.install import names


def definition(kind: Kind, storage: str) -> Object:
    rest: Object = {"schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}}
    if kind.has_status:
        rest["subresources"] = {"status": {}}
    versions = [{"name": version, "served": True, "storage": version == storage, **rest}
                for version in kind.versions]
    return {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": names.metadata(kind.resource),
            "spec": {"group": kind.group, "scope": "Namespaced" if kind.namespaced else "Cluster", "versions": versions,
                     "names": {"kind": kind.kind, "plural": kind.plural, "singular": kind.singular,
                               "shortNames": list(kind.short), "categories": list(kind.categories)}}}
