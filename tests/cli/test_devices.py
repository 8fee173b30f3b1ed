"""Seeing devices and taking them out of service, at a server: two hosts that are alike, a VM with a virtual function and
one with a disk that is for one use."""

from __future__ import annotations

import asyncio
import json
import re
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from outfitter.api import kinds
from outfitter.api.device import DRIVER
from outfitter.store.clock import SystemClock
from outfitter.store.kube import Kube
from tests import kubernetes
from tests.e2e.process import EXAMPLE, ForkedUp, Typed, Up, typed, until

Say = Callable[..., Typed]

HOST = """
- name: {name}
  numa: [{{id: 0, cpus: "0-3", memory: 8Gi}}, {{id: 1, cpus: "4-7", memory: 8Gi}}]
  pci:
  - {{address: "0000:3b:00.0", vendor: "8086", product: "1592", class: "020000", driver: ice, numa: 0, pcieRoot: "pci0000:3a",
     vfs: {{count: 6, total: 64, product: "1889"}}}}
  - {{address: "0000:5e:00.0", vendor: 144d, product: a80a, class: "010802", driver: nvme, numa: 1, pcieRoot: "pci0000:5d",
     serial: S64}}
"""
DISKS = "- {vendor_id: 144d, product_id: a80a, resource_class: nvme, one_time_use: true}\n"
VFS = '- {address: "0000:3b:00.0", product_id: "1889"}\n'
SETTINGS = f"""
report_in_placement: true
device_spec:
{VFS}{DISKS}
hosts:
  right: {{device_spec: [{{address: "0000:3b:00.0", product_id: "1889", traits: fast}}]}}
"""
WITHOUT_VFS = f"report_in_placement: true\ndevice_spec:\n{DISKS}"
STORE = """
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: disk}
spec: {selectors: [{cel: {expression: 'device.attributes["pci.outfitter.dev"].vendor == "144d"'}}]}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: wiped}
spec: {devices: {requests: [{name: disk, exactly: {deviceClassName: disk}}]}}
---
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata: {name: store}
spec:
  resourceClaims: [{name: d, resourceClaimName: wiped}]
  domain: {devices: {hostDevices: [{name: disk0, claimName: d, requestName: disk}]}}
"""
VF, DISK = "pci-0000-3a-3b-00-0-vf{}", "pci-0000-5d-5e-00-0"
TIME = r"(?:\d{4}-\d\d-\d\d )?\d\d:\d\d"  # with the day if that is not today
CLAIM = r"virt-launcher-blue-\w+-network-\w+"
HELD = rf"held by vmi/blue \(claim {CLAIM}\) in default since {TIME}"


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    folder = tmp_path_factory.mktemp("devices")
    (folder / "hosts.yaml").write_text("hosts:" + HOST.format(name="left") + HOST.format(name="right"))
    (folder / "settings.yaml").write_text(SETTINGS)
    words = ("--config", str(folder / "settings.yaml"))
    with ForkedUp(folder / "data", *words, simulate=str(folder / "hosts.yaml")) as running:
        running.ok("apply", "-f", str(EXAMPLE / "1-class.yaml"), "-f", str(EXAMPLE / "2-blue.yaml"))
        running.ok("apply", "-f", "-", stdin=STORE)
        until(lambda: (running.phase("blue"), running.phase("store")) == ("Running", "Running"), "both run")
        yield running


@pytest.fixture
def say(up: Up) -> Say:
    def run(*words: str, code: int = 0) -> Typed:
        done = typed(*words, kubeconfig=up.kubeconfig)
        assert done.code == code, f"outfit {' '.join(words)}: {done}"
        assert code or not done.err
        return done

    return run


def rows(text: str) -> dict[str, list[str]]:
    """The cells of a table by its second column, and by node where that is not enough."""
    found = {}
    for line in text.partition("\n\n")[0].splitlines()[1:]:
        node, device, *cells = re.split(r" {3,}", line)
        found[f"{node}/{device}"] = cells
    return found


# -- devices

