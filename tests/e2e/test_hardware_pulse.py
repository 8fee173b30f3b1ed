"""The host in a VM is booted again when the emulator has lost a processor of it, and only then. QEMU is simulated here."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.hardware.pulse import STILL, Pulse, StandsStill, cpu_seconds, time_given


class Host:
    """Two processors that write a file at each of their beats, on a clock that tests move."""

    def __init__(self, folder: Path) -> None:
        self.now, self._stamp = 1000.0, 0
        self.beats = [folder / "beat0", folder / "beat1"]
        self.pulse = Pulse(self.beats, lambda: self.now)

    def pass_by(self, seconds: float, *alive: int) -> None:
        """Time goes by, with a beat of each processor that is `alive` every other second."""
        end = self.now + seconds
        while self.now < end:
            self.now += 2.0
            self._stamp += 1
            for cpu in alive:
                self.beats[cpu].write_text("")
                os.utime(self.beats[cpu], ns=(self._stamp, self._stamp))
            self.pulse.feel()


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_a_host_that_lives_may_take_as_long_as_it_likes(host: Host) -> None:
    host.pass_by(10 * STILL, 0, 1)


@pytest.mark.parametrize("lost", [0, 1])
def test_one_lost_processor_is_enough(host: Host, lost: int) -> None:
    host.pass_by(60.0, 0, 1)
    host.pass_by(STILL, 1 - lost)
    with pytest.raises(StandsStill, match=f"no sign of life for 120 s: beat{lost}"):
        host.pass_by(4.0, 1 - lost)


def test_a_pause_is_no_end(host: Host) -> None:
    for _ in range(3):
        host.pass_by(STILL - 10)
        host.pass_by(4.0, 0, 1)


def test_a_host_that_does_not_come_up_stands_still(host: Host) -> None:
    host.pass_by(STILL)
    with pytest.raises(StandsStill):
        host.pass_by(4.0)


def test_time_in_which_the_emulator_waits_for_a_processor_does_not_count(tmp_path: Path) -> None:
    def now() -> float:
        return time_given(7, tmp_path, lambda: 1000.0)

    assert now() == 1000.0, "a kernel that does not count"
    for thread, waited in {"7": 2, "8": 30}.items():
        (tmp_path / "7" / "task" / thread).mkdir(parents=True)
        (tmp_path / "7" / "task" / thread / "schedstat").write_text(f"5000000000 {waited}000000000 12\n")
    assert now() == 970.0


def test_seconds_of_cpu_are_user_and_system_time_of_a_process(tmp_path: Path) -> None:
    folder, second = tmp_path / "7", os.sysconf("SC_CLK_TCK")
    folder.mkdir()
    numbers = " ".join(["R", *("0",) * 10, str(3 * second), str(2 * second), "9999"])
    (folder / "stat").write_text(f"7 (qemu) 1 (x) {numbers}\n")
    assert cpu_seconds(7, tmp_path) == 5.0
    assert cpu_seconds(8, tmp_path) == 0.0, "it has ended"
