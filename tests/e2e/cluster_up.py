"""The product on a real control plane as `Up` has it embedded: controller and node agent are processes that can be killed
together and started again, and what a user types is the same. kube-scheduler allocates."""

from __future__ import annotations

import urllib.error
from pathlib import Path
from typing import Self

import pytest

from outfitter.api.kinds import Kind
from tests import kubernetes
from tests.cluster_roles import ClusterRoles, RoleRun
from tests.control_planes import KEPT, NOT_INSTALLED, USED
from tests.e2e.process import ForkedUp, Up, until

EMBEDDED, CLUSTER = "embedded", "cluster"
MODES = (EMBEDDED, pytest.param(CLUSTER, marks=pytest.mark.cluster))  # of a fixture whose tests run in both


def in_mode(request: pytest.FixtureRequest, folder: Path, *words: str, simulate: str = "1x1") -> Up:
    """The product in the mode of a fixture's parameter."""
    if request.param == EMBEDDED:
        return ForkedUp(folder / "data", *words, simulate=simulate)
    return ClusterUp(request.getfixturevalue("control_plane"), folder, *words, simulate=simulate)


class ClusterUp(Up):
    """`words` are arguments of both roles. At its end nothing of the test is left on the control plane."""

    def __init__(self, cluster: kubernetes.Cluster, folder: Path, *words: str, simulate: str = "1x1") -> None:
        super().__init__(folder / "node-data", *words, simulate=simulate)
        self.kubeconfig = cluster.kubeconfig
        self.roles = ClusterRoles(cluster, folder)
        self._words, self._simulate = words, simulate
        self._runs: list[RoleRun] = []

    def start(self) -> Self:
        self.roles.installed()
        self._runs = [self.roles.start("controller", *self._words),
                      self.roles.start("node", "--simulate", self._simulate, *self._words)]
        for run in self._runs:
            run.ready()
        return self

    def kill(self) -> None:
        for run in self._runs:
            run.kill()

    def log(self) -> str:
        """Errors of the roles, and what they were forbidden."""
        errors = [str(line["message"]) for run in self.roles.runs for line in run.lines() if line["level"] == "error"]
        return "\n".join([*errors, *self.roles.forbidden()])

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        try:
            for kind in USED:
                self._delete(kind)
            until(lambda: not self.ok("get", "vmi,vmim,pods,resourceclaims", "-o", "name"), "nothing of the test is left")
        finally:
            self.roles.stop()
        for kind in KEPT:
            self._delete(kind)

    def _delete(self, kind: Kind) -> None:
        """All of a kind but those of the installation, of namespace default if it has one."""
        path = f"{kind.path('default')}?{NOT_INSTALLED}"
        try:
            self.roles.cluster.request("DELETE", path)
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"{path}: {error.read().decode()}") from error
