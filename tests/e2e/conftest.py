"""What the tests of this folder share: a control plane for those that also run on a cluster."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests import kubernetes


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[kubernetes.Cluster]:
    """With kube-scheduler and kube-controller-manager; without our definitions, which an installation brings."""
    if kubernetes.assets() is None:
        pytest.skip(kubernetes.MISSING)
    with kubernetes.Cluster(tmp_path_factory.mktemp("plane"), scheduler=True, controllers=True, learn=()) as running:
        yield running
