"""A host in a VM: QEMU emulates two NUMA nodes, an IOMMU, a network card and an NVMe disk with virtual functions, and two
displays that pass for GPUs. Its root filesystem is this host's, read-only, with changes kept in memory: so it has the same
libvirt, QEMU and virtual environment. What it reports comes through a folder that both share, and so do the signs of life of
its processors."""

from __future__ import annotations

import functools
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from tests.hardware import parts
from tests.hardware.pulse import Pulse, cpu_seconds, time_given

CPUS = 2
MEMORY = 3072  # MiB
POLL = 0.2
# The last thing said when all went well, and the file in which everything is said.
DONE, REPORT = "DONE", "report.txt"

INIT = """#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc; mount -t sysfs sysfs /sys; mount -t devtmpfs dev /dev
for module in $(cat /modules/order); do insmod /modules/$module; done
options=trans=virtio,version=9p2000.L,msize=262144
mount -t 9p -o $options,ro,cache=loose host /lower
mount -t tmpfs -o size=2g tmpfs /upper; mkdir -p /upper/files /upper/scratch
mount -t overlay -o lowerdir=/lower,upperdir=/upper/files,workdir=/upper/scratch overlay /new
for folder in proc sys dev; do mount --move /$folder /new/$folder; done
mount -t tmpfs tmpfs /new/run
mkdir -p /new/dev/pts /new/dev/shm /new/run/report /new/lib/modules
mount -t devpts devpts /new/dev/pts; mount -t tmpfs tmpfs /new/dev/shm
mount --bind /lower@MODULES@ /new/lib/modules
mount -t 9p -o $options report /new/run/report
exec switch_root /new /bin/sh -c '
  export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/run PYTHONDONTWRITEBYTECODE=1
  hostname host-in-a-vm; ip link set lo up 2>/dev/null
  for cpu in @CPUS@; do taskset -c $cpu sh -c "while date > /run/report/beat$cpu; do sleep 2; done" & beats="$beats $!"; done
  cd @ROOT@ && @PYTHON@ -m tests.hardware.inside /run/report/@REPORT@ @ONLY@ > /run/report/output.txt 2>&1
  echo "ended with status $?" >> /run/report/output.txt
  kill $beats; dmesg > /run/report/dmesg.txt; sync; umount /run/report; echo o > /proc/sysrq-trigger; sleep 60'
"""


class Machine:
    """`folder` takes what it writes; `root` is the clone, `python` its interpreter; `only` is a part of what is tested
    (inside.py), "" for everything."""

    def __init__(self, folder: Path, root: Path, python: Path, only: str = "") -> None:
        self.folder, self.report = folder, folder / "report" / REPORT
        self.cpu_seconds = 0.0  # that the emulator has used: a busy machine does not change it much
        self.report.parent.mkdir(parents=True)
        release, kernel = parts.kernel()
        parts.mediated(release, kernel)
        self.command, self.network = parts.qemu()
        words = {"MODULES": kernel / "lib" / "modules", "ROOT": root, "PYTHON": python, "REPORT": REPORT,
                 "ONLY": only, "CPUS": " ".join(map(str, range(CPUS)))}
        init = INIT
        for name, value in words.items():
            init = init.replace(f"@{name}@", str(value))
        parts.initrd(release, kernel, init, folder / "initrd.gz")
        for disk in ("disk0.img", "disk1.img"):
            with (folder / disk).open("wb") as file:
                file.truncate(64 << 20)
        self.command += [*_machine(kernel / "boot" / f"vmlinuz-{release}", folder), *_devices(folder, network=self.network)]

    def run(self, limit: float) -> Iterator[str]:
        """Boot it and yield what it reports, line by line, until it powers off or the time has ended. Raises StandsStill when a
        processor of it does nothing any more."""
        end, seen = time.monotonic() + limit, 0
        with (self.folder / "qemu.txt").open("wb") as log:
            process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            beats = [self.report.with_name(f"beat{cpu}") for cpu in range(CPUS)]
            pulse = Pulse(beats, functools.partial(time_given, process.pid))
            try:
                while process.poll() is None and time.monotonic() < end:
                    time.sleep(POLL)
                    self.cpu_seconds = max(self.cpu_seconds, cpu_seconds(process.pid))
                    seen, lines = self._news(seen)
                    yield from lines
                    pulse.feel()
                if process.poll() is None:
                    yield f"FAILED the host did not finish in {limit:.0f} s"
            finally:
                process.kill()
                process.wait()
        yield from self._news(seen)[1]

    def _news(self, seen: int) -> tuple[int, list[str]]:
        if not self.report.exists():
            return seen, []
        text = self.report.read_text()
        whole = text.rfind("\n") + 1
        return max(seen, whole), text[seen:whole].splitlines()


