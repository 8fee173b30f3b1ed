"""What all tests share: the way to helpers in this folder, and one real API server per run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from outfitter.api import kinds
from tests import control_planes, hypothesis_profiles, kubernetes

os.environ["OUTFITTER_PCI_IDS"] = str(Path(__file__).parent / "hosts" / "empty.ids")  # the same names on every host: none
hypothesis_profiles.same()
pytest_plugins = ["tests.collection", "tests.cases.plugin", "tests.real_parts", "tests.time_limit", "tests.default_signals",
                  "tests.soak", "tests.failed_tests", "tests.open_transports", "tests.shared_objects"]


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[kubernetes.Cluster]:
    """etcd and kube-apiserver, shared by the whole run: whoever uses it makes a namespace and names of its own."""
    with control_planes.started(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(scope="session")
def shared_control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[kubernetes.Cluster]:
    """With kube-scheduler, kube-controller-manager and the definition that Multus brings; without ours, which an installation
    brings."""
    with control_planes.started(tmp_path_factory.mktemp("plane"), scheduler=True, controllers=True,
                                learn=(kinds.NETWORK_ATTACHMENT,)) as running:
        yield running


@pytest.fixture(scope="module")
def control_plane(shared_control_plane: kubernetes.Cluster) -> Iterator[kubernetes.Cluster]:
    """For the tests of one module; nothing of theirs is left for the next one but the definitions and rights of today's
    installation."""
    yield shared_control_plane
    control_planes.clear(shared_control_plane)
