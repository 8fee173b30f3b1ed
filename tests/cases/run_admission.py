"""Area admission: one object asks to be let in, and the server's answer is compared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from outfitter.api import kinds
from outfitter.apiserver import auth
from tests.cases.case import Case
from tests.cases.case_product import ADMIN, Answer, NotDriven, case_scenario, contains

MACHINES = tuple(kind.kind for kind in (kinds.VM, kinds.VMI, kinds.MIGRATION))


async def run(case: Case) -> list[str]:
    operation = case.config.get("operation", "CREATE")
    if operation not in ("CREATE", "UPDATE"):
        return [f"config.operation: {operation} cannot be asked for; CREATE and UPDATE can"]
    given = list(case.data["given"])
    machines = [obj for obj in given if obj["kind"] in MACHINES]
    asking = machines[-1] if machines else given[-1]
    async with case_scenario() as place:
        try:
            async with place.product(controllers=False) as (product, api):
                await place.load(product, api, case.config, [obj for obj in given if obj is not asking])
                wanted = place.own(asking)
                await api.create({"apiVersion": "v1", "kind": "Namespace",
                                  "metadata": {"name": wanted["metadata"].get("namespace", "default")}})
                if operation == "CREATE":
                    answer = await api.create(wanted, user=_user(case.config.get("user")))
                else:
                    stored = (await api.read(place.own(given[0])))["metadata"]
                    kept = {key: stored[key] for key in ("uid", "creationTimestamp")}
                    wanted["metadata"] = {**stored, **wanted["metadata"], **kept}
                    answer = await api.update(wanted, user=_user(case.config.get("user")))
        except NotDriven as error:
            return [str(error), *place.notes]
        wrong = compare(case.expect, answer)
        return wrong and [*wrong, *place.notes]


def _user(given: Any) -> auth.User:
    """Every user of a case may write VMs: what is asked is whether admission lets this write pass."""
    if given is None:
        return ADMIN
    if isinstance(given, Mapping):
        groups = tuple(str(group) for group in given.get("groups") or ())
        return auth.User(str(given.get("name") or given.get("username")), (*groups, auth.MASTERS))
    return auth.User(str(given), (auth.MASTERS,))


def compare(expect: Mapping[str, Any], answer: Answer) -> list[str]:
    causes, wrong = answer.causes, []
    said = "; ".join(f"{field or '-'}: {message}" for field, message in causes) or "no cause"
    if "allowed" in expect and expect["allowed"] != answer.ok:
        wrong.append(f"allowed: {expect['allowed']} was expected; the answer is {answer.status}: {said}")
    wanted = {key: expect[key] for key in ("field", "fieldAny", "messageContains") if key in expect}
    for each in ([wanted] if wanted else []) + list(expect.get("causes") or ()):
        if not any(_fits(each, field, message) for field, message in causes):
            wrong.append(f"no cause with {each}; there is: {said}")
    if "causeCount" in expect and expect["causeCount"] != len(causes):
        wrong.append(f"causeCount: {expect['causeCount']} was expected, there are {len(causes)}: {said}")
    return wrong


def _fits(wanted: Mapping[str, Any], field: str, message: str) -> bool:
    return (wanted.get("field", field) == field and field in wanted.get("fieldAny", [field])
            and contains(message, wanted.get("messageContains", "")))