def _machine(kernel: Path, folder: Path) -> list[str]:
    half = MEMORY // 2
    return [
        # One thread plays both processors: it is not slower, and with one each QEMU lost interrupts (pulse.py).
        "-machine", "q35", "-accel", "tcg,thread=single", "-cpu", "max", "-smp", f"{CPUS},sockets={CPUS}", "-m", str(MEMORY),
        "-object", f"memory-backend-ram,id=m0,size={half}M", "-object", f"memory-backend-ram,id=m1,size={half}M",
        "-numa", "node,nodeid=0,cpus=0,memdev=m0", "-numa", "node,nodeid=1,cpus=1,memdev=m1",
        "-device", "intel-iommu,intremap=on,caching-mode=on",
        "-kernel", str(kernel), "-initrd", str(folder / "initrd.gz"), "-append",
        # no_timer_check: a VM that is busy emulates a timer that looks broken.
        "console=ttyS0 quiet panic=-1 no_timer_check intel_iommu=on iommu=nopt mitigations=off random.trust_cpu=on",
        "-nodefaults", "-no-user-config", "-display", "none", "-monitor", "none", "-no-reboot",
        "-serial", f"file:{folder / 'serial.txt'}",
        "-device", "virtio-9p-pci,fsdev=host,mount_tag=host",
        "-fsdev", "local,id=host,path=/,security_model=none,readonly=on,multidevs=remap",
        "-device", "virtio-9p-pci,fsdev=report,mount_tag=report",
        "-fsdev", f"local,id=report,path={folder / 'report'},security_model=none",
    ]


def _devices(folder: Path, *, network: bool) -> list[str]:
    words = ["-device", "pxb-pcie,id=near,bus_nr=0x20,numa_node=0,bus=pcie.0",
             "-device", "pxb-pcie,id=far,bus_nr=0x40,numa_node=1,bus=pcie.0"]
    for number, bus in enumerate(("near", "near", "near", "far", "far"), start=1):
        words += ["-device", f"pcie-root-port,id=port{number},chassis={number},slot={number},bus={bus}"]
    if network:
        words += ["-netdev", "hubport,hubid=0,id=net0", "-device", "igb,bus=port1,netdev=net0,mac=52:54:00:aa:00:01"]
    for number in range(2):
        words += ["-drive", f"file={folder / f'disk{number}.img'},if=none,id=disk{number},format=raw,file.locking=off"]
    return [
        *words, "-device", "nvme-subsys,id=subsys0",
        "-device", "nvme,serial=outfit0,id=nvme0,bus=port2,subsys=subsys0,sriov_max_vfs=4,sriov_vq_flexible=8,"
                   "sriov_vi_flexible=4,max_ioqpairs=26,msix_qsize=25",
        "-device", "nvme-ns,drive=disk0,nsid=1",
        "-device", "bochs-display,bus=port3,id=gpu0", "-device", "bochs-display,bus=port4,id=gpu1",
        "-device", "nvme,serial=outfit1,bus=port5,drive=disk1",
    ]
