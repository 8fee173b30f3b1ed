"""What outfit config check says of aliases: which devices each matches on a host, or why none."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.config_command import HOSTS, shown, table


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


ON = "report_in_placement: true\npci_in_placement: true\n"
GPUS = "- {vendor_id: 10de, product_id: 2204, resource_class: gpu, traits: [ampere]}\n- {vendor_id: 10de, product_id: 1aef}\n"
BY_IDS = "alias: [{name: a, vendor_id: 10de, product_id: 2204}]\n"
CARD = ("hosts: [{name: net-a, pci: [{address: 0000:3b:00.0, vendor: 8086, product: 1592, class: 020000, driver: ice, "
        "vfs: {count: 0, total: 8, product: 1889}}]}]")  # with VFs the PF would not be offered
# An alias, with what it is written and what is said below it; on gpu-a, or on net-a if there is a NIC in it.
ALIAS_MATCHES: dict[str, tuple[str, list[str]]] = {
    "by ids": (f"device_spec:\n{GPUS}{BY_IDS}", ["matches 2 devices, free or not: 0000:65:00.0, 0000:b1:00.0"]),
    "by ids, of devices in another class": (f"{ON}device_spec:\n{GPUS}{BY_IDS}", [
        "matches nothing; the nearest is 0000:65:00.0, which is a CUSTOM_GPU, not a CUSTOM_PCI_10DE_2204"]),
    "by class": (f"{ON}device_spec:\n{GPUS}alias: [{{name: a, resource_class: gpu, traits: ampere}}]", [
        "matches 2 devices, free or not: 0000:65:00.0, 0000:b1:00.0"]),
    "by class, with a trait that is forbidden": (
        f"{ON}device_spec:\n{GPUS}alias: [{{name: a, resource_class: gpu, traits: '!ampere'}}]", [
            "matches nothing; the nearest is 0000:65:00.0, which has trait CUSTOM_AMPERE, which is not wanted"]),
    "of hosts that report nothing": (f"pci_in_placement: true\ndevice_spec:\n{GPUS}{BY_IDS}", [
        "matches nothing; the nearest is 0000:65:00.0, which is on no provider, and the alias asks Placement"]),
    "of a PF, without saying so": (
        "device_spec: [{product_id: 1592}]\nalias: [{name: a, vendor_id: 8086, product_id: 1592}]", [
            "matches nothing; the nearest is 0000:3b:00.0, which is a physical function, which is given only to an alias with "
            "device_type type-PF"]),
    "of many devices": ("device_spec: [{product_id: 1889}]\nalias: [{name: a, vendor_id: 8086, product_id: 1889}]", [
        "matches 8 devices, free or not: 0000:3b:01.0, 0000:3b:01.1, 0000:3b:01.2, 0000:3b:01.3, 0000:3b:01.4 and 3 more"]),
    "where nothing is offered": (f"device_spec: []\n{BY_IDS}", ["matches nothing: the host offers no PCI function"]),
}


@pytest.mark.parametrize("name", ALIAS_MATCHES)
def test_what_an_alias_matches(name: str) -> None:
    conf, says = ALIAS_MATCHES[name]
    Path("card.yaml").write_text(CARD)
    text = shown(conf, "--simulate", "card.yaml" if "PF" in name else HOSTS, "--host", "net-a" if "8086" in conf else "gpu-a")
    assert table(text, "  alias a: ") == says
    lonely = "warning: alias a matches no device of this host: a VM that asks for it waits" in text
    assert lonely == says[0].startswith("matches nothing")
    useless = ("  warning: alias a matches no device with ids 10de:2204: with pci_in_placement an alias without resource_class "
               "asks for CUSTOM_PCI_10DE_2204, and device_spec gives them CUSTOM_GPU; write resource_class: CUSTOM_GPU in the "
               "alias")
    assert (useless in text.splitlines()) == ("another class" in name)


def test_the_nearest_device_is_one_of_the_vendor() -> None:
    Path("mixed.yaml").write_text(
        "hosts: [{name: elm, pci: [{address: 0000:3b:00.0, vendor: 8086, product: 1521, class: 020000}, "
        "{address: 0000:65:00.0, vendor: 10de, product: 2236, class: 030200}]}]")
    conf = "device_spec: [{vendor_id: 8086}, {vendor_id: 10de}]\nalias: [{name: a, vendor_id: 10de, product_id: 9999}]"
    assert table(shown(conf, "--simulate", "mixed.yaml"), "  alias a: ") == [
        "matches nothing; the nearest is 0000:65:00.0, which has the ids 10de:2236, not 10de:9999"]


def test_an_alias_of_one_host_is_not_missed_on_the_others() -> None:
    conf = f"device_spec:\n{GPUS}{BY_IDS.rstrip()[:-1]}, {{name: b, vendor_id: 1af4, product_id: 1000}}]"
    text = shown(conf, "--simulate", HOSTS)
    assert [line for line in text.splitlines() if line.startswith("warning")] == [
        "warning: alias b matches no device of these 2 hosts: a VM that asks for it waits"]


def test_keys_of_one_host_without_effect() -> None:
    text = shown(f"{BY_IDS}hosts: {{gpu-a: {{alias: [], pci_in_placement: true}}, net-a: {{report_in_placement: true}}}}",
                 "--simulate", HOSTS)
    assert [line.partition(":")[2].split()[0] for line in text.splitlines() if "has no effect" in line] == [
        "hosts.gpu-a.alias", "hosts.gpu-a.pci_in_placement"]
    assert "pci_in_placement is on" not in text
