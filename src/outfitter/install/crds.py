"""CustomResourceDefinitions of our kinds and of KubeVirt's, generated from the tables that the embedded API server has: kinds,
shapes, descriptions and columns. Pure; called by `outfit install` and by the tests that start a real API server.

>>> [crd["metadata"]["name"] for crd in definitions(kubevirt=False)]
['ledgerpages.outfitter.dev', 'providertrees.outfitter.dev', 'hostinventories.outfitter.dev', 'pastbookings.outfitter.dev', \
'flavors.outfitter.dev']
"""

from __future__ import annotations

import outfitter
from outfitter.api import kinds
from outfitter.api.kinds import Kind, Object
from outfitter.api.served import printer_columns
from outfitter.api.served.printer_columns import TableColumn
from outfitter.install import schema

OURS = tuple(kind for kind in kinds.ALL if kind.group == kinds.LEDGER_PAGE.group)
KUBEVIRT = tuple(kind for kind in kinds.ALL if kind.group == kinds.VM.group)
API_VERSION, KIND = "apiextensions.k8s.io/v1", "CustomResourceDefinition"


def definitions(*, kubevirt: bool = True, networks: bool = False) -> list[Object]:
    """The CRDs in the order in which they are applied. Without `kubevirt`: where KubeVirt is installed, its CRDs are left
    alone. `networks`: also NetworkAttachmentDefinition, which a cluster gets from Multus and tests from here."""
    wanted = [*(KUBEVIRT if kubevirt else ()), *OURS, *((kinds.NETWORK_ATTACHMENT,) if networks else ())]
    return [definition(kind) for kind in wanted]


def definition(kind: Kind) -> Object:
    """All versions have the same schema, so that objects are converted by their apiVersion alone."""
    names = {"kind": kind.kind, "listKind": f"{kind.kind}List", "plural": kind.plural, "singular": kind.singular}
    words = {"shortNames": list(kind.short), "categories": list(kind.categories)}
    return {
        "apiVersion": API_VERSION, "kind": KIND,
        "metadata": {"name": kind.resource, "annotations": {kinds.VERSION_ANNOTATION: outfitter.__version__}},
        "spec": {
            "group": kind.group, "scope": "Namespaced" if kind.namespaced else "Cluster",
            "names": names | {name: value for name, value in words.items() if value},
            "conversion": {"strategy": "None"},
            "versions": [_version(kind, version) for version in kind.versions],
        },
    }


def _version(kind: Kind, version: str) -> Object:
    out: Object = {"name": version, "served": True, "storage": version == kind.version,
                   "schema": {"openAPIV3Schema": schema.structural(kind, version)}}
    if kind.has_status:
        out["subresources"] = {"status": {}}
    if columns := [_column(column) for column in printer_columns.COLUMNS.get(kind, printer_columns.PLAIN)
                   if column.json_path and column is not printer_columns.NAME]:
        out["additionalPrinterColumns"] = columns
    if kind.selectable:
        out["selectableFields"] = [{"jsonPath": f".{path}"} for path in kind.selectable]
    return out


def _column(column: TableColumn) -> Object:
    out: Object = {"name": column.name, "type": "date" if column.time else column.type, "jsonPath": column.json_path}
    return out | ({"description": column.about} if column.about else {}) | ({"priority": 1} if column.wide else {})
