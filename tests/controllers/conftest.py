"""A control plane with a scheduler and controllers, shared by the stories of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests import kubernetes


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[kubernetes.Cluster]:
    if kubernetes.assets() is None:
        pytest.skip(kubernetes.MISSING)
    with kubernetes.Cluster(tmp_path_factory.mktemp("control-plane"), scheduler=True, controllers=True) as running:
        yield running