def test_a_table_of_devices(say: Say) -> None:
    out = say("devices").out
    assert out.splitlines()[0].split() == ["NODE", "DEVICE", "ADDRESS", "KIND", "PRODUCT", "NUMA", "STATE"]
    found = rows(out)
    assert list(found) == [*(f"left/{VF.format(number)}" for number in range(6)), f"left/{DISK}",
                           *(f"right/{VF.format(number)}" for number in range(6))]
    address, kind, _, numa, state = found[f"right/{VF.format(0)}"]
    assert (address, kind, numa, state) == ("0000:3b:01.0", "VF", "0", "free")
    assert re.fullmatch(HELD, found[f"left/{VF.format(0)}"][-1])
    assert re.fullmatch(rf"held by vmi/store \(claim wiped\) in default since {TIME}; must be cleaned after use",
                        found[f"left/{DISK}"][-1])
    assert out.splitlines()[-1] == "13 devices: 11 free, 2 held (1 unclean); 3 not offered (--all shows why)"


def test_what_is_not_offered_is_shown_when_asked_for(say: Say) -> None:
    out = say("devices", "--all", "--node", "right").out
    found = rows(out)
    assert found[f"right/{DISK}"] == ["0000:5e:00.0", "PCI", "144d:a80a", "1",
                                      "not offered: it is listed by no entry of device_spec"]
    assert out.splitlines()[-1] == "6 devices: 6 free; 2 not offered"
    withheld = say("devices", "--state", "withheld").out
    assert list(rows(withheld)) == [f"left/{VF.format(0).removesuffix('-vf0')}", f"right/{VF.format(0).removesuffix('-vf0')}",
                                    f"right/{DISK}"]
    assert withheld.endswith("\n3 of 16 devices\n")


def test_states_add_up(say: Say) -> None:
    assert list(rows(say("devices", "--state", "held", "--state", "reserved").out)) == [f"left/{VF.format(0)}", f"left/{DISK}"]
    assert list(rows(say("devices", "--state", "unclean").out)) == [f"left/{DISK}"]
    assert say("devices", "--node", "right", "--state", "held", "--state", "vanished").out == (
        "No device of right is held or vanished (6 devices: 6 free, 2 not offered).\n")
    assert json.loads(say("devices", "--state", "quarantined", "-o", "json").out) == []


def test_wide_has_more_columns(say: Say) -> None:
    head, *lines = say("devices", "-o", "wide", "--node", "left").out.splitlines()
    assert re.split(r" {3,}", head)[6:] == ["DRIVER", "GROUP", "MEMBERS", "PCIE ROOT", "PARENT", "CLASS", "TRAITS", "NETWORK",
                                            "SERIAL", "SINCE", "PUBLISHED BY", "STATE"]
    disk = re.split(r" {3,}", next(line for line in lines if DISK in line))
    assert disk[9:15] == ["pci0000:5d", "-", "CUSTOM_NVME", "HW_PCI_ONE_TIME_USE", "-", "S64"]
    assert re.fullmatch(r"20\d\d-\S+Z", disk[15])


def test_a_tree_of_devices(say: Say) -> None:
    lines = say("devices", "-o", "tree").out.splitlines()
    assert lines[0] == "left  7 devices: 5 free, 2 held (1 unclean); 1 not offered"
    assert lines[2] == "|  `- 0000:3b:00.0  PF  8086:1592  not offered: it is listed by no entry of device_spec"
    assert re.fullmatch(rf"\|     \|- vf0  0000:3b:01.0  VF  .*  {HELD}", lines[3])
    assert re.fullmatch(r"\|     `- vf1..vf5  0000:3b:01.1..0000:3b:01.5  VF  .*  5 free", lines[4])
    assert lines[5] == "`- NUMA node 1"
    assert lines[-1] == "13 devices: 11 free, 2 held (1 unclean); 3 not offered"


def test_devices_for_programs(say: Say) -> None:
    found = {(one["node"], one["name"]): one for one in json.loads(say("devices", "-o", "json").out)}
    assert len(found) == 13
    assert len(json.loads(say("devices", "-o", "json", "--all").out)) == 16
    disk = found["left", DISK]
    assert (disk["address"], disk["serial"], disk["numa"], disk["resourceClass"], disk["traits"]) == (
        "0000:5e:00.0", "S64", 1, "CUSTOM_NVME", ["HW_PCI_ONE_TIME_USE"])
    assert (disk["state"], disk["states"], disk["offered"], disk["uuid"]) == ("held", ["held", "unclean"], True, None)
    assert (disk["holders"][0]["purpose"], disk["holders"][0]["state"]) == ("vmi/store", "prepared")
    assert disk["since"] == disk["holders"][0]["booked"]


