"""Area cel: expressions, straight through `outfitter.cel`. Stored expressions are read with the newest declarations, new
ones with those of the features that are on."""

from __future__ import annotations

from outfitter import cel, errors
from tests.cases.case import Case


async def run(case: Case) -> list[str]:
    data, wrong = case.data, []
    wanted = data.get("expectCompileErrorContains")
    try:
        selector = cel.compile_selector(data["expression"], features=_features(case), limit=None)
    except errors.Invalid as error:
        return [] if wanted else [f"does not compile: {error}"]
    if wanted:
        wrong.append(f"compiles, but an error was expected: {wanted}")
    wrong += _match(case, selector)
    if data.get("expectMaxCost", selector.max_cost) != selector.max_cost:
        wrong.append(f"expectMaxCost: {data['expectMaxCost']} was expected, the estimate is {selector.max_cost}")
    return wrong


def _features(case: Case) -> cel.CelFeatures:
    on = case.data.get("onlyWithFeatures")
    if on is None or case.data.get("envType") != "NewExpressions":
        return cel.NEWEST
    return cel.CelFeatures(
        consumable_capacity=on.get("EnableConsumableCapacity", False), list_attributes=on.get("EnableListTypeAttributes", False)
    )


def _match(case: Case, selector: cel.Selector) -> list[str]:
    data = case.data
    wanted = data.get("expectMatchErrorContains")
    device = {key: data[key] for key in ("attributes", "capacity", "allowMultipleAllocations") if key in data}
    try:
        matches = selector.matches(cel.CelDevice.from_slice(data["driver"], device))
    except cel.EvaluationError as error:
        return [] if wanted else [f"has no answer for the device: {error}"]
    if wanted:
        return [f"answers {matches}, but an error was expected: {wanted}"]
    if "expectMatch" in data and matches != data["expectMatch"]:
        return [f"expectMatch: {data['expectMatch']} was expected, the answer is {matches}"]
    return []
