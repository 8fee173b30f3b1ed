"""The libvirt daemon of a launcher's container: started by the launcher, with its state in one folder, and started again when
it dies (the VM survives that). As root it is the system's daemon of the container, for devices that need root; otherwise a
session daemon. Called by `process.py`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import socket
import subprocess
import uuid
from collections.abc import Mapping
from pathlib import Path

from outfitter.errors import HypervisorAway, StartupRefused

log = logging.getLogger(__name__)
DAEMONS = {"virtqemud": "virtqemud-sock", "libvirtd": "libvirt-sock"}  # program -> its socket; the first that is installed
SYSTEM_RUN = Path("/run/libvirt")
SYSTEM_ETC = Path("/etc/libvirt")
MAX_DEATHS = 5  # without having answered in between
START_PATIENCE = 60.0  # seconds until it listens
STOP_PATIENCE = 5.0
LOOK_EVERY = 0.1
# QEMU as the container's user; the container isolates it, and its log is the launcher's.
SETTINGS = """# Written by outfit launcher.
security_driver = "none"
dynamic_ownership = 0
remember_owner = 0
stdio_handler = "file"
cgroup_controllers = []
namespaces = []
"""


class LibvirtDaemon:
    def __init__(self, folder: Path) -> None:
        """`folder`: its state where it is not root's; has a short name, because sockets are in it."""
        self._folder = folder
        self._program = next((program for program in DAEMONS if shutil.which(program, path=_path())), "")
        if not self._program:
            raise StartupRefused(f"neither {' nor '.join(DAEMONS)} is installed in this container: the launcher's image needs "
                                 "libvirt-daemon and qemu-system; or choose --hypervisor simulated")
        self._host_uuid = uuid.uuid4()  # libvirt refuses a migration between daemons with the same one, as cloned nodes have
        self._process: subprocess.Popen[bytes] | None = None
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()  # why it is given up
        self._task: asyncio.Task[None] | None = None

    @property
    def _socket(self) -> Path:
        run = SYSTEM_RUN if os.geteuid() == 0 else self._folder / "run" / "libvirt"
        return run / DAEMONS[self._program]

    @property
    def pid(self) -> int:
        """0: it was not started."""
        return self._process.pid if self._process is not None else 0

    @property
    def uri(self) -> str:
        return f"qemu+unix:///{'system' if os.geteuid() == 0 else 'session'}?socket={self._socket}"

    async def start(self) -> None:
        """HypervisorAway: it does not listen in time."""
        self._begin()
        self._task = asyncio.ensure_future(self._watch())
        for _ in range(int(START_PATIENCE / LOOK_EVERY)):
            if _listens(self._socket):
                return
            if self.lost.done():
                raise HypervisorAway(self.lost.result())
            await asyncio.sleep(LOOK_EVERY)
        raise HypervisorAway(f"{self._program} does not listen at {self._socket} after {START_PATIENCE:.0f} s")

    def _begin(self) -> None:
        program = shutil.which(self._program, path=_path()) or self._program
        self._process = subprocess.Popen([program, "--config", str(self._configuration())], env=self._environment(),
                                         stdin=subprocess.DEVNULL, start_new_session=True)
        log.info("%s runs as process %d", self._program, self._process.pid)

    def _configuration(self) -> Path:
        """The daemon's own file of the image, with another host UUID."""
        self._folder.mkdir(parents=True, exist_ok=True)
        path, given = self._folder / f"{self._program}.conf", SYSTEM_ETC / f"{self._program}.conf"
        lines = given.read_text().splitlines() if os.geteuid() == 0 and given.exists() else []
        kept = [line for line in lines if not line.strip().startswith("host_uuid")]
        path.write_text("\n".join([*kept, f'host_uuid = "{self._host_uuid}"', ""]))
        return path

    def _environment(self) -> Mapping[str, str]:
        """Of a session daemon: all its state is in the folder."""
        if os.geteuid() == 0:
            return {**os.environ, "PATH": _path()}
        places = {"XDG_RUNTIME_DIR": "run", "XDG_CONFIG_HOME": "etc", "XDG_CACHE_HOME": "cache", "XDG_DATA_HOME": "data"}
        for name in places.values():
            (self._folder / name).mkdir(parents=True, exist_ok=True, mode=0o700)
        (self._folder / "etc" / "libvirt").mkdir(exist_ok=True)
        (self._folder / "etc" / "libvirt" / "qemu.conf").write_text(SETTINGS)
        return {**os.environ, "PATH": _path(), "HOME": str(self._folder),
                **{variable: str(self._folder / name) for variable, name in places.items()}}

    async def _watch(self) -> None:
        """Start it again when it died; give up when it does not come to listen."""
        deaths = 0
        while True:
            await asyncio.sleep(LOOK_EVERY)
            assert self._process is not None
            if (status := self._process.poll()) is None:
                continue
            deaths = deaths + 1
            why = f"{self._program} ended with status {status}"
            if deaths > MAX_DEATHS:
                self.lost.set_result(f"{why}, {deaths} times in a row")
                return
            log.warning("%s; starting it again", why)
            self._begin()
            for _ in range(int(START_PATIENCE / LOOK_EVERY)):
                await asyncio.sleep(LOOK_EVERY)
                if _listens(self._socket):
                    deaths = 0
                    break
                if self._process.poll() is not None:
                    break

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
        process = self._process
        if process is None or process.poll() is not None:
            return
        process.send_signal(signal.SIGTERM)
        for _ in range(int(STOP_PATIENCE / LOOK_EVERY)):
            if process.poll() is not None:
                return
            await asyncio.sleep(LOOK_EVERY)
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_PATIENCE)


def _path() -> str:
    """Daemons are in folders that a user's PATH may lack."""
    return os.pathsep.join(filter(None, (os.environ.get("PATH"), "/usr/sbin", "/sbin")))


def _listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(str(path))
        except OSError:
            return False
        return True
