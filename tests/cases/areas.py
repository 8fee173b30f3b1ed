"""Which areas are run, and by what. An area leaves NOT_BUILT when every case of it that can be seen passes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from tests.cases import (
    run_admission,
    run_allocator,
    run_assignment,
    run_cel,
    run_domainxml,
    run_hotplug,
    run_migration,
    run_nova_schedule,
    run_render,
    run_status,
)
from tests.cases.case import Case

Runner = Callable[[Case], Awaitable[list[str]]]  # what differs from the expectation; empty: the case passes

NOT_BUILT: Mapping[str, str] = {
    "move": "no moves yet",
}
# Cases of an area that is built, which are not: why, or "".
CASE_NOT_BUILT: Callable[[Case], str] = run_migration.not_built
# Parts of an expectation that a runner leaves out, until the product can answer them.
NOT_COMPARED: Mapping[str, Mapping[str, str]] = {}
RUNNERS: Mapping[str, Runner] = {
    "admission": run_admission.run,
    "alias": run_nova_schedule.run,
    "allocator": run_allocator.run,
    "assign": run_assignment.run,
    "cel": run_cel.run,
    "claim": run_nova_schedule.run,
    "device_spec": run_nova_schedule.run_hosts,
    "domainxml": run_domainxml.run,
    "driver": run_assignment.run,
    "healing": run_nova_schedule.run_hosts,
    "hotplug": run_hotplug.run,
    "migration": run_migration.run,
    "modelling": run_nova_schedule.run_hosts,
    "numa": run_nova_schedule.run,
    "plugin": run_assignment.run,
    "prefilter": run_nova_schedule.run,
    "readers": run_assignment.run,
    "refusal": run_nova_schedule.run_hosts,
    "render": run_render.run,
    "scheduling": run_nova_schedule.run,
    "status": run_status.run,
    "topology": run_assignment.run,
}
