"""A guest for tests: `guest.S`, assembled into a disk of 1 MiB from which QEMU boots in a second."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

SOURCE = Path(__file__).parent / "guest.S"
TOOLS = ("gcc", "ld")


def missing() -> str:
    lacking = [tool for tool in TOOLS if shutil.which(tool) is None]
    return f"needs {' and '.join(lacking)} to assemble the guest (on Debian: apt install gcc binutils)" if lacking else ""


def image(folder: Path, *, deaf: bool = False) -> Path:
    """The disk, made in a folder. A deaf guest does not listen to the power button."""
    name = "deaf" if deaf else "guest"
    parts, sector, disk = folder / f"{name}.o", folder / f"{name}.bin", folder / f"{name}.img"
    subprocess.run(["gcc", "-m32", "-c", *(["-DDEAF"] if deaf else []), "-o", parts, SOURCE], check=True)
    subprocess.run(["ld", "-m", "elf_i386", "--oformat", "binary", "-Ttext", "0x7c00", "-o", sector, parts], check=True)
    disk.write_bytes(sector.read_bytes().ljust(1 << 20, b"\0"))
    return disk
