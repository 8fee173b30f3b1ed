"""What is tested on the host in a VM, step by step: first what the kernel shows, then the product on it."""

from __future__ import annotations

import sys
from pathlib import Path

from outfitter.inventory import pci, scan
from outfitter.inventory.host_tree import FolderTree
from tests.hardware import cni, kernel, migration
from tests.hardware.machine import DONE
from tests.hardware.steps import Report, expect
from tests.hardware.story import CARD_MAC, HOT_MAC, Story, kind_is

NIC, NIC_VF = ("8086", "10c9"), ("8086", "10ca")
NVME = ("1b36", "0010")
GPU = ("1234", "1111")
UUID = "83b8f4f2-509f-382f-3c1e-e6bfe0fa1001"


def compare() -> int:
    """What outfitter scans is what lspci reports; how many functions that are."""
    found = scan.scan(FolderTree(Path("/")))
    for oddity in found.warnings:
        print("oddity:", oddity)
    ours = {device.address: {
        "class": (device.class_code or "")[:4], "vendor": device.vendor or "", "product": device.product or "",
        "driver": device.driver or "", "numa": "" if device.numa is None else str(device.numa),
        "group": "" if device.iommu_group is None else str(device.iommu_group)} for device in found.devices}
    theirs = kernel.lspci()
    for address, said in theirs.items():
        print(address, said)
    expect(sorted(ours), sorted(theirs), "functions")
    for address, said in theirs.items():
        expect(ours[address], said, f"what outfitter sees of {address}")
    return len(ours)


def by_hand(report: Report, bound: list[str], *, network: bool) -> None:
    """An operator binds functions and makes a mediated device; outfitter offers them and leaves them as they are. It makes
    another mediated device itself."""
    with report.step("outfitter offers what is bound to vfio-pci, and mediated devices"):
        drivers = {address: kernel.driver(address) for address in bound}
        for address in bound:
            kernel.bind(address, "vfio-pci")
        kernel.make_mdev("mtty", "mtty-2", UUID)
        story = Story(report, Path("/run/by-hand"), "mdev: [{type: mtty-1, count: 1}]\n")
        story.up.start()
        report.say(f"   outfit up took {story.up.took:.1f} s")
        expect(len(kernel.mediated()), 2, "mediated devices, with the one that outfitter made")
        everything = {*bound, *kernel.mediated()}
        story.offers(everything)
    wishes = {"disk": kind_is("VF", NVME[1]), "gpu": kind_is("PCI", GPU[1]), "part": kind_is("MDEV"), "own": kind_is("MDEV")}
    if network:
        wishes["nic"] = kind_is("VF", NIC_VF[1])
    with story.up:
        with report.step("a machine with a device of every kind runs and ends; what was bound stays bound"):
            expect(sorted(story.run("blue", wishes, ("gpu",)).values()), sorted(everything), "what it got")
            story.delete("blue")
            expect({kernel.driver(address) for address in bound}, {"vfio-pci"}, "drivers")
        with report.step("outfit up ends when it is asked to"):
            expect(story.stop(), 0, "its exit status")
    for address, before in drivers.items():
        kernel.give_back(address, before)
        expect(kernel.driver(address), before, f"the driver of {address}")


