"""Checks of a host: its IOMMU, modules, hypervisor, limits and folders. Pure; `host_device_checks` has those of its PCI
functions. Called by `cli/doctor.py`."""

from __future__ import annotations

from collections.abc import Iterator

from outfitter.api.assignment.kubelet_folder import KUBELET_DIR
from outfitter.doctor import host_device_checks
from outfitter.doctor.finding import Finding, count, error, ok, some, warning
from outfitter.doctor.host_state import CollectedHost
from outfitter.inventory.device_spec import DeviceSpec

OLDEST_PYTHON = (3, 11)
ENOUGH_LOCKED = 64 << 30  # bytes; more than a usual VM has, less than "unlimited"
INTEL, AMD = "GenuineIntel", "AuthenticAMD"
IOMMU_OFF = ("intel_iommu=off", "amd_iommu=off", "iommu=off")


def check(state: CollectedHost, spec: DeviceSpec | None = None, *, huge_pages: bool = False) -> list[Finding]:
    """`spec`: which devices the configuration file lists; `huge_pages`: VMs of this host will need some."""
    return [
        *_versions(state), *_iommu(state), *_vfio_module(state), *_vfio_files(state), *_kvm(state), *_libvirt(state),
        *_huge_pages(state, asked=huge_pages), *host_device_checks.check(state.scan, state.overrides, spec,
                                                                         iommu=bool(state.iommu_groups)),
        *_memlock(state), *_data_folder(state), *_kubelet(state),
    ]


def _versions(state: CollectedHost) -> Iterator[Finding]:
    python = ".".join(map(str, state.python))
    kernel = f", kernel {state.kernel}" if state.kernel else ""
    if state.python < OLDEST_PYTHON:
        yield error("host-versions", f"Python is {python}.", "Outfitter needs Python 3.11 or newer.",
                    "apt install python3.11 python3.11-venv")
    else:
        yield ok("host-versions", f"outfitter {state.version}, Python {python}{kernel}")


def _iommu(state: CollectedHost) -> Iterator[Finding]:
    if state.iommu_groups:
        yield ok("host-iommu", f"the IOMMU is on: {count(state.iommu_groups, 'group')}")
        return
    words = (state.command_line or "").split()
    wanted = "amd_iommu=on" if state.cpu_vendor == AMD else "intel_iommu=on"
    off = [word for word in words if word in IOMMU_OFF]
    if off:
        missing = f"The kernel command line has {' and '.join(off)}: remove it and reboot."
        change = _command_line_edit(state, remove=off)
    elif state.command_line is not None and state.cpu_vendor != AMD and wanted not in words:
        missing = (f"The kernel command line lacks {wanted}: add it, switch VT-d on in the firmware, and reboot."
                   if state.cpu_vendor == INTEL else
                   "Switch the IOMMU on in the firmware and on the kernel command line (intel_iommu=on; AMD needs the firmware "
                   "only), and reboot.")
        change = _command_line_edit(state, add=[wanted, "iommu=pt"])
    else:
        name = {INTEL: "VT-d", AMD: "AMD-Vi (IOMMU)"}.get(state.cpu_vendor or "", "VT-d or AMD-Vi")
        missing = f"Switch {name} on in the firmware, and reboot; in a VM, give it a virtual IOMMU."
        change = "dmesg | grep -i -e DMAR -e IOMMU -e AMD-Vi"
    yield error("host-iommu", "/sys/kernel/iommu_groups has no groups, "
                + (f"although the kernel drives {some(state.iommu_units)}." if state.iommu_units
                   else "so no device can be passed through."), missing, change)


def _command_line_edit(state: CollectedHost, *, add: list[str] | None = None, remove: list[str] | None = None) -> str:
    if state.grubby:
        verb, words = ("--args", add) if add else ("--remove-args", remove)
        return f"grubby --update-kernel=ALL {verb}=\"{' '.join(words or ())}\" && reboot"
    if add:
        return f"sed -i 's/^GRUB_CMDLINE_LINUX=\"/&{' '.join(add)} /' /etc/default/grub && update-grub && reboot"
    return f"sed -i 's/{'//; s/'.join(remove or ())}//' /etc/default/grub && update-grub && reboot"


def _vfio_module(state: CollectedHost) -> Iterator[Finding]:
    if "vfio-pci" in state.modules:
        yield ok("host-vfio-module", "the module vfio-pci is loaded")
        return
    load = "modprobe vfio-pci && echo vfio-pci >/etc/modules-load.d/vfio-pci.conf"
    if state.loadable is None and state.kernel is None:
        return  # a capture of sysfs alone
    if state.loadable is None or "vfio-pci" in state.loadable:
        yield warning("host-vfio-module", "the module vfio-pci is not loaded.", "Load it now and at every boot.", load)
    else:
        yield error("host-vfio-module", f"kernel {state.kernel} has no module vfio-pci.",
                    "Install the modules of this kernel, or a kernel with CONFIG_VFIO_PCI.",
                    "apt install linux-modules-extra-$(uname -r); " + load)


