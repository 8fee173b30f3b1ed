"""Pause, go on, begin again: what a running VM can be asked to do, by every hypervisor."""

from __future__ import annotations

from dataclasses import replace

import pytest

from outfitter.api.hypervisor import BY_USER
from outfitter.errors import HypervisorError
from tests.launcher.hypervisor_hosts import UID, Lab, News


async def test_domain_is_paused_and_resumed(lab: Lab) -> None:
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


async def test_paused_domain_is_adopted_as_paused(lab: Lab) -> None:
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


async def test_domain_starts_paused(lab: Lab) -> None:
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


async def test_pause_by_another_client_is_reported(lab: Lab) -> None:
    hypervisor = lab.hypervisor()
    await hypervisor.start(lab.machine())
    assert (await hypervisor.domains())[UID].paused is None
    news = News(hypervisor)
    lab.freeze(hypervisor, UID)
    await news.of(UID)
    assert (await hypervisor.domains())[UID].paused == BY_USER
    await hypervisor.close()


async def test_shutdown_of_a_paused_domain_destroys_it_at_once(lab: Lab) -> None:
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


async def test_domain_is_reset(lab: Lab) -> None:
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
        with pytest.raises(HypervisorError, match=f"the VM of VMI {UID} does not run"):
            await press(UID)
    await hypervisor.close()
