"""A guest for tests: `guest.S`, assembled into a disk of 1 MiB from which QEMU boots in a second."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

SOURCE = Path(__file__).parent / "guest.S"
TOOLS = ("gcc", "ld")
SECTOR = 512  # bytes


def missing() -> str:
    lacking = [tool for tool in TOOLS if shutil.which(tool) is None]
    return f"needs {' and '.join(lacking)} to assemble the guest (on Debian: apt install gcc binutils)" if lacking else ""


def image(folder: Path, *, deaf: bool = False, busy: bool = False) -> Path:
    """The disk, made in a folder. A deaf guest does not listen to the power button; a busy one changes 23 MiB of memory without
    end (`is_busy`)."""
    name = "deaf" if deaf else "busy" if busy else "guest"
    flags = [*(["-DDEAF"] if deaf else []), *(["-DBUSY"] if busy else [])]
    parts, sector, disk = folder / f"{name}.o", folder / f"{name}.bin", folder / f"{name}.img"
    subprocess.run(["gcc", "-m32", "-c", *flags, "-o", parts, SOURCE], check=True)
    subprocess.run(["ld", "-m", "elf_i386", "--oformat", "binary", "-Ttext", "0x7c00", "-o", sector, parts], check=True)
    disk.write_bytes(sector.read_bytes().ljust(1 << 20, b"\0"))
    return disk


def is_busy(disk: Path) -> bool:
    """Whether the memory of a busy guest was filled once."""
    sectors = disk.read_bytes()
    return sectors[SECTOR:2 * SECTOR] == sectors[:SECTOR]
