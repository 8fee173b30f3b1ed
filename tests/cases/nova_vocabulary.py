"""The vocabulary of the placement cases: what a host offers, aliases, scheduling, claims, healing and moves."""

from __future__ import annotations

from collections.abc import Mapping

from tests.cases.vocabulary import Check, anything, chosen, each, keys, or_scalar, plain, values

AREAS = ("device_spec", "modelling", "refusal", "alias", "prefilter", "scheduling", "numa", "claim", "healing", "move")

CONFIG = plain("report_in_placement", "pci_in_placement", "allow_resize_to_same_host")
FLAVOR = plain("alias", "pinned", "vcpus", "guest_cells", "numa_policy", "group_policy")
PCI_DEVICES = each(plain("address", "vendor_id", "product_id", "type", "parent", "numa_node", "serial"))
# Entries of device_spec and alias are what an operator may write, right or wrong: any key, or raw text.
ENTRIES = or_scalar(each(anything))
HOSTS = each(keys({
    "name": anything, "pci_devices": PCI_DEVICES, "numa_cells": each(plain("id", "socket", "pcpus")),
    "device_spec": ENTRIES, "config": CONFIG,
}))
GIVEN = keys({
    "config": CONFIG, "hosts": HOSTS, "device_spec": ENTRIES, "alias": ENTRIES,
    "servers": each(keys({"name": anything, "host": anything, "flavor": FLAVOR, "devices": anything,
                          "placement": or_scalar(values(values(anything)))})),
    "extra_providers": each(plain("name", "parent", "inventories", "traits")),
})

_SERVER = plain("status", "host", "cell", "devices", "devices_one_of", "devices_parent_count", "device_count",
                "devices_on_host", "devices_by_alias", "device_cell_equals_guest_cell")
EXPECT = keys({
    "providers": each(keys({
        "name": anything, "parent": anything, "traits": anything, "same_uuid_as_after_step": anything,
        "inventories": values(or_scalar(plain("total", "reserved", "min_unit", "max_unit", "step_size", "allocation_ratio"))),
    })),
    "on_host": anything,
    "matched": anything,
    "error": plain("kind", "contains"),
    "aliases": values(plain("numa_policy", "specs")),
    "requests": each(anything),
    "request_groups": each(plain("resources", "required", "forbidden", "request", "index", "suffix_pattern")),
    "suffix_pattern": anything,
    "query": anything,
    "servers": values(_SERVER),
    "usages": values(values(anything)),
    "allocations": values(values(values(anything))),
    "allocation_totals": values(anything),
    "devices": values(values(plain("status", "owner"))),
    "log": anything,
    "all_servers_of": anything,
    "distinct_devices": anything,
    "exactly_one_of": plain("servers", "is", "others", "providers", "used", "others_used"),
    "extra_providers_untouched": anything,
    "root_allocations_unchanged": anything,
    "only_host_of_server_has_claimed_devices": anything,
    "provider_generations_unchanged_since_step": anything,
})


def _step(**more: Check) -> Check:
    return keys({"op": anything, "expect": EXPECT, **more})


_SERVER_STEP = _step(server=anything)
_HOST_STEP = _step(host=anything)
OPS: Mapping[str, Check] = {
    "match_devices": _step(device_spec=ENTRIES, alias=ENTRIES, config=CONFIG),
    "load_alias": _step(device_spec=ENTRIES, alias=ENTRIES, config=CONFIG),
    "build_request": _step(flavor=FLAVOR),
    "start_host": _HOST_STEP,
    "restart_host": _step(host=anything, device_spec=ENTRIES, pci_devices=PCI_DEVICES, config=CONFIG),
    "periodic": _HOST_STEP,
    "boot": _step(server=anything, flavor=FLAVOR, host=anything, count=anything),
    "boot_concurrently": _step(servers=anything, flavor=FLAVOR, host=anything),
    "delete": _SERVER_STEP,
    "set_reserved": _step(provider=anything, resource_class=anything, reserved=anything),
    "inject": _step(fault=or_scalar(plain("spawn_failure", "tracker_device_taken")), host=anything, times=anything,
                    address=anything, tracker_device_taken=anything),
    "resize": _step(server=anything, flavor=FLAVOR),
    "cold_migrate": _step(server=anything, host=anything),
    "confirm": _SERVER_STEP,
    "revert": _SERVER_STEP,
    "host_down": _HOST_STEP,
    "evacuate": _SERVER_STEP,
    "shelve_offload": _SERVER_STEP,
    "unshelve": _step(server=anything, exclude_hosts=anything),
    "live_migrate": _SERVER_STEP,
    "rebuild": _SERVER_STEP,
}
CASE = keys({
    "name": anything, "area": anything, "basis": anything, "nova_actual": anything, "given": GIVEN,
    "when": each(chosen("op", OPS, "op")), "expect": EXPECT,
})
