"""The product on the host in a VM: `outfit up`, one machine with a device of every kind, and what becomes
of both when outfitter or QEMU is killed. Every claim of the product is held against the kernel's own word."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from outfitter.api.kubevirt import device_status
from tests.e2e.process import OwnForkedUp
from tests.hardware import embed, guest, kernel
from tests.hardware.steps import Report, expect

PATIENCE = 480.0  # everything is emulated twice
ROOT = Path("/run/lv")  # of libvirt; a short name
ADDRESS, UUID = "resource.kubernetes.io/pciBusID", "mdevUUID"

CLASS = """
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: any}
spec: {selectors: [{cel: {expression: device.driver == "pci.outfitter.dev"}}]}
"""
RESOURCE = "hardware.example/%s"  # the name of a class's devices as a resource
NAMED = """---
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: %s}
spec: {extendedResourceName: %s, selectors: [{cel: {expression: '%s'}}]}
"""
REQUEST = """
      - name: %s
        exactly: {deviceClassName: any, selectors: [{cel: {expression: '%s'}}]}"""
OURS = 'device.attributes["pci.outfitter.dev"]'


def wait(check: Callable[[], bool], what: str) -> None:
    """Ask once a second: whoever asks takes the processor from whoever should answer."""
    end = time.monotonic() + PATIENCE
    while not check():
        if time.monotonic() > end:
            raise TimeoutError(f"not within {PATIENCE:g} s: {what}")
        time.sleep(1.0)


def kind_is(kind: str, product: str = "") -> str:
    return f'{OURS}.kind == "{kind}"' + (f' && {OURS}.product == "{product}"' if product else "")


def manifest(name: str, wishes: dict[str, str], gpus: tuple[str, ...], named: tuple[str, ...] = ()) -> str:
    """A VM with one device for each request, and the claim from which it gets them; `named` are those that it asks for by the
    names of resources."""
    requests = "".join(REQUEST % (wish, how) for wish, how in wishes.items() if wish not in named)
    classes = "".join(NAMED % (wish, RESOURCE % wish, wishes[wish]) for wish in named)
    lists = {"gpus": [wish for wish in wishes if wish in gpus], "hostDevices": [wish for wish in wishes if wish not in gpus]}
    devices = {list_: [{"name": wish, "deviceName": RESOURCE % wish} if wish in named else
                       {"name": wish, "claimName": "all", "requestName": wish} for wish in names]
               for list_, names in lists.items()}
    return f"""{CLASS}{classes}---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {{name: {name}}}
spec:
  spec:
    devices:
      requests:{requests}
---
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata: {{name: {name}}}
spec:
  terminationGracePeriodSeconds: 0
  resourceClaims: [{{name: all, resourceClaimTemplateName: {name}}}]
  domain: {{memory: {{guest: 64Mi}}, devices: {json.dumps(devices)}}}
"""


CARD_MAC, CARD_VLAN = "02:00:00:00:77:01", "77"
CARDS = f"""---
apiVersion: k8s.cni.cncf.io/v1
kind: NetworkAttachmentDefinition
metadata: {{name: fast, annotations: {{k8s.v1.cni.cncf.io/resourceName: {RESOURCE % 'nic'}}}}}
spec: {{config: '{{"type": "sriov", "vlan": {CARD_VLAN}}}'}}
---
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata: {{name: cyan}}
spec:
  terminationGracePeriodSeconds: 0
  networks: [{{name: fast, multus: {{networkName: fast}}}}, {{name: default, pod: {{}}}}]
  domain:
    memory: {{guest: 64Mi}}
    devices:
      interfaces: [{{name: fast, sriov: {{}}, macAddress: "{CARD_MAC}"}}, {{name: default, masquerade: {{}}}}]
"""


HOT_MAC, HOT_VLAN = "02:00:00:00:78:01", "78"
HOT = f"""---
apiVersion: k8s.cni.cncf.io/v1
kind: NetworkAttachmentDefinition
metadata: {{{{name: hot, annotations: {{{{k8s.v1.cni.cncf.io/resourceName: {RESOURCE % 'nic'}}}}}}}}}
spec: {{{{config: '{{{{"type": "sriov", "vlan": {HOT_VLAN}}}}}'}}}}
---
apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata: {{{{name: pink}}}}
spec:
  runStrategy: Always
  template:
    spec:
      terminationGracePeriodSeconds: 0
      volumes: [{{{{name: root, hostDisk: {{{{path: {{disk}}, type: Disk}}}}}}}}]
      networks: [{{{{name: default, pod: {{{{}}}}}}}}]
      domain:
        memory: {{{{guest: 64Mi}}}}
        devices:
          disks: [{{{{name: root, disk: {{{{bus: virtio}}}}}}}}]
          interfaces: [{{{{name: default, masquerade: {{{{}}}}}}}}]
