"""Tables: objects as rows, as `kubectl get` asks for them. The columns are in `api.served.printer_columns`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from outfitter.api.kinds import Kind, Object
from outfitter.api.served.printer_columns import COLUMNS, PLAIN, Cell, TableColumn

UNREADABLE = "<unreadable>"


def table(
    kind: Kind, objects: Sequence[Object], meta: Object, *, now: datetime, include: str, version: str, columns: bool = True
) -> Object:
    """The objects as rows. Without `columns` the headers are omitted: a watch sends them once."""
    shown = COLUMNS.get(kind, PLAIN)
    rows = [
        {"cells": [_cell(column, obj, now) for column in shown], "object": _included(obj, include, version)} for obj in objects
    ]
    heads = [
        {"name": column.name, "type": column.type, "format": "name" if column.name == "Name" and not column.wide else "",
         "description": column.about, "priority": int(column.wide)}
        for column in shown
    ]
    return {"kind": "Table", "apiVersion": f"meta.k8s.io/{version}", "metadata": meta,
            "columnDefinitions": heads if columns else None, "rows": rows}


def _cell(column: TableColumn, obj: Object, now: datetime) -> Cell:
    try:
        return column.read(obj, now)
    except Exception:  # an object with fields of the wrong type, from before these were checked
        return UNREADABLE


def _included(obj: Object, include: str, version: str) -> Object | None:
    if include == "Object":
        return obj
    return metadata_only(obj, version) if include == "Metadata" else None


def metadata_only(obj: Object, version: str) -> Object:
    return {"kind": "PartialObjectMetadata", "apiVersion": f"meta.k8s.io/{version}", "metadata": obj["metadata"]}
