"""Every placement case that can be told in objects is played once more through the product: the same hosts, devices and cells,
or a refusal, as when the runner boots the machines itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cases import areas, plugin, product
from tests.cases.case import Case, read_all

OWN = Path(__file__).parent / "own" / "nova"
AREAS = ("scheduling", "numa", "claim")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    named = plugin.folder(metafunc.config)
    folders = [OWN, *([named] if named is not None else [])]
    cases = [case for folder in folders for case in read_all(folder) if case.area in AREAS and product.plays(case)]
    metafunc.parametrize("case", [pytest.param(case, id=case.id) for case in cases])


async def test_a_case_through_the_product(case: Case) -> None:
    wrong = await product.run(case.without(areas.NOT_COMPARED.get(case.area, ())))
    if wrong:
        pytest.fail("\n".join([f"{case.file.name}: {case.name}", *(f"- {line}" for line in wrong)]), pytrace=False)
