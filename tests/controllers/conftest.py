"""What the scenarios of this folder share: a control plane with a scheduler and controllers, and a small embedded scene."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from tests import kubernetes
from tests.controllers import scenario as scenes
from tests.controllers.scenario import Scene


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[kubernetes.Cluster]:
    if kubernetes.assets() is None:
        pytest.skip(kubernetes.MISSING)
    with kubernetes.Cluster(tmp_path_factory.mktemp("control-plane"), scheduler=True, controllers=True) as running:
        yield running


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    """Two hosts with two virtual functions each, embedded."""
    async with scenes.embedded(2, 2) as there:
        yield there
