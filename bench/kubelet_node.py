"""A real kubelet on a real control plane, with a container runtime that runs nothing: what the tests of the judges use
(`tests.node.kubelet`), for a benchmark."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from outfitter.store.rest_config import RestConfig
from tests import kubernetes
from tests.node.kubelet import fake_runtime, real_kubelet
from tests.node.kubelet.real_kubelet import Kubelet

NAME = "kubelet-node"


def why_not() -> str:
    """Why there is none here; "": there is one."""
    if missing := real_kubelet.why_not():
        return missing
    return "" if fake_runtime.published_cri() is not None else "needs the published protobuf files; scripts/kubelet-protos"


@asynccontextmanager
async def real_node() -> AsyncIterator[tuple[RestConfig, Kubelet]]:
    """How its control plane is reached, and the kubelet."""
    cri = fake_runtime.published_cri()
    assert cri is not None
    with (tempfile.TemporaryDirectory(prefix="ob-", dir="/tmp") as name,
          kubernetes.Cluster(Path(name) / "control-plane", controllers=True) as cluster):
        folder = Path(name) / "k" / "kubelet"
        folder.mkdir(parents=True)
        runtime = fake_runtime.FakeRuntime(Path(name) / "cri.sock", cri)
        kubelet = Kubelet(cluster, NAME, folder, runtime.socket)
        await runtime.start()
        kubelet.start()
        try:
            yield cluster.access(), kubelet
        finally:
            kubelet.stop()
            await runtime.stop()


def process_of(folder: Path) -> int:
    """The kubelet's own process, below those that insulate it: it replaces them."""
    found = subprocess.run(["pgrep", "-f", "--", f"--root-dir={folder}"], capture_output=True, text=True, check=True)
    return int(found.stdout.split()[0])
