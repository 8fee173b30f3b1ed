"""Writes the image of a config drive: ISO 9660 with Rock Ridge (Linux) and Joliet (Windows) names, replaced atomically. Called
by the hypervisors."""

from __future__ import annotations

import io
import os
from pathlib import Path

from outfitter.api.hypervisor import Drive
from outfitter.errors import StartFailed

FOLDER_MODE = 0o711  # the user of QEMU can enter it, but not list it
FILE_MODE = 0o600  # libvirt changes the owner to that user


def image(drive: Drive) -> bytes:
    """The bytes of the image. Its layout is deterministic; the library adds timestamps."""
    import pycdlib  # noqa: PLC0415  # slow to import, and few VMs have a drive

    iso = pycdlib.PyCdlib()
    iso.new(interchange_level=3, vol_ident=drive.label, joliet=3, rock_ridge="1.09")
    created: set[str] = set()
    for name, data in drive.files:
        *folders, last = name.split("/")
        for depth, folder in enumerate(folders, start=1):
            path = "/" + "/".join(folders[:depth])
            if path not in created:
                iso.add_directory(_plain(path), rr_name=folder, joliet_path=path)
                created.add(path)
        plain = _plain(f"/{name}")
        iso.add_fp(io.BytesIO(data), len(data), f"{plain}{'' if '.' in last else '.'};1", rr_name=last, joliet_path=f"/{name}")
    out = io.BytesIO()
    iso.write_fp(out)
    iso.close()
    return out.getvalue()


def _plain(path: str) -> str:
    """The plain ISO 9660 name."""
    return path.upper().replace("-", "_")


def write(drive: Drive) -> None:
    """Write the image; StartFailed when it cannot be written."""
    path = Path(drive.path)
    try:
        if not path.parent.is_dir():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.parent.chmod(FOLDER_MODE)  # despite a strict umask
        temporary = _temporary(path)
        temporary.unlink(missing_ok=True)
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE), "wb") as file:
            file.write(image(drive))
        os.replace(temporary, path)
    except OSError as error:
        raise StartFailed(f"the config drive cannot be written: {error}") from error


def remove(path: Path) -> None:
    """Delete the image, if it exists."""
    for file in (_temporary(path), path):
        file.unlink(missing_ok=True)


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.new")
