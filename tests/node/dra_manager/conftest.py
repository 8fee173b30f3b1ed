"""A folder with a short path, for unix sockets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.node.kubelet.driver_host import short_folder


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    with short_folder() as folder:
        yield folder
