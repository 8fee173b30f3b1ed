"""What every hypervisor does for the node, in one suite: the one that plays, and libvirt with QEMU (a daemon of our own)."""

from __future__ import annotations

import asyncio
import functools
import os
import platform
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import pytest

from outfitter.api.hypervisor import BY_USER, Domain, Drive, Hypervisor
from outfitter.api.kinds import Object
from outfitter.errors import HypervisorAway, Refused
from outfitter.launcher import connection, domain
from outfitter.launcher import drive as drives
from outfitter.launcher.libvirt import BACKOFF, Libvirt
from outfitter.launcher.options import Options
from outfitter.launcher.simulated import Simulated
from outfitter.store.clock import ManualClock
from tests.hardware import daemon, embed, guest
from tests.hardware.daemon import Daemon

UID, OTHER = "8d1f0a52-3c1e-4f0b-9d35-0f6f5b7f2a11", "4b20d080-1b54-4048-85b3-a6a62d165c01"
PATIENCE = 60.0  # seconds for what QEMU does; a loaded machine takes long
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
        """Somebody else pauses it."""
        ...

    async def up(self, hypervisor: Hypervisor, made: Domain) -> None:
        """Start it and wait for its guest."""
        ...

    async def begins_anew(self, hypervisor: Hypervisor, times: int) -> None:
        """Wait until its guest has begun so many times."""
        ...


class Played:
    def __init__(self, folder: Path) -> None:
        self.folder, self.drives, self.clock, self.deaf = folder, folder, ManualClock(), set[str]()

    def hypervisor(self) -> Simulated:
        made = Simulated(self.folder, monotonic=self.clock.monotonic)
        made.deaf = self.deaf
        return made

    def machine(self, name: str = "blue", uid: str = UID, *, deaf: bool = False, seed: str = "") -> Domain:
        if deaf:
            self.deaf.add(uid)
        return domain.build(instance(name, uid, seed), options=Options(drives=str(self.drives)))

    def kill(self, hypervisor: Hypervisor, uid: str) -> None:
        assert isinstance(hypervisor, Simulated)
        hypervisor.play_end(uid, "it was played to die")

    def power_off(self, hypervisor: Hypervisor, uid: str) -> None:
        assert isinstance(hypervisor, Simulated)
        hypervisor.play_end(uid, "the guest shut down", failed=False)

    def freeze(self, hypervisor: Hypervisor, uid: str) -> None:
        assert isinstance(hypervisor, Simulated)
        hypervisor.play_pause(uid, BY_USER)

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
        built = domain.build(instance(name, uid, seed), options=Options(drives=str(self.drives)))
        return replace(embed.small(built, self.images[deaf], self.root / f"{name}.log"), drive=built.drive)

    def kill(self, hypervisor: Hypervisor, uid: str) -> None:
        os.kill(self.daemon.qemu("here_blue"), signal.SIGKILL)

    def power_off(self, hypervisor: Hypervisor, uid: str) -> None:
        conn = connection.library().open(self.uri)
        conn.lookupByName("here_blue").shutdown()  # as the button on a machine: the guest does the rest
        conn.close()

    def freeze(self, hypervisor: Hypervisor, uid: str) -> None:
        conn = connection.library().open(self.uri)
        conn.lookupByName("here_blue").suspend()
        conn.close()

    async def up(self, hypervisor: Hypervisor, made: Domain) -> None:
        log = self.root / f"{made.name.removeprefix('here_')}.log"
        log.unlink(missing_ok=True)
        await hypervisor.start(made)
        await until(lambda: log.exists() and "U" in log.read_text(), "the guest is up")

    async def begins_anew(self, hypervisor: Hypervisor, times: int) -> None:
        await until(lambda: (self.root / "blue.log").read_text().count("U") == times, f"the guest is up for the {times}. time")


@pytest.fixture(scope="module")
def libvirtd() -> Iterator[Daemon]:
    folder = Path(tempfile.mkdtemp(prefix="outfit-"))
    made = Daemon(folder)
    made.start()
    yield made
    made.kill()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(params=["simulated", pytest.param("libvirt", marks=[pytest.mark.libvirt, needs_libvirt])])
async def lab(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Lab]:
    if request.param == "simulated":
        yield Played(tmp_path)
        return
    made = Real(request.getfixturevalue("libvirtd"))
    yield made
    await tidy(made)


async def tidy(lab: Lab) -> None:
    """Nothing is left for the next test."""
    hypervisor = lab.hypervisor()
    for uid in [*await hypervisor.domains(), *await hypervisor.ended()]:
        await hypervisor.stop(uid)
    assert not await hypervisor.domains()
    await hypervisor.close()


