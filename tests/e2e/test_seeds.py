"""examples/seeds: the manifests of two design documents run as they stand there, but for the edits that its README lists, and
the product shows what the documents show: status, domain, pod and claim (`seeds/*.yaml`)."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
import yaml

from outfitter.api import conditions, kinds, versions
from outfitter.api.kinds import Kind, Object
from tests.e2e.cluster_up import CLUSTER, MODES, ClusterUp, in_mode
from tests.e2e.kubectl import Kubectl
from tests.e2e.process import ROOT, ForkedUp, Typed, Up, typed, until

SEEDS = ROOT / "examples" / "seeds"
DOCUMENTS = ("000", "001")
SHOWN = {document: yaml.safe_load((Path(__file__).parent / "seeds" / f"{document}.yaml").read_text())["machines"]
         for document in DOCUMENTS}
BESIDES = ("driver", "pool", "product")  # what a status says of a device that the documents' does not
CONVERTED = "resource.k8s.io/v1alpha3 is not served by this cluster; it is sent as resource.k8s.io/v1"
# Of a claim that kube-controller-manager made: with Kubernetes 1.36 it does not block the deletion of its pod.
CLAIM_BY_KUBERNETES = ("claim.metadata.ownerReferences[0].blockOwnerDeletion is missing",)
SPELLINGS: dict[str, Object] = {
    "as in KubeVirt": {"claimName": "pgpu-claim-name", "requestName": "pgpu-request-name"},
    "as in 000": {"claimName": "pgpu-claim-name", "deviceRequestName": "pgpu-request-name"},
    "as in 001": {"claim": {"name": "pgpu-claim-name", "request": "pgpu-request-name"}},
}


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    with ForkedUp(tmp_path / "data", simulate=str(SEEDS / "hosts.yaml")) as running:
        yield running
        assert not running.log()


@pytest.fixture(params=MODES)
def either(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Up]:
    """The product embedded, and on a cluster, which does not serve resource.k8s.io/v1alpha3: `outfit apply` converts."""
    with in_mode(request, tmp_path, simulate=str(SEEDS / "hosts.yaml")) as running:
        yield running
        if request.param == CLUSTER:
            for document in DOCUMENTS:
                typed("delete", "-f", str(SEEDS / document), kubeconfig=running.kubeconfig)
        assert not running.log()


def files(document: str) -> list[Path]:
    return sorted((SEEDS / document).glob("*.yaml"))


def gpu_file(document: str) -> Path:
    return SEEDS / document / "3-passthrough-gpu.yaml"


# -- reading


def read(up: Up, kind: Kind, namespace: str = "", name: str = "") -> Any:
    """An object, or all of a kind, as the server shows it in the kind's version."""
    async def ask() -> Any:
        async with up.store() as store:
            return await store.get(kind, name, namespace) if name else (await store.list(kind, namespace)).items

    return asyncio.run(ask())


def instance(up: Up, machine: Mapping[str, Any]) -> Object:
    namespace, _, name = machine["name"].partition("/")
    return dict(read(up, kinds.VMI, namespace, name))


def phases(up: Up) -> dict[str, str]:
    return {f"{vmi['metadata']['namespace']}/{vmi['metadata']['name']}": (vmi.get("status") or {}).get("phase", "")
            for vmi in read(up, kinds.VMI)}


# -- comparing


def differences(shown: Any, found: Any, path: str = "") -> Iterator[str]:
    """Where something found is not what is shown; it may say more. "....." in a shown text is any five letters or digits."""
    if isinstance(shown, Mapping):
        for key, value in shown.items():
            if not isinstance(found, Mapping) or key not in found:
                yield f"{path}.{key} is missing"
            else:
                yield from differences(value, found[key], f"{path}.{key}")
    elif isinstance(shown, list):
        if not isinstance(found, list) or len(found) != len(shown):
            yield f"{path} is {found}, not {shown}"
        else:
            for place, (one, other) in enumerate(zip(shown, found, strict=True)):
                yield from differences(one, other, f"{path}[{place}]")
    elif isinstance(shown, str):
        if not isinstance(found, str) or not re.fullmatch(re.escape(shown).replace(r"\.\.\.\.\.", "[a-z0-9]{5}"), found):
            yield f"{path} is {found!r}, not {shown!r}"
    elif shown != found:
        yield f"{path} is {found!r}, not {shown!r}"


def unlike(shown: ET.Element, found: ET.Element) -> list[str]:
    """The same for XML: what is shown must be there, with the same attributes and children."""
    out = [f"{shown.tag}/@{key} is {found.get(key)!r}, not {value!r}" for key, value in shown.items()
           if found.get(key) != value]
    for child in shown:
        same = [other for other in found.findall(child.tag) if not unlike(child, other)]
        out += [] if same else [f"{shown.tag} has no {ET.tostring(child, encoding='unicode').strip()}"]
    return out


