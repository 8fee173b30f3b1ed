"""A container runtime for a real kubelet that runs the containers of launcher pods as processes of this host: command,
environment and mounts as the kubelet gives them, and the environment that CDI files add for the devices that the kubelet
names. All other containers run nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.e2e.process import OUTFIT
from tests.node.kubelet.fake_runtime import EXITED, RUNNING, FakeRuntime

LAUNCHER = ["outfit", "launcher"]
TERMINATION_LOG = "/dev/termination-log"


class ProcessRuntime(FakeRuntime):
    def __init__(self, socket: Path, definitions: bytes, folder: Path, cdi: Path) -> None:
        """`folder` is short: sockets are in it. `cdi`: where drivers write CDI files."""
        super().__init__(socket, definitions)
        self._folder, self._cdi = folder, cdi
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    async def stop(self) -> None:
        await super().stop()
        for process in self.processes.values():
            process.kill()
            process.wait()

    def environment(self, pod: str) -> dict[str, str]:
        """Of the process of a pod that runs."""
        [found] = [name for name, container in self.containers.items() if container["state"] == RUNNING
                   and name in self.processes and container["config"].labels["io.kubernetes.pod.name"] == pod]
        content = Path(f"/proc/{self.processes[found].pid}/environ").read_bytes().decode()
        return dict(entry.split("=", 1) for entry in content.split("\0") if entry)

    def logs(self) -> str:
        return "\n".join(path.read_text(errors="replace") for path in sorted(self._folder.glob("*/log")))

    # -- the runtime

    def _StartContainer(self, request: Any) -> dict[str, Any]:
        config = self.containers[request.container_id]["config"]
        if list(config.command) == LAUNCHER:
            self.processes[request.container_id] = self._launch(request.container_id, config)
        return super()._StartContainer(request)

    def _StopContainer(self, request: Any) -> dict[str, Any]:
        if (process := self.processes.get(request.container_id)) is not None and process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(max(request.timeout, 1))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        return super()._StopContainer(request)

    def _container(self, name: str) -> dict[str, Any]:
        self._look(name)
        return super()._container(name)

    def _ContainerStatus(self, request: Any) -> dict[str, Any]:
        self._look(request.container_id)
        answer = super()._ContainerStatus(request)
        if (process := self.processes.get(request.container_id)) is not None and process.poll() is not None:
            status = process.returncode
            answer["status"]["exit_code"] = 128 - status if status < 0 else status
        return answer

    def _look(self, name: str) -> None:
        """Whether a container's process has ended."""
        container, process = self.containers[name], self.processes.get(name)
        if process is not None and container["state"] == RUNNING and process.poll() is not None:
            container |= {"state": EXITED, "finished_at": time.time_ns()}

    def _launch(self, name: str, config: Any) -> subprocess.Popen[bytes]:
        place = self._folder / name.rpartition("-")[2]
        (place / "root").mkdir(parents=True)
        mounts = {}
        for number, mount in enumerate(config.mounts):  # a mount is a link
            (place / f"m{number}").symlink_to(mount.host_path)
            mounts[mount.container_path] = str(place / f"m{number}")

        def inside(word: str) -> str:
            return next((at + word.removeprefix(path) for path, at in mounts.items()
                         if word == path or word.startswith(f"{path}/")), word)

        env = {"PATH": os.environ["PATH"], "HOME": str(place), "OUTFITTER_ROOT": str(place / "root"),
               "OUTFITTER_TERMINATION_LOG": mounts[TERMINATION_LOG]}
        env |= {each.key: each.value for each in config.envs}
        env |= dict(self._cdi_environment([device.name for device in config.CDI_devices]))
        with (place / "log").open("ab") as log:
            return subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", "--", OUTFIT, "launcher", *map(inside, config.args)], env=env, cwd=place,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)

    def _cdi_environment(self, names: list[str]) -> Iterator[tuple[str, str]]:
        """What the CDI files say of these devices; each must be there."""
        specs = [yaml.safe_load(path.read_text()) for path in sorted(self._cdi.iterdir()) if path.suffix in (".json", ".yaml")]
        edits = {f"{spec['kind']}={device['name']}": device.get("containerEdits") or {} for spec in specs
                 for device in spec["devices"]}
        for name in names:
            for entry in edits[name].get("env") or ():
                key, _, value = entry.partition("=")
                yield key, value
