"""A device plugin or a DRA driver as a process of its own, which tests kill: it registers at an agent as plugins of others do,
and again whenever the agent was started again.

    python plugin_process.py plugin KUBELET_FOLDER a.io/gpu g0,g1,g2
    python plugin_process.py driver KUBELET_FOLDER net.d.io"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from pathlib import Path

import grpc.aio

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

from tests.cases.assignment.plugins import PlayedPlugin
from tests.node.dra_manager.driver_server import DriverServer

LOOK = 0.05  # seconds between two looks at the agent's socket


async def _seen(method: str, name: str) -> None:
    pass


async def run_plugin(folder: Path, resource: str, devices: list[str]) -> None:
    name = resource.rpartition("/")[2]
    keys = {"resource": resource, "devices": {each: [] for each in devices}, "prestart": True}
    plugin = PlayedPlugin(name, keys, folder, _seen)
    agent, known = folder / "device-plugins" / "kubelet.sock", 0
    while True:
        with contextlib.suppress(FileNotFoundError, grpc.aio.AioRpcError):
            inode = agent.stat().st_ino
            if inode != known or not plugin.socket.exists():  # the agent was started, and has removed our socket
                await plugin.listen()
                if await plugin.register() is None:
                    known = inode
        await asyncio.sleep(LOOK)


async def run_driver(folder: Path, name: str) -> None:
    socket, registry = folder / "plugins" / name / "dra.sock", folder / "plugins_registry"
    for left in (socket, registry / f"{name}-reg.sock"):
        left.unlink(missing_ok=True)
    await DriverServer(name, socket, registry=registry, versions=("v1.DRAPlugin",)).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    what, place, thing, *more = sys.argv[1:]
    asyncio.run(run_plugin(Path(place), thing, more[0].split(",")) if what == "plugin" else run_driver(Path(place), thing))