@pytest.fixture
async def real(libvirtd: Daemon) -> AsyncIterator[Real]:
    made = Real(libvirtd)
    yield made
    await tidy(made)


async def until(check: Callable[[], bool], what: str) -> None:
    try:
        async with asyncio.timeout(PATIENCE):
            while not check():  # noqa: ASYNC110  # QEMU and files send no news
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"not reached: {what}") from None


class News:
    """What a hypervisor told."""

    def __init__(self, hypervisor: Hypervisor) -> None:
        self.told: list[str] = []
        hypervisor.on_change(self.told.append)

    async def of(self, uid: str = UID) -> None:
        await until(lambda: uid in self.told, f"news of {uid!r}")
        self.told.clear()


def emulates() -> bool:
    """Whether this machine's processor cannot run machines."""
    words = Path("/proc/cpuinfo").read_text().split() if Path("/proc/cpuinfo").exists() else []
    return platform.machine() == "x86_64" and {"vmx", "svm"}.isdisjoint(words)


async def test_what_it_can_do(lab: Lab) -> None:
    hypervisor = lab.hypervisor()
    found = await hypervisor.abilities()
    assert found.plays is isinstance(lab, Played)
    assert not (found.kvm and (found.plays or emulates()))
    await hypervisor.close()


async def test_a_machine_starts_once_and_is_forced_off(lab: Lab) -> None:
    hypervisor = lab.hypervisor()
    news = News(hypervisor)
    await hypervisor.start(lab.machine())
    await news.of(UID)
    found = await hypervisor.domains()
    assert [(uid, one.uid, one.name, one.foreign) for uid, one in found.items()] == [(UID, UID, "here_blue", False)]
    assert not await hypervisor.ended()
    await hypervisor.start(lab.machine())
    assert list(await hypervisor.domains()) == [UID]
    assert await hypervisor.stop(UID) is None
    assert (await hypervisor.domains(), await hypervisor.ended()) == ({}, {})
    assert await hypervisor.stop(UID) is None, "a second time is no harm"
    await hypervisor.close()


async def test_a_machine_that_is_asked_to_shut_down_does(lab: Lab) -> None:
    hypervisor = lab.hypervisor()
    await lab.up(hypervisor, lab.machine())
    news = News(hypervisor)
    left = await hypervisor.stop(UID, 30.0)
    while left is not None:
        assert 0 < left <= 30
        await news.of(UID)
        left = await hypervisor.stop(UID, 30.0)
    assert lab.clock.monotonic() == 0, "no time was needed"
    assert (await hypervisor.domains(), await hypervisor.ended()) == ({}, {})
    await hypervisor.close()


async def test_a_machine_that_does_not_listen_is_forced_when_its_time_is_over(lab: Lab) -> None:
    hypervisor = lab.hypervisor()
    await lab.up(hypervisor, lab.machine(deaf=True))
    assert await hypervisor.stop(UID, 30.0) is not None
    lab.clock.advance(29)
    left = await hypervisor.stop(UID, 30.0)
    assert left is not None
    assert left <= 1.0
    assert list(await hypervisor.domains()) == [UID]
    lab.clock.advance(left)
    assert await hypervisor.stop(UID, 30.0) is None
    assert await hypervisor.domains() == {}
    await hypervisor.start(lab.machine(deaf=True))
    assert await hypervisor.stop(UID, 30.0) is not None, "the next one of that name has its own time"
    assert await hypervisor.stop(UID, 0.0) is None, "whoever cannot wait does not have to"
    await hypervisor.close()


async def test_a_machine_that_dies_is_told_with_the_reason(lab: Lab) -> None:
    hypervisor = lab.hypervisor()
    await lab.up(hypervisor, lab.machine())
    news = News(hypervisor)
    lab.kill(hypervisor, UID)
    await news.of(UID)
    assert await hypervisor.domains() == {}
    ended = (await hypervisor.ended())[UID]
    assert (ended.name, ended.failed) == ("here_blue", True)
    assert "died" in ended.reason or "die" in ended.reason
    await hypervisor.close()
    again = lab.hypervisor()
    assert (await again.ended())[UID] == ended, "whoever comes later still learns it"
    assert await again.stop(UID) is None
    assert not await again.ended()
    await again.close()


