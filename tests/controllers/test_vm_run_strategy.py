"""What is done for a VM, by how it wants to run, what it was asked and how its instance is."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from outfitter.api.kinds import Object
from outfitter.controllers import vm_run_strategy

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
START: Object = {"action": "Start"}
STOP: Object = {"action": "Stop", "uid": "u1"}
OTHER: Object = {"action": "Stop", "uid": "u0"}
SOON = {"consecutiveFailCount": 1, "lastFailedVMIUID": "u0", "retryAfterTimestamp": "2026-01-01T12:00:07Z"}
NONE, FAILED, ENDED, RUNS, WAITS = "none", "Failed", "Succeeded", "Running", "Scheduling"


def vm(how: str, *requests: Object, before: str | None = None, **status: Any) -> Object:
    """`before`: how it was asked to run when it was last looked at."""
    return {"metadata": {"name": "blue"}, "spec": {"runStrategy": how},
            "status": {**({"runStrategy": before} if before else {}), "stateChangeRequests": list(requests), **status}}


def instance(phase: str, **meta: str) -> Object | None:
    return None if phase == NONE else {"metadata": {"name": "blue", "uid": "u1", **meta}, "status": {"phase": phase}}


# How it runs and what it was asked, its instance; what is done, and which requests are left.
TABLE: dict[str, tuple[Object, str, str, list[Object]]] = {
    "always, and there is none": (vm("Always", before="Always"), NONE, "create", []),
    "halted, and there is none": (vm("Halted"), NONE, "nothing", []),
    "manual, and there is none": (vm("Manual"), NONE, "nothing", []),
    "once, for the first time": (vm("Once"), NONE, "create", []),
    "once, and it has been": (vm("Once", before="Once"), NONE, "nothing", []),
    "once, and it was halted before": (vm("Once", before="Halted"), NONE, "create", []),
    "rerun, for the first time": (vm("RerunOnFailure"), NONE, "create", []),
    "rerun, and a user stopped it": (vm("RerunOnFailure", before="RerunOnFailure"), NONE, "nothing", []),
    "rerun, and it is asked to start": (vm("RerunOnFailure", START, before="RerunOnFailure"), NONE, "create", []),
    "manual, asked to start": (vm("Manual", START), NONE, "create", []),
    "manual, asked to start and stop then": (vm("Manual", START, STOP), NONE, "create", []),
    "manual, a stop that came too late": (vm("Manual", STOP), NONE, "nothing", []),
    "halted, asked to start": (vm("Halted", START), NONE, "nothing", []),
    "an unknown action": (vm("Manual", {"action": "Dance"}), RUNS, "nothing", []),
    "always, and it runs": (vm("Always"), RUNS, "nothing", []),
    "halted, and it runs": (vm("Halted"), RUNS, "delete", []),
    "manual, asked to stop": (vm("Manual", STOP), RUNS, "delete", [STOP]),
    "manual, asked to stop without saying which": (vm("Manual", {"action": "Stop"}), RUNS, "delete", [STOP]),
    "manual, asked to restart": (vm("Manual", STOP, START), RUNS, "delete", [STOP, START]),
    "manual, restarted, and it is gone": (vm("Manual", STOP, START), NONE, "create", []),
    "manual, a stop of an earlier one": (vm("Manual", OTHER), RUNS, "nothing", []),
    "manual, asked to start what runs": (vm("Manual", START), RUNS, "nothing", []),
    "manual, asked to start what waits": (vm("Manual", START), WAITS, "nothing", []),
    "always, and it ended": (vm("Always"), ENDED, "delete", []),
    "always, and it failed": (vm("Always"), FAILED, "delete", []),
    "manual, and it ended": (vm("Manual"), ENDED, "nothing", []),
    "manual, ended, and asked to start": (vm("Manual", START), ENDED, "delete", [START]),
    "once, and it failed": (vm("Once"), FAILED, "nothing", []),
    "rerun, and it ended": (vm("RerunOnFailure"), ENDED, "nothing", []),
    "rerun, failed: that is noted first": (vm("RerunOnFailure"), FAILED, "nothing", [vm_run_strategy.RERUN]),
    "rerun, failed and noted": (vm("RerunOnFailure", vm_run_strategy.RERUN), FAILED, "delete", [vm_run_strategy.RERUN]),
    "rerun, noted, and it is to run by hand now": (
        vm("Manual", vm_run_strategy.RERUN, before="RerunOnFailure"),
        NONE,
        "nothing",
        [],
    ),
    "rerun, noted, and it is to run always now": (
        vm("Always", vm_run_strategy.RERUN, before="RerunOnFailure"),
        NONE,
        "create",
        [],
    ),
    "rerun, recorded, and a user requests it": (vm("Manual", vm_run_strategy.RERUN, START), NONE, "create", []),
    "rerun, failed, noted, and it is to run by hand now": (vm("Manual", vm_run_strategy.RERUN), FAILED, "nothing", []),
    "rerun, failed, and asked to stop": (vm("RerunOnFailure", STOP), FAILED, "delete", [STOP]),
}


@pytest.mark.parametrize("name", TABLE)
def test_what_is_done(name: str) -> None:
    given, phase, do, left = TABLE[name]
    act = vm_run_strategy.decide(given, instance(phase), NOW)
    assert (act.do, list(act.requests), act.wait) == (do, left, None)


@pytest.mark.parametrize("how", ["Always", "Manual", "Halted", "RerunOnFailure", "Once"])
def test_an_instance_that_is_going_is_waited_for(how: str) -> None:
    going = instance(RUNS, deletionTimestamp="2026-01-01T12:00:00Z")
    act = vm_run_strategy.decide(vm(how, STOP, before=how), going, NOW)
    assert (act.do, act.requests) == ("nothing", (STOP,))
    assert vm_run_strategy.printable(vm(how), going, act) == "Stopping"


@pytest.mark.parametrize("how", ["Always", "Manual", "Halted", "RerunOnFailure", "Once"])
@pytest.mark.parametrize(("phase", "finalizers", "do"), [
    (RUNS, ["example.com/backup"], "delete"), (RUNS, ["orphan", "example.com/backup"], "nothing"), (NONE, [], "nothing")])
def test_deleted_vm_deletes_its_vmi(how: str, phase: str, finalizers: list[str], do: str) -> None:
    given = vm(how, START)
    given["metadata"] |= {"deletionTimestamp": "2026-01-01T12:00:00Z", "finalizers": finalizers}
    assert vm_run_strategy.decide(given, instance(phase), NOW).do == do


@pytest.mark.parametrize(("given", "waits"), [
    (vm("Always", startFailure=SOON), True), (vm("RerunOnFailure", vm_run_strategy.RERUN, startFailure=SOON), True),
    (vm("Manual", START, startFailure=SOON), False), (vm("Always", START, startFailure=SOON), False),
    (vm("Always", startFailure={**SOON, "retryAfterTimestamp": "2026-01-01T12:00:00Z"}), False)])
def test_failed_vm_waits_unless_a_user_starts_it(given: Object, waits: bool) -> None:
    act = vm_run_strategy.decide(given, None, NOW)
    assert (act.do, act.wait) == (("nothing", timedelta(seconds=7)) if waits else ("create", None))


@pytest.mark.parametrize("moment", ["soon", "2026-01-01T12:00:07", 7, None])
def test_a_time_that_is_none_is_not_waited_for(moment: object) -> None:
    given = vm("Always", startFailure={**SOON, "retryAfterTimestamp": moment, "consecutiveFailCount": "many"})
    assert vm_run_strategy.decide(given, None, NOW).do == "create"
    assert vm_run_strategy.failure(given, instance(FAILED), NOW) == {
        "consecutiveFailCount": 1, "lastFailedVMIUID": "u1", "retryAfterTimestamp": "2026-01-01T12:00:10Z"}
    strange: Object = {"status": {"conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": moment}]}}
    assert vm_run_strategy.steady_in(strange, NOW) == vm_run_strategy.STEADY
    assert vm_run_strategy.decide(vm("Always", startFailure="often"), None, NOW).do == "create"


def test_the_pause_grows_up_to_five_minutes() -> None:
    pauses = []
    for count in (0, 1, 2, 3, 4, 5, 50):
        known = {"consecutiveFailCount": count, "lastFailedVMIUID": "u0"} if count else None
        told = vm_run_strategy.failure(vm("Always", startFailure=known), instance(FAILED), NOW) or {}
        pauses.append((datetime.fromisoformat(told["retryAfterTimestamp"]) - NOW).total_seconds())
    assert pauses == [10, 20, 40, 80, 160, 300, 300]


@pytest.mark.parametrize(("given", "kept"), [
    (vm("Always", startFailure=SOON), True), (vm("RerunOnFailure", startFailure=SOON), True),
    (vm("Halted", startFailure=SOON), False), (vm("Manual", startFailure=SOON), False), (vm("Once", startFailure=SOON), False),
    (vm("RerunOnFailure", STOP, startFailure=SOON), False), (vm("RerunOnFailure", OTHER, startFailure=SOON), True)])
def test_failures_are_reset_when_a_user_stops_the_vm(given: Object, kept: bool) -> None:
    assert vm_run_strategy.failure(given, instance(WAITS), NOW) == (SOON if kept else None)
    assert (vm_run_strategy.failure(given, instance(FAILED), NOW) is not None) is kept, "it is going"


@pytest.mark.parametrize(("phase", "meta", "taken"), [
    (RUNS, {}, "Once"), (RUNS, {"deletionTimestamp": "2026-01-01T12:00:00Z"}, "Halted")])
def test_a_strategy_is_taken_up_when_its_start_is_made(phase: str, meta: dict[str, str], taken: str) -> None:
    given = vm("Once", before="Halted")
    assert (
        vm_run_strategy.strategy_taken_up(given, instance(phase, **meta), vm_run_strategy.RunDecision(), failed=False) == taken
    )
    assert vm_run_strategy.strategy_taken_up(given, None, vm_run_strategy.RunDecision("create"), failed=True) == "Halted", (
        "it is still to be started"
    )
    assert vm_run_strategy.strategy_taken_up(given, None, vm_run_strategy.RunDecision("create"), failed=False) == "Once"
    assert (
        vm_run_strategy.strategy_taken_up(given, None, vm_run_strategy.RunDecision(wait=timedelta(1)), failed=False) == "Halted"
    )


def waiting(reason: str) -> Object:
    return {**(instance(WAITS) or {}), "status": {"phase": WAITS, "conditions": [
        {"type": "PodScheduled", "status": "False", "reason": reason}]}}


WORDS: dict[str, tuple[Object | None, Object, str]] = {
    "Terminating": (instance(RUNS), {"metadata": {"deletionTimestamp": "2026-01-01T12:00:00Z"}}, "nothing"),
    "Paused": ({**(instance(RUNS) or {}), "status": {"phase": RUNS, "conditions": [
        {"type": "Paused", "status": "True"}]}}, {}, "nothing"),
    "Running": (instance(RUNS), {}, "nothing"),
    "Stopping": (instance(RUNS), {}, "delete"),
    "ErrorUnschedulable": (waiting("Unschedulable"), {}, "nothing"),
    "Starting": (waiting("SchedulingGated"), {}, "nothing"),
    "Stopped": (instance(FAILED), {}, "nothing"),
}


def test_vm_that_waits_for_a_migration() -> None:
    assert vm_run_strategy.printable(vm("WaitAsReceiver"), None, vm_run_strategy.RunDecision()) == "WaitingForReceiver"


@pytest.mark.parametrize("word", WORDS)
def test_printable_status(word: str) -> None:
    given, over, do = WORDS[word]
    act = vm_run_strategy.RunDecision("delete") if do == "delete" else vm_run_strategy.RunDecision()
    assert vm_run_strategy.printable({**vm("Manual"), **({"metadata": {"name": "blue"}} | over)}, given, act) == word
