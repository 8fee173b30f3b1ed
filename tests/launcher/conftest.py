"""The laboratories of the hypervisor suites."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.hardware import daemon
from tests.hardware.daemon import Daemon
from tests.launcher.hypervisor_hosts import Lab, Played, Real, needs_libvirt, tidy


@pytest.fixture(scope="module")
def libvirtd() -> Iterator[Daemon]:
    with daemon.own() as made:
        yield made


@pytest.fixture(params=["simulated", pytest.param("libvirt", marks=[pytest.mark.libvirt, needs_libvirt])])
async def lab(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Lab]:
    if request.param == "simulated":
        yield Played(tmp_path)
        return
    made = Real(request.getfixturevalue("libvirtd"))
    yield made
    await tidy(made)
    made.remove_bridges()


@pytest.fixture
async def real(libvirtd: Daemon) -> AsyncIterator[Real]:
    made = Real(libvirtd)
    yield made
    await tidy(made)