async def test_a_guest_that_shuts_down_is_no_failure(lab: Lab) -> None:
    hypervisor = lab.hypervisor()
    await lab.up(hypervisor, lab.machine())
    news = News(hypervisor)
    lab.power_off(hypervisor, UID)
    while UID in await hypervisor.domains():
        await news.of(UID)
    ended = (await hypervisor.ended())[UID]
    assert (ended.failed, ended.reason) == (False, "the guest shut down")
    await hypervisor.start(lab.machine())
    assert (list(await hypervisor.domains()), await hypervisor.ended()) == ([UID], {}), "started again, it runs"
    await hypervisor.stop(UID)
    await hypervisor.close()


async def test_a_machine_outlives_its_owner_and_is_adopted(lab: Lab) -> None:
    first = lab.hypervisor()
    await first.start(lab.machine())
    before = await first.domains()
    await first.close()
    second = lab.hypervisor()
    assert {uid: (one.name, one.foreign) for uid, one in (await second.domains()).items()} == {UID: ("here_blue", False)}
    assert list(await second.domains()) == list(before)
    await second.start(lab.machine())
    assert list(await second.domains()) == [UID], "what runs is not started again"
    assert await second.stop(UID) is None
    await second.close()


async def test_a_machine_is_paused_and_goes_on(lab: Lab) -> None:
    hypervisor = lab.hypervisor()
    await lab.up(hypervisor, lab.machine())
    news = News(hypervisor)
    for _ in range(2):  # a second time is no harm
        await hypervisor.pause(UID)
        assert (await hypervisor.domains())[UID].paused == BY_USER
    await news.of(UID)
    await hypervisor.start(lab.machine())
    assert (await hypervisor.domains())[UID].paused == BY_USER, "to start what is there changes nothing"
    for _ in range(2):
        await hypervisor.unpause(UID)
        assert (await hypervisor.domains())[UID].paused is None
    await news.of(UID)
    await hypervisor.close()


async def test_a_machine_that_is_paused_is_adopted_so(lab: Lab) -> None:
    first = lab.hypervisor()
    await first.start(lab.machine())
    await first.pause(UID)
    await first.close()
    second = lab.hypervisor()
    assert (await second.domains())[UID].paused == BY_USER
    await second.unpause(UID)
    await second.close()
    third = lab.hypervisor()
    assert (await third.domains())[UID].paused is None
    await third.close()


async def test_a_machine_starts_paused(lab: Lab) -> None:
    hypervisor = lab.hypervisor()
    await hypervisor.start(replace(lab.machine(), paused=BY_USER))
    assert (await hypervisor.domains())[UID].paused == BY_USER
    await hypervisor.stop(UID)
    await hypervisor.start(lab.machine())
    assert (await hypervisor.domains())[UID].paused is None, "the next one of that name does not"
    await hypervisor.close()
    again = lab.hypervisor()
    assert (await again.domains())[UID].paused is None
    await again.close()


async def test_a_machine_that_somebody_else_paused_is_told(lab: Lab) -> None:
    hypervisor = lab.hypervisor()
    await hypervisor.start(lab.machine())
    assert (await hypervisor.domains())[UID].paused is None
    news = News(hypervisor)
    lab.freeze(hypervisor, UID)
    await news.of(UID)
    assert (await hypervisor.domains())[UID].paused == BY_USER
    await hypervisor.close()


async def test_a_machine_that_is_paused_cannot_hear_the_power_button_and_is_forced_at_once(lab: Lab) -> None:
    hypervisor = lab.hypervisor()
    await lab.up(hypervisor, lab.machine(deaf=True))
    await hypervisor.pause(UID)
    assert await hypervisor.stop(UID, 30.0) is None
    assert (await hypervisor.domains(), await hypervisor.ended()) == ({}, {})
    await lab.up(hypervisor, lab.machine(deaf=True))
    assert await hypervisor.stop(UID, 30.0) is not None
    await hypervisor.pause(UID)
    assert await hypervisor.stop(UID, 30.0) is None, "nor one that is paused while it should shut down"
    await hypervisor.close()


async def test_a_machine_begins_anew(lab: Lab) -> None:
    hypervisor = lab.hypervisor()
    await lab.up(hypervisor, lab.machine())
    await hypervisor.reset(UID)
    await lab.begins_anew(hypervisor, 2)
    await hypervisor.reboot(UID)
    await lab.begins_anew(hypervisor, 3)
    assert list(await hypervisor.domains()) == [UID]
    assert not await hypervisor.ended()
    await hypervisor.close()


async def test_what_does_not_run_has_no_buttons(lab: Lab) -> None:
    hypervisor = lab.hypervisor()
    for press in (hypervisor.pause, hypervisor.unpause, hypervisor.reset, hypervisor.reboot):
        with pytest.raises(Refused, match=f"the machine of instance {UID} does not run"):
            await press(UID)
    await hypervisor.close()