"""


PLUGGED = """---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {{name: hot-{name}}}
spec: {{spec: {{devices: {{requests: [{{name: one, exactly: {{deviceClassName: any, selectors: [
  {{cel: {{expression: '{how}'}}}}]}}}}]}}}}}}
"""
TEAL = """---
apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata: {{name: teal}}
spec:
  runStrategy: Always
  template:
    spec:
      terminationGracePeriodSeconds: 0
      volumes: [{{name: root, hostDisk: {{path: {disk}, type: Disk}}}}]
      domain:
        memory: {{guest: 64Mi}}
        devices:
          disks: [{{name: root, disk: {{bus: virtio}}}}]
"""


class Story:
    def __init__(self, report: Report, folder: Path, config: str) -> None:
        """`config` is the configuration file's text; without any, what is bound to vfio-pci is offered."""
        self.report = report
        words = ["--hypervisor", embed.uri(ROOT), "-v"]
        folder.mkdir(parents=True)
        if config:
            (folder / "outfitter.yaml").write_text(config)
            words += ["--config", str(folder / "outfitter.yaml")]
        self.up = OwnForkedUp(folder / "data", *words, simulate=None, patience=PATIENCE)

    def offered(self) -> set[str]:
        """Addresses and UUIDs in the slices."""
        slices = json.loads(self.up.ok("get", "resourceslices", "-o", "json"))["items"]
        found = [device["attributes"] for one in slices for device in one["spec"].get("devices", ())]
        return {(each.get(ADDRESS) or each.get(UUID))["string"] for each in found}

    def offers(self, wanted: set[str]) -> None:
        """It publishes these and no others, soon."""
        with contextlib.suppress(TimeoutError):
            wait(lambda: self.offered() == wanted, "what is offered")
        expect(self.offered(), wanted, "what is offered")

    def instance(self, name: str) -> Any:
        return json.loads(self.up.ok("get", "vmi", name, "-o", "json"))

    def _reach(self, name: str, phase: str) -> Any:
        def there() -> bool:
            now = self.instance(name)
            if now.get("status", {}).get("phase") in ("Failed", "Succeeded") and phase == "Running":
                raise AssertionError(f"{name} ended: {now['status'].get('conditions')}")
            return bool(now.get("status", {}).get("phase") == phase)

        try:
            wait(there, f"{name} is {phase}")
        except (TimeoutError, AssertionError):
            print(self.up.ok("get", "vmi,pods,resourceclaims,events", "-o", "yaml"), self.up.log())
            raise
        return self.instance(name)

    def run(self, name: str, wishes: dict[str, str], gpus: tuple[str, ...] = (), **named: list[str]) -> dict[str, str]:
        """Start a VM; what it got, by request: each is with vfio-pci, and QEMU has it open. `named`: requests for a device by
        the name of a resource, with the functions that may be meant; the status reports them too."""
        self.up.ok("apply", "-f", "-", stdin=manifest(name, wishes, gpus, tuple(named)))
        status = self._reach(name, "Running")["status"]["deviceStatus"]
        entries = [*status.get("gpuStatuses", ()), *status.get("hostDeviceStatuses", ())]
        found = {each["name"]: where[1] for each in entries if (where := device_status.address_of(each)) is not None}
        expect(sorted(found), sorted(wishes), "devices in the status")
        expect([wish for wish, functions in named.items() if found[wish] not in functions], [], "devices of another resource")
        opened = kernel.groups_of(self.qemu(name))
        for wish, device in found.items():
            if device.count(":") == 2:
                expect(kernel.driver(device), "vfio-pci", f"the driver of {device}, which {name} has as {wish}")
        expect(sorted(opened), sorted(map(kernel.group, found.values())), "the IOMMU groups that QEMU has open")
        return found

    def run_with_card(self, parent: str) -> str:
        """Start a VM whose network card is a virtual function of `parent`, by a network that another VM's class
        serves; which it is. While the parent is switched off the VM waits, and reports it."""
        name = kernel.interface(parent)
        kernel.switch(name, "down")
        self.up.ok("apply", "-f", "-", stdin=CARDS)
        wait(lambda: f"ip link set {name} up" in self.up.ok("why", "vmi/cyan"), "it says what to do")
        kernel.switch(name, "up")
        cards = self._reach("cyan", "Running")["status"]["interfaces"]
        expect([each["name"] for each in cards], ["fast", "default"], "cards in the status")
        pods = json.loads(self.up.ok("get", "pods", "-o", "json"))["items"]
        [meta] = [pod["metadata"] for pod in pods if pod["metadata"]["name"].startswith("virt-launcher-cyan-")]
        told = json.loads(meta["annotations"]["k8s.v1.cni.cncf.io/network-status"])
        address = str(told[0]["device-info"]["pci"]["pci-address"])
        expect(sorted(kernel.groups_of(self.qemu("cyan"))), [kernel.group(address)], "the IOMMU groups that QEMU has open")
        expect(kernel.set_on(parent, address), (CARD_MAC, CARD_VLAN), f"MAC address and VLAN of {address}")
        return address

    def plug_a_card(self, parent: str) -> str:
        """Plug a virtual function into a VM that runs, and out of it again; which it was. While it is plugged it has a MAC
        address and a VLAN."""
        self.up.ok("apply", "-f", "-", stdin=HOT.format(disk=guest.image(ROOT)))
        self._reach("pink", "Running")
        expect(kernel.groups_of(self.qemu("pink")), [], "the IOMMU groups that QEMU has open")
        self.up.ok("vm", "nic", "add", "pink", "hot", "--network", "hot", "--mac", HOT_MAC, "--wait", "--timeout",
                   f"{PATIENCE:.0f}")
        [row] = [line for line in self.up.ok("vm", "nic", "list", "pink").splitlines() if line.startswith("hot ")]
        address = row.split()[-1]
        expect(sorted(kernel.groups_of(self.qemu("pink"))), [kernel.group(address)], "the IOMMU groups that QEMU has open")
        expect(kernel.set_on(parent, address), (HOT_MAC, HOT_VLAN), f"MAC address and VLAN of {address}")
        self.up.ok("vm", "nic", "remove", "pink", "hot", "--wait", "--timeout", f"{PATIENCE:.0f}")
        expect(kernel.groups_of(self.qemu("pink")), [], "the IOMMU groups that QEMU has open")
        self.free("pink's card")
        return address

    def plug_devices(self, wishes: dict[str, str], gpus: tuple[str, ...]) -> None:
        """Plug a device for each request into a VM that runs, by a claim, and all of them out of it again."""
        templates = "".join(PLUGGED.format(name=wish, how=how) for wish, how in wishes.items())
        self.up.ok("apply", "-f", "-", stdin=CLASS + templates + TEAL.format(disk=guest.image(ROOT)))
        self._reach("teal", "Running")
        expect(kernel.groups_of(self.qemu("teal")), [], "the IOMMU groups that QEMU has open")
        limit = ("--wait", "--timeout", f"{PATIENCE:.0f}")
        for wish in wishes:
            self.up.ok("vm", "device", "add", "teal", wish, "--template", f"hot-{wish}",
                       *(["--gpu"] if wish in gpus else []), *limit)
        status = self.instance("teal")["status"]["deviceStatus"]
        entries = [*status.get("gpuStatuses", ()), *status.get("hostDeviceStatuses", ())]
        found = {each["name"]: where[1] for each in entries if (where := device_status.address_of(each)) is not None}
        expect(sorted(found), sorted(wishes), "devices in the status")
        expect({kernel.driver(address) for address in found.values()}, {"vfio-pci"}, "drivers")
        expect(sorted(kernel.groups_of(self.qemu("teal"))), sorted(map(kernel.group, found.values())),
               "the IOMMU groups that QEMU has open")
        self.up.ok("vm", "device", "remove", "teal", *wishes, *limit)
        expect(kernel.groups_of(self.qemu("teal")), [], "the IOMMU groups that QEMU has open")
        self.free("teal's devices")

    def delete_vm(self, name: str) -> None:
        qemu = self.qemu(name)
        self.up.ok("delete", "vm", name)
        wait(lambda: not Path(f"/proc/{qemu}").exists(), f"{name} is off")
        self.free(name)

    def qemu(self, name: str) -> int:
        return embed.pid(ROOT, f"default_{name}")

    def free(self, *names: str) -> None:
        """Nothing is held."""
        def nothing() -> bool:
            pages = json.loads(self.up.ok("get", "ledgerpages", "-o", "json"))["items"]
            return not any(page["spec"].get("bookings") for page in pages)

        wait(nothing, f"what {', '.join(names)} had is free")

    def delete(self, name: str) -> None:
        qemu = self.qemu(name)
        self.up.ok("delete", "vmi", name)
        wait(lambda: not Path(f"/proc/{qemu}").exists(), f"{name} is off")
        self.free(name)

    def restart_by_kill(self, name: str) -> None:
        """kill -9 of outfitter: the VM goes on and is adopted."""
        qemu, before = self.qemu(name), self.instance(name)["status"]
        self.up.kill()
        assert Path(f"/proc/{qemu}").exists(), "VMs outlive outfitter"
        self.up.start()
        expect(self.qemu(name), qemu, f"the process of {name}")
        after = self._reach(name, "Running")["status"]
        expect(after["deviceStatus"], before["deviceStatus"], f"the devices of {name}")

    def stop(self) -> int:
        self.up.send(signal.SIGINT)
        return self.up.end(PATIENCE)

    def kill_qemu(self, name: str) -> None:
        os.kill(self.qemu(name), signal.SIGKILL)
        ended = self._reach(name, "Failed")["status"]["conditions"]
        said = " ".join(condition.get("message", "") for condition in ended)
        assert "libvirt: crashed" in said, said
        self.free(name)
