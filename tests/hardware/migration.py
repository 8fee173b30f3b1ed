"""A VM whose network card is a virtual function migrates on the host in a VM, between two libvirt daemons that are two hosts of
one `outfit up`. Both see every device of this kernel; device_spec gives each host a virtual function of its own. Commands are
typed and the kernel is asked; libvirt is never called from here."""

from __future__ import annotations

import json
import shutil
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.e2e.process import OwnForkedUp
from tests.hardware import embed, guest, kernel
from tests.hardware.daemon import Daemon
from tests.hardware.steps import Report, expect
from tests.hardware.story import CLASS, PATIENCE, REQUEST, kind_is, wait
from tests.hardware.story import ROOT as EMBEDDED

FOLDER = Path("/run/mv")  # a short name: sockets lie below it
HOSTS = ("host-a", "host-b")
MAC = "02:00:00:00:79:01"
LIMIT = f"{PATIENCE:.0f}"  # seconds, wherever the product stops waiting
SETTINGS = f"""
apiVersion: v1
kind: Namespace
metadata: {{name: kubevirt}}
---
apiVersion: kubevirt.io/v1
kind: KubeVirt
metadata: {{name: kubevirt, namespace: kubevirt, annotations: {{outfitter.dev/migration-prepare-timeout-seconds: "{LIMIT}"}}}}
spec: {{configuration: {{migrations: {{completionTimeoutPerGiB: {LIMIT}, progressTimeout: {LIMIT}}}}}}}
---"""
LIME = f"""---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {{{{name: lime}}}}
spec:
  spec:
    devices:
      requests:{{request}}
---
apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata: {{{{name: lime}}}}
spec:
  runStrategy: Always
  template:
    spec:
      terminationGracePeriodSeconds: 0
      resourceClaims: [{{{{name: net, resourceClaimTemplateName: lime}}}}]
      volumes: [{{{{name: root, hostDisk: {{{{path: {{disk}}, type: Disk, shared: true}}}}}}}}]
      networks: [{{{{name: fast, resourceClaim: {{{{claimName: net, requestName: vf}}}}}}}}]
      domain:
        memory: {{{{guest: 32Mi}}}}
        devices:
          disks: [{{{{name: root, disk: {{{{bus: virtio}}}}}}}}]
          interfaces: [{{{{name: fast, sriov: {{{{}}}}, macAddress: "{MAC}"}}}}]
"""


def capabilities() -> Path:
    """What libvirt knows of QEMU, in a cache folder. It takes long to find out: an earlier check has, or this does."""
    found = EMBEDDED / "cache"
    if not found.exists():
        subprocess.run(["virsh", "-c", embed.uri(EMBEDDED), "domcapabilities", "--virttype", "qemu"], check=True,
                       stdout=subprocess.DEVNULL)
    return found


def tree(name: str) -> Path:
    """The devices of this kernel below a folder of their own: two hosts may not have the same."""
    root = FOLDER / name
    for part in ("sys", "dev"):
        (root / part).mkdir(parents=True)
        subprocess.run(["mount", "--rbind", f"/{part}", root / part], check=True)
    return root


