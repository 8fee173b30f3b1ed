"""`outfit launcher` as a process: what the node agent, signals and the guest do to it, and the exit status that tells of it."""

from __future__ import annotations

import asyncio
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from outfitter.api.launcher.launcher_protocol import StartVmi
from outfitter.errors import HypervisorAway, StartFailed, StartupRefused
from outfitter.launcher.pod import process as launcher
from outfitter.launcher.pod.process import LauncherOptions
from outfitter.node.launchers import Launchers
from tests.launcher.pod.launcher_process import UID, LauncherProcess, PodFolder, vmi


@pytest.fixture
def pod() -> Iterator[PodFolder]:
    with tempfile.TemporaryDirectory(prefix="of-") as folder:
        yield PodFolder(Path(folder))


@pytest.fixture
def process(pod: PodFolder) -> Iterator[LauncherProcess]:
    started = LauncherProcess(pod, "--hypervisor", "simulated").listens()
    yield started
    started.kill()


@pytest.fixture
async def agent(pod: PodFolder) -> AsyncIterator[Launchers]:
    connected = Launchers(pod.kubelet)
    connected.assign(UID, pod.uid)
    yield connected
    await connected.close()


async def test_a_vm_runs_until_its_guest_shuts_down(process: LauncherProcess, agent: Launchers) -> None:
    started = await agent.start_vmi(StartVmi(vmi()))
    assert started is not None
    assert (started.uid, started.name) == (UID, "here_blue")
    assert await agent.start_vmi(StartVmi(vmi())) == started, "a domain that runs is left as it is"
    await agent.pause(UID)
    paused = (await agent.domains())[UID].paused
    assert paused is not None
    assert paused.reason == "PausedByUser"
    await agent.unpause(UID)
    assert (await agent.domains())[UID].paused is None
    await agent.reset(UID)
    await agent.reboot(UID)
    process.signal(signal.SIGUSR1)
    assert process.ended() == (0, "Stopped: the guest shut down")
    assert await agent.domains() == {}
    with pytest.raises(HypervisorAway) as error:
        await agent.pause(UID)
    assert error.value.rejection.code == "LauncherAway"
    assert await agent.stop(UID) is None


async def test_a_guest_that_crashes_is_a_failure(process: LauncherProcess, agent: Launchers) -> None:
    await agent.start_vmi(StartVmi(vmi()))
    process.signal(signal.SIGUSR2)
    assert process.ended() == (3, "DomainFailed: the simulated guest crashed")


async def test_sigterm_shuts_the_guest_down(process: LauncherProcess, agent: Launchers, pod: PodFolder) -> None:
    await agent.start_vmi(StartVmi(vmi()))
    assert list(pod.state.glob("domains/*.xml"))
    process.signal(signal.SIGTERM)
    assert process.ended() == (0, "Stopped: the guest was shut down on request")
    assert not list(pod.state.glob("domains/*")), "nothing of the VM is left"
    assert not pod.socket.exists()


def test_sigterm_before_a_vm_was_started_ends_it_at_once(process: LauncherProcess) -> None:
    process.signal(signal.SIGTERM)
    assert process.ended() == (0, "Stopped: no VM was started")


async def test_a_vmi_that_cannot_be_built_ends_the_launcher_with_the_reason(process: LauncherProcess, agent: Launchers) -> None:
    wrong = vmi(devices={"hostDevices": [{"name": "nic0", "claimName": "network", "requestName": "nic"}]})
    with pytest.raises(StartFailed) as error:
        await agent.start_vmi(StartVmi(wrong))
    status, why = process.ended()
    assert status == 4
    assert why == f"SyncFailed: {error.value.message}"


async def test_kill_leaves_nothing_half_done(pod: PodFolder, agent: Launchers) -> None:
    """Before the start, while the VM runs, while it is paused: the next process finds the VM as it was."""
    process = LauncherProcess(pod, "--hypervisor", "simulated").listens()
    assert await agent.domains() == {}
    process.kill()
    assert await agent.domains() == {}, "nothing listens at its socket: nothing runs"
    process = LauncherProcess(pod, "--hypervisor", "simulated")
    changes: list[str] = []
    agent.on_change(changes.append)
    await _until_started(agent)
    await agent.pause(UID)
    changes.clear()
    process.kill()
    await _until(lambda: UID in changes, "the agent is told that the connection is lost")
    process = LauncherProcess(pod, "--hypervisor", "simulated")
    await _until_started(agent)
    assert (await agent.domains())[UID].paused is not None
    process.signal(signal.SIGTERM)
    assert process.ended()[0] == 0


async def _until_started(agent: Launchers) -> None:
    async with asyncio.timeout(300):
        while True:
            try:
                await agent.start_vmi(StartVmi(vmi()))
            except HypervisorAway:
                await asyncio.sleep(0.01)
            else:
                return


async def _until(check: object, what: str) -> None:
    assert callable(check)
    async with asyncio.timeout(300):
        while not check():  # noqa: ASYNC110  # the other process sends it
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(("changed", "words"), [
    pytest.param({"hypervisor": "xen"}, "it is libvirt, simulated, or a URI of libvirt", id="an unknown hypervisor"),
    pytest.param({"socket": Path("/tmp/" + "x" * 120)}, "too long for a unix socket", id="a long path"),
    pytest.param({"socket": Path("/dev/null")}, "is not a socket", id="a file of others"),
])
async def test_a_launcher_that_cannot_begin_says_why(pod: PodFolder, changed: dict[str, Any], words: str) -> None:
    options = replace(LauncherOptions(pod.socket, pod.state, "simulated"), **changed)
    with pytest.raises(StartupRefused, match=words):
        await launcher.run(options, asyncio.Event(), lambda _: None)