def drives_of(lab: Lab) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in lab.drives.iterdir() if ".iso" in path.name}


async def test_the_drive_of_a_machine_comes_and_goes_with_it(lab: Lab) -> None:
    first = lab.hypervisor()
    assert (await first.abilities()).drives == str(lab.drives)
    await lab.up(first, lab.machine(seed="#one"))
    [(name, made)] = drives_of(lab).items()
    assert name == f"{UID}.iso"
    assert b"#one" in made
    await first.start(lab.machine(seed="#two"))
    assert drives_of(lab) == {name: made}, "what runs keeps the drive that it has"
    await first.close()
    second = lab.hypervisor()
    assert list(await second.domains()) == [UID]
    assert drives_of(lab) == {name: made}
    news = News(second)
    lab.kill(second, UID)
    while not await second.ended():
        await news.of(UID)
    assert drives_of(lab) == {name: made}, "it is not put away yet"
    await second.start(lab.machine(seed="#three"))
    assert b"#three" in drives_of(lab)[name], "a new start tells what is true now"
    assert await second.stop(UID) is None
    assert drives_of(lab) == {}
    await second.close()


async def test_an_image_whose_machine_did_not_start_is_removed(tmp_path: Path) -> None:
    """A process that was killed in between: once with half an image, once before the domain was written."""
    lab = Played(tmp_path)
    await lab.hypervisor().start(lab.machine(seed="#one"))
    for name in (f".{UID}.iso.new", f"{OTHER}.iso"):
        (tmp_path / name).write_bytes(b"half")
    assert list(await lab.hypervisor().domains()) == [UID]
    assert list(drives_of(lab)) == [f"{UID}.iso"]


def opened(pid: int) -> set[str]:
    return {os.readlink(each) for each in Path(f"/proc/{pid}/fd").iterdir()}


@pytest.mark.libvirt
@needs_libvirt
async def test_qemu_has_the_drive(real: Real) -> None:
    hypervisor = real.hypervisor()
    await hypervisor.start(real.machine(seed="#one"))
    image = real.drives / f"{UID}.iso"
    assert str(image) in opened(real.daemon.qemu("here_blue"))
    await hypervisor.stop(UID)
    assert not image.exists()
    await hypervisor.close()


class Killed(BaseException):
    """As if the process had ended there."""


@pytest.mark.libvirt
@needs_libvirt
async def test_an_image_belongs_to_a_domain_whenever_its_maker_is_killed(real: Real, monkeypatch: pytest.MonkeyPatch) -> None:
    write = drives.write

    def killed(drive: Drive) -> None:
        write(drive)
        raise Killed

    hypervisor = real.hypervisor()
    with monkeypatch.context() as patched:
        patched.setattr(drives, "write", killed)
        with pytest.raises(Killed):
            await hypervisor.start(real.machine(seed="#one"))
    await hypervisor.close()
    assert list(drives_of(real)) == [f"{UID}.iso"]
    again = real.hypervisor()
    assert list(await again.ended()) == [UID], "so whoever comes later finds it"
    await again.stop(UID)
    assert (await again.ended(), drives_of(real)) == ({}, {})
    await again.close()


@pytest.mark.libvirt
@needs_libvirt
async def test_the_cpus_of_a_machine_run_where_they_are_its_own(real: Real) -> None:
    cpus = sorted(os.sched_getaffinity(0))[-2:]
    obj = instance()
    obj["spec"]["domain"]["cpu"] = {"cores": len(cpus), "dedicatedCpuPlacement": True}
    obj["status"] = {"flavor": {"vcpus": len(cpus), "memory": "32Mi", "cpus": {"0": cpus[::-1]}}}
    hypervisor = real.hypervisor()
    await hypervisor.start(embed.small(domain.build(obj), real.images[False]))
    said = allowed(real.daemon.qemu("here_blue"))
    assert [said[f"CPU {number}"] for number in range(len(cpus))] == [str(cpu) for cpu in cpus[::-1]]
    await hypervisor.stop(UID)
    await hypervisor.close()


def allowed(pid: int) -> dict[str, str]:
    """Thread of a QEMU -> the CPUs on which it may run."""
    tasks = list(Path(f"/proc/{pid}/task").iterdir())
    said = {(task / "comm").read_text().partition("/")[0]: (task / "status").read_text() for task in tasks}
    return {name: text.partition("Cpus_allowed_list:")[2].split()[0] for name, text in said.items()}


