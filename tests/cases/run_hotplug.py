"""Area hotplug: NICs of running VMs change, with an injected clock. The steps are run by `step_engine`.

Cases about rights (`user`, `rbac`) run on a real kube-apiserver, which authorizes by RBAC; without one they are skipped."""

from __future__ import annotations

import pytest

from tests import kubernetes
from tests.cases.case import Case
from tests.cases.case_product import NotDriven
from tests.cases.cluster_steps import ClusterSteps
from tests.cases.played_migrations import CONTROLLER, PlayedMigrations, plays
from tests.cases.played_nodes import PlayedNodes
from tests.cases.step_engine import OF_KUBERNETES, stepped


def about_rights(case: Case) -> bool:
    """Whether a case has users with rights of their own."""
    steps = case.expect.get("steps") or ()
    return any("user" in (step.get("do") or {}) or "rbac" in (step.get("then") or {}) for step in steps)


async def run(case: Case) -> list[str]:
    if about_rights(case):
        if kubernetes.assets() is None:
            pytest.skip(f"rights are those of a real kube-apiserver: {kubernetes.MISSING}")
        return await ClusterSteps(case).run()
    played = plays(dict(case.config))
    without = (*OF_KUBERNETES, CONTROLLER) if played else OF_KUBERNETES
    try:
        async with stepped(case, without=without) as engine:
            if case.config.get("playNodes"):
                engine.actors.append(PlayedNodes(engine))
            if played:
                engine.actors.append(PlayedMigrations(engine))
            wrong = await engine.run()
            return wrong and [*wrong, *engine.notes]
    except NotDriven as error:
        return [str(error)]
