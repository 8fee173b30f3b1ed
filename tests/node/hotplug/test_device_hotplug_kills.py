"""The product is killed while GPUs and host devices are plugged into and unplugged from running VMs by claim, and while these
migrate: never two holders, never a lost VM, and at rest pages, claims, status and domains agree."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.node import device_lifecycle


async def check(folder: Path, seed: int) -> None:
    try:
        lifecycle = await device_lifecycle.run_lifecycle(folder, seed)
    except AssertionError as error:
        error.add_note(f"seed {seed}")
        raise
    deaths = Counter(place.partition(":")[0] for place in lifecycle.deaths.places)
    assert deaths >= Counter(step for step, _ in device_lifecycle.PLAN if step)


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(3))
async def test_kill_points_of_plug_unplug_and_migration(seed: int, tmp_path: Path) -> None:
    await check(tmp_path, seed)


@pytest.mark.long(seeds=range(100, 120))
async def test_two_hundred_kill_points_of_plug_unplug_and_migration(seed: int, tmp_path: Path) -> None:
    await check(tmp_path, seed)
