"""One test for each of the project's own cases, below `own`. They are run as those that `--cases` names, but on their own:
a name may be taken in both places."""

from __future__ import annotations

import pytest

from tests.cases import areas
from tests.cases.case import Case, read_all
from tests.cases.plugin import OWN


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    cases = read_all(OWN) or [Case(OWN, "file", "none", {}, [f"{OWN.name} holds no *.yaml and no *.json"])]
    metafunc.parametrize("case", [pytest.param(case, id=case.id) for case in cases])


async def test_own_case(case: Case) -> None:
    if case.problems:
        pytest.fail("\n".join(case.problems), pytrace=False)
    if case.basis == "quirk":
        pytest.skip("basis quirk: an implementation may choose otherwise")
    wrong = await areas.RUNNERS[case.area](case.without(areas.NOT_COMPARED.get(case.area, ())))
    if wrong:
        pytest.fail("\n".join([f"{case.file.name}: {case.name}", *(f"- {line}" for line in wrong)]), pytrace=False)