def check(up: Up, machine: Mapping[str, Any]) -> None:
    """One VM is what its document shows."""
    found = instance(up, machine)
    status = found["status"].get("deviceStatus") or {}
    assert not list(differences(machine["deviceStatus"], status, "deviceStatus"))
    entries: list[Object] = [entry for entries in status.values() for entry in entries]
    more = [{key: value for key, value in entry["deviceResourceClaimStatus"].items() if key in BESIDES} for entry in entries]
    assert not list(differences([machine["besides"]] if status else [], more, "deviceStatus")), "it reports what hardware it is"
    shown = [set(entry["deviceResourceClaimStatus"]) for entries in machine["deviceStatus"].values() for entry in entries]
    assert [set(entry["deviceResourceClaimStatus"]) - set(BESIDES) for entry in entries] == shown, "and nothing else"

    namespace, _, name = machine["name"].partition("/")
    xml = up.ok("-n", namespace, "domxml", name)
    assert [each for each in up.domains().values() if each == xml] == [xml], "what runs is what is shown"
    hostdevs = ET.fromstring(xml).findall("devices/hostdev")
    assert len(hostdevs) == 1
    assert not unlike(ET.fromstring(machine["hostdev"]), hostdevs[0])

    [pod] = [pod for pod in read(up, kinds.POD, namespace) if pod["metadata"]["ownerReferences"][0]["name"] == name]
    assert not list(differences(machine.get("pod", {}), pod, "pod"))
    if "claim" in machine:
        told = [entry["resourceClaimName"] for entry in pod["status"]["resourceClaimStatuses"]]
        version = machine["claim"]["apiVersion"].rpartition("/")[2]
        if isinstance(up, ClusterUp):  # a cluster does not serve that version
            claim = versions.from_stored(kinds.RESOURCE_CLAIM, version, read(up, kinds.RESOURCE_CLAIM, namespace, told[0]))
        else:
            claim = read(up, replace(kinds.RESOURCE_CLAIM, version=version, older=()), namespace, told[0])
        other = CLAIM_BY_KUBERNETES if isinstance(up, ClusterUp) else ()
        assert not set(differences(machine["claim"], claim, "claim")).difference(other)


def device_status_writes(up: Up) -> dict[str, int]:
    """How many writes of each VM changed what is said of its devices, by the server's own history."""
    async def watch() -> dict[str, int]:
        counts: dict[str, int] = {}
        last: dict[str, Any] = {}
        async with up.store() as store:
            listed = await store.list(kinds.VMI)
            newest = max(int(vmi["metadata"]["resourceVersion"]) for vmi in listed.items)
            assert newest <= int(listed.revision)
            async for event in store.watch(kinds.VMI, since="1"):
                meta, status = event.object["metadata"], event.object.get("status") or {}
                name = f"{meta['namespace']}/{meta['name']}"
                said = (status.get("deviceStatus"), conditions.find(event.object, "DevicesReady"))
                counts[name] = counts.get(name, 0) + (said != last.get(name, (None, None)))
                last[name] = said
                if int(meta["resourceVersion"]) >= newest:
                    return counts
        raise AssertionError("the watch ended early")

    return asyncio.run(watch())


# -- the documents


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_manifest_file_by_file(either: Up, document: str) -> None:
    up, cluster = either, isinstance(either, ClusterUp)
    shown = {machine["file"]: machine for machine in SHOWN[document]}
    for file in files(document):
        done = typed("apply", "-f", str(file), kubeconfig=up.kubeconfig)
        assert done.code == 0, done.err
        warnings = [line for line in done.err.splitlines() if not (cluster and CONVERTED in line)]
        assert warnings == [], f"{file.name} is taken as it is, without a warning"
        machine = shown.get(file.name)
        if machine is None:
            continue
        if "start" in machine:
            assert machine["name"] not in phases(up), "it reports that it does not run yet"
            up.ok("vm", "start", machine["start"])
        until(lambda name=machine["name"]: phases(up).get(name) == "Running", f"{machine['name']} runs")  # type: ignore[misc]
        check(up, machine)
    if cluster:  # its history may be compacted; tests/e2e counts writes there from the audit log
        return
    writes = device_status_writes(up)
    claiming = [machine["name"] for machine in SHOWN[document] if machine["deviceStatus"]]
    assert {name: writes[name] for name in claiming if not 0 < writes[name] <= 2} == {}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_a_whole_folder_at_once(either: Up, document: str) -> None:
    """In any order of events each VM gets a device of its kind, and its own."""
    up = either
    done = typed("apply", "-f", str(SEEDS / document), kubeconfig=up.kubeconfig)
    assert done.code == 0, done.err
    for machine in SHOWN[document]:
        if "start" in machine:
            up.ok("vm", "start", machine["start"])
    names = {machine["name"] for machine in SHOWN[document]}
    until(lambda: {name for name, phase in phases(up).items() if phase == "Running"} >= names, f"{sorted(names)} run")
    got = [(result["driver"], result["pool"], result["device"]) for claim in read(up, kinds.RESOURCE_CLAIM)
           for result in claim["status"]["allocation"]["devices"]["results"]]
    assert len(got) == len(set(got)) == len(names)
    assert len(up.domains()) == len(names)


