"""What only libvirt can do to us: VMs of others, refusals, a daemon that goes away, a library that is not there."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest

from outfitter.api.hypervisor import Domain, MigrationJob, MigrationLimits, MigrationTarget
from outfitter.errors import HypervisorAway, HypervisorError, StartFailed, StartupRefused
from outfitter.launcher import connection, domain, libvirt
from outfitter.launcher.libvirt import BACKOFF, Libvirt
from outfitter.launcher.migration import libvirt_migration
from outfitter.store.clock import ManualClock
from tests.hardware import embed
from tests.launcher.hypervisor_hosts import OTHER, PATIENCE, UID, News, Real, drives_of, instance, needs_libvirt, until


@pytest.mark.libvirt
@needs_libvirt
async def test_dedicated_cpus_are_pinned(real: Real) -> None:
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
    """Thread of a QEMU -> the CPUs on which it may run. One that is not of a CPU may end while we look."""
    said = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            said[(task / "comm").read_text().partition("/")[0]] = (task / "status").read_text()
    return {name: text.partition("Cpus_allowed_list:")[2].split()[0] for name, text in said.items()}


@pytest.mark.libvirt
@needs_libvirt
async def test_a_copy_whose_target_does_not_answer_has_failed(real: Real) -> None:
    """It is no loss of the source's daemon: the domain runs on here, and the error of libvirt is the reason."""
    hypervisor = real.hypervisor()
    await real.up(hypervisor, real.machine())
    absent = f"qemu+unix:///system?socket={real.root}/absent"
    await hypervisor.migrate(UID, MigrationTarget(absent), MigrationLimits())
    async with asyncio.timeout(PATIENCE):
        while not (job := await hypervisor.migration(UID) or MigrationJob()).failed:  # noqa: ASYNC110  # QEMU sends no event
            await asyncio.sleep(0.02)
    assert f"{real.root}/absent" in job.failed
    await hypervisor.abort_migration(UID)
    assert (await hypervisor.migration(UID), UID in await hypervisor.domains()) == (None, True)
    await hypervisor.close()