def test_an_unknown_node(say: Say) -> None:
    for words in (["devices"], ["providers"]):
        assert say(*words, "--node", "middle", code=1).err == (
            "error: there is no node 'middle' with devices; there are left, right\n")


WRONG: dict[str, tuple[list[str], int, str]] = {
    "an unknown state": (["devices", "--state", "busy"], 2, "'busy' is not one of 'free', 'held'"),
    "an unknown format": (["devices", "-o", "yaml"], 2, "'yaml' is not one of 'table', 'wide', 'tree', 'json'"),
    "no device": (["device", "reserve"], 2, "Missing argument '[NODE/]DEVICE...'"),
    "no verb": (["device"], 2, "Usage: outfit device"),
    "an unknown verb": (["device", "steal", "x"], 2, "No such command 'steal'"),
    "a reason where none is kept": (["device", "clear", "x", "--reason", "y"], 2, "No such option"),
    "a name that is there twice": (["device", "reserve", VF.format(1)], 1,
                                   f"write one of: left/{VF.format(1)}, right/{VF.format(1)}\n"),
    "nearly a name": (["device", "reserve", f"left/{VF.format(9)}"], 1,
                      f"there is no device 'left/{VF.format(9)}'; similar: left/pci-0000-3a-3b-00-0-vf"),
    "a device of no node": (["device", "reserve", "middle/x"], 1,
                            "there is no node 'middle' with devices; there are left, right"),
    "one that is not offered": (["device", "reserve", f"right/{DISK}"], 1,
                                f"right/{DISK} is not offered and cannot be reserved: it is listed by no entry of device_spec"),
    "history without a known name": (["history"], 2, "Missing argument '[NODE/]DEVICE'"),
    "history of an unknown device": (["history", "qq"], 1, "there is no device 'qq'; outfit devices lists them"),
    "history of what is no name": (["history", "a b"], 1, "there is no device 'a b'"),
    "providers with a negative number": (["providers", "reserve", "p", "--", "-1"], 2, "-1 is not in the range x>=0"),
    "an unknown provider": (["providers", "reserve", "p", "1"], 1, "there is no provider 'p'; there are left_0000:3B:00.0, "),
    "an unknown class": (["providers", "reserve", "left_0000:3B:00.0", "1", "--class", "VCPU"], 1,
                         "provider left_0000:3B:00.0 has no VCPU; it has CUSTOM_PCI_8086_1889"),
    "more than there are": (["providers", "reserve", "left_0000:3B:00.0", "7"], 1, "write a number from 0 to 6"),
}


@pytest.mark.parametrize("name", WRONG)
def test_mistake_is_reported_and_changes_nothing(say: Say, name: str) -> None:
    words, code, says = WRONG[name]
    before = say("get", "pages,providertrees", "-o", "json").out
    assert says in say(*words, code=code).err
    assert say("get", "pages,providertrees", "-o", "json").out == before


# -- device

def test_reserve_and_unreserve(say: Say) -> None:
    one = f"right/{VF.format(2)}"
    assert say("device", "reserve", "right/0000:3b:01.2", "right/3b:01.2", "--reason", "for tests").out == f"{one} reserved\n"
    assert re.fullmatch(rf"reserved by admin since {TIME}: for tests", rows(say("devices").out)[one][-1])
    assert re.fullmatch(rf"{one} was reserved by admin since {TIME} \(for tests\) already\n", say("device", "reserve", one).out)
    assert say("device", "reserve", one, "--reason", "more").out.endswith(" (for tests) already; the reason is changed\n")
    assert say("device", "unreserve", one).out == f"{one} unreserved\n"
    assert say("device", "unreserve", one).out == f"{one} is not reserved\n"
    assert rows(say("devices").out)[one][-1] == "free"


def test_quarantine_and_restore(say: Say) -> None:
    one = f"right/{VF.format(3)}"
    assert say("device", "quarantine", one, "--reason", "hot").out == f"{one} quarantined\n"
    assert say("device", "reserve", one).out == f"{one} reserved\n"
    assert list(rows(say("devices", "--state", "quarantined").out)) == [one]
    assert say("device", "restore", one).out == f"{one} restored; it is still reserved\n"
    assert say("device", "restore", one).out == f"{one} is not quarantined\n"
    assert say("device", "unreserve", one).out == f"{one} unreserved\n"


