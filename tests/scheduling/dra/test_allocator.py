"""What the cases of Kubernetes do not say: reasons, what is kept from call to call, rules from outside the slices, and how much
is looked at before it is known that nothing fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from outfitter import cel
from outfitter.api.device import DeviceId
from outfitter.api.ledger_page.booking import Holder
from outfitter.api.rejection import Rejection, RejectionCode
from outfitter.errors import Invalid, Unsatisfiable
from outfitter.scheduling.config import Features
from outfitter.scheduling.dra import allocator, claim_request, search
from outfitter.scheduling.dra.allocated_devices import AllocatedDevices
from outfitter.scheduling.dra.allocator import Allocated, AllocationRejection
from outfitter.scheduling.dra.node_devices import PoolSet
from outfitter.scheduling.filter import node_affinity
from tests.rejected import Code, no

Object = dict[str, Any]
DRIVER = "d.example"
NODE = {"metadata": {"name": "here", "labels": {"zone": "a"}}}
MINE = f'device.driver == "{DRIVER}"'
CLASSES = {"any": {"metadata": {"name": "any"}, "spec": {"selectors": [{"cel": {"expression": MINE}}]}}}
BLUE = Holder("ResourceClaim", "ns", "train", "uid-train", "vmi/blue")
LISTS = Features(list_type_attributes=True)


def device(name: str, **attributes: Any) -> Object:
    kinds = {int: "int", str: "string"}
    return {"name": name, "attributes": {key: {kinds[type(value)]: value} for key, value in attributes.items()}}


def published(*devices: Object, node: str = "here", counters: Mapping[str, int] | None = None, **spec: Any) -> list[Object]:
    pool = {"name": node, "generation": 1, "resourceSliceCount": 2 if counters else 1}
    common = {"driver": DRIVER, "pool": pool, "nodeName": node, **spec}
    out = [{"metadata": {"name": f"{node}-a"}, "spec": {**common, "devices": list(devices)}}]
    if counters:
        sets = [{"name": name, "counters": {"c": {"value": str(much)}}} for name, much in counters.items()]
        out.append({"metadata": {"name": f"{node}-b"}, "spec": {**common, "sharedCounters": sets}})
    return out


def ask(count: int = 1, where: str = "", **more: Any) -> Object:
    selectors = [{"cel": {"expression": where}}] if where else []
    return {"deviceClassName": "any", "count": count, "selectors": selectors, **more}


def claim(*requests: Object, constraints: Sequence[Object] = (), name: str = "c") -> Object:
    listed = [{"name": f"r{at}", "exactly": one} for at, one in enumerate(requests)]
    spec = {"requests": listed, "constraints": list(constraints)}
    return {"metadata": {"name": name, "namespace": "ns"}, "spec": {"devices": spec}}


def match(attribute: str, *requests: str) -> Object:
    return {"matchAttribute": f"{DRIVER}/{attribute}", "requests": list(requests)}


def distinct(attribute: str, *requests: str) -> Object:
    return {"distinctAttribute": f"{DRIVER}/{attribute}", "requests": list(requests)}


def answer(
    slices: Sequence[Object], *claims: Object, held: AllocatedDevices | None = None, features: Features = LISTS,
    rules: Sequence[Object] = (),
) -> Allocated | AllocationRejection:
    return allocator.allocate(
        claims,
        node=NODE,
        pools=PoolSet(slices, rules),
        classes=CLASSES.get,
        held=held or AllocatedDevices(),
        features=features,
        share_id=lambda: "share",
    )


def names(found: Allocated | AllocationRejection) -> list[list[str]] | None:
    if isinstance(found, AllocationRejection):
        return None
    return [[result["device"] for result in one["devices"]["results"]] for one in found.allocations]


# -- how much is looked at


@dataclass(frozen=True)
class Hard:
    devices: list[Object]
    claims: list[Object]
    most: int  # points that may be looked at
    fits: bool = False
    counters: Mapping[str, int] = field(default_factory=dict)


def like(count: int, **groups: int) -> list[Object]:
    """Devices that differ in their serial numbers; numa=4: four values in turn, in blocks."""
    return [device(f"d{at}", serial=str(at), **{name: at * many // count for name, many in groups.items()})
            for at in range(count)]


def parts(count: int) -> list[Object]:
    def uses(at: int) -> Object:
        return {"counterSet": f"s{at // 16}", "counters": {"c": {"value": str(1 + at % 4)}}}

    return [device(f"d{at}") | {"consumesCounters": [uses(at)]} for at in range(count)]


def shares(count: int) -> list[Object]:
    return [device(f"d{at}") | {"allowMultipleAllocations": True, "capacity": {"memory": {"value": "10"}}}
            for at in range(count)]


VFS = like(48, pf=8, numa=2)
FOUR = [match("pf", f"r{at}") for at in range(4)]
HARD = {
    **{f"one more than {n} like devices, {words}": Hard(like(n), wanted, most=0) for n in (24, 48, 64) for words, wanted in {
        "a claim each": [claim(ask()) for _ in range(n + 1)],
        "in three claims": [claim(ask(n // 3)), claim(ask(n // 3), ask()), claim(ask(n - 2 * (n // 3)))],
    }.items()},
    **{f"nine of eight distinct values on {n} devices": Hard(like(n, g=8), [claim(ask(9), constraints=[distinct("g")])], most=0)
       for n in (24, 48, 64)},
    "nine requests for eight distinct values": Hard(like(64, g=8), [claim(*[ask()] * 9, constraints=[distinct("g")])], most=0),
    "five distinct values of four that a selector leaves": Hard(like(64, g=8), [claim(
        *[ask()] * 3, *[ask(where=f'device.attributes["{DRIVER}"].g < 4')] * 5, constraints=[distinct("g")])], most=0),
    "six of eight on one NUMA node of four": Hard(like(8, numa=2), [claim(ask(6), constraints=[match("numa")])], most=0),
    "six of eight alike, with different roots": Hard(like(8, model=1, root=4), [claim(
        ask(6), constraints=[match("model"), distinct("root")])], most=0),
    "four groups of six VFs of one PF each": Hard(VFS, [claim(*[ask(6)] * 4, constraints=FOUR)], most=40, fits=True),
    "four groups of seven VFs of one PF each": Hard(VFS, [claim(*[ask(7)] * 4, constraints=FOUR)], most=0),
    "nine groups of four VFs on eight PFs": Hard(VFS, [claim(*[ask(4)] * 4, constraints=FOUR), claim(
        *[ask(4)] * 4, constraints=FOUR), claim(ask(4), constraints=[match("pf")])], most=300),
    "five PFs on one NUMA node of four": Hard(VFS, [claim(
        *[ask()] * 5, constraints=[match("numa"), distinct("pf")])], most=200),
    "partitions up to the last counter": Hard(parts(64), [claim(ask(24))], most=60, fits=True,
                                              counters={f"s{at}": 9 for at in range(4)}),
    "partitions beyond the last counter": Hard(parts(64), [claim(ask(25))], most=2, counters={f"s{at}": 9 for at in range(4)}),
    "one share more than there are": Hard(shares(8), [claim(*[ask(capacity={"requests": {"memory": "5"}})] * 17)], most=300),
}


@pytest.mark.parametrize("hard", HARD.values(), ids=HARD.keys())
def test_what_cannot_be_is_seen_early(hard: Hard) -> None:
    pools = PoolSet(published(*hard.devices, counters=hard.counters))
    demands = [claim_request.compile_claim(one, CLASSES.get, LISTS) for one in hard.claims]
    looking = search.Search(pools.at(NODE, LISTS), demands, AllocatedDevices(), LISTS)
    assert (looking.run() is not None) == hard.fits
    assert looking.tried <= hard.most


def test_a_search_that_takes_too_long_gives_up_aloud() -> None:
    hard = HARD["nine groups of four VFs on eight PFs"]
    with pytest.raises(Unsatisfiable) as caught:
        allocator.allocate(
            hard.claims,
            node=NODE,
            pools=PoolSet(published(*hard.devices)),
            classes=CLASSES.get,
            held=AllocatedDevices(),
            features=LISTS,
            effort=search.SearchEffort(200),
        )
    rejection = caught.value.rejection
    assert (rejection.code, rejection["node"]) == (Code.SEARCH_LIMIT, "here")
    assert 0 < rejection["attempts"] < 100
    assert "claim ns/c" in rejection["where"]


def test_a_pod_with_many_large_claims_is_no_matter_of_depth() -> None:
    found = names(answer(published(*like(1500)), *[claim(ask(30), name=f"c{at}") for at in range(50)]))
    assert found is not None
    assert found[49] == [f"d{at}" for at in range(1470, 1500)]


# -- errors are met in order


UNCLEAR = f'device.attributes["{DRIVER}"].speed > 1'


def test_a_selector_without_an_answer_matters_only_when_its_device_is_reached() -> None:
    slices = published(device("a", speed=2), device("b"))
    assert names(answer(slices, claim(ask(1, UNCLEAR)))) == [["a"]]
    with pytest.raises(Unsatisfiable) as caught:
        answer(slices, claim(ask(2, UNCLEAR)))
    assert caught.value.rejection == no(
        Code.SELECTOR_ERROR, DeviceId(DRIVER, "here", "b"), where="claim ns/c, request r0: selector #0",
        error="CEL runtime error: no such key: speed", missing="speed",
        optional=f'device.attributes["{DRIVER}"].?speed.orValue(0)')


def test_held_device_is_not_evaluated() -> None:
    held = AllocatedDevices([{"devices": {"results": [{"driver": DRIVER, "pool": "here", "device": "b"}]}}])
    assert names(answer(published(device("a", speed=2), device("b")), claim(ask(2, UNCLEAR)), held=held)) is None


WHERE = "claim ns/c, request r0"
WRONG: dict[str, tuple[Object, RejectionCode, Object]] = {
    "no class": (ask(deviceClassName="no"), Code.CLASS_MISSING, {"where": WHERE, "class": "no"}),
    "a count mode": (ask(allocationMode="Some"), Code.CLAIM_INVALID, {
        "where": WHERE, "message": "unsupported count mode Some: use ExactCount or All"}),
    "too many": (ask(33), Code.TOO_MANY_DEVICES, {"where": "claim ns/c", "wanted": 33, "limit": 32}),
    "a feature that is off": (ask(derivedAttributes=[{"name": "a/b", "expression": "1"}]), Code.FEATURE_DISABLED, {
        "where": WHERE, "what": "has derived attributes", "feature": "DRADerivedAttributes"}),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_claim_that_cannot_be_understood(name: str) -> None:
    wrong, code, detail = WRONG[name]
    with pytest.raises(Invalid) as caught:
        answer(published(device("a")), claim(wrong))
    assert caught.value.rejection == no(code, **detail)


def test_a_selector_that_cannot_be_compiled() -> None:
    with pytest.raises(Invalid) as caught:
        answer(published(device("a")), claim(ask(where="nothing")))
    rejection = caught.value.rejection
    assert (rejection.code, rejection.device.device, rejection["where"]) == (
        Code.SELECTOR_ERROR, "a", f"{WHERE}: selector #0")
    assert rejection["error"].startswith("CEL compile error: ")


# -- reasons


def test_rejection_has_a_reason_for_each_device() -> None:
    held = AllocatedDevices()
    held.add({"devices": {"results": [{"driver": DRIVER, "pool": "here", "device": "a"}]}},
             Rejection(Code.HELD, DeviceId(DRIVER, "here", "a"), BLUE))
    tainted = device("b", model="x") | {"taints": [{"key": "broken", "value": "fan", "effect": "NoSchedule"}]}
    slices = published(device("a", model="x"), tainted, device("c", model="y"), device("d", model="x"))
    found = answer(slices, claim(ask(2, f'device.attributes["{DRIVER}"].model == "x"')), held=held)
    assert isinstance(found, AllocationRejection)
    assert found.rejections == (too_few(2, 3, 1),)
    a, b, c = (DeviceId(DRIVER, "here", name) for name in "abc")
    assert found.obstacles == (
        Rejection(Code.HELD, a, BLUE, "", {"request": "r0"}),
        no(Code.TAINTED, b, request="r0", taint="broken=fan:NoSchedule", expired=False),
        no(Code.SELECTOR_FALSE, c, request="r0", owner="request r0", selector=1, selectors=1, term='model == "x"',
           has={"model": "y"}, lacks=(), passed=1),
    )
    assert found.blocking == found.obstacles[:2]


def too_few(wanted: int, match: int, free: int) -> Rejection:
    return no(Code.TOO_FEW_FREE, request="r0", wanted=wanted, match=match, free=free)


def unmet(wanted: int, attribute: str, *, distinct: bool = False) -> Rejection:
    return no(Code.CONSTRAINT_UNMET, wanted=wanted, attribute=f"{DRIVER}/{attribute}", distinct=distinct)


NODE_REJECTIONS = {
    "no devices": ([], claim(ask()), no(Code.NO_DEVICES)),
    "constraint": (published(*like(4, numa=4)), claim(ask(2), constraints=[match("numa")]), unmet(2, "numa")),
    "more on one NUMA node than it has": (
        published(*like(8, numa=2)),
        claim(ask(6), constraints=[match("numa")]),
        unmet(6, "numa"),
    ),
    "more distinct values than there are": (
        published(*like(64, g=8)),
        claim(ask(9), constraints=[distinct("g")]),
        unmet(9, "g", distinct=True),
    ),
    "nothing has the attribute": (published(*like(8)), claim(ask(2), constraints=[match("none")]), unmet(2, "none")),
    "one more than there are": (published(*like(24)), claim(ask(25)), too_few(25, 24, 24)),
    "one request more than there are": (
        published(*like(24)),
        claim(*[ask()] * 25),
        no(Code.TOO_FEW_TOGETHER, wanted=25, free=24),
    ),
    "together": (published(*like(3)), claim(ask(2), ask(2)), no(Code.TOO_FEW_TOGETHER, wanted=4, free=3)),
    "counters": (published(*parts(2), counters={"s0": 2}), claim(ask(2)), no(Code.COUNTER_EXHAUSTED, request="r0", wanted=2)),
    "all are not free": (
        published(*like(2)),
        claim(ask(), ask(allocationMode="All")),
        no(Code.TOO_FEW_TOGETHER, wanted=3, free=2),
    ),
    "no combination": (
        published(*like(4, numa=2)),
        claim(
            ask(2), *(ask(1, f'device.attributes["{DRIVER}"].numa == {at}') for at in (0, 1)), constraints=[match("numa", "r0")]
        ),
        no(Code.NO_COMBINATION),
    ),
    "half a pool": (
        [
            {
                **published(device("a"))[0],
                "spec": {
                    **published(device("a"))[0]["spec"],
                    "pool": {"name": "here", "generation": 1, "resourceSliceCount": 3},
                },
            }
        ],
        claim(ask()),
        no(Code.POOL_UPDATING, pool=f"{DRIVER}/here"),
    ),
    "a name twice": (
        published(device("a"), device("a")),
        claim(ask()),
        no(Code.POOL_INVALID, pool=f"{DRIVER}/here", message="device a is there twice"),
    ),
}


@pytest.mark.parametrize(("slices", "wanted", "rejection"), NODE_REJECTIONS.values(), ids=NODE_REJECTIONS.keys())
def test_what_a_node_lacks(slices: list[Object], wanted: Object, rejection: Rejection) -> None:
    found = answer(slices, wanted)
    assert isinstance(found, AllocationRejection)
    assert found.rejections == (rejection,)


# -- what is kept


def test_allocated_devices_are_held_and_released_ones_are_free() -> None:
    slices, held = published(*like(2), *({**one, "name": f"s{at}"} for at, one in enumerate(shares(1)))), AllocatedDevices()
    wanted = claim(ask(2, "!device.allowMultipleAllocations"), ask(1, "device.allowMultipleAllocations",
                                                                  capacity={"requests": {"memory": "6"}}))
    given = answer(slices, wanted, held=held)
    assert isinstance(given, Allocated)
    held.add(given.allocations[0])
    assert held.consumed[DeviceId(DRIVER, "here", "s0")] == {"memory": 6 * 10**9}
    assert names(answer(slices, wanted, held=held)) is None
    held.remove(given.allocations[0])
    assert (held.whole, held.shares, held.consumed) == ({}, {}, {})
    assert answer(slices, wanted, held=held) is not None


def test_admin_access_holds_nothing() -> None:
    held = AllocatedDevices(
        [{"devices": {"results": [{"driver": DRIVER, "pool": "here", "device": "a", "adminAccess": True}]}}]
    )
    assert names(answer(published(device("a")), claim(ask()), held=held)) == [["a"]]


def test_selector_is_evaluated_once_per_distinguishable_device(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    real = cel.Selector.matches

    def listening(self: cel.Selector, subject: cel.CelDevice, meter: cel.CostMeter | None = None) -> bool:
        asked.append(self.text)
        return real(self, subject, meter)

    monkeypatch.setattr(cel.Selector, "matches", listening)

    def give(pools: PoolSet, node: str = "here") -> None:
        wanted = claim(ask(where=f'device.attributes["{DRIVER}"].numa == 0'))
        allocator.allocate(
            [wanted],
            node={"metadata": {"name": node}},
            pools=pools,
            classes=CLASSES.get,
            held=AllocatedDevices(),
            features=LISTS,
        )

    here = published(*like(4, numa=2))
    pools = PoolSet([*here, *published(*like(2, numa=2), node="there")])
    give(pools)
    give(pools, "there")
    assert len(asked) == 4, "two selectors, two NUMA nodes; neither serial numbers nor the host matter"
    pools = PoolSet([*map(dict, here), *published(device("x", numa=1), device("y", numa=0), node="there")], old=pools)
    give(pools)
    give(pools, "there")
    assert len(asked) == 4
    pools.change(here[0], published(*like(3, numa=3))[0])
    give(pools)
    assert len(asked) == 6, "there is a third NUMA node"


def test_evaluation_error_is_reported_for_its_request() -> None:
    broken = device("a") | {"capacity": {"memory": {"value": "much"}}}
    pools = PoolSet(published(broken, device("b")))
    with pytest.raises(Invalid, match="much"):
        allocator.allocate([claim(ask())], node=NODE, pools=pools, classes=CLASSES.get, held=AllocatedDevices(), features=LISTS)


def test_a_pool_that_changes_is_seen_by_the_nodes_that_reach_it() -> None:
    pools = PoolSet(published(device("a")))
    assert [one.id.device for one in pools.at(NODE, LISTS).devices] == ["a"]
    newer = published(device("b"))
    newer[0]["metadata"]["name"], newer[0]["spec"]["pool"]["generation"] = "here-new", 2
    pools = PoolSet([*published(device("a")), *newer], old=pools)
    assert [one.id.device for one in pools.at(NODE, LISTS).devices] == ["b"]


# -- rules from outside the slices, and names


TAINT = {"key": "k", "value": "v", "effect": "NoExecute"}
RULES = {
    "a device": ({"driver": DRIVER, "pool": "here", "device": "a"}, "b"),
    "a pool": ({"driver": DRIVER, "pool": "here"}, None),
    "another pool": ({"driver": DRIVER, "pool": "there"}, "a"),
    "everything": ({}, None),
    "nothing": (None, "a"),
}


@pytest.mark.parametrize(("selector", "given"), RULES.values(), ids=RULES.keys())
def test_a_rule_taints_the_devices_that_it_selects(selector: Object | None, given: str | None) -> None:
    rules = [{"metadata": {"name": "rule"}, "spec": {"deviceSelector": selector, "taint": TAINT}}]
    found = names(answer(published(device("a"), device("b")), claim(ask()), rules=rules))
    assert found == ([[given]] if given else None)
    tolerant = claim(ask(tolerations=[{"key": "k", "operator": "Exists"}]))
    assert names(answer(published(device("a"), device("b")), tolerant, rules=rules)) == [["a"]]


def test_a_capacity_may_be_named_with_or_without_the_driver() -> None:
    for published_as in ("memory", f"{DRIVER}/memory"):
        one = device("a") | {"allowMultipleAllocations": True, "capacity": {published_as: {"value": "10"}}}
        for asked_as in ("memory", f"{DRIVER}/memory"):
            found = answer(published(one), claim(ask(capacity={"requests": {asked_as: "4"}})))
            assert isinstance(found, Allocated)
            assert found.allocations[0]["devices"]["results"][0]["consumedCapacity"] == {published_as: "4"}


STEPS = {
    "whole numbers": ("3", {"min": "2", "max": "8", "step": "2"}, False, "4"),
    "thousandths": ("250m", {"min": "200m", "max": "1", "step": "100m"}, True, "300m"),
    "thousandths while they are off": ("250m", {"min": "200m", "max": "1", "step": "100m"}, False, "1"),
    "binary": ("3Gi", {"min": "1Gi", "max": "8Gi", "step": "2Gi"}, True, "3Gi"),
    "below the least": ("1", {"min": "2", "max": "8", "step": "2"}, False, "2"),
    "above the most": ("9", {"min": "2", "max": "8", "step": "2"}, False, None),
    "no steps": ("3", {"min": "2", "max": "8"}, False, "3"),
}


@pytest.mark.parametrize(("asked", "span", "fractional", "given"), STEPS.values(), ids=STEPS.keys())
def test_an_amount_is_rounded_to_what_the_device_gives(asked: str, span: Object, fractional: bool, given: str | None) -> None:
    policy = {"default": span["min"], "validRange": span}
    one = device("a") | {"allowMultipleAllocations": True, "capacity": {"memory": {"value": "10Gi", "requestPolicy": policy}}}
    found = answer(published(one), claim(ask(capacity={"requests": {"memory": asked}})),
                   features=Features(fractional_capacity_range=fractional))
    got = found.allocations[0]["devices"]["results"][0]["consumedCapacity"]["memory"] if isinstance(found, Allocated) else None
    assert got == given


# -- nodes


NODES = {
    "in": ("In", ["a", "b"], True), "not in": ("NotIn", ["b"], True), "exists": ("Exists", [], True),
    "does not exist": ("DoesNotExist", [], False), "greater": ("Gt", ["0"], False), "other": ("In", ["b"], False),
}


@pytest.mark.parametrize(("operator", "values", "reaches"), NODES.values(), ids=NODES.keys())
def test_devices_of_the_network_reach_the_nodes_that_match(operator: str, values: list[str], reaches: bool) -> None:
    requirement = {"key": "zone", "operator": operator, "values": values}
    selector = {"nodeSelectorTerms": [{"matchExpressions": [requirement]}]}
    found = answer(published(device("a"), nodeName=None, nodeSelector=selector), claim(ask()))
    assert isinstance(found, Allocated) == reaches
    if isinstance(found, Allocated):
        assert found.allocations[0]["nodeSelector"] == selector


def test_numbers_in_labels_compare_as_numbers() -> None:
    selector = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "rack", "operator": "Gt", "values": ["9"]}]}]}
    assert node_affinity.matches(selector, "here", {"rack": "10"})
    assert not node_affinity.matches(selector, "here", {"rack": "x"})


def test_devices_that_all_nodes_reach_bind_to_none() -> None:
    found = answer(published(device("a"), nodeName=None, allNodes=True), claim(ask()))
    assert isinstance(found, Allocated)
    assert "nodeSelector" not in found.allocations[0]


def test_a_wrong_operator_is_named() -> None:
    with pytest.raises(Invalid, match="'Near' is not an operator: use In"):
        node_affinity.matches({"nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Near"}]}]}, "here", {})


def test_features_have_kubernetes_names() -> None:
    assert Features.only({"AdminAccess": True}).admin_access
    assert not Features.only({"AdminAccess": True}).prioritized_list
    with pytest.raises(Invalid, match="Teleport is not known; known are AdminAccess"):
        Features.only({"Teleport": True})
