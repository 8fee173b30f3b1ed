"""The one sentence of a condition and an event, as a golden file; and the message of each code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from outfitter.api.ledger_page.page import Page
from outfitter.api.rejection import Rejection
from outfitter.scheduling.dra.device_index import DeviceIndex
from outfitter.scheduling.explain import grouping, summary
from outfitter.scheduling.placement import HostRejection, Waiting
from tests import golden
from tests.rejected import Code, no
from tests.scheduling.builders import DRIVER, NODES, VF, A, B, ask, claim, dev, node, page, part, placed, pod, too_few

NEAR = {**claim("c"), "spec": {"devices": {"requests": [ask("nic", count=2)],
                                           "constraints": [{"matchAttribute": f"{DRIVER}/numa"}]}}}
CARDS = part("a", *(dev(f"a{n}", kind="VF", numa=n // 2) for n in range(4)))


TAINT = {"key": "example.com/broken", "effect": "NoSchedule"}


def rule(name: str, **selector: str) -> Mapping[str, Any]:
    return {"metadata": {"name": name}, "spec": {"deviceSelector": selector, "taint": {
        "key": "example.com/drain", "value": "yes", "effect": "NoSchedule"}}}


def waits(
    wanted: object, parts: list[Any], pages: list[Page], nodes: list[Any], rules: Sequence[Mapping[str, Any]] = ()
) -> Waiting:
    found = placed(pod("c"), [wanted], DeviceIndex.of(parts, pages, nodes, rules=rules))  # type: ignore[list-item, arg-type]
    assert isinstance(found, Waiting)
    return found


def rejected(*hosts: tuple[str, Rejection], total: int = 0, unlike: int = 0, own: tuple[Rejection, ...] = ()) -> Waiting:
    each = tuple((host, HostRejection((rejection,))) for host, rejection in hosts)
    return Waiting(own, each, total or len(hosts), tuple(host for host, _ in hosts), unlike)


CORDONED, NOT_HERE = no(Code.NODE_CORDONED), no(Code.ASSIGNED_DEVICE_ELSEWHERE, id="a/x", hosts=("a",))
SUMMARIES = {
    "no host at all": Waiting((no(Code.NO_HOST),)),
    "a claim that does not exist": Waiting((no(Code.CLAIM_MISSING, claim="c", entry="gpu"),)),
    "pre-assigned devices that are not there": Waiting(
        (no(Code.ASSIGNED_DEVICE_MISSING, id="a/x", resource="example.com/gpu"),)
    ),
    "pre-assigned devices that are elsewhere": rejected(("b", NOT_HERE), own=(NOT_HERE,)),
    "a pod group": rejected(("a", CORDONED), own=(
        no(Code.POD_GROUP_TOO_FEW_HOSTS, group="training", placed=3, wanted=4),)),
    "one host": rejected(("a", CORDONED)),
    "hosts with other reasons": rejected(("a", CORDONED), ("b", no(Code.NODE_NOT_READY, message="gone"))),
    "hosts with the same reason": rejected(("a", CORDONED), ("b", CORDONED), total=5),
    "hosts without such devices": rejected(("a", too_few(1, 1, 0)), total=6, unlike=3),
    "several reasons of one host": Waiting(
        (), (("a", HostRejection((CORDONED, no(Code.NODE_TAINTED, taint="x:NoSchedule")))),), 1, ("a",)
    ),
    "the holder of a device": waits(claim("c"), [A], [page("a", ("a0", "train"))], [node("a")]),
    "at most two holders": waits(claim("c"), [CARDS], [page("a", *((f"a{n}", f"c{n}") for n in range(4)))], [node("a")]),
    "holders of two hosts": waits(
        claim("c", ask("nic", count=2)), [A, B], [page("a", ("a0", "train")), page("b", ("b0", "train"))], NODES
    ),
    "a DeviceTaintRule": waits(claim("c"), [CARDS], [], [node("a")], [rule("maintenance")]),
    "a DeviceTaintRule on two hosts": waits(claim("c"), [A, B], [], NODES, [rule("maintenance")]),
    "taints, holders and what is out of service": waits(
        claim("c"), [part("a", *(dev(f"a{n}", kind="VF") for n in range(6)), {**dev("a6", kind="VF"), "taints": [TAINT]})],
        [Page({**page("a", *((f"a{n}", f"c{n}") for n in range(3))).object, "spec": {
            **page("a", *((f"a{n}", f"c{n}") for n in range(3))).object["spec"], "quarantined": [{
                "device": {"driver": DRIVER, "pool": "a", "device": "a3"}, "since": "2026-01-01T00:00:00Z", "by": "admin"}]}})],
        [node("a")], [rule("first", device="a4"), rule("second", device="a5")]),
    "too few on one NUMA node": waits(NEAR, [CARDS], [page("a", ("a0", "train"), ("a3", "train"))], [node("a")]),
}


def test_words() -> None:
    golden.check(__file__, "summary", {name: summary.summary(waiting) for name, waiting in SUMMARIES.items()})


def test_never_longer_than_a_condition() -> None:
    names = {name: name * 200 for name in "abcd"}
    found = waits(claim("c"), [part(long, dev("d" * 60 + name, **VF)) for name, long in names.items()],
                  [page(long, ("d" * 60 + name, "t" * 200)) for name, long in names.items()],
                  [node(long) for long in names.values()])
    assert len(summary.summary(found)) == summary.LONGEST
    assert "...; " in summary.summary(found), "cut before the number of further hosts"
    assert all(len(message) <= summary.LONGEST for message in summary.by_code(found).values())


def test_the_message_of_each_code_names_its_hosts() -> None:
    hosts = [(f"n{number}", CORDONED) for number in range(5)] + [("a", too_few(1, 1, 0))]
    found = summary.by_code(rejected(*hosts, own=(NOT_HERE,)))
    assert list(found) == [Code.ASSIGNED_DEVICE_ELSEWHERE, Code.NODE_CORDONED, Code.TOO_FEW_FREE]
    assert all(name in found[Code.NODE_CORDONED] for name in ("n0", "n1", "n2"))
    assert "n3" not in found[Code.NODE_CORDONED]


def test_many_hosts_are_told_apart_by_the_rule_that_keeps_their_devices_back() -> None:
    names = [f"n{number}" for number in range(40)]
    found = placed(pod("c"), [claim("c")], DeviceIndex.of(
        [part(name, dev(f"{name}-vf", **VF)) for name in names], [page(name, (f"{name}-vf", "train")) for name in names[:20]],
        [node(name) for name in names], rules=[rule("maintenance")]), every_host=True)  # type: ignore[list-item]
    assert isinstance(found, Waiting)
    held, tainted = grouping.groups(found.hosts)
    assert [len(held.hosts), len(tainted.hosts)] == [20, 20]
    assert "rules" not in held.nearest.rejections[0].detail
    assert tainted.nearest.rejections[0]["rules"] == ("maintenance",)
