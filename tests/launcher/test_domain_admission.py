"""What the launcher builds is admitted, and what admission knows of machine types and disks is what the launcher knows."""

from __future__ import annotations

import pytest

from outfitter.api.validate import disks, hardware
from outfitter.launcher import disk, machine_type
from tests.launcher.domain_cases import SITUATIONS


@pytest.mark.parametrize("name", SITUATIONS)
def test_what_is_built_is_let_in(name: str) -> None:
    spec = SITUATIONS[name].instance["spec"]
    assert [*hardware.check(spec, "spec"), *disks.check(spec, "spec")] == []


def test_both_know_the_same() -> None:
    assert set(hardware.ARCHITECTURES) == set(machine_type.ARCHITECTURES)
    assert set(disks.BUSES) == set(disk.PREFIXES)
    for name, architecture in machine_type.ARCHITECTURES.items():
        spec = {"architecture": name, "domain": {"machine": {"type": architecture.machine}}}
        assert list(hardware.check(spec, "spec")) == []
