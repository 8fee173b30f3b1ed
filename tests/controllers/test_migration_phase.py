"""What a migration does at the hand-over, when what becomes of a device has changed since its target's pod was created."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import NamedTuple

import pytest

from outfitter.api.kinds import Object
from outfitter.api.kubevirt import reattached_devices
from outfitter.api.rejection import Rejection, RejectionCode
from outfitter.controllers.migrations.migration_phase import MigrationView, decide
from outfitter.scheduling.device_migration import DeviceMigration

NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Case(NamedTuple):
    device: DeviceMigration
    planned: bool  # the pod was created to reattach it
    act: str
    code: str = ""


def blocks(code: RejectionCode) -> DeviceMigration:
    return DeviceMigration("g0", "blocks", Rejection.of(code, name="g0", message="why"), list="gpus")


TRAVELS, REATTACHED = DeviceMigration("g0", "travels", list="gpus"), DeviceMigration("g0", "reattached", list="gpus")
CASES = {
    "it travels": Case(TRAVELS, False, "hand-over"),
    "it is reattached": Case(REATTACHED, True, "hand-over"),
    "a NIC is reattached": Case(DeviceMigration("g0", "reattached"), False, "hand-over"),
    "it could travel now": Case(TRAVELS, True, "hand-over"),
    "it cannot travel any more": Case(blocks(RejectionCode.DEVICE_NOT_MIGRATABLE), False, "fail", "NotLiveMigratable"),
    "it may not be reattached any more": Case(blocks(RejectionCode.DEVICE_NOT_MIGRATABLE), True, "fail", "NotLiveMigratable"),
    "its host does not plug any more": Case(blocks(RejectionCode.PLUG_NOT_IN_PLACE), True, "fail", "NotLiveMigratable"),
    "it cannot travel, and may be reattached now": Case(REATTACHED, False, "fail", "TargetDevicesUnknown"),
    "its driver is being restarted": Case(blocks(RejectionCode.DEVICE_NOT_PUBLISHED), False, "hand-over"),
}


@pytest.mark.parametrize("name", CASES)
def test_hand_over_of_a_device_that_changed_since(name: str) -> None:
    case = CASES[name]
    annotations = {reattached_devices.PLANNED: reattached_devices.planned([("gpus", "g0")])} if case.planned else {}
    vmi: Object = {"metadata": {"name": "blue", "namespace": "lab", "uid": "u"}, "spec": {"domain": {}},
                   "status": {"phase": "Running", "nodeName": "node-a"}}
    job: Object = {"metadata": {"name": "move", "namespace": "lab", "uid": "j"}, "spec": {"vmiName": "blue"},
                   "status": {"phase": "Scheduling"}}
    pod: Object = {"metadata": {"name": "p", "creationTimestamp": "2026-01-01T00:00:00Z", "annotations": annotations},
                   "spec": {"nodeName": "node-b"},
                   "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
    step = decide(MigrationView(job, vmi, pod, NOW, devices=(case.device,)))
    assert (step.act, step.code) == (case.act, case.code)
