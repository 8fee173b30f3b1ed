"""What the launcher's container has: its environment, the device metadata files that DRA drivers mounted, and the Secrets of
cloud-init volumes that the kubelet mounted. Called by `vm_launcher` when the VM is started."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from outfitter.api.kubevirt import cloudinit
from outfitter.errors import StartFailed
from outfitter.launcher.metadata import BASES

MAX_FILE = 2 << 20  # bytes; a Secret has 1 MiB at most, a metadata file some hundred bytes


@dataclass(frozen=True, slots=True)
class Container:
    root: Path = Path("/")  # below which its files are

    def environment(self) -> Mapping[str, str]:
        return dict(os.environ)

    def files(self) -> dict[str, str]:
        """Text by path in the container. StartFailed: one cannot be read."""
        out: dict[str, str] = {}
        for path in self._paths():
            try:
                if path.stat().st_size > MAX_FILE:
                    raise StartFailed(f"{path} is larger than {MAX_FILE} bytes: it is neither device metadata nor a Secret")
                out[f"/{path.relative_to(self.root).as_posix()}"] = cloudinit.as_text(path.read_bytes())
            except OSError as error:
                raise StartFailed(f"{path} cannot be read: {error}") from error
        return out

    def _paths(self) -> Iterator[Path]:
        for base in BASES:
            yield from sorted(path for path in self._below(base).rglob("*.json") if path.is_file())
        # A volume of a Secret has its files in a hidden folder, and links to them.
        yield from sorted(path for path in self._below(cloudinit.SECRETS).glob("*/*")
                          if not path.name.startswith(".") and path.is_file())

    def _below(self, folder: str) -> Path:
        return self.root / folder.lstrip("/")