def test_a_held_device_is_reserved_for_later(say: Say) -> None:
    one = f"left/{VF.format(0)}"
    told = say("device", "reserve", one).out
    assert re.fullmatch(rf"{one} reserved; this takes effect when it is free: it is {HELD}\n", told)
    assert re.fullmatch(rf"{HELD}; reserved by admin since {TIME}", rows(say("devices").out)[one][-1])
    say("device", "unreserve", one)


def test_clear_is_refused_while_it_is_held_and_then_nothing_is_cleared(say: Say) -> None:
    done = say("device", "clear", f"right/{VF.format(1)}", f"left/{DISK}", code=1)
    assert done.out == ""
    assert done.err.startswith(f"error: left/{DISK} is held by vmi/store (claim wiped) in default since ")
    assert say("device", "clear", f"right/{VF.format(1)}").out == f"right/{VF.format(1)} needs no cleaning\n"


# -- providers

def test_providers(say: Say) -> None:
    head, *lines = (re.split(r" {3,}", line) for line in say("providers").out.splitlines())
    assert head == ["PROVIDER", "CLASS", "TOTAL", "RESERVED", "USED", "FREE", "TRAITS", "USED BY"]
    assert [line[:6] for line in lines] == [
        ["left_0000:3B:00.0", "CUSTOM_PCI_8086_1889", "6", "0", "1", "5"],
        ["left_0000:5E:00.0", "CUSTOM_NVME", "1", "1", "1", "0"],
        ["right_0000:3B:00.0", "CUSTOM_PCI_8086_1889", "6", "0", "0", "6"]]
    assert lines[2][6:] == ["COMPUTE_MANAGED_PCI_DEVICE,CUSTOM_FAST", "-"]
    assert re.fullmatch(rf"vmi/blue \(claim {CLAIM}\) in default", lines[0][7])
    assert say("providers", "--node", "right", "-o", "tree").out == (
        "right\n`- right_0000:3B:00.0  CUSTOM_PCI_8086_1889 6 free of 6  COMPUTE_MANAGED_PCI_DEVICE CUSTOM_FAST\n")
    [one] = json.loads(say("providers", "--node", "right", "-o", "json").out)
    assert one.keys() == {"node", "name", "uuid", "parent", "generation", "traits", "configured", "devices", "inventories",
                          "holders"}
    assert (one["node"], one["parent"], one["configured"]) == ("right", "right", ["CUSTOM_FAST"])
    assert one["inventories"]["CUSTOM_PCI_8086_1889"] == {
        "total": 6, "reserved": 0, "used": 0, "free": 6, "min_unit": 1, "max_unit": 6, "step_size": 1, "allocation_ratio": 1.0}


def test_a_provider_keeps_some_out(say: Say) -> None:
    name, first = "right_0000:3B:00.0", f"right/{VF.format(0)}"
    assert say("providers", "reserve", name, "2").out == f"{name}: 2 of 6 CUSTOM_PCI_8086_1889 reserved (was 0)\n"
    assert say("providers", "reserve", name, "2", "--class", "CUSTOM_PCI_8086_1889").out.endswith("reserved already\n")
    assert list(rows(say("devices", "--state", "reserved").out)) == [first, f"right/{VF.format(1)}"]
    assert re.search(rf"{name} +CUSTOM_PCI_8086_1889 +6 +2 +0 +4 ", say("providers").out)
    assert say("device", "unreserve", first, code=1).err == (
        f"error: {first} is reserved because its provider has reserved devices, and another device would be reserved instead; "
        f"change the number with: outfit providers reserve {name} N\n")
    assert say("providers", "reserve", name, "0").out == f"{name}: 0 of 6 CUSTOM_PCI_8086_1889 reserved (was 2)\n"
    assert say("devices", "--state", "reserved").out.startswith("No device is reserved (13 devices")


# -- history, and how it goes on: in this order

def test_history_of_what_stands(say: Say) -> None:
    out = say("history", f"left/{DISK}").out.splitlines()
    assert out[0].split() == ["HOLDER", "FOR", "REQUEST", "BOOKED", "PREPARED", "ENDED", "LASTED", "HOW"]
    assert re.fullmatch(rf"claim default/wiped +vmi/store +disk +{TIME} +{TIME} +now +\S+ +prepared", out[1])
    assert out[-1] == (f"left/{DISK}: 1 booking, 1 of them now; ended bookings are kept for history.keep (90 days "
                       "by default), at most 10000 per host")
    nothing = say("history", f"right/{VF.format(5)}").out
    assert nothing.startswith(f"right/{VF.format(5)}: no booking is recorded; ended bookings are kept for ")
    assert json.loads(say("history", f"right/{VF.format(5)}", "-o", "json").out) == []