@pytest.mark.libvirt
@needs_libvirt
def test_a_domain_that_begins_between_two_lists_is_not_taken_for_one_that_runs(
    real: Real, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that begins to arrive by a migration does: it is stopped, and libvirt may still end it."""
    lib = connection.library()
    conn: Any = lib.open(real.uri)
    opened = connection.Connection(real.uri, changed=lambda _uid: None, closed=lambda _why: None)
    once = opened._conn.listAllDomains
    begun: list[Any] = []

    def list_and_begin(flags: int) -> Any:
        found = once(flags)
        if not begun:
            begun.append(conn.createXML(real.machine("blue", UID).xml, lib.VIR_DOMAIN_START_PAUSED))
        return found

    monkeypatch.setattr(opened._conn, "listAllDomains", list_and_begin)
    assert all(one.paused for one in opened.domains().values())
    assert opened.domains()[UID].paused
    begun[0].destroy()
    opened.close()
    conn.close()


@pytest.mark.libvirt
@needs_libvirt
async def test_domain_of_another_owner_is_listed_and_not_touched(real: Real) -> None:
    theirs = real.machine("red", OTHER).xml.replace(domain.NAMESPACE, "https://example.com/other")
    conn: Any = connection.library().open(real.uri)
    foreign = conn.createXML(theirs, 0)
    hypervisor = real.hypervisor()
    assert {uid: one.foreign for uid, one in (await hypervisor.domains()).items()} == {OTHER: True}
    await hypervisor.stop(OTHER)
    assert foreign.isActive()
    with pytest.raises(StartFailed, match="is used by the domain here_red, which belongs to another VM"):
        await hypervisor.start(real.machine("blue", OTHER))
    with pytest.raises(HypervisorError, match=r"libvirt cannot start here_red: .*already"):
        await hypervisor.start(real.machine("red", UID))
    assert foreign.isActive()
    assert not await hypervisor.ended()
    foreign.destroy()
    conn.close()
    await hypervisor.close()


@pytest.mark.libvirt
@needs_libvirt
@pytest.mark.parametrize("runs", [True, False])
async def test_copy_of_our_domain_belongs_to_another_owner(real: Real, runs: bool) -> None:
    """As virt-clone makes it, with our mark."""
    hypervisor = real.hypervisor()
    made = real.machine()
    await hypervisor.start(made)
    conn: Any = connection.library().open(real.uri)
    copy = conn.defineXML(made.xml.replace("<name>here_blue", "<name>copy").replace(f"<uuid>{UID}", f"<uuid>{OTHER}")
                          .replace("blue.log", "copy.log"))
    if runs:
        copy.create()
    found = {uid: (one.name, one.foreign) for uid, one in (await hypervisor.domains()).items()}
    assert found == {UID: ("here_blue", False), **({OTHER: ("copy", True)} if runs else {})}
    assert not await hypervisor.ended()
    await hypervisor.stop(UID)
    await hypervisor.stop(UID)
    assert (conn.lookupByName("copy").isActive() == 1) is runs
    if runs:
        copy.destroy()
    copy.undefine()
    conn.close()
    await hypervisor.close()


@pytest.mark.libvirt
@needs_libvirt
async def test_what_libvirt_refuses_leaves_nothing(real: Real) -> None:
    hypervisor = real.hypervisor()
    made = real.machine(seed="#one")
    for what, xml in {"an unknown device": made.xml.replace("</devices>", "<widget/></devices>"),
                      "a disk that is not there": made.xml.replace(str(real.images[False]), "/nowhere/disk.img")}.items():
        with pytest.raises(HypervisorError, match="libvirt cannot start here_blue: "):
            await hypervisor.start(Domain(UID, made.name, xml, drive=made.drive))
        assert (await hypervisor.domains(), await hypervisor.ended()) == ({}, {}), what
        assert not real.drives.exists() or not drives_of(real), what
    await hypervisor.start(made)
    await hypervisor.stop(UID)
    await hypervisor.close()


@pytest.mark.libvirt
@needs_libvirt
async def test_libvirtd_dies_and_is_restarted(real: Real) -> None:
    """VMs go on without it; what happens meanwhile is reported when it is back."""
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
    if OTHER in await hypervisor.domains():  # a daemon that has just come back may not have looked at it yet, and then reports
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
    assert caught.value.retry_after == BACKOFF[0] - 0.25, "in between no request is sent"
    for tries in range(1, 8):
        await until(functools.partial(_longer, slept, tries), "the next try")
        clock.advance(slept[-1])
    assert slept[1:] == [2, 4, 8, 16, 30, 30]
    await hypervisor.close()
    with pytest.raises(HypervisorAway, match="was closed"):
        await hypervisor.domains()


class Silent:
    """A connection to a daemon that reports nothing until it is asked to."""

    opened: ClassVar[list[Silent]] = []
    speak: ClassVar[threading.Event] = threading.Event()

    def __init__(self, uri: str, *, changed: Callable[[str], None], closed: Callable[[str], None]) -> None:
        self.over = False
        self.opened.append(self)
        self.speak.wait(60)

    def domains(self) -> dict[str, Domain]:
        return {}

    def close(self) -> None:
        self.over = True


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> type[Silent]:
    monkeypatch.setattr(libvirt, "Connection", Silent)
    monkeypatch.setattr(Silent, "opened", [])
    monkeypatch.setattr(Silent, "speak", threading.Event())
    return Silent


async def test_libvirtd_that_accepts_but_does_not_answer_is_away(silent: type[Silent]) -> None:
    clock = ManualClock()
    hypervisor = Libvirt("qemu+unix:///x", monotonic=clock.monotonic, sleep=clock.sleep, patience=0.02)
    news = News(hypervisor)
    for wait in (BACKOFF[0], 2 * BACKOFF[0]):
        with pytest.raises(HypervisorAway, match=r"at qemu.unix:///x does not answer: .* for more than 0 s") as caught:
            await hypervisor.domains()
        assert caught.value.retry_after == wait
        clock.advance(wait)
    opening = [one for one in threading.enumerate() if one.name == "libvirt opening"]
    assert [one.daemon for one in opening] == [True], "a second one would hang beside it, and none holds up our own end"
    silent.speak.set()

    def back() -> bool:
        clock.advance(BACKOFF[1])
        return "" in news.told

    await until(back, "it is asked again by itself, and all may have happened meanwhile")
    assert await hypervisor.domains() == {}
    await hypervisor.close()
    assert [one.over for one in silent.opened] == [True]


async def test_late_connection_is_closed(silent: type[Silent]) -> None:
    hypervisor = Libvirt("qemu+unix:///x", patience=0.02)
    with pytest.raises(HypervisorAway, match="has not answered"):
        await hypervisor.domains()
    await hypervisor.close()
    silent.speak.set()
    await until(lambda: [one.over for one in silent.opened] == [True], "it is closed")


@pytest.mark.libvirt
@needs_libvirt
async def test_socket_without_a_server(tmp_path: Path) -> None:
    clock = ManualClock()
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(str(tmp_path / "sock"))
        mute.listen()
        uri = f"qemu+unix:///system?socket={tmp_path}/sock"
        hypervisor = Libvirt(uri, monotonic=clock.monotonic, sleep=clock.sleep, patience=0.5)
        with pytest.raises(HypervisorAway, match="has not answered for more than"):
            await hypervisor.domains()
    await hypervisor.close()


def _longer(list_: list[float], length: int) -> bool:
    return len(list_) >= length


def test_missing_library_names_the_package_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "libvirt", None)
    with pytest.raises(StartupRefused, match=r"pip install 'outfitter\[libvirt\]'.*apt install libvirt-dev"):
        connection.library()


class Leaving:
    """A domain that ends between two calls, as one does that leaves by a migration."""

    def __init__(self, dom: Any, *, undefined: bool) -> None:
        self._dom, self._undefined, self._asked = dom, undefined, False

    def isActive(self) -> bool:  # libvirt's name
        active = bool(self._dom.isActive())
        if not self._asked:
            self._asked = True
            self._dom.destroy()
            if self._undefined:
                self._dom.undefine()
        return active

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dom, name)


@pytest.mark.libvirt
@needs_libvirt
@pytest.mark.parametrize("undefined", [False, True])
async def test_domain_that_leaves_meanwhile_has_no_migration(real: Real, undefined: bool) -> None:
    hypervisor = real.hypervisor()
    for ask in (libvirt_migration.job, libvirt_migration.abort):
        await hypervisor.start(real.machine())
        connected = connection.Connection(real.uri, changed=lambda uid: None, closed=lambda why: None)
        find = connected.find
        connected.find = lambda uid: Leaving(find(uid), undefined=undefined)  # type: ignore[method-assign]  # noqa: B023
        assert ask(connected, UID) is None
        connected.close()
        await hypervisor.stop(UID)
    await hypervisor.close()
