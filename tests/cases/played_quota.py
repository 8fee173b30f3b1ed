"""ResourceQuotas of a case, as kube-apiserver's quota admission enforces them: the product's own API server has none.

Rules of the store around the product's: a new pod that would exceed the hard limits of its namespace is refused. Pods that have
ended do not count. Only `pods`, `count/pods` and requests and limits of containers are known."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from outfitter.api import admission, kinds, patch
from outfitter.api.kinds import Object
from outfitter.api.quantity import to_int
from outfitter.api.write_request import WriteRequest
from outfitter.errors import Forbidden

KIND = "ResourceQuota"
MILLI = {"cpu", "requests.cpu", "limits.cpu"}


class QuotaRules(admission.AdmissionRules):
    def __init__(self, quotas: Sequence[Object]) -> None:
        super().__init__()
        self.quotas = list(quotas)

    def apply(self, entry: Mapping[str, Any]) -> None:
        """A change as a step of a case writes it: `kind`, `name`, `patch`."""
        self.quotas = [patch.merge(one, entry["patch"]) if self._is(one, entry) else one for one in self.quotas]

    def delete(self, entry: Mapping[str, Any]) -> None:
        self.quotas = [one for one in self.quotas if not self._is(one, entry)]

    @staticmethod
    def _is(quota: Mapping[str, Any], entry: Mapping[str, Any]) -> bool:
        meta = quota["metadata"]
        return bool(meta["name"] == entry["name"] and entry.get("namespace") in (None, meta.get("namespace")))

    def admit(self, change: WriteRequest) -> Object:
        admitted = super().admit(change)
        if change.verb == "create" and change.kind == kinds.POD:
            others = [pod for pod in change.every(kinds.POD)
                      if pod["metadata"].get("namespace") == change.new["metadata"].get("namespace")
                      and (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed")]
            for quota in self.quotas:
                if quota["metadata"].get("namespace") == change.new["metadata"].get("namespace"):
                    _check(quota, change.new, others)
        return admitted


def _check(quota: Mapping[str, Any], pod: Object, others: Iterable[Object]) -> None:
    listed = list(others)
    for resource, hard in (quota["spec"].get("hard") or {}).items():
        used, asked = sum(_use(each, resource) for each in listed), _use(pod, resource)
        if asked and used + asked > _amount(resource, hard):
            raise Forbidden(f'pods "{pod["metadata"].get("name")}" is forbidden: exceeded quota: {quota["metadata"]["name"]}, '
                            f"requested: {resource}={asked}, used: {resource}={used}, limited: {resource}={hard}")


def _use(pod: Mapping[str, Any], resource: str) -> int:
    if resource in ("pods", "count/pods"):
        return 1
    side, _, name = resource.rpartition(".") if resource.startswith(("requests.", "limits.")) else ("requests", "", resource)
    amounts = [((each.get("resources") or {}).get(side) or {}).get(name) for each in pod["spec"].get("containers") or ()]
    return sum(_amount(resource, amount) for amount in amounts if amount is not None)


def _amount(resource: str, text: Any) -> int:
    """In bytes, pieces or thousandths of a CPU."""
    if resource in MILLI:
        return int(str(text)[:-1]) if str(text).endswith("m") else int(float(text) * 1000)
    return to_int(str(text))
