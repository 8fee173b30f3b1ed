"""What every hypervisor does for the node, in one suite: a VM starts, stops, dies and is adopted."""

from __future__ import annotations

import platform
from pathlib import Path

from tests.launcher.hypervisor_hosts import UID, Lab, News, Played


def emulates() -> bool:
    """Whether this host's processor cannot run VMs."""
    words = Path("/proc/cpuinfo").read_text().split() if Path("/proc/cpuinfo").exists() else []
    return platform.machine() == "x86_64" and {"vmx", "svm"}.isdisjoint(words)


async def test_what_it_can_do(lab: Lab) -> None:
    hypervisor = lab.hypervisor()
    found = await hypervisor.abilities()
    assert found.simulated is isinstance(lab, Played)
    assert not (found.kvm and (found.simulated or emulates()))
    await hypervisor.close()


async def test_domain_starts_once_and_is_destroyed(lab: Lab) -> None:
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


async def test_domain_shuts_down_gracefully(lab: Lab) -> None:
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


async def test_domain_that_ignores_shutdown_is_destroyed_after_the_grace_period(lab: Lab) -> None:
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


async def test_death_of_a_domain_is_reported_with_the_reason(lab: Lab) -> None:
    hypervisor = lab.hypervisor()
    await lab.up(hypervisor, lab.machine())
    news = News(hypervisor)
    lab.kill(hypervisor, UID)
    await news.of(UID)
    while UID in await hypervisor.domains():  # what was reported was its start
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


async def test_domain_outlives_the_process_and_is_adopted(lab: Lab) -> None:
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