def test_a_device_for_one_use_is_unclean_until_it_is_cleared(say: Say) -> None:
    say("delete", "vmi", "store")
    say("delete", "resourceclaim", "wiped")
    assert rows(say("devices").out)[f"left/{DISK}"][-1] == (
        f"unclean: used once by vmi/store (claim wiped) in default; outfit device clear left/{DISK}")
    [past] = json.loads(say("history", f"left/{DISK}", "-o", "json").out)
    assert past.keys() == {"host", "device", "pool", "publishedBy", "holder", "request", "amount", "booked", "prepared",
                           "ended", "how", "state"}
    assert (past["holder"]["purpose"], past["how"], past["state"]) == ("vmi/store", "released", None)
    assert past["booked"] <= past["prepared"] <= past["ended"]
    assert re.search(rf"claim default/wiped .* {TIME} +\S+ +released\n", say("history", f"left/{DISK}").out)
    assert say("device", "clear", DISK, code=1).err.endswith(f"write one of: left/{DISK}, right/{DISK}\n")
    assert say("device", "clear", f"left/{DISK}").out == f"left/{DISK} cleared\n"
    assert rows(say("devices").out)[f"left/{DISK}"][-1] == "free"


def test_a_device_that_is_no_longer_listed(up: Up, say: Say) -> None:
    (up.home / "settings.yaml").write_text(WITHOUT_VFS)
    up.stop()
    up.start()
    out = say("devices").out
    assert list(rows(out)) == [f"left/{VF.format(0)}", f"left/{DISK}", f"right/{DISK}"]
    assert re.fullmatch(f"unlisted, {HELD}", rows(out)[f"left/{VF.format(0)}"][-1])
    assert "3 devices: 2 free, 1 held (1 unlisted); 13 not offered (--all shows why)" in out
    assert list(rows(say("devices", "--state", "unlisted").out)) == [f"left/{VF.format(0)}"]
    say("delete", "vmi", "blue")
    until(lambda: f"left/{VF.format(0)}" not in rows(say("devices").out), "it is no longer published")
    assert "released" in say("history", f"left/{VF.format(0)}").out


def test_without_providers_the_setting_to_enable_is_named(tmp_path: Path) -> None:
    with ForkedUp(tmp_path / "plain" / "data", simulate="1x1") as plain:
        done = typed("providers", kubeconfig=plain.kubeconfig)
        assert done == Typed(0, "No provider is reported: set report_in_placement to true in the file of outfit up --config; "
                                "see docs/configuration.md.\n", "")
        assert "report_in_placement" in typed("providers", "reserve", "p", "1", kubeconfig=plain.kubeconfig).err
        assert json.loads(typed("providers", "-o", "json", kubeconfig=plain.kubeconfig).out) == []


@pytest.mark.cluster
def test_on_a_real_api_server(cluster: kubernetes.Cluster) -> None:
    """Slices of another driver, without a process that would answer for the host."""
    name = f"h{uuid.uuid4().hex[:8]}"
    parts = {"metadata": {"name": name}, "spec": {
        "driver": DRIVER, "nodeName": name, "pool": {"name": name, "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": f"vf{number}", "attributes": {"kind": {"string": "VF"}}} for number in range(2)]}}

    async def publish() -> None:
        store = Kube(cluster.access(), clock=SystemClock())
        try:
            await store.create(kinds.RESOURCE_SLICE, parts)
        finally:
            await store.close()

    asyncio.run(publish())
    assert typed("device", "reserve", f"{name}/vf0", kubeconfig=cluster.kubeconfig_token).out == f"{name}/vf0 reserved\n"
    done = typed("devices", "--node", name, kubeconfig=cluster.kubeconfig)
    assert (done.code, done.err) == (0, "")
    assert re.search(rf"vf0 .* reserved by \S+ since {TIME}\n", done.out)
    assert done.out.endswith("\n2 devices: 1 free, 1 reserved\n")
    assert "no booking is recorded" in typed("history", f"{name}/vf1", kubeconfig=cluster.kubeconfig).out
    lost = typed("devices", "--node", f"{name}x", kubeconfig=cluster.kubeconfig)
    assert (lost.code, f"there is no node '{name}x' with devices; there are " in lost.err) == (1, True)
