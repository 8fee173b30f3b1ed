"""A DRA driver of others (make judges): kubernetes-sigs/dra-example-driver beside our roles on a real control plane, called by
a real kubelet. kube-scheduler allocates its GPUs to VMs, the kubelet has it prepare them for launcher pods, and its CDI devices
are in the launcher's container. Its devices have no address: a VM that would pass one to its guest waits with the reason, and
starts once an admission policy of the cluster adds the address."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from outfitter.api import conditions, kinds
from outfitter.api.kinds import Object
from outfitter.errors import NotFound
from outfitter.ledger import book
from outfitter.store.clock import SystemClock
from outfitter.store.kube import Kube
from tests import kubernetes
from tests.cluster_roles import ClusterRoles
from tests.controllers.scenario import connections_closed
from tests.e2e.process import ROOT, outfit
from tests.node.kubelet import driver_host, example_driver, fake_runtime, real_kubelet
from tests.node.kubelet.example_driver import DRIVER, ExampleDriver
from tests.node.kubelet.process_runtime import ProcessRuntime
from tests.node.kubelet.real_kubelet import Kubelet

pytestmark = pytest.mark.judges
NODE = "node-a"
ADDRESS = "resource.kubernetes.io/pciBusID"
PATIENCE = 300.0
PAGE = (ROOT / "docs" / "drivers.md").read_text()
WITHOUT_ADDRESS = "has neither a PCI address nor a mediated device's UUID"


@pytest.fixture(scope="module")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[kubernetes.Cluster]:
    if missing := real_kubelet.why_not():
        pytest.skip(missing)
    with kubernetes.Cluster(tmp_path_factory.mktemp("control-plane"), scheduler=True, controllers=True, learn=()) as running:
        yield running


@dataclass
class Judged:
    roles: ClusterRoles
    store: Kube
    kubelet: Kubelet
    runtime: ProcessRuntime
    driver: ExampleDriver

    async def until(self, what: str, look: Callable[[], Awaitable[Any]]) -> Any:
        try:
            async with asyncio.timeout(PATIENCE):
                while not (answer := await look()):
                    self.kubelet.check()
                    self.driver.check()
                    await asyncio.sleep(0.1)
                return answer
        except TimeoutError:
            raise AssertionError("\n".join([
                f"not {what}", self.roles.logs(), self.runtime.logs(), self.driver.log.read_text()[-3000:], self.kubelet.tail(),
                *(json.dumps(vmi) for vmi in (await self.store.list(kinds.VMI)).items)])) from None

    async def vmi(self, name: str, *, guest: bool = True) -> None:
        """A VMI with a claim on a GPU; `guest`: which is a device of the guest."""
        gpus = {"gpus": [{"name": "gpu", "claimName": "mine", "requestName": "gpu"}]} if guest else {}
        await self.store.create(kinds.VMI, {"metadata": {"name": name, "namespace": "default"}, "spec": {
            "terminationGracePeriodSeconds": 1, "resourceClaims": [{"name": "mine", "resourceClaimTemplateName": "one-gpu"}],
            "domain": {"memory": {"guest": "32Mi"}, "devices": gpus}}})

    async def read(self, name: str) -> Object:
        return await self.store.get(kinds.VMI, name, "default")

    async def phase(self, name: str, phase: str) -> Object:
        async def look() -> Object | None:
            vmi = await self.read(name)
            return vmi if (vmi.get("status") or {}).get("phase") == phase else None

        found: Object = await self.until(f"{name} is {phase}", look)
        return found

    async def pod_and_claim(self, name: str) -> tuple[Object, Object]:
        """The launcher pod of a VMI once it runs, and its claim."""
        async def look() -> Object | None:
            pods = (await self.store.list(kinds.POD, "default")).items
            return next((pod for pod in pods if pod["metadata"]["annotations"].get("kubevirt.io/domain") == name
                         and (pod.get("status") or {}).get("phase") == "Running"), None)

        pod: Object = await self.until(f"the pod of {name} runs", look)
        [made] = pod["status"]["resourceClaimStatuses"]
        return pod, await self.store.get(kinds.RESOURCE_CLAIM, made["resourceClaimName"], "default")

    async def deleted(self, name: str, claim: Object) -> None:
        """Delete a VMI; its claim is unprepared by the driver, and its device is free."""
        await self.store.delete(kinds.VMI, name, "default")

        async def gone() -> bool:
            try:
                await self.read(name)
            except NotFound:
                return not self.prepared(claim) and not (await book.read(self.store, NODE)).bookings
            return False

        await self.until(f"{name} is gone", gone)

    def prepared(self, claim: Object) -> list[str]:
        """The CDI files that the driver wrote for a claim."""
        return [path.name for path in self.driver.prepared(claim["metadata"]["uid"])]

    def apply(self, manifests: str) -> None:
        done = self.roles.cluster.kubectl("apply", "-f", "-", stdin=manifests)
        assert done.returncode == 0, done.stderr

    async def published(self) -> list[Object]:
        slices = (await self.store.list(kinds.RESOURCE_SLICE)).items
        return [device for part in slices if part["spec"]["driver"] == DRIVER for device in part["spec"]["devices"]]

    async def addresses_published(self) -> None:
        """A policy holds for what is written after the API server read it: slices are deleted until they have addresses."""
        async def look() -> bool:
            devices = await self.published()
            if devices and not all(ADDRESS in device["attributes"] for device in devices):
                words = ("delete", "resourceslices", "--field-selector", f"spec.driver={DRIVER}")
                await asyncio.to_thread(self.roles.cluster.kubectl, *words)
                return False
            return bool(devices)

        await self.until("addresses are published", look)

    def type(self, *words: str) -> str:
        done = outfit(*words, home=self.roles.folder, kubeconfig=self.roles.cluster.kubeconfig)
        return done.stdout + done.stderr


def policy() -> str:
    """The admission policy of the documentation."""
    [found] = re.findall(r"^```yaml\n(.*?MutatingAdmissionPolicyBinding.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return str(found)


def device_of(claim: Object) -> str:
    [result] = claim["status"]["allocation"]["devices"]["results"]
    assert (result["driver"], result["pool"]) == (DRIVER, NODE)
    return str(result["device"])


@pytest.fixture
async def judged(control_plane: kubernetes.Cluster) -> AsyncIterator[Judged]:
    definitions, found = fake_runtime.published_cri(), example_driver.program()
    if definitions is None or found is None:
        pytest.skip("needs scripts/kubelet-protos and scripts/dra-example-driver, which fetch and build")
    store = Kube(control_plane.access(), clock=SystemClock())
    with driver_host.short_folder() as folder:
        kubelet_folder, cdi = folder / "kubelet", folder / "cdi"
        (kubelet_folder / "plugins_registry").mkdir(parents=True)
        cdi.mkdir()
        roles = ClusterRoles(control_plane, folder / "roles")
        await asyncio.to_thread(roles.install)
        runtime = ProcessRuntime(folder / "cri.sock", definitions, folder / "c", cdi)
        kubelet = Kubelet(control_plane, NODE, kubelet_folder, runtime.socket)
        await runtime.start()
        kubelet.start()
        driver = ExampleDriver(found, control_plane.kubeconfig, NODE, kubelet_folder, cdi)
        driver.start()
        judged = Judged(roles, store, kubelet, runtime, driver)
        try:
            await judged.until("a Node", lambda: _ready(store))
            access = await asyncio.to_thread(roles.agent_kubeconfig, NODE)
            controller = roles.start("controller", "--launcher-hypervisor", "simulated")
            node = roles.start("node", "--node-name", NODE, "--kubelet-dir", str(kubelet_folder), kubeconfig=access)
            await asyncio.to_thread(controller.ready)
            await asyncio.to_thread(node.ready)
            yield judged
            assert roles.forbidden() == []
        finally:
            roles.stop()
            driver.stop()
            kubelet.stop()
            await runtime.stop()
            await store.close()
    await connections_closed()


async def _ready(store: Kube) -> bool:
    try:
        return conditions.is_true(await store.get(kinds.NODE, NODE), "Ready")
    except NotFound:
        return False


async def published(judged: Judged) -> list[Object]:
    """The devices that the driver publishes, and a class and a template for them."""
    devices: list[Object] = await judged.until("its devices are published", judged.published)
    await judged.store.create(kinds.DEVICE_CLASS, {"metadata": {"name": DRIVER}, "spec": {"selectors": [
        {"cel": {"expression": f'device.driver == "{DRIVER}"'}}]}})
    await judged.store.create(kinds.RESOURCE_CLAIM_TEMPLATE, {"metadata": {"name": "one-gpu", "namespace": "default"}, "spec": {
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": DRIVER}}]}}}})
    return devices


async def test_vms_with_devices_of_the_example_driver(judged: Judged) -> None:
    assert sorted(device["name"] for device in await published(judged)) == ["gpu-0", "gpu-1"]

    # A claim that no device of the guest refers to: prepared for the pod, and the VM runs.
    await judged.vmi("beside", guest=False)
    await judged.phase("beside", "Running")
    _, claim = await judged.pod_and_claim("beside")
    assert judged.prepared(claim)
    [booking] = (await book.read(judged.store, NODE)).bookings
    assert (booking.device.driver, booking.device.device) == (DRIVER, device_of(claim))
    await judged.deleted("beside", claim)

    # A device of the guest: in the launcher's container, and the VM waits with the reason.
    await judged.vmi("guest")
    pod, claim = await judged.pod_and_claim("guest")
    name, uid = device_of(claim), claim["metadata"]["uid"]
    kind = f"k8s.{DRIVER}/gpu"
    assert judged.runtime.cdi_devices()["compute"] == [f"{kind}=common", f"{kind}={uid}-{name}"]
    env = judged.runtime.environment(pod["metadata"]["name"])
    number = name.rpartition("-")[2]
    assert (env[f"GPU_DEVICE_{number}"], env["DRA_RESOURCE_DRIVER_NAME"]) == (name, DRIVER)

    async def reported() -> Mapping[str, Any] | None:
        return conditions.find(await judged.read("guest"), "DevicesReady")

    ready = await judged.until("the reason is reported", reported)
    assert (ready["status"], ready["reason"]) == ("False", "WaitingForDevices")
    assert f"device {name} of {DRIVER} {WITHOUT_ADDRESS}" in ready["message"]
    vmi = await judged.read("guest")
    assert vmi["status"]["phase"] == "Scheduled"
    [entry] = vmi["status"]["deviceStatus"]["gpuStatuses"]
    assert entry["deviceResourceClaimStatus"] == {
        "name": name, "resourceClaimName": claim["metadata"]["name"], "driver": DRIVER, "pool": NODE,
        "product": "LATEST-GPU-MODEL", "attributes": {}}
    assert WITHOUT_ADDRESS in await asyncio.to_thread(judged.type, "why", "vmi/guest")
    assert name in await asyncio.to_thread(judged.type, "devices")

    # The address is added by the cluster's administrator, as docs/drivers.md shows it: the VM runs with its device.
    await asyncio.to_thread(judged.apply, policy())
    await judged.addresses_published()
    vmi = await judged.phase("guest", "Running")
    [entry] = vmi["status"]["deviceStatus"]["gpuStatuses"]
    assert entry["deviceResourceClaimStatus"]["attributes"] == {"pciAddress": f"0000:65:0{number}.0"}
    assert (entry["deviceResourceClaimStatus"]["name"], entry["deviceResourceClaimStatus"]["driver"]) == (name, DRIVER)
    assert conditions.is_true(vmi, "DevicesReady")
    await judged.deleted("guest", claim)