def test_the_model_that_was_given_is_the_one_of_its_host(up: Up) -> None:
    """Three hosts, two models: the status names which hardware it is."""
    up.ok("apply", "-f", str(SEEDS / "000" / "2-namespaces.yaml"), "-f", str(SEEDS / "000" / "5-one-of-two-models.yaml"))
    until(lambda: phases(up).get("gpu-test1/vmi-fedora") == "Running", "vmi-fedora runs")
    [entry] = read(up, kinds.VMI, "gpu-test1", "vmi-fedora")["status"]["deviceStatus"]["gpuStatuses"]
    given = entry["deviceResourceClaimStatus"]
    models = {"rtx-3080": "GeForce RTX 3080", "rtx-4080-0": "GeForce RTX 4080", "rtx-4080-1": "GeForce RTX 4080"}
    assert given["product"] == models[given["pool"]]
    [claim] = read(up, kinds.RESOURCE_CLAIM, "gpu-test1")
    [config] = claim["status"]["allocation"]["devices"]["config"]
    assert config["source"] == "FromClass", "what the class reports the driver reaches it with the claim"
    assert config["opaque"]["parameters"]["driverConfig"] == {"driver": "vfio-pci"}


def test_slice_is_stored_as_written(up: Up) -> None:
    file = SEEDS / "000" / "6-slice.yaml"
    up.ok("apply", "-f", str(file))
    written = yaml.load(file.read_text(), Loader=yaml.BaseLoader)  # every value as text
    old = replace(kinds.RESOURCE_SLICE, version="v1alpha3", older=())
    found = read(up, old, name=written["metadata"]["name"])
    assert found["apiVersion"] == "resource.k8s.io/v1alpha3"
    assert not list(differences(written["spec"]["devices"][0]["basic"]["attributes"]["pciAddress"],
                                found["spec"]["devices"][0]["basic"]["attributes"]["pciAddress"], "pciAddress"))
    assert found["spec"]["pool"] == {"generation": 0, "name": "kind-1.31-dra-control-plane", "resourceSliceCount": 1}


def test_status_written_by_a_user_is_not_trusted(up: Up) -> None:
    """The document shows the status in the manifest. Whoever sends it does not get the device that it names."""
    *rest, machine = yaml.safe_load_all(gpu_file("000").read_text())
    claimed = {"name": "gpu-7", "resourceClaimName": "x", "attributes": {"pciAddress": "0000:ff:00.0"}}
    machine["status"] = {"deviceStatus": {"gpuStatuses": [{"name": "pgpu", "deviceResourceClaimStatus": claimed}]}}
    up.ok("apply", "-f", "-", stdin=yaml.safe_dump_all([*rest, machine]))
    until(lambda: phases(up).get("default/vm-cirros") == "Running", "vm-cirros runs")
    check(up, SHOWN["000"][0])


def test_three_spellings_mean_the_same(either: Up) -> None:
    up = either
    for spelling, words in SPELLINGS.items():
        *rest, machine = yaml.safe_load_all(gpu_file("000").read_text())
        machine["spec"]["domain"]["devices"]["gpus"] = [{"name": "pgpu", **words}]
        up.ok("apply", "-f", "-", stdin=yaml.safe_dump_all([*rest, machine]))
        until(lambda: phases(up).get("default/vm-cirros") == "Running", f"vm-cirros, {spelling}, runs")
        check(up, SHOWN["000"][0])
        assert instance(up, SHOWN["000"][0])["spec"] == machine["spec"], "what a user wrote stays as it was written"
        up.ok("delete", "vmi", "vm-cirros")