def _vfio_files(state: CollectedHost) -> Iterator[Finding]:
    if not state.devices_known:
        return
    file = state.vfio_file
    if file is None:
        yield warning("host-vfio-files", "/dev/vfio/vfio does not exist.", "It appears when the module vfio is loaded.",
                      "modprobe vfio-pci")
    elif not file.writable:
        yield error("host-vfio-files", f"/dev/vfio/vfio has mode {file.mode:04o}: user {state.user} may not open it.",
                    "Outfitter needs read and write access, or to run as root.",
                    "echo 'SUBSYSTEM==\"vfio\", GROUP=\"kvm\", MODE=\"0660\"' >/etc/udev/rules.d/10-vfio.rules && "
                    "udevadm trigger && usermod -aG kvm $USER")
    else:
        yield ok("host-vfio-files", "/dev/vfio/vfio may be opened")


def _kvm(state: CollectedHost) -> Iterator[Finding]:
    if not state.devices_known:
        return
    file = state.kvm_file
    if file is None:
        module = {INTEL: "kvm_intel", AMD: "kvm_amd"}.get(state.cpu_vendor or "", "kvm")
        yield warning("host-kvm", "/dev/kvm does not exist: VMs are emulated and slow.",
                      "Switch virtualization (VT-x, AMD-V) on in the firmware and load the module.", f"modprobe {module}")
    elif not file.writable:
        yield warning("host-kvm", f"/dev/kvm has mode {file.mode:04o}: user {state.user} may not open it.",
                      "Add the user to the group of the file.", "usermod -aG kvm $USER")
    else:
        yield ok("host-kvm", "/dev/kvm may be opened")


def _libvirt(state: CollectedHost) -> Iterator[Finding]:
    if state.libvirt is None:
        return
    if state.libvirt.reason:
        yield warning("host-libvirt", f"libvirt cannot be used: {state.libvirt.reason.rstrip('.')}.",
                      "VMs of this host would be simulated by outfit up; in a cluster the launcher's image has libvirt.",
                      "apt install libvirt-daemon-system qemu-system-x86 && systemctl start libvirtd && "
                      "pip install 'outfitter[libvirt]'")
    else:
        yield ok("host-libvirt", f"libvirt is there{f', version {state.libvirt.version}' if state.libvirt.version else ''}")


def _huge_pages(state: CollectedHost, *, asked: bool) -> Iterator[Finding]:
    sizes = [f"{pages.total} of {pages.size} KiB, {pages.free} free" for pages in state.huge_pages if pages.total]
    if sizes:
        yield ok("host-hugepages", f"huge pages: {'; '.join(sizes)}")
    elif asked:
        yield error("host-hugepages", "no huge pages are reserved.", "Reserve some; for 1 GiB pages at boot.",
                    "sysctl -w vm.nr_hugepages=1024")


def _memlock(state: CollectedHost) -> Iterator[Finding]:
    if state.memlock is None:
        return
    if state.memlock == -1 or state.memlock >= ENOUGH_LOCKED or state.user == 0:
        yield ok("host-memlock", "locked memory is not limited" if state.memlock == -1 or state.user == 0
                 else f"locked memory is limited to {state.memlock >> 30} GiB")
    else:
        yield warning("host-memlock", f"user {state.user} may lock {state.memlock >> 10} KiB of memory.",
                      "The memory of a VM with a passed-through device is locked; raise the limit and log in again.",
                      "echo '* - memlock unlimited' >/etc/security/limits.d/outfitter.conf")


def _data_folder(state: CollectedHost) -> Iterator[Finding]:
    folder = state.data_folder
    if folder is None:
        return
    known = [file for file in state.data_secrets if file.mode & 0o077 or file.owner not in (state.user, 0)]
    if not folder.folder or not folder.writable:
        yield error("host-data-folder", f"{folder.path} is not a folder that user {state.user} may write.",
                    "outfit up stores everything there.", f"chown {state.user} {folder.path} && chmod 700 {folder.path}")
    elif known:
        yield error("host-data-folder", f"other users can read {some(file.path for file in known)}.",
                    "outfit up refuses to start with keys that others may know.",
                    f"chmod 600 {' '.join(file.path for file in known)}")
    else:
        yield ok("host-data-folder", f"{folder.path} may be written")


def _kubelet(state: CollectedHost) -> Iterator[Finding]:
    if state.kubelet is None:
        return
    absent = [f"{KUBELET_DIR}/{name}" for name, there in state.kubelet.items() if not there]
    if absent:
        yield warning("host-kubelet", f"the kubelet has no {some(absent)}.", "The kubelet creates its folders at start.",
                      f"systemctl restart kubelet; mkdir -p {' '.join(absent)}")
    else:
        yield ok("host-kubelet", f"the kubelet's folders are in {KUBELET_DIR}")
