"""Every code of a finding, with what it checks and why that matters: for `outfit doctor --explain` and docs/doctor.md."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DoctorCode:
    checks: str  # what is checked, as in the table of docs/doctor.md
    explanation: str  # why it matters, and what mends it


CODES: Mapping[str, DoctorCode] = {
    "host-versions": DoctorCode(
        "Python is 3.11 or newer; versions of outfitter and kernel",
        "Outfitter needs Python 3.11. Other versions are reported so that they can be quoted."),
    "host-iommu": DoctorCode(
        "the IOMMU is on: `/sys/kernel/iommu_groups` has groups",
        "Without an IOMMU a device could read and write all memory of the host, so vfio-pci refuses it and no device is "
        "offered. It is switched on in the firmware (Intel VT-d, AMD-Vi) and, on Intel, on the kernel command line "
        "(intel_iommu=on). Both take effect after a reboot."),
    "host-vfio-module": DoctorCode(
        "the kernel module vfio-pci is loaded, or can be",
        "A device is bound to vfio-pci while a VM has it. The module must be loaded before that; a file in "
        "/etc/modules-load.d loads it at every boot."),
    "host-vfio-files": DoctorCode(
        "`/dev/vfio/vfio` exists and may be opened",
        "QEMU opens /dev/vfio/vfio and one file for each IOMMU group. Root may always; others need the group of the file."),
    "host-kvm": DoctorCode(
        "`/dev/kvm` exists and may be opened",
        "Without KVM, libvirt emulates the CPU: VMs run, but many times slower, and devices with DMA may time out."),
    "host-libvirt": DoctorCode(
        "libvirt's library and daemon are there; its version",
        "Without libvirt the VMs of this host are simulated. The library is libvirt-python, the extra `libvirt` of outfitter; "
        "in a cluster the launcher's image has both."),
    "host-hugepages": DoctorCode(
        "huge pages are reserved (with `--hugepages`, or where some are)",
        "A VM with spec.domain.memory.hugepages starts only on a host with free pages of that size. Pages of 1 GiB are best "
        "reserved at boot, before memory is fragmented."),
    "host-sriov": DoctorCode(
        "PFs that support SR-IOV, and how many VFs exist",
        "A PF without VFs can be assigned only as a whole. `sriov` in the configuration file creates VFs at start; by hand, "
        "write their number to sriov_numvfs."),
    "host-devices": DoctorCode(
        "the host offers devices (with `--config`: those that it lists)",
        "Offered are functions that device_spec lists or, without a configuration file, those bound to vfio-pci. "
        "`outfit scan` shows all functions, `outfit config check FILE` what a configuration makes of them."),
    "host-drivers": DoctorCode(
        "functions with a `driver_override` have that driver; listed devices can be taken",
        "A function whose driver_override is vfio-pci and whose driver is another one was not unbound, or its driver was "
        "loaded first. It is not offered until it is bound as intended."),
    "host-iommu-groups": DoctorCode(
        "no member of an IOMMU group keeps the others from being assigned",
        "All functions of an IOMMU group go to the same VM, so one function that the host itself uses blocks the whole group. "
        "Bind it to vfio-pci as well, list it in device_spec, or put the card into another slot."),
    "host-acs": DoctorCode(
        "no IOMMU group spans several cards",
        "Where a PCIe switch or root port lacks ACS, the cards below it share an IOMMU group and can be assigned only "
        "together. ACS is switched on in the firmware of some boards; a slot at another root port helps on the others. The "
        "kernel's pcie_acs_override is a patch of distributions and gives up the isolation between the cards."),
    "host-memlock": DoctorCode(
        "the limit of locked memory (`ulimit -l`) is large enough",
        "The memory of a VM with a passed-through device is pinned. A small limit makes QEMU fail with `cannot allocate "
        "memory` at VFIO_MAP_DMA, unless it runs as root or libvirt raises the limit."),
    "host-data-folder": DoctorCode(
        "the data folder of `outfit up` may be written, and its keys read by its owner alone",
        "A start is refused on a data folder whose keys other users can read or replace."),
    "host-kubelet": DoctorCode(
        "on a Kubernetes node: the kubelet's folders for plugins exist",
        "The node agent registers its DRA driver in plugins_registry, serves it in plugins, and finds launcher pods in pods, "
        "all below /var/lib/kubelet."),
    "host-sysfs": DoctorCode(
        "all values of the PCI functions can be read",
        "A value that cannot be read leaves its field unknown, and the function is withheld where that could be unsafe."),
    "cluster-reachable": DoctorCode(
        "a kubeconfig is found and its server answers",
        "Options, $KUBECONFIG, the kubeconfig of `outfit up` and ~/.kube/config are tried in this order."),
    "cluster-caller-rights": DoctorCode(
        "you may read what the other checks need",
        "Checks that need an object that you may not read are left out. The ClusterRole `view` does not contain nodes, "
        "definitions or webhook configurations; an administrator has all of it."),
    "cluster-version": DoctorCode(
        "Kubernetes is 1.34 or newer",
        "resource.k8s.io/v1 (dynamic resource allocation) is served from Kubernetes 1.34 on. Upgrade the control plane first, "
        "then the nodes."),
    "cluster-dra": DoctorCode(
        "`resource.k8s.io/v1` is served",
        "Devices are published in ResourceSlices and requested in ResourceClaims of resource.k8s.io/v1. It is on by default "
        "from 1.34; --runtime-config=resource.k8s.io/v1=false or the feature gate DynamicResourceAllocation=false switch it "
        "off."),
    "cluster-feature-gates": DoctorCode(
        "feature gates of Kubernetes that claims may need",
        "A gate that is off makes the API server drop the fields behind it. The same gate must be set for kube-apiserver, "
        "kube-scheduler, kube-controller-manager and the kubelets."),
    "cluster-installed": DoctorCode(
        "outfitter is installed",
        "`outfit install --apply` creates definitions, rights, Deployments, the DaemonSet and webhook configurations; it may "
        "be repeated at any time."),
    "cluster-crds": DoctorCode(
        "the CustomResourceDefinitions exist, are established and have this version",
        "Definitions of another release lack versions, types or columns (annotation `outfitter.dev/version`); "
        "objects in an older stored version may be unreadable for a later release."),
    "cluster-workloads": DoctorCode(
        "Deployments and the DaemonSet are ready",
        "A pod that is not ready is shown with the reason of the kubelet or the last message of the process."),
    "cluster-version-skew": DoctorCode(
        "controller, webhook and node agents are at most one minor version apart",
        "An upgrade replaces the controllers first and the node agents after them, one minor version at a time. `outfit` "
        "itself should have the version of the controllers."),
    "cluster-leader-election": DoctorCode(
        "one controller works at a time",
        "Controllers without leader election do everything twice: pods, claims and bookings. The Lease outfitter-controller "
        "names the one that works and is renewed every two seconds."),
    "cluster-webhook": DoctorCode(
        "both webhook configurations exist and have a CA bundle",
        "Without the webhook, objects that cannot work are stored; with a wrong CA bundle every write of these kinds is "
        "refused."),
    "cluster-webhook-certificate": DoctorCode(
        "the webhook's certificate is valid, for two days at least, and signed by the CA bundle",
        "With an expired certificate the API server refuses every create and update of the webhook's kinds. `outfit webhook` "
        "renews its certificate long before; one that is about to expire means that no webhook process runs, or that it may "
        "not write its Secret."),
    "cluster-aggregated-api": DoctorCode(
        "our API services are available: `subresources.kubevirt.io` and `status.outfitter.dev`",
        "virtctl and `outfit vm` use the subresources, users who may not see other namespaces the counts of devices. Beside "
        "KubeVirt the subresources are its own."),
    "cluster-role-rights": DoctorCode(
        "the service accounts have the rights of their roles",
        "Each role has exactly the rights that it uses. A missing one shows as Forbidden in its log and stops one controller."),
    "cluster-agents": DoctorCode(
        "each node with an agent has published its inventory, and none is refused",
        "A node whose agent does not report offers no devices, and what it offered last may be out of date."),
    "cluster-agent-names": DoctorCode(
        "the host name of each agent is the name of a node",
        "Slices of a host whose name is no node are never allocated: pods are bound to nodes by name. The name is set with "
        "--node-name, else it is that of the host."),
    "cluster-node-iommu": DoctorCode(
        "nodes with an agent have an IOMMU",
        "Devices of a node without an IOMMU are withheld. `outfit doctor --host` on that node says what is missing there."),
    "cluster-drivers": DoctorCode(
        "which DRA drivers publish devices",
        "VMs can have devices of any driver that publishes a PCI address or the UUID of a mediated device. Two drivers must "
        "not publish the same hardware."),
    "cluster-kubevirt": DoctorCode(
        "KubeVirt itself does not run beside our VM controllers",
        "Two controllers of the same VMs would fight over them. In companion mode ours are off, and driver, ledger, why, "
        "metrics and doctor serve KubeVirt's VMs."),
    "cluster-gates-in-use": DoctorCode(
        "no VMI uses a feature gate of the KubeVirt object that is off",
        "A gate that is switched off lets running VMs keep their devices and refuses new ones. Before a rollback to a version "
        "without the gate these VMIs must be deleted: that version would not know what they hold. docs/upgrade.md has the "
        "steps."),
    "cluster-device-classes": DoctorCode(
        "a DeviceClass selects devices of our driver",
        "Claims name a DeviceClass. Without one no claim can ask for a device of outfitter; examples/01-one-vf has one."),
    "cluster-pools": DoctorCode(
        "each pool of ResourceSlices is complete",
        "A pool says how many slices it has; kube-scheduler ignores the devices of a pool of which some are missing."),
    "cluster-claims": DoctorCode(
        "no claim waits or is being deleted for more than ten minutes, or holds a device that is gone",
        "`outfit why claim/NAME` says what a claim waits for."),
    "cluster-unreadable-objects": DoctorCode(
        "all objects of our kinds can be read",
        "An object with a field of the wrong type is skipped by all controllers until it is repaired or deleted."),
}
