"""The answer to one read of a cluster: objects, or why there are none. Values only."""

from __future__ import annotations

from dataclasses import dataclass

from outfitter.api.kinds import Object

MANAGED_BY = "app.kubernetes.io/managed-by"


def is_ours(obj: Object) -> bool:
    """Whether `outfit install` created an object; KubeVirt has some of the same names."""
    return bool((obj["metadata"].get("labels") or {}).get(MANAGED_BY) == "outfitter")


@dataclass(frozen=True, slots=True)
class Reading:
    items: tuple[Object, ...] = ()
    status: int = 200  # of HTTP; 404: the kind is not served, or the object does not exist
    reason: str = ""  # the server's message

    @property
    def denied(self) -> bool:
        return self.status in (401, 403)

    @property
    def known(self) -> bool:
        """Whether `items` are all there are."""
        return self.status in (200, 404)
