"""Hosts on which things can be made to happen to a VM: one that is simulated, and libvirt with QEMU (a daemon of our own)."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import pytest

from outfitter.api.hypervisor import BY_USER, Domain, Hypervisor
from outfitter.api.kinds import Object
from outfitter.launcher import connection, domain
from outfitter.launcher.domain_options import DomainOptions
from outfitter.launcher.libvirt import Libvirt
from outfitter.launcher.simulated import Simulated
from outfitter.store.clock import ManualClock
from tests.hardware import daemon, embed, guest
from tests.hardware.daemon import Daemon

UID, OTHER = "8d1f0a52-3c1e-4f0b-9d35-0f6f5b7f2a11", "4b20d080-1b54-4048-85b3-a6a62d165c01"
BRIDGES = [f"ofn{os.getpid() % 1000000}{letter}" for letter in "ab"]  # of this process, on the host
PATIENCE = 300.0  # seconds for what QEMU does; a loaded host takes long
needs_libvirt = pytest.mark.skipif(bool(daemon.missing()), reason=daemon.missing() or "-")


def instance(name: str = "blue", uid: str = UID, seed: str = "") -> Object:
    volumes = [{"name": "seed", "cloudInitNoCloud": {"userData": seed}}] if seed else []
    return {"metadata": {"name": name, "namespace": "here", "uid": uid},
            "spec": {"domain": {"memory": {"guest": "32Mi"}, "devices": {}}, "volumes": volumes}}


class Lab(Protocol):
    """A host on which things can be made to happen."""

    clock: ManualClock
    drives: Path  # where the images of config drives lie

    def hypervisor(self) -> Hypervisor:
        """As a process has it that was just started."""
        ...

    def machine(self, name: str = "blue", uid: str = UID, *, deaf: bool = False, seed: str = "") -> Domain:
        """`seed`: what its cloud-init finds; without it there is no drive."""
        ...

    def kill(self, hypervisor: Hypervisor, uid: str) -> None:
        """Its QEMU dies."""
        ...

    def power_off(self, hypervisor: Hypervisor, uid: str) -> None:
        """Its guest shuts down of itself."""
        ...

    def freeze(self, hypervisor: Hypervisor, uid: str) -> None:
        """Another client pauses it."""
        ...

    def bridges(self) -> list[str]:
        """Two that this host has now."""
        ...

    def taps(self, bridge: str) -> int:
        """How many are on a bridge."""
        ...

    async def up(self, hypervisor: Hypervisor, made: Domain) -> None:
        """Start it and wait for its guest."""
        ...

    async def begins_anew(self, hypervisor: Hypervisor, times: int) -> None:
        """Wait until its guest has begun so many times."""
        ...


class Played:
    def __init__(self, folder: Path) -> None:
        self.folder, self.drives, self.clock, self.ignoring_shutdown = folder, folder, ManualClock(), set[str]()

    def hypervisor(self) -> Simulated:
        made = Simulated(self.folder, monotonic=self.clock.monotonic)
        made.ignoring_shutdown = self.ignoring_shutdown
        return made

    def machine(self, name: str = "blue", uid: str = UID, *, deaf: bool = False, seed: str = "") -> Domain:
        if deaf:
            self.ignoring_shutdown.add(uid)
        return domain.build(instance(name, uid, seed), options=DomainOptions(drives=str(self.drives)))

    def kill(self, hypervisor: Hypervisor, uid: str) -> None:
        assert isinstance(hypervisor, Simulated)
        hypervisor.simulate_end(uid, "it was played to die")

    def power_off(self, hypervisor: Hypervisor, uid: str) -> None:
        assert isinstance(hypervisor, Simulated)
        hypervisor.simulate_end(uid, "the guest shut down", failed=False)

    def freeze(self, hypervisor: Hypervisor, uid: str) -> None:
        assert isinstance(hypervisor, Simulated)
        hypervisor.simulate_pause(uid, BY_USER)

    def bridges(self) -> list[str]:
        return ["br0", "br1"]

    def taps(self, bridge: str) -> int:
        return sum(path.read_text() == bridge for path in self.folder.glob("*.tap"))

    async def up(self, hypervisor: Hypervisor, made: Domain) -> None:
        await hypervisor.start(made)

    async def begins_anew(self, hypervisor: Hypervisor, times: int) -> None:
        assert isinstance(hypervisor, Simulated)
        assert len(hypervisor.pressed) + 1 == times


class Real:
    def __init__(self, libvirtd: Daemon) -> None:
        self.daemon, self.root, self.uri, self.clock = libvirtd, libvirtd.folder, libvirtd.uri, ManualClock()
        self.drives = self.root / "drives"
        self.images = {deaf: guest.image(self.root, deaf=deaf) for deaf in (False, True)}

    def hypervisor(self) -> Libvirt:
        return Libvirt(self.uri, monotonic=self.clock.monotonic, sleep=self.clock.sleep, drives=str(self.drives))

    def machine(self, name: str = "blue", uid: str = UID, *, deaf: bool = False, seed: str = "") -> Domain:
        built = domain.build(instance(name, uid, seed), options=DomainOptions(drives=str(self.drives)))
        return replace(embed.small(built, self.images[deaf], self.root / f"{name}.log"), drive=built.drive)

    def kill(self, hypervisor: Hypervisor, uid: str) -> None:
        os.kill(self.daemon.qemu("here_blue"), signal.SIGKILL)

    def power_off(self, hypervisor: Hypervisor, uid: str) -> None:
        conn = connection.library().open(self.uri)
        conn.lookupByName("here_blue").shutdown()  # as the power button: the guest does the rest
        conn.close()

    def freeze(self, hypervisor: Hypervisor, uid: str) -> None:
        conn = connection.library().open(self.uri)
        conn.lookupByName("here_blue").suspend()
        conn.close()

    def bridges(self) -> list[str]:
        for bridge in BRIDGES:
            if not Path(f"/sys/class/net/{bridge}").exists():
                made = subprocess.run(["ip", "link", "add", bridge, "type", "bridge"], check=False, capture_output=True,
                                      text=True)
                if made.returncode:
                    pytest.skip(f"this kernel makes no bridge: {made.stderr.strip()}")
        return BRIDGES

    def taps(self, bridge: str) -> int:
        return len(list(Path(f"/sys/class/net/{bridge}/brif").iterdir()))

    def remove_bridges(self) -> None:
        for bridge in BRIDGES:
            subprocess.run(["ip", "link", "delete", bridge], check=False, capture_output=True)

    async def up(self, hypervisor: Hypervisor, made: Domain) -> None:
        log = self.root / f"{made.name.removeprefix('here_')}.log"
        log.unlink(missing_ok=True)
        await hypervisor.start(made)
        await until(lambda: log.exists() and "U" in log.read_text(), "the guest is up")

    async def begins_anew(self, hypervisor: Hypervisor, times: int) -> None:
        await until(lambda: (self.root / "blue.log").read_text().count("U") == times, f"the guest is up for the {times}. time")


async def tidy(lab: Lab) -> None:
    """Nothing is left for the next test."""
    hypervisor = lab.hypervisor()
    for uid in [*await hypervisor.domains(), *await hypervisor.ended()]:
        await hypervisor.stop(uid)
    assert not await hypervisor.domains()
    await hypervisor.close()


async def until(check: Callable[[], bool], what: str) -> None:
    try:
        async with asyncio.timeout(PATIENCE):
            while not check():  # noqa: ASYNC110  # QEMU and files send no news
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"not reached: {what}") from None


class News:
    """What a hypervisor reported."""

    def __init__(self, hypervisor: Hypervisor) -> None:
        self.told: list[str] = []
        hypervisor.on_change(self.told.append)

    async def of(self, uid: str = UID) -> None:
        await until(lambda: uid in self.told, f"news of {uid!r}")
        self.told.clear()


def drives_of(lab: Lab) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in lab.drives.iterdir() if ".iso" in path.name}
