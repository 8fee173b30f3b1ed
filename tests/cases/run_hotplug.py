"""Area hotplug: NICs of running VMs change, with an injected clock. The steps are run by `step_engine`.

The rights of a case's users (`user`, `rbac`) are those of a real kube-apiserver, which authorizes by RBAC; without one such
cases are skipped. They run on that server as a whole if it can be waited for (`cluster_steps`), else it only decides what the
users may do (`cluster_rights`)."""

from __future__ import annotations

import pytest

from tests import kubernetes
from tests.cases.case import Case
from tests.cases.case_product import NotDriven
from tests.cases.cluster_rights import ClusterRights, programs
from tests.cases.cluster_steps import ClusterSteps, runs_on_a_server
from tests.cases.played_migrations import CONTROLLER, PlayedMigrations, plays
from tests.cases.played_nodes import PlayedNodes
from tests.cases.step_engine import OF_KUBERNETES, StepEngine, stepped


def about_rights(case: Case) -> bool:
    """Whether a case has users with rights of their own."""
    steps = case.expect.get("steps") or ()
    return any("user" in (step.get("do") or {}) or "rbac" in (step.get("then") or {}) for step in steps)


def with_rights(case: Case, engine: StepEngine) -> None:
    """Let a real server decide what the users of a case may do; pytest.skip without one."""
    if not about_rights(case):
        return
    if programs() is None:
        pytest.skip(f"rights are those of a real kube-apiserver: {kubernetes.MISSING}")
    engine.authorizer = rights = ClusterRights(case)
    engine.words["rbac"] = rights.rbac


async def run(case: Case) -> list[str]:
    try:
        if about_rights(case) and programs() is not None and runs_on_a_server(case):
            return await ClusterSteps(case).run()
        played = plays(dict(case.config))
        async with stepped(case, without=(*OF_KUBERNETES, CONTROLLER) if played else OF_KUBERNETES) as engine:
            with_rights(case, engine)
            if case.config.get("playNodes"):
                engine.actors.append(PlayedNodes(engine))
            if played:
                engine.actors.append(PlayedMigrations(engine))
            wrong = await engine.run()
            return wrong and [*wrong, *engine.notes]
    except NotDriven as error:
        return [str(error)]
