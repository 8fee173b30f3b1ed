"""A VM with a flavor is placed as `choose` would place it: counting by selectors first never costs a host, and other
claims of the same pod never get the same device."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from outfitter.api import providers
from outfitter.api.device import DRIVER, DeviceId
from outfitter.api.kinds import Object
from outfitter.api.ledger_page.page import Booking, Holder, Limits, Page
from outfitter.inventory import config, host_devices, pci_ids, scan, slices
from outfitter.inventory import providers as model
from outfitter.ledger import placement_view
from outfitter.scheduling.dra.device_index import DeviceIndex
from outfitter.scheduling.filter.node_usage import NodeUsage
from outfitter.scheduling.nova import flavor_claim, pci_allocator
from outfitter.scheduling.nova.extra_specs import FlavorRequest
from outfitter.scheduling.nova.flavor_claim import AliasSet
from outfitter.scheduling.nova.host_state import HostState, PciAllocation
from outfitter.scheduling.nova.host_state_cache import HostStateCache
from outfitter.scheduling.nova.numa_topology import NumaCell
from outfitter.scheduling.placement import Placement, results
from outfitter.scheduling.scheduler import place
from outfitter.scheduling.snapshot import SchedulingSnapshot
from tests.cases import nova_cloud

NOW = "2026-01-01T00:00:00Z"
LONG = ",".join(f"{letter * 50}" for letter in "klmnopqr")  # so many that there is no room to publish zz
CONFIG = config.parse("""
report_in_placement: true
pci_in_placement: true
device_spec:
- {vendor_id: 10de, product_id: "2235", resource_class: gpu, traits: a}
- {vendor_id: 10de, product_id: "2236", resource_class: gpu, traits: "LONG,zz"}
- {vendor_id: 8086, product_id: "1889", resource_class: nic}
alias:
- {name: gpu, resource_class: gpu}
- {name: near, resource_class: gpu, numa_policy: required}
- {name: side, resource_class: gpu, numa_policy: socket}
- {name: any, resource_class: gpu, numa_policy: preferred}
- {name: a, resource_class: gpu, traits: "!zz"}
- {name: zz, resource_class: gpu, traits: zz}
- {name: nic, resource_class: nic, device_type: type-VF}
""".replace("LONG", LONG))
ALIASES = AliasSet.of(CONFIG.default)
SOMEBODY = Holder("Consumer", "", "x", "x")
CELLS = (NumaCell(0, 4, 0), NumaCell(1, 4, 1))


@st.composite
def hosts(draw: Any) -> tuple[list[dict[str, Any]], bool]:
    cards = [{"address": f"0000:{17 + number}:00.0", "vendor_id": "10de", "type": "PCI",
              "product_id": draw(st.sampled_from(("2235", "2236"))), "numa_node": draw(st.sampled_from((-1, 0, 1)))}
             for number in range(draw(st.integers(0, 3)))]
    for number in range(draw(st.integers(0, 2))):
        pf = f"0000:{40 + number}:00.0"
        cards.append({"address": pf, "vendor_id": "8086", "product_id": "1592", "type": "PF", "numa_node": number})
        cards += [{"address": f"0000:{40 + number}:01.{vf}", "vendor_id": "8086", "product_id": "1889", "type": "VF",
                   "parent": pf, "numa_node": number} for vf in range(2)]
    return cards, draw(st.booleans())


@st.composite
def extras(draw: Any) -> dict[str, str]:
    words = draw(st.lists(st.sampled_from(sorted(ALIASES.by_name)), min_size=1, max_size=3))
    out = {"pci_passthrough:alias": ", ".join(f"{word}:{draw(st.integers(1, 2))}" for word in words)}
    said = {"group_policy": ("isolate", "none"), "hw:cpu_policy": ("dedicated",), "hw:numa_nodes": ("1", "2")}
    for key, values in said.items():
        if value := draw(st.sampled_from((None, *values))):
            out[key] = value
    return out


class PublishedHosts:
    def __init__(self, described: list[tuple[list[dict[str, Any]], bool]], taken: list[tuple[int, int]]) -> None:
        self.nodes: list[Object] = []
        self.slices: list[Object] = []
        self.trees: list[Object] = []
        self.inventories: list[Object] = []
        self.pages: list[Page] = []
        for number, (pci, tells) in enumerate(described):
            name = f"h{9 - number}"  # in another order than by name
            seen = host_devices.host_devices(
                name, CONFIG.for_host(name), scan.scan(nova_cloud.tree(pci)), (), held=set(), running=set()
            )
            tree = model.plan(name, CONFIG.for_host(name), seen.offered).providers
            devices = slices.on_providers(host_devices.devices(seen, (), (), {}, pci_ids.PciIds(None)), tree)
            self.slices += slices.pool(name, DRIVER, devices, slices.counters(seen.offered).sets, generation=1)
            self.nodes.append({"metadata": {"name": name, "labels": {}}, "spec": {}, "status": {
                "allocatable": {"cpu": "64", "memory": "256Gi", "pods": "100"}}})
            self.trees.append(providers.with_providers(providers.blank(name), tree))
            cells = [{"id": cell.id, "cpus": f"{cell.id * 4}-{cell.id * 4 + 3}", "socket": cell.socket} for cell in CELLS]
            self.inventories.append({"metadata": {"name": name}, "spec": {"cells": cells if tells else []}})
            page = Page(Page.blank(name))
            for where, what in taken:
                if where == number and devices:
                    device = DeviceId(DRIVER, name, devices[what % len(devices)]["name"])
                    if not page.on(device):
                        page = Page(page.holding([Booking(device, SOMEBODY, "", "booked", NOW)], Limits()))
            for where, what in taken[:2]:
                if where == number:
                    taken_cpus = {"resources": {"PCPU": 3}, "cells": {str(what % 2): 3}}
                    page = Page(
                        page.holding(
                            [Booking(placement_view.host_resources(name), SOMEBODY, "", "booked", NOW, taken_cpus)], Limits()
                        )
                    )
            self.pages.append(page)
        self.roster = HostStateCache.of(self.trees, self.inventories)
        self.index = DeviceIndex.of(self.slices, self.pages, self.nodes)

    def host(self, page: Page) -> HostState:
        """A host as a flavor sees it now."""
        return self.roster.host(self.index.node_devices(self.index.hosts.index(page.host)), page)

    def place(self, *claims: Object) -> Any:
        by_name = {claim["metadata"]["name"]: claim for claim in claims}
        pod: Object = {"metadata": {"name": "p", "namespace": "n", "uid": "p"}, "status": {}, "spec": {
            "containers": [{"name": "c"}], "resourceClaims": [{"name": name, "resourceClaimName": name} for name in by_name]}}
        return place(SchedulingSnapshot(
            devices=self.index, usage=NodeUsage(), claim=lambda _, name: by_name.get(name),
            device_class={flavor_claim.CLASS: flavor_claim.device_class()}.get, host_states=self.roster), pod)


def claim_of(extra: dict[str, str]) -> Object:
    flavor = {"metadata": {"name": "f"}, "spec": {"vcpus": 2, "memory": "1Gi", "extraSpecs": extra}}
    instance = {"metadata": {"name": "vm", "namespace": "n", "uid": "vm"}, "spec": {"flavor": {"name": "f"}, "domain": {}}}
    made = flavor_claim.claim(flavor, instance, ALIASES, "vm-flavor")
    assert made is not None
    return {**made, "metadata": {**made["metadata"], "uid": "c"}}


def first_fit(hosts: list[HostState], ask: FlavorRequest) -> PciAllocation | None:
    """What the host with the fewest free devices gives that can; of those with as many, the first by name."""
    chosen = (pci_allocator.choose(host, ask) for host in sorted(hosts, key=lambda host: (host.free, host.name)))
    return next((choice for choice in chosen if isinstance(choice, PciAllocation)), None)


worlds = st.builds(PublishedHosts, st.lists(hosts(), min_size=1, max_size=3), st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 6)), max_size=5))


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(worlds, extras())
def test_the_same_host_and_devices(published: PublishedHosts, extra: dict[str, str]) -> None:
    claim = claim_of(extra)
    ask = flavor_claim.read(claim)
    assert ask is not None
    wanted = first_fit([published.host(page) for page in published.pages], ask)
    got = published.place(claim)
    if wanted is None:
        assert not isinstance(got, Placement), got
        return
    assert isinstance(got, Placement), got
    assert got.host == wanted.host
    ((_, given),) = got.claims
    assert [(one["request"], device) for device, one in results(given)] == [
        (each.request.request_id, each.device.id) for each in wanted.given]
    share = flavor_claim.share(claim, given)
    assert (share or {}).get("cells", {}) == {str(cell): count for cell, count in wanted.pins.items()}


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(worlds, extras())
def test_a_claim_beside_it_gets_another_device(published: PublishedHosts, extra: dict[str, str]) -> None:
    other: Object = {"metadata": {"name": "own", "namespace": "n", "uid": "o"}, "spec": {"devices": {"requests": [
        {"name": "r", "exactly": {"deviceClassName": flavor_claim.CLASS, "allocationMode": "ExactCount", "count": 1}}]}}}
    before = dict(published.index.held.whole)
    got = published.place(other, claim_of(extra))
    assert published.index.held.whole == before
    if isinstance(got, Placement):
        devices = [device for _, given in got.claims for device, _ in results(given)]
        assert len(devices) == len(set(devices))
        assert not before.keys() & set(devices)
        assert [claim["metadata"]["name"] for claim, _ in got.claims] == ["own", "vm-flavor"]


def test_what_changed_is_seen_and_the_rest_is_kept() -> None:
    pci = [{"address": "0000:17:00.0", "vendor_id": "10de", "product_id": "2235", "type": "PCI", "numa_node": 0}]
    published = PublishedHosts([(pci, True), (pci, True)], [])
    roster, (page, other) = published.roster, published.pages
    before, kept = published.host(page), published.host(other)
    assert published.host(page) is before
    assert [cell.cpus for cell in before.cells] == [4, 4]
    roster.put_inventory("h9", {"metadata": {"name": "h9"}, "spec": {"cells": [{"id": 0, "cpus": "0", "socket": 0}]}})
    assert [cell.cpus for cell in published.host(page).cells] == [1]
    assert published.host(other) is kept
    published.index.put_slice(f"{published.slices[0]['metadata']['name']}|0", None)
    assert not published.host(page).devices
    assert published.host(other).devices
    roster.put_tree("h8", None)
    assert not published.host(other).rows
