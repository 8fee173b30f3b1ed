"""The column of a table that contains why a VM waits."""

from __future__ import annotations

import pytest

from outfitter.api.kinds import Object
from outfitter.api.kubevirt.short_reason import CODES, REASONS, in_words, short_reason
from outfitter.api.rejection import RejectionCode as Code
from outfitter.api.rejection_conditions import PREFIX


def condition(type_: str, status: str = "False", reason: str = "") -> Object:
    return {"type": type_, "status": status, "message": "word " * 200, **({"reason": reason} if reason else {})}


def rejected(code: Code) -> Object:
    return condition(f"{PREFIX}{code}", "True", str(code))


HELD = condition("PodScheduled", reason="Unschedulable")
CASES: dict[str, tuple[list[Object], str]] = {
    "nothing is known": ([], ""),
    "it runs": ([condition("Ready", "True"), condition("DevicesReady", "True")], ""),
    "the scheduler's code": ([condition("Ready", reason="GuestNotRunning"), HELD, rejected(Code.TOO_FEW_FREE),
                              rejected(Code.NO_MATCH)], "TooFewFree: matching devices are not free"),
    "another scheduler has no codes": ([HELD], "Unschedulable: no host can take it"),
    "there is no pod, whatever codes are left": ([rejected(Code.HELD), condition("Synchronized", reason="FlavorNotFound")],
                                                 "FlavorNotFound: its flavor does not exist"),
    "the node's code": ([condition("Ready", reason="FailedPrepareDevices"), rejected(Code.IOMMU_GROUP_SHARED)],
                        "IommuGroupShared: the host uses its IOMMU group"),
    "a reason that is not ours": ([condition("Ready", reason="Lab")], "Lab"),
    "no reason at all": ([condition("DevicesReady")], "NotDevicesReady"),
}


@pytest.mark.parametrize("name", CASES)
def test_the_first_condition_that_is_false(name: str) -> None:
    have, shown = CASES[name]
    assert short_reason({"status": {"conditions": have}}) == shown


def test_every_code_has_a_few_words() -> None:
    assert CODES.keys() == set(Code)
    assert max(len(in_words(str(reason))) for reason in (*CODES, *REASONS)) <= 60
