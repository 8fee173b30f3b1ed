"""What holds for every VM that is built: it has what it asked for, once, in an order that does not change, and no two of
its parts are in one place."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any
from xml.etree import ElementTree as ET

from hypothesis import HealthCheck, assume, given, settings

from outfitter.api.kubevirt import device_status, network_info
from outfitter.errors import StartFailed
from tests.launcher.domain_cases import BUS_ID, Situation
from tests.launcher.random_vmis import machines

Key = tuple[int, bool, int, int]  # list, by claim, kind of a plugin's device, index of the entry


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(machines())
def test_every_built_domain(situation: Situation) -> None:
    try:
        xml = situation.build().xml
    except StartFailed:
        assume(False)
        return
    root = ET.fromstring(xml)
    each_device_that_was_given_is_there_once(situation, root)
    the_order_is_that_of_the_spec(situation, root)
    no_two_parts_are_in_one_place(root)
    assert situation.build().xml == xml


def each_device_that_was_given_is_there_once(situation: Situation, root: ET.Element) -> None:
    assert Counter(_drawn(root)) == Counter(source for source, _ in _given(situation))


def the_order_is_that_of_the_spec(situation: Situation, root: ET.Element) -> None:
    """Host devices, GPUs, virtual functions; of the first two those of plugins (PCI, mediated), then those of claims."""
    keys = dict(_given(situation))
    order = [keys[source] for source in _drawn(root)]
    assert order == sorted(order)


def no_two_parts_are_in_one_place(root: ET.Element) -> None:
    slots: dict[Any, list[tuple[str | None, str | None]]] = {}
    for at in root.iterfind("devices/*/address"):
        if at.get("type") == "pci":
            slots.setdefault((at.get("bus"), at.get("slot")), []).append((at.get("function"), at.get("multifunction")))
    for place, functions in slots.items():
        assert len(dict(functions)) == len(functions), f"{place} is taken twice"
        assert len(functions) == 1 or dict(functions).get("0x0") == "on", f"{place}: the first of several functions says so"
    orders = Counter(each.get("order") for each in root.iterfind("devices/*/boot"))
    assert [order for order, count in orders.items() if count > 1] == []


def _drawn(root: ET.Element) -> list[str]:
    """What the domain has of the host, in its order."""
    found = [at for each in root.iterfind("devices/*") if "hostdev" in (each.tag, each.get("type"))
             for at in each.iterfind("source/address")]
    return [at.get("uuid") or "{}:{}:{}.{}".format(*(at.get(part, "").removeprefix("0x") for part in (
        "domain", "bus", "slot", "function"))) for at in found]


def _given(situation: Situation) -> Iterator[tuple[str, Key]]:
    """What the VM was given, and the place of each in the order."""
    spec = situation.instance["spec"]
    devices = spec["domain"]["devices"]
    for place, list_ in ((0, "hostDevices"), (1, "gpus")):
        for index, entry in enumerate(devices[list_]):
            if "deviceName" in entry:
                yield _of_plugin(situation.env, entry["deviceName"], place, index)
                continue
            for told in situation.instance["status"]["deviceStatus"][device_status.STATUS_LISTS[list_]]:  # type: ignore[index]
                if told["name"] == entry["name"]:
                    where = told["deviceResourceClaimStatus"]["attributes"]
                    mediated = {where["mdevUUID"]} if "mdevUUID" in where else None
                    for one in mediated or set(where.get("members") or [where["pciAddress"]]):
                        yield one, (place, True, 0, index)
    networks = {each["name"]: each for each in spec["networks"]}
    wired = network_info.read(situation.files.get(network_info.FILE, "{}"))
    for index, each in enumerate(devices["interfaces"]):
        if "sriov" not in each or each["state"] == "absent":
            continue
        if "resourceClaim" in networks[each["name"]]:
            (text,) = [text for path, text in situation.files.items() if f"/r{index}/" in path]
            said = json.loads(text)["requests"][0]["devices"][0]["attributes"]
            for one in set(said.get("members", said[BUS_ID])["string"].split(",")):
                yield one, (2, True, 0, index)
        else:
            wire = wired.get(each["name"])
            yield (wire and wire.address) or situation.env[f"PCIDEVICE_VF_{index}"], (2, True, 0, index)


def _of_plugin(env: Any, resource: str, place: int, index: int) -> tuple[str, Key]:
    key = resource.upper().replace("/", "_").replace(".", "_")
    for kind, prefix in enumerate(("PCI_RESOURCE", "MDEV_PCI_RESOURCE")):
        if f"{prefix}_{key}" in env:
            return env[f"{prefix}_{key}"], (place, False, kind, index)
    raise AssertionError(resource)
