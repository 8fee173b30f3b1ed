"""Request groups: what Placement is asked."""

from __future__ import annotations

import pytest

from outfitter.errors import Invalid
from outfitter.scheduling.nova import request_groups
from outfitter.scheduling.nova.alias import Traits
from outfitter.scheduling.nova.extra_specs import AliasRequest, FlavorRequest
from tests.scheduling.flavor_requests import CLASS, IDS, ask

GPU = {"name": "gpu", **IDS}


def test_one_group_for_each_device() -> None:
    got = request_groups.query(ask("gpu:2,gpu:1,gpu:0")).groups
    assert [(each.suffix, each.resources) for each in got] == [("r0-0", {CLASS: 1}), ("r0-1", {CLASS: 1}), ("r1-0", {CLASS: 1})]


def test_the_parameters_of_the_query() -> None:
    wish = {"name": "gpu", "resource_class": "PGPU", "traits": "a,!b", "traits2": "in:d,c"}
    got = request_groups.query(ask("gpu:1", wish, vcpus=2, hw__cpu_policy="dedicated", hw__pci_numa_affinity_policy="socket",
                           group_policy="isolate"))
    assert got.parameters() == [
        ("resources", "PCPU:2,MEMORY_MB:512,DISK_GB:1"), ("resources_r0-0", "PGPU:1"), ("required_r0-0", "CUSTOM_A,!CUSTOM_B"),
        ("required_r0-0", "in:CUSTOM_C,CUSTOM_D"), ("group_policy", "isolate"),
        ("root_required", "COMPUTE_SOCKET_PCI_NUMA_AFFINITY"), ("limit", "1000")]


@pytest.mark.parametrize(("text", "own", "policy"), [
    ("gpu:1", 0, None), ("gpu:2", 0, "none"), ("gpu:1", 1, "none"), ("gpu:1", 2, None), ("gpu:0", 1, None)])
def test_the_policy_that_is_added(text: str, own: int, policy: str | None) -> None:
    assert request_groups.query(ask(text), own_groups=own).group_policy == policy


def test_without_placement_nothing_is_asked() -> None:
    assert request_groups.query(ask("gpu:2", GPU, placement=False)).groups == ()


def test_more_than_one_spec_cannot_be_asked() -> None:
    specs = ask("gpu:1", GPU, GPU, placement=False).requests[0].specs
    with pytest.raises(Invalid, match="alias gpu"):
        request_groups.query(FlavorRequest((AliasRequest("r", "gpu", 1, specs, "legacy"),)))


def test_migration_adds_no_trait() -> None:
    assert request_groups.query(ask("gpu:1", {**GPU, "live_migratable": "yes"})).groups[0].traits == Traits()
