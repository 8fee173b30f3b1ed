"""Which host, and which devices first: small hosts with names, and the order that a policy brings them into."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outfitter.scheduling import score
from outfitter.scheduling.score import Alternative, HostCandidate, Policy, Spot

N0A, N0B, N1A, N1B = Spot(0, "pci0000:00"), Spot(0, "pci0000:20"), Spot(1, "pci0000:80"), Spot(1, "pci0000:a0")
UNKNOWN = Spot(None, None)


def offer(host: str, *given: Spot, free: dict[Spot, int] | None = None, idle: float = 0.5) -> HostCandidate:
    return HostCandidate(host, given, dict.fromkeys(given, 1) if free is None else free, idle, idle)


@dataclass(frozen=True)
class Case:
    offers: list[HostCandidate]
    best: str  # hosts, one letter each, in their order
    policy: Policy = "pack"
    near: bool = True


CASES = {
    "equal hosts go by name": Case([offer("c", N0A), offer("a", N0A), offer("b", N0A)], "abc"),
    "the tightest root": Case([
        offer("a", N0A, free={N0A: 4}), offer("b", N0A, free={N0A: 1}), offer("c", N0A, free={N0A: 2})], "bca"),
    "a tight root before a tight NUMA node": Case([
        offer("a", N0A, free={N0A: 2}), offer("b", N0A, free={N0A: 1, N0B: 5})], "ba"),
    "equal roots: the tightest NUMA node": Case([
        offer("a", N0A, free={N0A: 1, N0B: 4}), offer("b", N0A, free={N0A: 1, N0B: 1, N1A: 4})], "ba"),
    "equal NUMA nodes: the tightest host": Case([
        offer("a", N0A, free={N0A: 1, N1A: 4}), offer("b", N0A, free={N0A: 1, N1A: 1})], "ba"),
    "a small claim leaves the roomy host whole": Case([
        offer("a", N0A, free={N0A: 4, N1A: 4}), offer("b", N1A, free={N1A: 1})], "ba"),
    "two devices that use up a NUMA node": Case([
        offer("a", N0A, N0A, free={N0A: 8}), offer("b", N0A, N0A, free={N0A: 2, N1A: 8})], "ba"),
    "near before tight": Case([
        offer("a", N0A, N1A, free={N0A: 1, N1A: 1}), offer("b", N0A, N0A, free={N0A: 9})], "ba"),
    "one NUMA node before two, with as many roots": Case([offer("a", N0A, N1A), offer("b", N0A, N0B)], "ba"),
    "one root before two, on one NUMA node": Case([offer("a", N0A, N0B), offer("b", N0A, N0A, free={N0A: 2})], "ba"),
    "nearness may be skipped": Case([
        offer("b", N0A, N0A, free={N0A: 9}), offer("a", N0A, N1A, free={N0A: 1, N1A: 1})], "ab", near=False),
    "what a host does not say is one place": Case([
        offer("a", N0A, N1A), offer("b", UNKNOWN, UNKNOWN, free={UNKNOWN: 2})], "ba"),
    "known and unknown are two places": Case([offer("a", N0A, UNKNOWN), offer("b", N0A, N0A, free={N0A: 2})], "ba"),
    "equal devices: the fuller host": Case([offer("a", N0A, idle=0.9), offer("b", N0A, idle=0.1)], "ba"),
    "devices before cpu": Case([offer("a", N0A, free={N0A: 2}, idle=0.0), offer("b", N0A, idle=1.0)], "ba"),
    "a pod without devices stays out of the way of devices": Case([
        offer("a", free={N0A: 8}, idle=0.1), offer("b", free={N0A: 1}, idle=0.9), offer("c", free={}, idle=0.9)], "cba"),
    "a pod without devices fills hosts": Case([offer("a", idle=0.8), offer("b", idle=0.2)], "ba"),
    "more than can be asked to do apart": Case([
        offer("b", N0A, free={N0A: 5000}), offer("a", N0A, free={N0A: 90000})], "ab"),
    "spread: the roomiest host": Case([
        offer("a", N0A, free={N0A: 1}), offer("b", N0A, free={N0A: 1, N1A: 4}), offer("c", N0A, free={N0A: 4}),
    ], "bca", "spread"),
    "spread: then the roomiest NUMA node": Case([
        offer("a", N0A, free={N0A: 1, N1A: 4}), offer("b", N0A, free={N0A: 1, N0B: 3, N1A: 1})], "ba", "spread"),
    "spread: then the roomiest root": Case([
        offer("a", N0A, free={N0A: 1, N0B: 3}), offer("b", N0A, free={N0A: 3, N0B: 1})], "ba", "spread"),
    "spread: then the emptier host": Case([offer("a", N0A, idle=0.1), offer("b", N0A, idle=0.9)], "ba", "spread"),
    "spread keeps a pod's devices together": Case([
        offer("a", N0A, N1A, free={N0A: 9, N1A: 9}), offer("b", N0A, N0A, free={N0A: 2})], "ba", "spread"),
    "spread: a pod without devices": Case([offer("a", idle=0.2), offer("b", idle=0.8)], "ba", "spread"),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_rank(case: Case) -> None:
    ranked = score.rank(case.offers, case.policy, near=case.near)
    assert "".join(one.host for one in ranked) == case.best
    backwards = score.rank(case.offers[::-1], case.policy, near=case.near)
    assert backwards == ranked
    assert all(0 <= one.total <= score.BEST for one in ranked)


def test_sentences() -> None:
    said = score.score(offer("a", N0A, N1A, free={N0A: 1, N0B: 2, N1A: 3}, idle=0.25)).why
    assert said == ("pack: 2 devices on 2 NUMA nodes and 2 PCIe roots; then free on these roots: 2, NUMA nodes: 4, host: 4; "
                    "25% of cpu and memory left")
    said = score.score(offer("a", free={N0A: 1}), "spread").why
    assert said == "spread: 1 free device on the host, 50% of cpu and memory left"


def test_the_best_is_a_hundred_and_the_worst_is_nothing() -> None:
    assert score.score(offer("a", N0A, idle=0.0)).value == score.BEST
    assert score.score(offer("a", idle=1.0), "spread").value > score.score(offer("a", idle=0.0), "spread").value
    worst = score.score(offer("a", *(Spot(numa, f"pci{numa}") for numa in range(100)), free={UNKNOWN: 9999}, idle=1.0))
    assert 0 <= worst.value < 2


def test_plugin_scores_are_added_and_reported() -> None:
    offers = [offer("a", N0A), offer("b", N0A, free={N0A: 3}), offer("c", N0A, free={N0A: 9})]
    ranked = score.rank(offers, extra={"b": (40.0, ["plug-in cool: 40"])})
    assert [one.host for one in ranked] == ["b", "a", "c"]
    assert ranked[0].why.endswith("; plug-in cool: 40")


def choosing(offered: HostCandidate, *places: int) -> HostCandidate:
    """The same host, with the alternatives that requests get there."""
    return replace(offered, alternatives=tuple(Alternative(f"r{number}", f"s{place}", place, 8)
                                               for number, place in enumerate(places)))


ALTERNATIVES: dict[str, tuple[list[HostCandidate], str]] = {
    "a better alternative before a tighter host": ([
        choosing(offer("a", N0A), 1), choosing(offer("b", N0A, free={N0A: 9}), 0)], "ba"),
    "a better alternative before nearness": ([
        choosing(offer("a", N0A, N0A), 1), choosing(offer("b", N0A, N1A, free={N0A: 9, N1A: 9}), 0)], "ba"),
    "of equal alternatives the policy decides": ([
        choosing(offer("a", N0A, free={N0A: 9}), 2), choosing(offer("b", N0A), 2)], "ba"),
    "several requests together": ([
        choosing(offer("a", N0A), 0, 3), choosing(offer("b", N0A), 1, 1), choosing(offer("c", N0A), 0, 0)], "cba"),
}


@pytest.mark.parametrize("name", ALTERNATIVES)
@pytest.mark.parametrize("policy", score.POLICIES)
def test_alternatives_come_before_the_policy(name: str, policy: Policy) -> None:
    offers, best = ALTERNATIVES[name]
    if policy == "spread" and "policy" in name:
        best = best[::-1]
    assert "".join(one.host for one in score.rank(offers, policy)) == best
    assert score.rank(offers, policy)[0].why.startswith("request r0 gets ")


def test_a_plugin_can_make_up_for_a_worse_alternative() -> None:
    offers = [choosing(offer("a", N0A, N1A), 0), choosing(offer("b", N0A), 1)]
    assert score.rank(offers)[0].host == "a"
    assert score.rank(offers, extra={"b": (100.0, ["plug-in cool: 100"]), "a": (0.0, [])})[0].host == "b"


OFFERS = st.builds(
    lambda host, places, more, idle: offer(
        host, *places, free={place: places.count(place) + more for place in places}, idle=idle),
    st.sampled_from("abcdef"), st.lists(st.sampled_from([N0A, N0B, N1A, N1B, UNKNOWN]), max_size=4), st.integers(0, 2000),
    st.floats(0, 1))


@settings(deadline=None)
@given(st.lists(OFFERS, unique_by=lambda one: one.host), st.sampled_from(score.POLICIES), st.randoms())
def test_the_order_of_asking_does_not_matter(offers: list[HostCandidate], policy: Policy, chance: Any) -> None:
    ranked = score.rank(offers, policy)
    chance.shuffle(offers)
    assert score.rank(offers, policy) == ranked


@settings(deadline=None)
@given(OFFERS, st.integers(1, 1000))
def test_more_left_is_never_better_to_pack_nor_worse_to_spread(one: HostCandidate, more: int) -> None:
    roomier = HostCandidate(one.host, one.given, {**one.free, Spot(7, "pci7"): more}, one.cpu, one.memory)
    assert score.score(roomier).value <= score.score(one).value
    assert score.score(roomier, "spread").value >= score.score(one, "spread").value


def test_where_a_device_sits() -> None:
    said = {"resource.kubernetes.io/numaNode": {"int": 0}, "resource.kubernetes.io/pcieRoot": {"string": "pci0000:00"}}
    assert score.spot({"attributes": said}) == N0A
    assert score.spot({"name": "x"}) == UNKNOWN
