"""The sysfs tree of a host, writable: every change to a host goes through `Root.write`, below one root folder, so that a
folder or a simulated kernel can replace a real host."""

from __future__ import annotations

import errno
import os
from typing import Protocol

from outfitter.inventory.host_tree import FolderTree, Tree


class Root(Tree, Protocol):
    def write(self, path: str, text: str) -> None:
        """Write an attribute with one system call. OSError with the kernel's errno: EBUSY, ENODEV for a device that is gone.
        A write that succeeds need not have had an effect: read it back."""
        ...


class FolderRoot(FolderTree):
    """A root below a folder: "/" for this host."""

    def write(self, path: str, text: str) -> None:
        place = self._real_path(path)
        if place is None:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        # Neither created nor truncated: an attribute exists or it does not.
        handle = os.open(place, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.write(handle, text.encode())
        finally:
            os.close(handle)
