"""What the tests of this folder share: a control plane for those that also run on a cluster."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from outfitter.api import kinds
from tests import kubernetes


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[kubernetes.Cluster]:
    """With kube-scheduler, kube-controller-manager and the definition that Multus brings; without ours, which an installation
    brings."""
    if kubernetes.assets() is None:
        pytest.skip(kubernetes.MISSING)
    with kubernetes.Cluster(tmp_path_factory.mktemp("plane"), scheduler=True, controllers=True,
                            learn=(kinds.NETWORK_ATTACHMENT,)) as running:
        yield running
