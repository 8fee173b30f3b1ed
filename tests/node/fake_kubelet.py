"""A kubelet as far as launcher pods need one: it runs the containers of pods that are bound to its node as processes of this
host, with the folders of their volumes, and writes their status. Needs no pytest."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from outfitter.api import kinds
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import vm
from outfitter.errors import Conflict, NotFound, Unavailable
from outfitter.store.base import Store
from outfitter.store.clock import SystemClock, rfc3339
from tests.launcher.pod.launcher_process import LauncherProcess, PodFolder

EVERY = 0.02  # seconds between two looks
SOCKET_AND_STATE = 4  # arguments of the container for folders, which are played by others


@dataclass(frozen=True, slots=True)
class ContainerEdits:
    """What drivers add to a container."""

    env: Mapping[str, str] = field(default_factory=dict)
    mounts: Mapping[str, Path] = field(default_factory=dict)  # path in the container -> on the host


class FakeKubelet:
    def __init__(self, store: Store, node: str, folder: Path, *arguments: str) -> None:
        """`folder` is short; `arguments` of the launcher, instead of those of the container."""
        self._store, self.node, self._folder, self._arguments = store, node, folder, arguments
        self.launchers: dict[str, LauncherProcess] = {}  # by the pod's name
        self._signalled: set[str] = set()
        self.files: dict[str, bytes] = {}  # of every container, by path in it: what drivers mount

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            pods = (await self._store.list(kinds.POD, fields=f"spec.nodeName={self.node}")).items
            for pod in filter(vm.launches, pods):
                with contextlib.suppress(Conflict, NotFound, Unavailable):
                    await self._sync(pod)
            await asyncio.sleep(EVERY)

    async def prepare(self, pod: Object) -> ContainerEdits | None:
        """Before its container starts. None: not now. This kubelet knows no drivers."""
        return ContainerEdits()

    async def unprepare(self, pod: Object) -> bool:
        """After its container ended. False: not now."""
        return True

    async def _sync(self, pod: Object) -> None:
        name, phase = pod["metadata"]["name"], (pod.get("status") or {}).get("phase")
        launcher, deleted = self.launchers.get(name), pod["metadata"].get("deletionTimestamp")
        if launcher is None:
            if deleted:
                await self._delete(pod)
            elif phase == "Pending" and (edits := await self.prepare(pod)) is not None:
                started = PodFolder(self._folder, pod["metadata"]["uid"])
                for path, content in self.files.items():
                    (started.root / path).parent.mkdir(parents=True, exist_ok=True)
                    (started.root / path).write_bytes(content)
                for path, source in edits.mounts.items():
                    (started.root / path.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
                    (started.root / path.lstrip("/")).symlink_to(source)
                self.launchers[name] = LauncherProcess(started, *self._arguments_of(pod), env=edits.env)
                await self._write(pod, "Running", {"running": {"startedAt": rfc3339(SystemClock().now())}})
            return
        if (status := launcher.poll()) is None:
            if deleted and name not in self._signalled:
                self._signalled.add(name)
                launcher.signal(signal.SIGTERM)
            return
        if phase == "Running":
            if not await self.unprepare(pod):
                return  # the pod stays until its devices are unprepared
            status = 128 - status if status < 0 else status  # as a container's
            ended = {"terminated": {"exitCode": status, "reason": "Error" if status else "Completed",
                                    "message": launcher.ended()[1]}}
            await self._write(pod, "Failed" if status else "Succeeded", ended)
        elif deleted:
            await self._delete(pod)

    def _arguments_of(self, pod: Object) -> Sequence[str]:
        if self._arguments:
            return self._arguments
        [container] = pod["spec"]["containers"]
        assert container["command"] == ["outfit", "launcher"]
        return list(container["args"][SOCKET_AND_STATE:])

    async def _write(self, pod: Object, phase: str, state: Object) -> None:
        meta, spec = pod["metadata"], pod["spec"]["containers"][0]
        running = "running" in state
        container = {"name": spec["name"], "image": spec["image"], "imageID": "", "ready": running, "started": running,
                     "restartCount": 0, "state": state}
        await self._store.patch(kinds.POD, meta["name"], {
            "metadata": {"resourceVersion": meta["resourceVersion"]},
            "status": {"phase": phase, "containerStatuses": [container]}}, meta["namespace"], subresource="status")

    async def _delete(self, pod: Object) -> None:
        meta = pod["metadata"]
        await self._store.delete(kinds.POD, meta["name"], meta["namespace"], uid=meta["uid"], grace=0)
        self.launchers.pop(meta["name"], None)

    def kill_all(self) -> None:
        for launcher in self.launchers.values():
            launcher.kill()
