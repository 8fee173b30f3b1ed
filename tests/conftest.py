"""What all tests share: the way to helpers in this folder, and one real API server per run."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))  # so that `from tests import ...` works however pytest was started

from tests import examples, kubernetes

os.environ["OUTFITTER_PCI_IDS"] = str(Path(__file__).parent / "hosts" / "empty.ids")  # the same names on every machine: none
examples.same()
pytest_plugins = ["tests.cases.plugin", "tests.parts"]  # their options: --cases, --cases-not-built, --all-parts


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[kubernetes.Cluster]:
    """etcd and kube-apiserver, shared by the whole run: whoever uses it makes a namespace and names of its own."""
    if kubernetes.assets() is None:
        pytest.skip(kubernetes.MISSING)
    with kubernetes.Cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running
