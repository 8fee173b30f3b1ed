"""Every selector that documents and examples show holds on every kind of device, also beside other drivers; and a selector that
does not is explained device by device."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from outfitter.api import kinds
from outfitter.api.device import DRIVER
from outfitter.api.kinds import Object
from outfitter.inventory import slices
from outfitter.inventory.assignable import AssignableDevice
from outfitter.inventory.mdev import Mdev
from outfitter.inventory.pci import FunctionKind, HostDevice
from outfitter.scheduling.explain import vm
from outfitter.scheduling.explain.cluster_objects import ClusterObjects
from outfitter.scheduling.placement import Waiting
from tests.controllers.numa_hosts import scene
from tests.controllers.scenario import Scene, addresses
from tests.rejected import Code

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md")),
             *sorted((ROOT / "examples").rglob("*.md"))]
EXAMPLES = sorted((ROOT / "examples").rglob("*.yaml"))
UUID = "4b20d080-1b54-4048-85b3-a6a62d165c01"
HOSTS = f"""
hosts:
- name: elm
  pci:
  - {{address: 0000:3b:00.0, vendor: 8086, product: 1592, class: 020000, driver: ice, vfs: {{count: 1, product: 1889}}}}
  - {{address: 0000:65:00.0, vendor: 10de, product: 2204, class: 030000}}
  - address: 0000:ca:00.0
    vendor: 10de
    product: 1eb8
    class: 030200
    driver: nvidia
    mdevTypes:
    - {{id: nvidia-231, name: GRID T4-8Q, description: framebuffer=8192M, available: 1, instances: [{UUID}]}}
