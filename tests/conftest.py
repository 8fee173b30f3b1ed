"""What all tests share: the way to helpers in this folder, and one real API server per run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import hypothesis_profiles, kubernetes

os.environ["OUTFITTER_PCI_IDS"] = str(Path(__file__).parent / "hosts" / "empty.ids")  # the same names on every host: none
hypothesis_profiles.same()
pytest_plugins = ["tests.collection", "tests.cases.plugin", "tests.real_parts", "tests.time_limit", "tests.default_signals",
                  "tests.soak", "tests.failed_tests"]


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[kubernetes.Cluster]:
    """etcd and kube-apiserver, shared by the whole run: whoever uses it makes a namespace and names of its own."""
    if kubernetes.assets() is None:
        pytest.skip(kubernetes.MISSING)
    with kubernetes.Cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running
