"""A cluster on which a role cannot work is refused with one sentence: what is wrong and what helps."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from outfitter.api import kinds
from outfitter.errors import OutfitterError
from outfitter.roles.cluster_check import OURS, Right, check_cluster
from outfitter.store.kube import Kube

VERSIONS = {(kind.group, kind.version) for kind in OURS}
RIGHTS = [Right("create", kinds.POD), Right("patch", kinds.VMI, "status")]


def resources(group: str, version: str, without: str = "") -> dict[str, Any]:
    return {"resources": [{"name": kind.plural} for kind in OURS
                          if (kind.group, kind.version) == (group, version) and kind.plural != without]}


@dataclass
class Access:
    server: str = "https://10.0.0.1:6443"
    origin: str = "admin.kubeconfig"


@dataclass
class ScriptedServer:
    """Answers as an API server of a healthy cluster, but for `answers`: a path and its status and body."""

    answers: Mapping[str, tuple[int, Any]] = field(default_factory=dict)
    forbidden: tuple[str, ...] = ()  # resources that the user may do nothing with
    access: Access = field(default_factory=Access)

    async def raw(self, method: str, path: str, *, body: bytes | None = None, headers: Any = None) -> tuple[int, Any, bytes]:
        assert method == ("POST" if body else "GET")  # nothing is changed
        status, answer = self.answers.get(path) or self.healthy(path, json.loads(body or b"{}"))
        return status, {}, json.dumps(answer).encode()

    def healthy(self, path: str, body: Any) -> tuple[int, Any]:
        served = {f"/apis/{group}/{version}": resources(group, version) for group, version in VERSIONS}
        served |= {"/version": {"major": "1", "minor": "34+"}, "/apis/resource.k8s.io/v1": {"resources": []}}
        if path in served:
            return 200, served[path]
        if path.endswith("selfsubjectaccessreviews"):
            return 201, {"status": {"allowed": body["spec"]["resourceAttributes"]["resource"] not in self.forbidden}}
        if path.endswith("selfsubjectreviews"):
            return 201, {"status": {"userInfo": {"username": "ann"}}}
        return 404, {}


async def check(server: ScriptedServer) -> None:
    await check_cluster(cast(Kube, server), "controller", RIGHTS)


async def test_a_healthy_cluster_is_accepted() -> None:
    await check(ScriptedServer())


GROUP = f"/apis/{kinds.VMI.group}"
CASES: dict[str, tuple[ScriptedServer, tuple[str, ...]]] = {
    "an old version": (ScriptedServer({"/version": (200, {"major": "1", "minor": "33"})}), ("1.33", "1.34 or newer")),
    "something else": (ScriptedServer({"/version": (404, {})}), ("is it an API server", "admin.kubeconfig")),
    "no devices": (ScriptedServer({"/apis/resource.k8s.io/v1": (404, {})}), ("DynamicResourceAllocation",)),
    "no definitions": (ScriptedServer({f"{GROUP}/v1": (404, {}), GROUP: (404, {})}), (
        "virtualmachines.kubevirt.io", "outfit install --apply")),
    "one definition is missing": (ScriptedServer({f"{GROUP}/v1": (200, resources("kubevirt.io", "v1", "virtualmachines")),
                                                  GROUP: (200, {"versions": [{"version": "v1"}]})}), (
        "lacks the definitions of virtualmachines.kubevirt.io:", "outfit install --apply")),
    "another version": (ScriptedServer({
        f"{GROUP}/v1": (404, {}), GROUP: (200, {"versions": [{"version": "v9"}]}),
        f"{GROUP}/v9": (200, {"resources": [{"name": kind.plural} for kind in OURS]})}), ("v9", "outfit install --apply")),
    "no rights": (ScriptedServer(forbidden=("pods", "virtualmachineinstances")), (
        "ann", "create pods", "patch virtualmachineinstances.kubevirt.io/status", "ClusterRole outfitter-controller")),
    "a credential of another cluster": (ScriptedServer({"/version": (401, {})}), ("admin.kubeconfig", "expired")),
}


@pytest.mark.parametrize("name", CASES)
async def test_what_is_wrong_and_what_helps(name: str) -> None:
    server, words = CASES[name]
    with pytest.raises(OutfitterError) as error:
        await check(server)
    assert [word for word in words if word not in error.value.message] == []
    assert "\n" not in error.value.message
