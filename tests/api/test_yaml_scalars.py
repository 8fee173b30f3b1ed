"""Plain values in YAML mean what kubectl makes of them, in files that `outfit apply` sends and in bodies that are YAML."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outfitter.apiserver import negotiate
from outfitter.cli import client
from tests.apiserver.running import Kubectl, Running, kubectls

FOUND = kubectls()
# What kubectl 1.36 makes of each.
READ: dict[str, Any] = {
    "0000:01:00.0": "0000:01:00.0", "1:30": "1:30", "1:30.5": "1:30.5", "190:20:30": "190:20:30",
    "2020-01-01": "2020-01-01", "2020-01-01T00:00:00Z": "2020-01-01T00:00:00Z",
    "0x1F": 31, "-0x10": -16, "0b11": 3, "010": 8, "0o10": 8, "08": 8, "1_000": 1000, "+1": 1, "0": 0, "-7": -7,
    "1e3": 1000, "12e03": 12000, ".5": 0.5, "1.": 1, "1.5": 1.5, "685.230_15e+03": 685230.15,
    "y": True, "N": False, "yes": True, "NO": False, "on": True, "off": False, "True": True, "FALSE": False,
    "9223372036854775807": 9223372036854775807, "9" * 30: 1e30, "1e300": 1e300, "-1e999": "-1e999", "9" * 400: "9" * 400,
    "0xffffffffffffffffff": "0xffffffffffffffffff", "0x" + "f" * 900: "0x" + "f" * 900, "0b" + "1" * 70: "0b" + "1" * 70,
    "1.0.0": "1.0.0", "Yess": "Yess", "one": "one", "~": None, "null": None, "=": "=", "'1'": "1", '"yes"': "yes",
}
HEAD = "apiVersion: kubevirt.io/v1\nkind: KubeVirt\nmetadata: {name: t}\nspec:\n"
TEXT = HEAD + "".join(f"  k{place}: {written}\n" for place, written in enumerate(READ))
EXACT = [f"{type(value).__name__} {value}" for value in READ.values()]


def _exact(spec: dict[str, Any]) -> list[str]:
    """By type too: True is not 1 here."""
    return [f"{type(spec[f'k{place}']).__name__} {spec[f'k{place}']}" for place in range(len(READ))]


def test_files(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(TEXT)
    ((_, obj, _),) = client.documents([str(tmp_path)])
    assert _exact(obj["spec"]) == EXACT


def test_bodies() -> None:
    assert _exact(negotiate.from_yaml(TEXT.encode()).value["spec"]) == EXACT


@pytest.fixture(params=FOUND or [pytest.param("none", marks=pytest.mark.skip("no kubectl in PATH or KUBEBUILDER_ASSETS"))])
def kubectl(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Kubectl]:
    with Running(tmp_path) as server:
        yield Kubectl(FOUND[request.param], server)


@pytest.mark.kubectl
def test_the_table_is_kubectls_own(kubectl: Kubectl) -> None:
    seen = kubectl("create", "--dry-run=client", "--validate=false", "-f", "-", "-o", "json", stdin=TEXT)
    assert _exact(json.loads(seen)["spec"]) == EXACT
