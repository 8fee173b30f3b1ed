"""`outfit launcher` as a kubelet starts it: a process with the environment and folders of a container, whose socket is in a
volume of its pod below the kubelet's folder. Needs no pytest."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from outfitter.api.kinds import Object
from outfitter.api.launcher import launcher_paths
from outfitter.node import launchers
from tests.e2e.forked_server import ForkedServer

UID = "8d1f0a52-3c1e-4f0b-9d35-0f6f5b7f2a11"
PATIENCE = 300.0  # seconds after which something that should have happened has failed


def vmi(uid: str = UID, *, grace: int = 30, **domain: object) -> Object:
    return {"metadata": {"name": "blue", "namespace": "here", "uid": uid},
            "spec": {"terminationGracePeriodSeconds": grace,
                     "domain": {"memory": {"guest": "32Mi"}, "devices": {}, **domain}}}


class PodFolder:
    """The folders of one pod: below the kubelet's, and as its container sees them. `folder` is short, because sockets are in
    it; a mount is played by a link."""

    def __init__(self, folder: Path, pod: str = "") -> None:
        self.kubelet, self.uid = folder / "kubelet", pod or str(uuid.uuid4())
        self.sockets = self.kubelet / "pods" / self.uid / launchers.VOLUMES / launcher_paths.VOLUME
        self.sockets.mkdir(parents=True)
        self.container = folder / self.uid[:6]
        self.container.mkdir()
        (self.container / "s").symlink_to(self.sockets)
        self.socket = self.container / "s" / launcher_paths.SOCKET
        self.state, self.root, self.log = (self.container / name for name in ("vm", "root", "log"))
        self.termination_log = self.container / "why"

    @property
    def arguments(self) -> list[str]:
        return ["--socket", str(self.socket), "--state", str(self.state), "--root", str(self.root),
                "--termination-log", str(self.termination_log)]


class LauncherProcess:
    def __init__(
        self, pod: PodFolder, *arguments: str, env: Mapping[str, str] | None = None, before: Sequence[str] = (),
        user: int | None = None,
    ) -> None:
        """`before`: a command that starts it, as unshare; without, and as this user, it is forked, which is faster."""
        self.pod = pod
        environment = {"PATH": os.environ["PATH"], "HOME": str(pod.container), **(env or {})}
        words = [*pod.arguments, *arguments]
        self._process: ForkedServer | subprocess.Popen[bytes]
        if not before and user is None:
            pod.log.touch()
            self._process = ForkedServer(words, environment=environment, folder=pod.container, log=pod.log, role="launcher")
            return
        with pod.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*before, sys.executable, "-m", "outfitter", "launcher", *words], env=environment, stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, start_new_session=True, user=user, group=user, extra_groups=[] if user else None)

    @property
    def pid(self) -> int:
        return self._process.pid

    def listens(self) -> LauncherProcess:
        end = time.monotonic() + PATIENCE
        while "is ready" not in self.pod.log.read_text():
            if self._process.poll() is not None or time.monotonic() > end:
                raise AssertionError(f"the launcher does not listen:\n{self.pod.log.read_text()}")
            time.sleep(0.01)
        return self

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(PATIENCE)

    def poll(self) -> int | None:
        return self._process.poll()

    def ended(self) -> tuple[int, str]:
        """Exit status and termination message."""
        status = self._process.wait(PATIENCE)
        return status, self.pod.termination_log.read_text() if self.pod.termination_log.exists() else ""