@pytest.mark.libvirt
@needs_libvirt
async def test_a_machine_of_somebody_else_is_seen_and_left_alone(real: Real) -> None:
    theirs = real.machine("red", OTHER).xml.replace(domain.NAMESPACE, "https://example.com/other")
    conn: Any = connection.library().open(real.uri)
    foreign = conn.createXML(theirs, 0)
    hypervisor = real.hypervisor()
    assert {uid: one.foreign for uid, one in (await hypervisor.domains()).items()} == {OTHER: True}
    await hypervisor.stop(OTHER)
    assert foreign.isActive()
    with pytest.raises(Refused, match="is that of the domain here_red, which is another"):
        await hypervisor.start(real.machine("blue", OTHER))
    with pytest.raises(Refused, match=r"libvirt cannot start here_red: .*already"):
        await hypervisor.start(real.machine("red", UID))
    assert foreign.isActive()
    assert not await hypervisor.ended()
    foreign.destroy()
    conn.close()
    await hypervisor.close()


@pytest.mark.libvirt
@needs_libvirt
async def test_what_libvirt_refuses_leaves_nothing(real: Real) -> None:
    hypervisor = real.hypervisor()
    made = real.machine(seed="#one")
    for what, xml in {"an unknown device": made.xml.replace("</devices>", "<widget/></devices>"),
                      "a disk that is not there": made.xml.replace(str(real.images[False]), "/nowhere/disk.img")}.items():
        with pytest.raises(Refused, match="libvirt cannot start here_blue: "):
            await hypervisor.start(Domain(UID, made.name, xml, drive=made.drive))
        assert (await hypervisor.domains(), await hypervisor.ended()) == ({}, {}), what
        assert not real.drives.exists() or not drives_of(real), what
    await hypervisor.start(made)
    await hypervisor.stop(UID)
    await hypervisor.close()


@pytest.mark.libvirt
@needs_libvirt
async def test_a_daemon_that_dies_and_comes_back(real: Real) -> None:
    """Machines go on without it; what happens meanwhile is told when it is back."""
    hypervisor = real.hypervisor()
    await hypervisor.start(real.machine())
    await hypervisor.start(real.machine("red", OTHER))
    assert set(await hypervisor.domains()) == {UID, OTHER}
    news = News(hypervisor)
    real.daemon.kill()
    with pytest.raises(HypervisorAway, match="does not answer"):
        await hypervisor.ended()
    with pytest.raises(HypervisorAway, match="does not answer"):
        await hypervisor.domains()
    os.kill(real.daemon.qemu("here_red"), signal.SIGKILL)
    news.told.clear()
    real.daemon.start()
    real.clock.advance(BACKOFF[0])
    await news.of("")
    if OTHER in await hypervisor.domains():  # a daemon that has just come back may not have looked at it yet, and then tells
        await news.of(OTHER)
    assert list(await hypervisor.domains()) == [UID]
    ended = await hypervisor.ended()
    assert [(uid, one.failed) for uid, one in ended.items()] == [(OTHER, True)], ended
    await hypervisor.stop(UID)
    await hypervisor.stop(OTHER)
    assert (await hypervisor.domains(), await hypervisor.ended()) == ({}, {})
    await hypervisor.close()


@pytest.mark.libvirt
@needs_libvirt
async def test_a_daemon_that_is_not_there_is_asked_again_later_and_later(tmp_path: Path) -> None:
    clock, slept = ManualClock(), list[float]()

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        await clock.sleep(seconds)

    hypervisor = Libvirt(f"qemu+unix:///system?socket={tmp_path}/sock", monotonic=clock.monotonic, sleep=sleep)
    with pytest.raises(HypervisorAway, match=r"does not answer: .*sock") as caught:
        await hypervisor.domains()
    assert caught.value.retry_after == BACKOFF[0]
    clock.advance(0.25)
    with pytest.raises(HypervisorAway) as caught:
        await hypervisor.start(domain.build(instance()))
    assert caught.value.retry_after == BACKOFF[0] - 0.25, "in between nobody is asked"
    for tries in range(1, 8):
        await until(functools.partial(_longer, slept, tries), "the next try")
        clock.advance(slept[-1])
    assert slept[1:] == [2, 4, 8, 16, 30, 30]
    await hypervisor.close()
    with pytest.raises(HypervisorAway, match="was closed"):
        await hypervisor.domains()


def _longer(list_: list[float], length: int) -> bool:
    return len(list_) >= length


def test_without_the_library_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "libvirt", None)
    with pytest.raises(Refused, match=r"pip install 'outfitter\[libvirt\]'.*apt install libvirt-dev"):
        connection.library()
