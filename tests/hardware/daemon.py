"""A libvirtd of one's own: its folders are bound over the system's in a mount namespace, so that nothing of this host's
libvirt is touched or needed. VMs outlive it, as they do on a host. Needs root."""

from __future__ import annotations

import importlib.util
import itertools
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.hardware import embed, guest

LIBVIRTD = "/usr/sbin/libvirtd"
FOLDERS = {"etc": "/etc/libvirt", "lib": "/var/lib/libvirt", "cache": "/var/cache/libvirt", "run": "/run/libvirt",
           "log": "/var/log/libvirt"}
PATIENCE = 300.0  # seconds until it listens; a loaded host takes long
PORTS = 16  # one that is kept, the others for migrations; of each daemon, as one does not see which another is about to use
_slots = itertools.count(os.getpid() * 16)


def _reserved_ports() -> socket.socket:
    """The first port of a range that no daemon of another process of these tests has: a migration that looked for the QEMU of
    one that was killed would find that of another test."""
    for slot in itertools.islice(_slots, 1024):
        guard = socket.socket()
        try:
            guard.bind(("127.0.0.1", 49152 + slot % 1024 * PORTS))
        except OSError:
            guard.close()
            continue
        return guard
    raise RuntimeError("no range of ports is free for the migrations of a libvirtd")


def missing() -> str:
    """Why none can be started; empty when it can."""
    if importlib.util.find_spec("libvirt") is None:
        return "needs libvirt-python (make libvirt)"
    for program, package in ((LIBVIRTD, "libvirt-daemon-system"), (embed.QEMU, "qemu-system-x86"), ("unshare", "util-linux")):
        if shutil.which(program) is None:
            return f"needs {program} (on Debian: apt install {package})"
    if os.geteuid() != 0:
        return "needs root, for a libvirtd in a mount namespace of its own"
    return guest.missing()


class Daemon:
    """`folder` keeps all its state, and should have a short name: sockets lie in it."""

    def __init__(self, folder: Path, hostname: str = "", *, patient: bool = False) -> None:
        """`hostname`: its own, for a daemon that VMs migrate to or from; "" for that of this host. `patient`: it never takes a
        connection for broken because no answer comes, on a host so slow that none may come for a while."""
        self.folder, self._hostname = folder, hostname
        self._process: subprocess.Popen[bytes] | None = None
        for name in FOLDERS:
            (folder / name).mkdir(parents=True, exist_ok=True)
        self._guard = _reserved_ports()
        first = int(self._guard.getsockname()[1])
        ports = f"migration_port_min = {first + 1}\nmigration_port_max = {first + PORTS - 1}\n"
        endless = "keepalive_interval = -1\n" if patient else ""
        (folder / "etc" / "qemu.conf").write_text(embed.SETTINGS + ports + endless)
        (folder / "etc" / "libvirtd.conf").write_text(
            f'host_uuid = "{uuid.uuid4()}"\nauth_unix_ro = "none"\nauth_unix_rw = "none"\nunix_sock_rw_perms = "0700"\n'
            f"{endless}")

    @property
    def _socket(self) -> Path:
        return self.folder / "run" / "libvirt-sock"

    @property
    def uri(self) -> str:
        return f"qemu+unix:///system?socket={self._socket}"

    def start(self) -> None:
        (self.folder / "run" / "libvirtd.pid").unlink(missing_ok=True)
        self._socket.unlink(missing_ok=True)
        binds = " && ".join(f"mkdir -p {there} && mount --bind {self.folder / here} {there}" for here, there in FOLDERS.items())
        if self._hostname:
            binds += f" && hostname {self._hostname}"
        with (self.folder / "daemon.log").open("ab") as log:
            self._process = subprocess.Popen(
                ["unshare", "--mount", *(["--uts"] if self._hostname else []), "--propagation", "private", "sh", "-c",
                 f"{binds} && exec {LIBVIRTD} --pid-file {self.folder}/run/libvirtd.pid"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        end = time.monotonic() + PATIENCE
        while not self._listens():
            if self._process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"libvirtd did not start:\n{(self.folder / 'daemon.log').read_text()}")
            time.sleep(0.05)

    def _listens(self) -> bool:
        with socket.socket(socket.AF_UNIX) as one:
            try:
                one.connect(str(self._socket))
            except OSError:
                return False
            return True

    def kill(self) -> None:
        """At once, as by kill -9."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def remove_unended(self, domain: str) -> None:
        """What outfitter asks an operator to do about a domain that libvirt cannot end (`connection.UNENDED`)."""
        self.kill()
        (self.folder / "run" / "qemu" / f"{domain}.xml").unlink()
        self.start()

    def qemu(self, name: str) -> int:
        """The process of a VM."""
        return embed.pid(self.folder, name)

    def end(self) -> None:
        """With all its VMs."""
        for pid in (self.folder / "run" / "qemu").glob("*.pid"):
            with suppress(ProcessLookupError):
                os.kill(int(pid.read_text()), signal.SIGKILL)
        self.kill()
        self._guard.close()


@contextmanager
def own(hostname: str = "") -> Iterator[Daemon]:
    """One that runs, and of which nothing is left afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="outfit-"))
    made = Daemon(folder, hostname)
    try:
        made.start()
        yield made
    finally:
        made.end()
        shutil.rmtree(folder, ignore_errors=True)