class TwoHosts:
    """`functions`: two virtual functions of one physical function `parent`."""

    def __init__(self, parent: str, functions: list[str]) -> None:
        self.parent, self.functions = parent, dict(zip(HOSTS, functions, strict=True))
        self.daemons = {name: Daemon(FOLDER / name[-1], name, patient=True) for name in HOSTS}
        words = []
        for name, daemon in self.daemons.items():
            shutil.copytree(capabilities(), daemon.folder / "cache", dirs_exist_ok=True)
            words += ["--host", f"{name}={daemon.uri},root={tree(name)}"]
        config = FOLDER / "outfitter.yaml"
        config.write_text(f"unplug_timeout: {LIMIT}s\nhosts:\n" + "".join(
            f"  {name}: {{device_spec: [{{address: '{address}'}}]}}\n" for name, address in self.functions.items()))
        self.up = OwnForkedUp(FOLDER / "data", *words, "-v", "--config", str(config), simulate=None, patience=PATIENCE)

    def status(self) -> Any:
        """Of the instance; empty as long as there is none."""
        found = json.loads(self.up.ok("get", "vmi", "-o", "json"))["items"]
        return found[0].get("status", {}) if found else {}

    def qemus(self) -> dict[str, int]:
        """The process of lime on each host that has one."""
        files = {name: daemon.folder / "run" / "qemu" / "default_lime.pid" for name, daemon in self.daemons.items()}
        return {name: int(file.read_text()) for name, file in files.items() if file.exists()}

    def held(self) -> dict[str, list[str]]:
        """The functions that are booked on the page of each host."""
        pages = json.loads(self.up.ok("get", "ledgerpages", "-o", "json"))["items"]
        booked = {page["metadata"]["name"]: page["spec"].get("bookings") or () for page in pages}
        return {name: [each for one in booked.get(name, ()) for each in one["hardware"]] for name in HOSTS}

    def runs(self) -> str:
        """Lime runs and its domain has the card; the host. That one's virtual function is open in QEMU, and in the status."""
        def there() -> bool:
            now.update(self.status())
            return now.get("phase") == "Running" and any(
                "domain" in each.get("infoSource", "") for each in now.get("interfaces") or ())

        now: dict[str, Any] = {}
        wait(there, "lime runs and has its card")
        host = str(now["nodeName"])
        function = self.functions[host]
        [reported] = [each["deviceResourceClaimStatus"] for each in now["deviceStatus"]["interfaceStatuses"]]
        expect((reported["pool"], reported["attributes"]["pciAddress"]), (host, function), "the device in the status")
        expect({name: kernel.groups_of(pid) for name, pid in self.qemus().items()}, {host: [kernel.group(function)]},
               "the IOMMU groups that QEMU has open")
        expect(kernel.driver(function), "vfio-pci", f"the driver of {function}")
        expect(kernel.set_on(self.parent, function)[0], MAC, f"the MAC address of {function}")
        return host

    def migrates(self, here: str) -> str:
        """The virtual function of `here` is unplugged, lime migrates and gets its twin; where it is then."""
        [there] = {*HOSTS} - {here}
        plan = self.up.ok("plan", "migrate", "lime")
        assert f"from {here} to {there}" in plan, plan
        assert "fast: reattached" in plan, plan
        done = self.up.ok("vm", "migrate", "lime", "--wait", "--timeout", LIMIT)
        assert f"runs on {there}" in done, done
        expect(self.runs(), there, "its host")
        assert b"-incoming" in Path(f"/proc/{self.qemus()[there]}/cmdline").read_bytes(), "its memory was copied"
        return there

    def explain(self) -> None:
        """Everything about a failure, in the output."""
        print(self.up.ok("get", "vmi,vmim,pods,resourceclaims,events", "-o", "yaml"), self.up.log())
        for daemon in self.daemons.values():
            print((daemon.folder / "daemon.log").read_text())


def between_hosts(report: Report, parent: str, functions: list[str]) -> None:
    FOLDER.mkdir()
    drivers = {address: kernel.driver(address) for address in functions}
    kernel.switch(kernel.interface(parent), "up")
    with ExitStack() as stack:
        with report.step("two libvirt daemons are two hosts, each with a virtual function of its own"):
            hosts = TwoHosts(parent, functions)
            for daemon in hosts.daemons.values():
                stack.callback(daemon.end)
                daemon.start()
            up = stack.enter_context(hosts.up)
            report.say(f"   outfit up took {up.took:.1f} s")
        try:
            with report.step("a machine gets the virtual function of its host, by a claim"):
                request = REQUEST % ("vf", kind_is("VF"))
                up.ok("apply", "-f", "-", stdin=SETTINGS + CLASS + LIME.format(request=request, disk=guest.image(FOLDER)))
                here = hosts.runs()
            with report.step("it is unplugged, the machine migrates to the other host and gets its twin there"):
                there = hosts.migrates(here)
            with report.step("what the machine left is free and with its driver, and so is the twin when the machine is gone"):
                left, twin = hosts.functions[here], hosts.functions[there]
                wait(lambda: hosts.held() == {here: [], there: [twin]}, f"{here} has no bookings")
                expect(kernel.driver(left), drivers[left], f"the driver of {left}")
                expect(kernel.set_on(parent, left)[0] != MAC, True, "its MAC address is another")
                expect(len(up.ok("get", "resourceclaims", "-o", "name").split()), 1, "claims")
                up.ok("delete", "vm", "lime")
                wait(lambda: hosts.held() == {here: [], there: []}, "nothing is booked")
                expect({address: kernel.driver(address) for address in functions}, drivers, "drivers")
                expect(hosts.qemus(), {}, "processes")
        except BaseException:
            hosts.explain()
            raise
