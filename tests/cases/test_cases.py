"""One test for each case of the folder that `--cases` names. Which areas are run is said in `areas.py`."""

from __future__ import annotations

import pytest

from tests.cases import areas, cluster_rights, plugin
from tests.cases.case import Case, read_all


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    folders = plugin.folders(metafunc.config)
    if not folders:
        reason = f"no cases: shared/cases is not beside the repository; name their folder with {plugin.FOLDER}"
        metafunc.parametrize("case", [pytest.param(None, id="no-cases", marks=pytest.mark.skip(reason=reason))])
        return
    cases = read_all(*folders) or [
        Case(folder, "file", "none", {}, [f"{folder.name} holds no *.yaml and no *.json"]) for folder in folders]
    metafunc.parametrize("case", [pytest.param(case, id=case.id) for case in cases])


async def test_case(case: Case, request: pytest.FixtureRequest) -> None:
    if case.problems:
        pytest.fail("\n".join(case.problems), pytrace=False)
    if case.basis == "quirk":
        pytest.skip("basis quirk: an implementation may choose otherwise")
    if case.area in areas.NOT_BUILT and not request.config.getoption(plugin.NOT_BUILT):
        pytest.skip(f"area {case.area} is not built yet")
    if case.area in areas.NOT_BUILT and case.area not in areas.RUNNERS:
        pytest.skip(f"area {case.area} is not built yet and has no runner")
    if (why := areas.CASE_NOT_BUILT(case)) and not request.config.getoption(plugin.NOT_BUILT):
        pytest.skip(f"not built yet: {why}")
    if request.config.getoption(plugin.FOLDER) is not None:  # all that can be judged is to be
        cluster_rights.use_built_programs()
    wrong = await areas.RUNNERS[case.area](case.without(areas.NOT_COMPARED.get(case.area, ())))
    if wrong:
        pytest.fail("\n".join([f"{case.file.name}: {case.name}", *(f"- {line}" for line in wrong)]), pytrace=False)
