"""The notation of shapes, and shapes that several kinds share."""

from __future__ import annotations

from typing import Any

# field -> a type, a nested Shape, or [either] for a list of such; "field!" is required, "*" is every field of a map. "!" is
# only used where no other check requires the field: in status and in our own kinds.
Shape = dict[str, Any]


class Amount:
    """The type of a Kubernetes quantity: text or a number that can be parsed."""


class Time:
    """The type of a timestamp: text as in RFC 3339."""


QUANTITY = (str, int)
NUMBER = (str, int, float)  # a quantity that may be fractional: cpu: 0.5
TEXTS = [str]
LABELS: Shape = {"*": str}
AMOUNTS: Shape = {"*": Amount}


def fields(type_: Any, names: str) -> dict[str, Any]:
    """Fields of one type: fields(str, "name value")."""
    return dict.fromkeys(names.split(), type_)


METADATA: Shape = fields(str, "namespace generateName selfLink uid resourceVersion creationTimestamp deletionTimestamp") | {
    "name!": str, "generation": int, "deletionGracePeriodSeconds": int, "labels": dict, "annotations": dict,
    "finalizers": TEXTS,
    "ownerReferences": [fields(str, "apiVersion kind name uid") | fields(bool, "controller blockOwnerDeletion")],
    "managedFields": [fields(str, "manager operation apiVersion fieldsType subresource") | {"time": Time, "fieldsV1": dict}],
}
TEMPLATE_METADATA: Shape = {  # of a template: nothing in it is required, and labels are checked nowhere else
    **{name.rstrip("!"): wanted for name, wanted in METADATA.items()}, "labels": LABELS, "annotations": LABELS}
CONDITION: Shape = fields(str, "status reason message") | {
    "type!": str, "lastTransitionTime": Time, "observedGeneration": int}
CONDITIONS = [CONDITION]
REFERENCE: Shape = fields(str, "kind namespace name uid apiVersion resourceVersion fieldPath")
NAMED: Shape = {"name": str}
RESOURCE_CLAIMS = [fields(str, "name resourceClaimName resourceClaimTemplateName")]