def test_a_resource_that_nothing_stands_for_is_waited_for_with_a_reason(up: Up) -> None:
    """As Kubernetes has it; and once a class maps the name the VM runs."""
    class_, machine = yaml.safe_load_all((SEEDS / "000" / "4-by-resource-name.yaml").read_text())
    up.ok("apply", "-f", "-", stdin=yaml.safe_dump(machine))
    until(lambda: "nvidia.com/GP102GL_Tesla_P40" in up.ok("why", "vmi-gpu"), "the reason names the resource")
    assert phases(up) == {"default/vmi-gpu": "Scheduling"}
    up.ok("apply", "-f", "-", stdin=yaml.safe_dump(class_))
    until(lambda: phases(up) == {"default/vmi-gpu": "Running"}, "vmi-gpu runs")
    assert "0000:af:00.0" in up.ok("devices")
    up.ok("delete", "vmi", "vmi-gpu")
    until(lambda: not up.ok("get", "resourceclaims,pods", "-o", "name"), "its claim goes with it")


# -- gates


def closed(up: Up, names: Sequence[str]) -> None:
    developer = {"featureGates": [], "disabledFeatureGates": list(names)}
    body = {"apiVersion": "kubevirt.io/v1", "kind": "KubeVirt", "metadata": {"name": "kubevirt", "namespace": "default"},
            "spec": {"configuration": {"developerConfiguration": developer}}}
    up.ok("apply", "-f", "-", stdin=yaml.safe_dump(body))


def refused(up: Up, file: Path) -> Typed:
    done = typed("apply", "-f", str(file), kubeconfig=up.kubeconfig)
    assert done.code == 1
    assert "feature gate is not enabled" in done.err
    assert not phases(up)
    return done


def test_gates_of_both_documents(up: Up) -> None:
    """On: taken. Off: refused, with the name of the gate and the name by which it was closed."""
    disk = SEEDS / "001" / "9-host-device.yaml"
    closed(up, ["GPUsWithDRA"])
    assert "list GPUsWithDRA in spec.configuration" in refused(up, gpu_file("000")).err
    up.ok("apply", "-f", str(disk))
    up.ok("delete", "vm", "vm-cirros-nvme")
    closed(up, ["HostDevicesWithDRA"])
    assert "list HostDevicesWithDRA in spec.configuration" in refused(up, disk).err
    for name in ("DynamicResourceAllocation", "DRADevices"):
        closed(up, [name])
        assert f"{name} in disabledFeatureGates disables it; list GPUsWithDRA" in refused(up, gpu_file("001")).err
        assert f"{name} in disabledFeatureGates disables it; list HostDevicesWithDRA" in refused(up, disk).err
    for document in DOCUMENTS:
        up.ok("apply", "-f", str(SEEDS / document / "1-gates.yaml"))
        up.ok("apply", "-f", str(gpu_file(document)))
        until(lambda: phases(up).get("default/vm-cirros") == "Running", "vm-cirros runs")
        closed(up, ["GPUsWithDRA"])
        assert phases(up) == {"default/vm-cirros": "Running"}, "who runs keeps what he has"
        up.ok("delete", "vmi", "vm-cirros")


# -- kubectl, and the table


@pytest.mark.kubectl
@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_manifest_with_kubectl(up: Up, document: str) -> None:
    kubectl = Kubectl(up)
    shown = {machine["file"]: machine for machine in SHOWN[document]}
    for file in files(document):
        assert "created" in kubectl("apply", "-f", str(file))
        machine = shown.get(file.name)
        if machine is not None:
            namespace, _, name = machine["name"].partition("/")
            if "start" in machine:
                up.ok("vm", "start", machine["start"])
                until(lambda name=machine["name"]: name in phases(up), f"{machine['name']} is there")  # type: ignore[misc]
            kubectl("-n", namespace, "wait", f"vmi/{name}", "--for=jsonpath={.status.phase}=Running", "--timeout=300s")
            check(up, machine)
    assert "unchanged" in kubectl("apply", "-f", str(SEEDS / document / "6-slice.yaml"))
    alpha = kubectl("-n", "gpu-test2", "get", "resourceclaims.v1alpha3.resource.k8s.io", "-o", "yaml")
    assert "deviceClassName: gpu.example.com" in alpha


def test_readme_lists_every_file() -> None:
    table = (SEEDS / "README.md").read_text()
    for document in DOCUMENTS:
        for file in files(document):
            assert f"[{document}/{file.name}]({document}/{file.name})" in table


def test_readme_commands_run_in_order(up: Up) -> None:
    lines = re.findall(r"^outfit ((?!up\b)[^#\n]*)", (SEEDS / "README.md").read_text(), re.MULTILINE)
    assert len(lines) >= 10
    for line in lines:
        until(lambda line=line: typed(*line.split(), kubeconfig=up.kubeconfig).code == 0, line)  # type: ignore[misc]
    until(lambda: not up.ok("get", "vm,vmi,pods,resourceclaims", "-A", "-o", "name"), "nothing is left")
