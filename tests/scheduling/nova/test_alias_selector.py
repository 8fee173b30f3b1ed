"""A selector made of an alias says yes to a published device exactly when choosing by alias does."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from outfitter import cel
from outfitter.api import providers
from outfitter.api.device import DRIVER
from outfitter.api.kinds import Object
from outfitter.api.ledger_page.page import Page
from outfitter.errors import OutfitterError
from outfitter.inventory import config, host_devices, pci_ids, scan, slices
from outfitter.inventory import providers as model
from outfitter.scheduling.nova import alias, alias_selector, extra_specs, pci_allocator
from outfitter.scheduling.nova.extra_specs import AliasRequest
from outfitter.scheduling.nova.host_state import HostState
from tests.cases import nova_cloud
from tests.scheduling import published_hosts

NODE: Object = {"metadata": {"name": "elm"}}
TRAITS = ("a", "b", "c", "d", "HW_GPU_API_VULKAN", "COMPUTE_MANAGED_PCI_DEVICE", "HW_PCI_LIVE_MIGRATABLE", "ab")
LONG = tuple(f"{letter * 50}_{number}" for number, letter in enumerate("klmnopqrstu"))  # more than there is room to publish
PCI: list[dict[str, Any]] = [
    {"address": "0000:17:00.0", "vendor_id": "10de", "product_id": "2235", "type": "PCI", "numa_node": 0},
    {"address": "0000:18:00.0", "vendor_id": "10de", "product_id": "2236", "type": "PCI"},
    {"address": "0000:3b:00.0", "vendor_id": "8086", "product_id": "1592", "type": "PF"},
    {"address": "0000:3b:01.0", "vendor_id": "8086", "product_id": "1889", "type": "VF", "parent": "0000:3b:00.0"},
    {"address": "0000:3b:01.1", "vendor_id": "8086", "product_id": "1889", "type": "VF", "parent": "0000:3b:00.0"},
    {"address": "0000:d8:00.0", "vendor_id": "8086", "product_id": "1592", "type": "PF"},
    {"address": "0000:d8:01.0", "vendor_id": "8086", "product_id": "1889", "type": "VDPA", "parent": "0000:d8:00.0"},
    {"address": "0000:e0:00.0", "vendor_id": "8086", "product_id": "1592", "type": "PF"},
]
MATCHES: tuple[dict[str, str], ...] = (
    {"vendor_id": "10de", "product_id": "2235"}, {"vendor_id": "10de", "product_id": "2236"}, {"address": "0000:3b:01.*"},
    {"address": "0000:d8:01.0"}, {"address": "0000:e0:00.0"})


def published(
    spec: list[dict[str, Any]], *, report: bool, more: dict[str, Any] | None = None
) -> tuple[HostState, list[Object]] | None:
    """A host and its devices as slices list them, with more attributes; None if it does not start with this device_spec."""
    try:
        settings = config.parse(yaml.safe_dump({"device_spec": spec, "report_in_placement": report})).for_host("elm")
        seen = host_devices.host_devices("elm", settings, scan.scan(nova_cloud.tree(PCI)), (), held=set(), running=set())
        tree = model.plan("elm", settings, seen.offered, orphans=seen.orphans).providers
    except OutfitterError:
        return None
    devices = slices.on_providers(host_devices.devices(seen, (), (), {}, pci_ids.PciIds(None)), tree)
    devices = [{**device, "attributes": {**device["attributes"], **(more or {})}} for device in devices]
    made = slices.pool("elm", DRIVER, devices, slices.counters(seen.offered, seen.kept).sets, generation=1)
    offer = published_hosts.published("elm", made, providers.read(providers.with_providers(providers.blank("elm"), tree)))
    return offer.at(Page(Page.blank("elm"))), devices


def traits(words: Any) -> Any:
    return st.lists(st.sampled_from(words), max_size=4, unique=True)


@st.composite
def specs(draw: Any, words: tuple[str, ...] = TRAITS[:5]) -> list[dict[str, Any]]:
    out = []
    for match in MATCHES:
        if draw(st.booleans()):
            entry: dict[str, Any] = {**match, "traits": ",".join(draw(traits(words)))}
            for key, values in (("resource_class", ("gpu", "PGPU", "x" * 80)), ("live_migratable", ("yes", "no")),
                                ("physical_network", ("physnet0",))):
                if value := draw(st.sampled_from((*values, *[None] * 2))):
                    entry[key] = value
            out.append(entry)
    return out


@st.composite
def aliases(draw: Any, words: tuple[str, ...] = TRAITS) -> dict[str, str]:
    out: dict[str, str] = {"name": "it"}
    for key, values in (("resource_class", ("gpu", "PGPU", "CUSTOM_PCI_8086_1889", "x" * 80)),
                        ("device_type", ("type-PCI", "type-PF", "type-VF")), ("live_migratable", ("yes", "no"))):
        if value := draw(st.sampled_from((None, *values))):
            out[key] = value
    if draw(st.booleans()) or "resource_class" not in out:
        out |= draw(st.sampled_from(({"vendor_id": "10DE", "product_id": "2235"}, {"vendor_id": "8086", "product_id": "1889"},
                                     {"vendor_id": "8086", "product_id": "1592"})))
    need, never, some = draw(traits(words)), draw(traits(words)), draw(traits(words))
    out["traits"] = ",".join([*need[:2], *(f"!{each}" for each in never[:2] if each not in need)])
    if some:
        out["traits2"] = "in:" + ",".join(some)
    return out


def reported(
    host: HostState, devices: list[Object], asked: dict[str, str], *, in_placement: bool
) -> Iterator[tuple[Object, bool, bool]]:
    """Each device with what choosing and what the selectors say of it."""
    (one,) = alias.parse([asked], in_placement=in_placement).values()
    request = AliasRequest("r", "it", 1, one.specs, one.numa_policy, in_placement)
    compiled = [cel.compile_selector(each) for each in alias_selector.expressions(one.specs, in_placement=in_placement)]
    known = {device.id.device: device for device in host.devices}
    for device in devices:
        right = device["name"] in known and pci_allocator.why_not(host, request, known[device["name"]]) is None
        yield device, right, all(each.matches(cel.CelDevice.from_slice(DRIVER, device)) for each in compiled)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(specs(), aliases(), st.booleans(), st.booleans())
def test_selector_agrees_with_the_pci_allocator(
    spec: list[dict[str, Any]], asked: dict[str, str], report: bool, placed: bool
) -> None:
    found = published(spec, report=report)
    if found is None or (not placed and "vendor_id" not in asked):
        return
    for device, right, selected in reported(*found, asked, in_placement=placed):
        if "traitsIncomplete" not in device["attributes"] or not placed:
            assert selected == right, (device, asked)


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(specs(LONG), aliases(LONG))
def test_where_there_was_no_room_for_all_traits_a_selector_never_takes_a_wrong_device(
    spec: list[dict[str, Any]], asked: dict[str, str]
) -> None:
    for entry, word in itertools.product(spec, LONG):
        entry["traits"] += f",{word}" if word not in entry["traits"] else ""
    found = published(spec, report=True)
    if found is None:
        return
    for device, right, selected in reported(*found, asked, in_placement=True):
        if "provider" in device["attributes"]:
            assert "traitsIncomplete" in device["attributes"]
        assert right or not selected, (device, asked)


SEEN = {
    "by class": ({"resource_class": "gpu"}, {"0000:17:00.0"}),
    "by class and trait": ({"resource_class": "gpu", "traits": "a,!b"}, {"0000:17:00.0"}),
    "a trait that it has not": ({"resource_class": "gpu", "traits": "b"}, set()),
    "one that it must not have": ({"resource_class": "gpu", "traits": "!a"}, set()),
    "one of several": ({"resource_class": "gpu", "traits": "in:b,a"}, {"0000:17:00.0"}),
    "a part of a name is none": ({"resource_class": "gpu", "traits": "in:aa"}, set()),
    "virtual functions by ids": ({"vendor_id": "8086", "product_id": "1889"}, {"0000:3b:01.0", "0000:3b:01.1"}),
    "no physical function unless it is said": ({"vendor_id": "8086", "product_id": "1592"}, set()),
    "a physical function if it is": ({"vendor_id": "8086", "product_id": "1592", "device_type": "type-PF"}, {"0000:e0:00.0"}),
}


@pytest.mark.parametrize("name", SEEN)
def test_what_a_selector_takes(name: str) -> None:
    asked, wanted = SEEN[name]
    found = published([{**MATCHES[0], "resource_class": "gpu", "traits": "a"}, MATCHES[2], MATCHES[3], MATCHES[4]], report=True)
    assert found is not None
    seen = list(reported(*found, {"name": "it", **asked}, in_placement=True))
    address = "resource.kubernetes.io/pciBusID"
    assert {device["attributes"][address]["string"] for device, _, selected in seen if selected} == wanted
    assert all(right == selected for _, right, selected in seen)


ROOMY = [{**MATCHES[0], "resource_class": "gpu", "traits": ",".join(LONG)}]
UNSEEN = {
    "a trait that is published": ({"traits": LONG[0]}, True, True),
    "a trait that there was no room for": ({"traits": LONG[-1]}, True, False),
    "one that must not be there and there was no room for": ({"traits": f"!{LONG[-1]}"}, False, False),
    "one that must not be there, and is not": ({"traits": "!a"}, True, False),  # it cannot be known by what is published
}


@pytest.mark.parametrize("name", UNSEEN)
def test_where_there_was_no_room(name: str) -> None:
    asked, wanted, taken = UNSEEN[name]
    found = published(ROOMY, report=True)
    assert found is not None
    ((_, right, selected),) = reported(*found, {"name": "it", "resource_class": "gpu", **asked}, in_placement=True)
    assert (right, selected) == (wanted, taken)


@pytest.mark.parametrize("remote", [True, False])
def test_what_is_managed_from_elsewhere_is_never_given(remote: bool) -> None:
    found = published([MATCHES[2]], report=True, more={"remoteManaged": {"bool": remote}})
    assert found is not None
    seen = list(reported(*found, {"name": "it", "vendor_id": "8086", "product_id": "1889"}, in_placement=True))
    assert [(right, selected) for _, right, selected in seen] == [(not remote, not remote)] * 2


def test_specs_that_are_alternatives() -> None:
    two = alias.parse([{"name": "n", "vendor_id": "10de", "product_id": "2235"},
                       {"name": "n", "vendor_id": "8086", "product_id": "1889"}], in_placement=False)["n"]
    found = published([*MATCHES], report=False)
    assert found is not None
    ask = extra_specs.read({extra_specs.ALIAS: "n:1"}, {"n": two}, new_id=lambda: "r", in_placement=False)
    compiled = [cel.compile_selector(each) for each in alias_selector.expressions(two.specs, in_placement=False)]
    known = {device.id.device: device for device in found[0].devices}
    seen = {device["name"]: cel.CelDevice.from_slice(DRIVER, device) for device in found[1]}
    got = {name for name, device in seen.items() if all(each.matches(device) for each in compiled)}
    assert got == {name for name, device in known.items() if pci_allocator.why_not(found[0], ask.requests[0], device) is None}
    assert len(got) == 3