"""
CONF = "device_spec: [{vendor_id: 8086}, {vendor_id: 10de}]"


def documented() -> dict[str, str]:
    """Selectors in documents and examples, and the file of each."""
    found: dict[str, str] = {}
    for path in EXAMPLES:
        found |= dict.fromkeys(expressions(list(yaml.safe_load_all(path.read_text()))), path.name)
    for path in DOCUMENTS:
        text = path.read_text()
        for block in re.findall(r"^```yaml\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
            found |= dict.fromkeys(expressions(list(yaml.safe_load_all(block))), path.name)
        prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
        found |= dict.fromkeys(re.findall(r"`(device\.[^`]* (?:==|in) [^`]*)`", prose), path.name)
    return found


def expressions(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(cel := value.get("cel"), dict):
            yield cel["expression"]
        value = list(value.values())
    for each in value if isinstance(value, list) else ():
        yield from expressions(each)


def test_no_selector_is_overlooked() -> None:
    """Each line that reads an attribute is part of a selector that is found; `why` shows an unfinished one."""
    known = " ".join(" ".join(text.split()) for text in documented())
    for path in (*EXAMPLES, *DOCUMENTS):
        for read in re.findall(r"device\.(?:attributes|capacity)\[[\"'].*?[\"']\]\.\??\w+", path.read_text()):
            assert read in known or path.name == "why.md", f"{path.name}: {read}"


def fleet(real: Sequence[Object]) -> list[Object]:
    """What simulated hosts publish, functions of every kind, a mediated device whose parent is no PCI function, and devices of
    other drivers, all on one host."""
    kinds_of = [AssignableDevice(HostDevice(
        address=f"0000:d8:01.{number}", kind=kind, vendor="15b3", product="101e", class_code="020000", revision=None,
        driver=None, parent=None, numa=None, pcie_root=None, iommu_group=None, members=(), serial=None, interfaces=(),
        name=f"of-kind-{number}"), ()) for number, kind in enumerate(FunctionKind)]
    bare = AssignableDevice(Mdev(f"{UUID[:-1]}2", "mtty-1", "", "", "mtty", None, None, None, None), ())
    others: dict[str, list[Object]] = {
        "bare.example.com": [{"name": "nothing"}],
        "gpu.nvidia.com": [{"name": "gpu-0", "attributes": {"type": {"string": "gpu"}, "kind": {"int": 1}}}],
        "mixed.example.com": [{"name": "odd", "attributes": {"vendor": {"bool": True}, f"{DRIVER}/class": {"string": "x"}},
                               "capacity": {"memory": {"value": "1Gi"}}}],
        **{driver: [{"name": "one", "attributes": {"model": {"string": "x"}}}]
           for driver in ("gpu.example.com", "vgpu.example.com", "pci-nvme.example.com")},
    }
    return [*real, published(DRIVER, slices.describe([*kinds_of, bare])),
            *(published(driver, devices) for driver, devices in others.items())]


def published(driver: str, devices: list[Object]) -> Object:
    return {"metadata": {"name": f"other-{driver}"}, "spec": {
        "driver": driver, "nodeName": "elm", "devices": devices,
        "pool": {"name": "other", "generation": 1, "resourceSliceCount": 1}}}


def rejections(cluster: ClusterObjects, expression: str) -> list[str]:
    """What is wrong with a pod that asks for all devices that a selector matches: no device is skipped."""
    class_ = {"metadata": {"name": "it"}, "spec": {"selectors": [{"cel": {"expression": expression}}]}}
    claim = {"metadata": {"name": "it", "namespace": "here", "uid": "c"}, "spec": {"devices": {"requests": [
        {"name": "it", "exactly": {"deviceClassName": "it", "allocationMode": "All"}}]}}}
    pod = {"metadata": {"name": "it", "namespace": "here", "uid": "p"}, "spec": {
        "containers": [], "resourceClaims": [{"name": "it", "resourceClaimName": "it"}]}}
    verdict = replace(cluster, classes=[class_], claims=[claim]).choose(pod)
    if not isinstance(verdict, Waiting):
        return []
    every = [*verdict.rejections, *(each for _, host in verdict.hosts for each in (*host.rejections, *host.obstacles))]
    return [f"{each.device}: {each.detail}" for each in every if each.code in (Code.SELECTOR_ERROR, Code.CLAIM_INVALID)]


async def test_a_documented_selector_has_a_result_for_every_device() -> None:
    async with scene(CONF, HOSTS) as here:
        await here.settle()
        cluster = await here.cluster_objects()
    cluster = replace(cluster, slices=fleet(cluster.slices))
    assert len(documented()) >= 10
    assert {(path, text): wrong for text, path in documented().items() if (wrong := rejections(cluster, text))} == {}
    assert rejections(cluster, f'device.attributes["{DRIVER}"].vendor == "8086"'), "the plain spelling fails on this fleet"


async def ask(here: Scene, name: str, expression: str) -> None:
    await here.create(kinds.DEVICE_CLASS, name, {"selectors": [{"cel": {"expression": expression}}]})
    await here.create(kinds.RESOURCE_CLAIM_TEMPLATE, name, {"spec": {"devices": {"requests": [
        {"name": "nic", "exactly": {"deviceClassName": name}}]}}})


async def test_a_mediated_device_has_the_ids_of_its_parent() -> None:
    """So a plain selector on ids has a result for it: who comes too late waits for the VF, not because of an error."""
    async with scene(CONF, HOSTS) as here:
        said = f'device.attributes["{DRIVER}"]'
        await ask(here, "vf", f'device.driver == "{DRIVER}" && {said}.vendor == "8086" && {said}.product == "1889"')
        await ask(here, "vgpu", f'{said}.vendor == "10de" && {said}.product == "1eb8" && {said}.class == "030200"')
        await here.machine("a", template="vf")
        assert addresses(await here.running("a")) == ["0000:3b:01.0"]
        await here.machine("b", template="vf")
        await here.rejected("b", Code.TOO_FEW_FREE, wanted=1, match=1, free=0)
        await here.machine("c", template="vgpu")
        entry = (await here.running("c"))["status"]["deviceStatus"]["hostDeviceStatuses"][0]["deviceResourceClaimStatus"]
        assert entry["attributes"]["mdevUUID"] == UUID


async def test_a_selector_without_a_result_is_explained_device_by_device() -> None:
    async with scene(CONF, HOSTS) as here:
        said = f'device.attributes["{DRIVER}"]'
        spelling = f"{said}.?serial.orValue(\"\")"
        await ask(here, "by-serial", f'{said}.kind != "VF" && {said}.serial == "1"')
        await here.machine("a", template="by-serial")
        found = await here.rejected("a", Code.SELECTOR_ERROR, missing="serial", optional=spelling)
        names = {each.device.device for each in found if each.device is not None}
        assert names == {"pci-0000-65-00-0", f"mdev-{UUID}"}, "not the VF: its result is false"
        assert spelling in await here.waits("a", "PodScheduled")
        answer = vm.instance(await here.cluster_objects(), await here.find(kinds.VMI, "a") or {})
        short, long = answer.text(), answer.text(long=True)
        assert short[0].endswith("a selector has no result for a device")
        assert spelling in short[1]
        [line] = [line for line in long if line.startswith("    ") and "CEL runtime error" in line]
        assert all(name in line for name in names)
