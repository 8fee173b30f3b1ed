"""Devices of claims of every shape, on a real control plane where kube-scheduler allocates and kube-controller-manager creates
the claims of templates: VMs that have them migrate, and a VM that runs gets them plugged, migrates and has them unplugged. The
test types kubectl and reads. `tests/controllers/test_migration_claims.py` has the shapes with our scheduler."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import pytest

from outfitter.api.kinds import Object
from tests import kubernetes
from tests.e2e.cluster_up import ClusterUp
from tests.e2e.kubectl import Kubectl
from tests.e2e.process import until

pytestmark = [pytest.mark.kubectl, pytest.mark.cluster]
SOURCE, TARGET = "node-0", "node-1"
OWN, OTHER = "pci.outfitter.dev", "fpga.example.com"  # OTHER: a driver whose devices are published by hand
CARD, WHOLE, BEST, PLAIN = "2235", "2236", "2237", "2238"  # products; WHOLE: a request takes all of them
PRODUCTS = {SOURCE: [CARD] * 6 + [WHOLE] * 2 + [PLAIN] * 2,
            TARGET: [CARD] * 6 + [WHOLE] * 3 + [BEST] + [PLAIN] * 2}  # more of WHOLE, and a better one than PLAIN
CLASSES = {"card": CARD, "whole": WHOLE, "best": BEST, "plain": PLAIN}
API = "resource.k8s.io/v1"


class Shape(NamedTuple):
    requests: list[Object]
    devices: Mapping[str, tuple[str, ...]]  # request -> products (or the driver) that the VM has, before and after
    own: bool = False  # the claim is of the VM's own resourceClaimTemplates


def exactly(name: str, class_: str, **more: Any) -> Object:
    return {"name": name, "exactly": {"deviceClassName": class_, **more}}


SHAPES = {
    "template": Shape([exactly("card", "card")], {"card": (CARD,)}),
    "own": Shape([exactly("card", "card")], {"card": (CARD,)}, own=True),
    "two": Shape([exactly("pair", "card", count=2)], {"pair": (CARD, CARD)}),
    "all": Shape([exactly("whole", "whole", allocationMode="All")], {"whole": (WHOLE, WHOLE)}),
    "first": Shape([{"name": "either", "firstAvailable": [
        {"name": "best", "deviceClassName": "best"}, {"name": "plain", "deviceClassName": "plain"}]}], {"either": (PLAIN,)}),
    "drivers": Shape([exactly("ours", "card"), exactly("theirs", "fpga")], {"ours": (CARD,), "theirs": (OTHER,)}),
}
EVERYTHING = [exactly(name, name, allocationMode="All") for name in ("card", "whole", "plain")]  # of our driver, on SOURCE


def hosts() -> str:
    """A hosts file, which is YAML, and so JSON."""
    return json.dumps({"hosts": [{
        "name": host, "numa": [{"id": 0, "cpus": "0-15", "memory": "64Gi"}],
        "pci": [{"address": f"0000:{number:02x}:00.{bus}", "vendor": "10de", "product": product, "class": "030200"}
                for number, product in enumerate(products, 16)]} for bus, (host, products) in enumerate(PRODUCTS.items())]})


CONFIG = json.dumps({"device_spec": [
    {"vendor_id": "10de", "product_id": product, "live_migratable": "yes"} for product in CLASSES.values()]})


def classes() -> Iterator[Object]:
    for name, product in CLASSES.items():
        expression = f'device.driver == "{OWN}" && device.attributes["{OWN}"].product == "{product}"'
        yield named("DeviceClass", name, {"selectors": [{"cel": {"expression": expression}}]}, API)
    yield named("DeviceClass", "fpga", {"selectors": [{"cel": {"expression": f'device.driver == "{OTHER}"'}}]}, API)


def published() -> Iterator[Object]:
    """Two devices of another driver on each host, which their driver marks."""
    for number, host in enumerate((SOURCE, TARGET)):
        devices = [{"name": f"fpga-{index}", "attributes": {
            "liveMigratable": {"bool": True}, "resource.kubernetes.io/pciBusID": {"string": f"0000:e{index}:00.{number}"}}}
            for index in range(2)]
        yield named("ResourceSlice", f"fpga-{host}", {
            "driver": OTHER, "nodeName": host, "devices": devices,
            "pool": {"name": host, "generation": 1, "resourceSliceCount": 1}}, API)


def named(kind: str, name: str, spec: Object, version: str = "kubevirt.io/v1") -> Object:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec}


def requests_of(name: str) -> list[Object]:
    return SHAPES[name].requests if name in SHAPES else EVERYTHING


def claim_spec(name: str) -> Object:
    return {"spec": {"devices": {"requests": requests_of(name)}}}


def vm(name: str, *shapes: str, **more: Any) -> Object:
    """With a host device for each request of these shapes."""
    machine: Object = named("VirtualMachine", name, {"runStrategy": "Always"})
    spec: Object = {"domain": {"memory": {"guest": "64Mi"}, "devices": {}}, **more}
    machine["spec"]["template"] = {"spec": spec}
    change = vm_change(*shapes)["spec"]
    if shapes:
        spec["resourceClaims"] = change["template"]["spec"]["resourceClaims"]
        spec["domain"]["devices"] = change["template"]["spec"]["domain"]["devices"]
        machine["spec"]["resourceClaimTemplates"] = change["resourceClaimTemplates"]
    return machine


def vm_change(*shapes: str) -> Object:
    """What a VM has of these shapes, for a merge patch."""
    own = [name for name in shapes if name in SHAPES and SHAPES[name].own]
    return {"spec": {
        "resourceClaimTemplates": [{"name": name, "spec": claim_spec(name)} for name in own],
        "template": {"spec": {
            "resourceClaims": [{"name": name, "resourceClaimTemplateName": name} for name in shapes if name not in own],
            "domain": {"devices": {"hostDevices": [
                {"name": f"{name}-{request['name']}", "claimName": name, "requestName": request["name"]}
                for name in shapes for request in requests_of(name)]}}}}}}


class Site:
    def __init__(self, up: ClusterUp) -> None:
        self.up, self.kubectl = up, Kubectl(up)

    def apply(self, *objects: Object) -> None:
        self.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)}))

    def get(self, *words: str) -> Any:
        return json.loads(self.kubectl("get", *words, "-o", "json"))

    def vmis(self, host: str, *names: str) -> dict[str, Any] | None:
        """The VMIs, when all of these run on a host and can migrate."""
        found = {vmi["metadata"]["name"]: vmi for vmi in self.get("vmi")["items"] if vmi["metadata"]["name"] in names}
        there = [name for name, vmi in found.items() if (vmi.get("status") or {}).get("phase") == "Running"
                 and vmi["status"]["nodeName"] == host and condition(vmi, "LiveMigratable").get("status") == "True"]
        return found if sorted(there) == sorted(names) else None

    def patch(self, name: str, *shapes: str) -> None:
        """A VM is to have the devices of these shapes from now on."""
        self.kubectl("patch", "vm", name, "--type=merge", "-p", json.dumps(vm_change(*shapes)))

    def plugged(self, name: str, host: str, *shapes: str) -> Any:
        """The VMI, when it runs on a host and its status has the devices of these shapes and no other."""
        vmi = self.get("vmi", name)
        entries = (vmi["status"].get("deviceStatus") or {}).get("hostDeviceStatuses") or ()
        attached = all((entry.get("hotplugDevice") or {"phase": "Attached"}).get("phase") == "Attached" for entry in entries)
        wanted = {f"{shape}-{request}" for shape in shapes for request in SHAPES[shape].devices}
        there = vmi["status"]["nodeName"] == host and {entry["name"] for entry in entries} == wanted and attached
        return vmi if there and all(entry["deviceResourceClaimStatus"]["pool"] == host for entry in entries) else None

    def migrate(self, *names: str) -> None:
        self.apply(*(named("VirtualMachineInstanceMigration", f"move-{name}", {"vmiName": name}) for name in names))

    def jobs(self, *names: str) -> dict[str, Any]:
        found = {job["spec"]["vmiName"]: job for job in self.get("vmim")["items"]}
        return {name: found[name] for name in names}

    def succeeded(self, *names: str) -> bool:
        jobs = self.jobs(*names).values()
        ended = [job.get("status") or {} for job in jobs if (job.get("status") or {}).get("phase") in ("Succeeded", "Failed")]
        assert all(status["phase"] == "Succeeded" for status in ended), ended
        return len(ended) == len(names)

    def products(self) -> dict[tuple[str, str, str], str]:
        """Driver, host and name of each published device -> its product, or the driver if it has none."""
        return {(spec["driver"], spec["pool"]["name"], device["name"]):
                (device["attributes"].get("product") or {}).get("string", spec["driver"])
                for spec in (each["spec"] for each in self.get("resourceslices")["items"]) for device in spec["devices"]}

    def held(self) -> Counter[tuple[str, str]]:
        """Host and holder of each booking."""
        return Counter((page["metadata"]["name"], booking["holder"].get("purpose", ""))
                       for page in self.get("ledgerpages")["items"] for booking in page["spec"].get("bookings") or ())

    def check(self, vmi: Any, host: str, *shapes: str) -> None:
        """Its status and its domain have the devices of these shapes, all of this host, and no other."""
        products = self.products()
        entries = vmi["status"]["deviceStatus"]["hostDeviceStatuses"]
        have: dict[str, list[str]] = {}
        for entry in entries:
            status = entry["deviceResourceClaimStatus"]
            assert status["pool"] == host
            have.setdefault(entry["name"], []).append(products[status["driver"], status["pool"], status["name"]])
        assert have == {f"{name}-{request}": list(wanted) for name in shapes
                        for request, wanted in SHAPES[name].devices.items()}
        [xml] = [xml for key, xml in self.up.domains().items()
                 if key.startswith(vmi["metadata"]["uid"]) and key.endswith("xml")]
        for entry in entries:
            address = entry["deviceResourceClaimStatus"]["attributes"]["pciAddress"]
            assert f'bus="0x{address[5:7]}" slot="0x{address[8:10]}" function="0x{address[11]}"' in xml, address
        assert xml.count("<hostdev ") == len(entries)


def condition(obj: Any, type_: str) -> Any:
    return next((one for one in (obj.get("status") or {}).get("conditions") or () if one["type"] == type_), {})


@pytest.fixture(scope="module")
def running(control_plane: kubernetes.Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("shapes")
    hosts_file, settings = folder / "hosts.yaml", folder / "config.yaml"
    hosts_file.write_text(hosts())
    settings.write_text(CONFIG)
    with ClusterUp(control_plane, folder, "--config", str(settings), simulate=str(hosts_file)) as up:
        found = Site(up)
        parallel = {"parallelMigrationsPerCluster": 10, "parallelOutboundMigrationsPerNode": 10}
        templates = [named("ResourceClaimTemplate", name, claim_spec(name), API) for name in (*SHAPES, "everything")
                     if name not in SHAPES or not SHAPES[name].own]
        found.apply(named("KubeVirt", "kubevirt", {"configuration": {"migrations": parallel}}), *classes(), *published(),
                    *templates)
        yield found
        found.kubectl("delete", "kubevirt", "--all")


@pytest.fixture
def site(running: Site) -> Iterator[Site]:
    """Both tests share the processes."""
    yield running
    running.kubectl("delete", "vmim,vm", "--all", "--wait=false")
    until(lambda: not running.get("pods,resourceclaims")["items"] and not running.held(), "nothing is left")
    assert not running.up.log()


def test_vms_with_claims_of_every_shape_migrate(site: Site) -> None:
    """All from one host to the other. Then their devices are held there, and each migration back says per device."""
    site.kubectl("cordon", TARGET)
    site.apply(*(vm(name, name) for name in SHAPES))
    vmis = until(lambda: site.vmis(SOURCE, *SHAPES), "all run on the first host")
    assert vmis is not None
    for name in SHAPES:
        site.check(vmis[name], SOURCE, name)
    site.kubectl("uncordon", TARGET)
    site.migrate(*SHAPES)
    until(lambda: site.succeeded(*SHAPES), "all have migrated")
    vmis = until(lambda: site.vmis(TARGET, *SHAPES), "all run on the other host")
    assert vmis is not None
    devices = {name: sum(map(len, SHAPES[name].devices.values())) for name in SHAPES}
    for name in SHAPES:
        site.check(vmis[name], TARGET, name)
    until(lambda: site.held() == Counter({(TARGET, f"vmi/{name}"): number for name, number in devices.items()}),
          "the devices of the source are free, those of the target are the VMs'")
    until(lambda: len(site.get("resourceclaims")["items"]) == len(SHAPES), "the first claims are gone")
    claims = {claim["metadata"]["name"]: claim for claim in site.get("resourceclaims")["items"]}
    specs = {name: claims[vmis[name]["status"]["deviceStatus"]["hostDeviceStatuses"][0]["deviceResourceClaimStatus"][
        "resourceClaimName"]] for name in SHAPES}
    assert {owner["kind"] for owner in specs["own"]["metadata"]["ownerReferences"]} == {"VirtualMachine"}
    body = specs["all"]["spec"]["devices"]["requests"][0]["exactly"]
    assert (body["allocationMode"], body["count"]) == ("ExactCount", 2)

    site.kubectl("delete", "vmim", "--all")
    site.apply(vm("green", "everything", nodeSelector={"kubernetes.io/hostname": SOURCE}))
    until(lambda: site.held()[SOURCE, "vmi/green"] == len(PRODUCTS[SOURCE]), "green has all of our devices of the first host")
    held = site.held()
    site.migrate(*SHAPES)
    until(lambda: all(condition(job, "migrationDevices").get("reason") == "NoFreeTwin" for job in site.jobs(*SHAPES).values()),
          "all wait for devices")
    for name, job in site.jobs(*SHAPES).items():
        message = condition(job, "migrationDevices")["message"]
        for request, products in SHAPES[name].devices.items():
            becomes = "travels" if products == (OTHER,) else "cannot travel now (NoFreeTwin: "
            assert f"{name}-{request}: {becomes}" in message, message
        assert "held by vmi/green" in message
        assert condition(job, "migrationWaiting")["reason"] == "TargetUnschedulable"
    assert site.held() == held
    site.kubectl("delete", "vmim", "--all")
    until(lambda: len(site.get("resourceclaims")["items"]) == len(SHAPES) + 1, "the claims of the targets are gone")
    assert site.vmis(TARGET, *SHAPES), "all run where they were"
    assert site.held() == held


def test_devices_of_every_shape_are_plugged_into_a_running_vm(site: Site) -> None:
    """All of them into one VM, which migrates with them, and loses one after the other."""
    site.kubectl("cordon", TARGET)
    site.apply(vm("blue"))
    until(lambda: site.vmis(SOURCE, "blue"), "blue runs on the first host")
    site.patch("blue", *SHAPES)
    vmi = until(lambda: site.plugged("blue", SOURCE, *SHAPES), "all are plugged")
    site.check(vmi, SOURCE, *SHAPES)
    pods = site.get("pods", "-l", "kubevirt.io=hotplug-claim")["items"]
    assert len(pods) == len(SHAPES)
    assert {pod["spec"]["nodeName"] for pod in pods} == {SOURCE}
    site.kubectl("uncordon", TARGET)
    until(lambda: site.vmis(SOURCE, "blue"), "it can migrate")
    site.migrate("blue")
    until(lambda: site.succeeded("blue"), "it has migrated")
    vmi = until(lambda: site.plugged("blue", TARGET, *SHAPES), "it has them there")
    site.check(vmi, TARGET, *SHAPES)
    number = sum(len(products) for shape in SHAPES.values() for products in shape.devices.values())
    until(lambda: site.held() == Counter({(TARGET, "vmi/blue"): number}), "the devices of the source are free")
    until(lambda: not site.get("pods", "-l", "kubevirt.io=hotplug-claim")["items"], "the pods that held them are gone")

    site.patch("blue", "all", "drivers")
    vmi = until(lambda: site.plugged("blue", TARGET, "all", "drivers"), "the others are unplugged")
    site.check(vmi, TARGET, "all", "drivers")
    site.patch("blue", "two", "all", "drivers")
    vmi = until(lambda: site.plugged("blue", TARGET, "two", "all", "drivers"), "the pair is plugged again")
    site.check(vmi, TARGET, "two", "all", "drivers")
    site.patch("blue")
    until(lambda: not site.get("vmi", "blue")["status"].get("deviceStatus"), "all are unplugged")
