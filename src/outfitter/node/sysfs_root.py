"""Where the node writes: a tree as the inventory reads it, whose attributes can be written too. Everything that changes a host
goes through `Root.write`, below one root folder, so that a test or a simulated host can stand in for a machine."""

from __future__ import annotations

import errno
import os
from typing import Protocol

from outfitter.inventory.host_tree import FolderTree, Tree


class Root(Tree, Protocol):
    def write(self, path: str, text: str) -> None:
        """Write an attribute in one go. OSError, as the kernel says it: EBUSY, ENODEV for a device that is gone, and so on.
        That nothing was raised does not mean that it was done: read it back."""
        ...


class FolderRoot(FolderTree):
    """A root below a folder: "/" for this machine."""

    def write(self, path: str, text: str) -> None:
        place = self._place(path)
        if place is None:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        # Neither made nor cut: an attribute is there or it is not.
        handle = os.open(place, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.write(handle, text.encode())
        finally:
            os.close(handle)
