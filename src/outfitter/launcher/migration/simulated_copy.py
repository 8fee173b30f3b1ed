"""How the memory of a simulated VM is copied to another host: QEMU's pre-copy as arithmetic. Everything is copied, then what
the guest changed meanwhile, and so on, until the rest can be copied within the allowed downtime. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from outfitter.api.hypervisor import MigrationJob

THROTTLE = 0.8  # what a guest still writes in each further iteration, if it is slowed down (auto-converge)
MOST_ITERATIONS = 10_000  # of one calculation


@dataclass(frozen=True, slots=True)
class SimulatedCopy:
    """What a simulated hypervisor does with migrations away from it. Tests and operators of simulated hosts set it."""

    bandwidth: int = 2 << 30  # bytes per second
    dirty_rate: int = 0  # bytes of memory that a guest changes per second; at least `bandwidth`: it does not converge
    downtime: float = 0.3  # seconds for which a guest may be stopped at the end
    fails: str = ""  # the copy fails with this reason ...
    fails_at: float = 0.5  # ... when this share of the memory was copied for the first time
    ignores_abort: bool = False  # it goes on when it is aborted


@dataclass(frozen=True, slots=True)
class CopyState:
    job: MigrationJob
    done: bool  # all was copied, and the VM runs on the target


def copied(copy: SimulatedCopy, memory: int, elapsed: float, *, bandwidth: int = 0, auto_converge: bool = False) -> CopyState:
    """The state after some seconds; `bandwidth` limits it further."""
    speed = max(1, min(copy.bandwidth, bandwidth) if bandwidth else copy.bandwidth)
    left, remaining, processed, rate = max(0.0, elapsed), memory, 0, float(copy.dirty_rate)
    if copy.fails and left * speed >= copy.fails_at * memory:
        sent = min(memory, int(copy.fails_at * memory))
        return CopyState(MigrationJob(memory, memory - sent, sent, 0, copy.fails), done=False)
    for iteration in range(MOST_ITERATIONS):
        seconds = remaining / speed
        if remaining <= speed * copy.downtime and left >= seconds:
            return CopyState(MigrationJob(memory, 0, processed + remaining, iteration), done=True)
        if left < seconds:
            sent = int(left * speed)
            return CopyState(MigrationJob(memory, max(0, remaining - sent), processed + sent, iteration), done=False)
        left, processed = left - seconds, processed + remaining
        if auto_converge and iteration:
            rate *= THROTTLE
        remaining = min(memory, int(rate * seconds))
    return CopyState(MigrationJob(memory, remaining, processed, MOST_ITERATIONS), done=False)