def by_outfitter(report: Report, counts: dict[str, int], disk: str, displays: list[str]) -> None:
    """All devices are the host's until they are requested: outfitter makes virtual functions, takes devices and gives them
    back. `counts`: how many each physical function has; `disk` is one that the host uses."""
    listed = [f"{{vendor_id: '{GPU[0]}', product_id: '{GPU[1]}'}}", f"{{vendor_id: '{NIC_VF[0]}', product_id: '{NIC_VF[1]}'}}",
              f"{{address: '{disk}'}}"]
    # The virtual functions of a disk have its own product, so they are distinguished by their function.
    listed += [f"{{address: {{bus: '{bus}', slot: '00', function: '[1-7]'}}}}"
               for address in counts if (bus := address.split(":")[1]) and address in kernel.of(*NVME)]
    config = "".join([
        "sriov:\n", *(f"- {{address: '{address}', count: {count}}}\n" for address, count in counts.items()),
        "device_spec:\n", *(f"- {entry}\n" for entry in listed)])
    with report.step("outfitter makes virtual functions, and offers what device_spec lists"):
        story = Story(report, Path("/run/by-outfitter"), config)
        story.up.start()
        made = {address: kernel.virtual_of(address) for address in counts}
        expect({address: len(functions) for address, functions in made.items()}, counts, "virtual functions")
        for address in set(made) & set(kernel.of(*NVME)):
            kernel.wait_for_loose(made[address])
        everything = {*displays, disk, *(one for functions in made.values() for one in functions)}
        story.offers(everything)
        drivers = {address: kernel.driver(address) for address in everything}
        expect(drivers[disk], "nvme", "the driver of the disk")
    wishes = {"part": kind_is("VF", NVME[1]), "gpu": kind_is("PCI", GPU[1]), "disk": kind_is("PCI", NVME[1])}
    if any(address in kernel.of(*NIC) for address in counts):
        wishes["nic"] = kind_is("VF", NIC_VF[1])

    def as_before() -> None:
        expect({address: kernel.driver(address) for address in everything}, drivers, "drivers")

    with story.up:
        with report.step("a machine takes devices from the host's drivers"):
            story.run("blue", wishes, ("gpu",))
        with report.step("outfitter is killed, the machine goes on and is adopted"):
            story.restart_by_kill("blue")
        with report.step("QEMU is killed: the machine failed, its devices are with their drivers again"):
            story.kill_qemu("blue")
            as_before()
        with report.step("another machine gets them, the network card by its resource's name, and gives them back"):
            story.run("green", wishes, ("gpu",), **({"nic": kernel.of(*NIC_VF)} if "nic" in wishes else {}))
            story.delete("green")
            as_before()
        for parent in [address for address in counts if address in kernel.of(*NIC)]:
            with report.step("a virtual function is a network card with a MAC address and a VLAN, and has neither afterwards"):
                plugged = story.run_with_card(parent)
                story.delete("cyan")
                expect(kernel.set_on(parent, plugged)[0] != CARD_MAC, True, "its MAC address is another")
                expect(kernel.set_on(parent, plugged)[1], "", "its VLAN")
                as_before()
            with report.step("a virtual function is plugged into a machine that runs, and out of it, and is as it was"):
                plugged = story.plug_a_card(parent)
                expect(kernel.set_on(parent, plugged)[0] != HOT_MAC, True, "its MAC address is another")
                expect(kernel.set_on(parent, plugged)[1], "", "its VLAN")
                as_before()
                story.delete_vm("pink")
        with report.step("a display and a virtual function of a disk are plugged into a machine that runs, and out of it"):
            story.plug_devices({"gpu": wishes["gpu"], "part": wishes["part"]}, ("gpu",))
            as_before()
            story.delete_vm("teal")
        with report.step("outfit up ends when it is asked to"):
            expect(story.stop(), 0, "its exit status")


def main(path: Path, only: str = "") -> None:
    """`only`: what is tested after the scan: "by-hand", "by-outfitter", "migration" or "cni"; "" for everything."""
    report = Report(path)
    with report.step("drivers are loaded, the kernel has an IOMMU"):
        kernel.load()
        kernel.wait_for(Path("/sys/kernel/iommu_groups/0"))
    with report.step("outfitter scans what lspci shows"):
        report.say(f"   {compare()} functions")
    cards, disks, displays = kernel.of(*NIC), kernel.of(*NVME), kernel.of(*GPU)
    with report.step("virtual functions are made and scanned"):
        expect((len(disks), len(displays)), (2, 2), "disks and displays")
        made = {disks[0]: kernel.virtual(disks[0], 2)}
        kernel.wait_for_loose(made[disks[0]])
        if cards:
            made[cards[0]] = kernel.virtual(cards[0], 4)
        else:
            report.say("   no network card: this QEMU emulates none with virtual functions")
        compare()
        found = {device.address: device for device in scan.scan(FolderTree(Path("/"))).devices}
        for parent, functions in made.items():
            expect(found[parent].kind, pci.FunctionKind.PF, f"the kind of {parent}")
            for one in functions:
                expect((found[one].kind, found[one].parent), (pci.FunctionKind.VF, parent), f"kind and parent of {one}")
        expect([found[each].numa for each in displays], [0, 1], "NUMA nodes of the displays")
    with report.step("a function is bound to vfio-pci by hand, and back"):
        one = made[cards[0]][0] if cards else made[disks[0]][0]
        before = kernel.driver(one)
        kernel.bind(one, "vfio-pci")
        expect(kernel.driver(one), "vfio-pci", f"the driver of {one}")
        group = (kernel.PCI / one / "iommu_group").resolve().name
        kernel.wait_for(Path("/dev/vfio") / group)
        kernel.give_back(one, before)
        expect(kernel.driver(one), before, f"the driver of {one} afterwards")
    if only in ("", "by-hand"):
        by_hand(report, [*(functions[0] for functions in made.values()), displays[0]], network=bool(cards))
    if only in ("", "by-outfitter"):
        for address in made:
            kernel.virtual(address, 0)
        by_outfitter(report, {address: len(functions) for address, functions in made.items()}, disks[1], displays)
    if cards and only in ("", "migration"):
        migration.between_hosts(report, cards[0], (kernel.virtual_of(cards[0]) or kernel.virtual(cards[0], 4))[:2])
    if cards and only in ("", "cni"):
        cni.pod_with_a_vf(report, (kernel.virtual_of(cards[0]) or kernel.virtual(cards[0], 4))[2])
    report.say(DONE)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
