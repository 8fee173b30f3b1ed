"""What the scenarios of this folder share: a control plane with a scheduler and controllers, and a small embedded scene."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from tests import kubernetes
from tests.cluster_roles import ClusterRoles
from tests.controllers import scenario as scenes
from tests.controllers.scenario import Scene


@pytest.fixture(scope="module")
def control_plane(control_plane: kubernetes.Cluster, tmp_path_factory: pytest.TempPathFactory) -> kubernetes.Cluster:
    """With an installation."""
    ClusterRoles(control_plane, tmp_path_factory.mktemp("installation")).installed()
    return control_plane


@pytest.fixture(scope="module")
def controller(control_plane: kubernetes.Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterRoles]:
    """`outfit controller` as a process on the control plane, with the rights of an installation."""
    roles = ClusterRoles(control_plane, tmp_path_factory.mktemp("roles"))
    try:
        roles.start("controller").ready()
        yield roles
        assert roles.forbidden() == []
    finally:
        roles.stop()


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    """Two hosts with two virtual functions each, embedded."""
    async with scenes.embedded(2, 2) as there:
        yield there
