"""The image of a drive: an ISO 9660 file system with the names that Linux (Rock Ridge) and Windows (Joliet) read. It is
replaced whole: whoever opens it finds all of it."""

from __future__ import annotations

import io
import os
from pathlib import Path

from outfitter.api.hypervisor import Drive
from outfitter.errors import StartFailed

FOLDER_MODE = 0o711  # the user under whom machines run goes through it and sees nothing else
FILE_MODE = 0o600  # libvirt gives the file to that user


def image(drive: Drive) -> bytes:
    """The same files in the same places each time; the library writes the time of day into it."""
    import pycdlib  # noqa: PLC0415  # takes its time, and few machines have a drive

    iso = pycdlib.PyCdlib()
    iso.new(interchange_level=3, vol_ident=drive.label, joliet=3, rock_ridge="1.09")
    made: set[str] = set()
    for name, data in drive.files:
        *folders, last = name.split("/")
        for depth, folder in enumerate(folders, start=1):
            path = "/" + "/".join(folders[:depth])
            if path not in made:
                iso.add_directory(_plain(path), rr_name=folder, joliet_path=path)
                made.add(path)
        plain = _plain(f"/{name}")
        iso.add_fp(io.BytesIO(data), len(data), f"{plain}{'' if '.' in last else '.'};1", rr_name=last, joliet_path=f"/{name}")
    out = io.BytesIO()
    iso.write_fp(out)
    iso.close()
    return out.getvalue()


def _plain(path: str) -> str:
    """As a reader sees it who knows neither Rock Ridge nor Joliet."""
    return path.upper().replace("-", "_")


def write(drive: Drive) -> None:
    """StartFailed: it cannot be written, and why."""
    path = Path(drive.path)
    try:
        if not path.parent.is_dir():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.parent.chmod(FOLDER_MODE)  # a strict umask would keep that user out
        draft = _draft(path)
        draft.unlink(missing_ok=True)
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE), "wb") as file:
            file.write(image(drive))
        os.replace(draft, path)
    except OSError as error:
        raise StartFailed(f"the config drive cannot be written: {error}") from error


def remove(path: Path) -> None:
    """No harm if it is not there."""
    for each in (_draft(path), path):
        each.unlink(missing_ok=True)


def _draft(path: Path) -> Path:
    return path.with_name(f".{path.name}.new")
