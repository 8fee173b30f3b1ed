"""The runner of the cases itself: what is not in a format fails by name, what is expected wrongly fails, the rest passes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from outfitter.api import kinds
from outfitter.controllers.device_status import DeviceStatus
from outfitter.controllers.manager import ControllerContext
from outfitter.store.base import Store
from tests import kubernetes
from tests.cases import areas, cluster_rights, plugin, run_hotplug
from tests.cases.case import Case, read_all
from tests.cases.case_product import settings_object
from tests.cases.sample_cases import ALLOCATOR, HOLDS, HOTPLUG, NOVA, STRANGE, WAITING, kubevirt

pytest_plugins = ["pytester"]
Outcome = tuple[str, str]  # "passed", "failed" or "skipped", and what was said
COMMAND = ("-c", str(plugin.ROOT / "pyproject.toml"), f"--rootdir={plugin.ROOT}", "-p", "no:cacheprovider", "--assert=plain",
           str(Path(__file__).with_name("test_cases.py")))


def write(folder: Path, name: str, content: Any) -> None:
    folder.mkdir(exist_ok=True)
    text = content if isinstance(content, str) else json.dumps(content) if name.endswith(".json") else yaml.safe_dump(content)
    (folder / name).write_text(text)


def run(pytester: pytest.Pytester, *options: str) -> dict[str, Outcome]:
    """Run the cases; what became of each, by the test's id."""
    recorder = pytester.inline_run(*COMMAND, *options)
    out: dict[str, Outcome] = {}
    for report in recorder.getreports("pytest_runtest_logreport"):
        assert isinstance(report, pytest.TestReport)
        if report.when == "call" or report.outcome != "passed":
            out[report.nodeid.partition("[")[2].removesuffix("]")] = (report.outcome, str(report.longrepr))
    return out


def area(case: dict[str, Any]) -> str:
    return str(case.get("area") or ("allocator" if "claims" in case else "cel"))


def flipped(case: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    if "expression" in case:
        return {key: value for key, value in {**case, **change}.items() if value is not None}
    return {**case, "expect": {**case["expect"], **change}}


@pytest.mark.thorough
def test_what_holds_passes_and_its_flips_fail(pytester: pytest.Pytester, tmp_path: Path) -> None:
    cases: list[dict[str, Any]] = []
    want: dict[str, str] = {}
    for name, (case, changes) in HOLDS.items():
        cases.append({**case, "name": name})
        id_ = f"made-{area(case)}-{name}"
        want[id_] = "passed"
        for number, change in enumerate(changes):
            cases.append({**flipped(case, change), "name": f"{name}, but {number}"})
            want[f"{id_}, but {number}"] = "failed"
    write(tmp_path / "cases", "made.yaml", cases)
    got = run(pytester, "--cases", str(tmp_path / "cases"), "--cases-not-built")
    assert {name: outcome for name, (outcome, _) in got.items()} == want, "\n".join(
        f"{name}: {text}" for name, (outcome, text) in got.items() if outcome != want.get(name))


def test_every_runner_has_cases_here() -> None:
    assert {area(case) for case, _ in HOLDS.values()} == set(areas.RUNNERS)


def test_a_fault_of_the_product_fails_the_case(
    pytester: pytest.Pytester, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def stumble(controller: DeviceStatus, key: str) -> None:
        raise ZeroDivisionError(f"{key} cannot be divided")

    monkeypatch.setattr(DeviceStatus, "reconcile", stumble)
    write(tmp_path / "cases", "made.yaml", [{**kubevirt("status", WAITING, {"crashes": False}), "name": "a fault"}])
    [(outcome, text)] = run(pytester, "--cases", str(tmp_path / "cases"), "--cases-not-built").values()
    assert (outcome, "lab/vm1 cannot be divided" in text) == ("failed", True), text


@pytest.mark.parametrize(("most", "outcome"), {3: "failed", 4: "passed"}.items())
def test_writes_for_devices_are_counted_over_all_runs(
    pytester: pytest.Pytester, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, outcome: str
) -> None:
    async def scribble(controller: DeviceStatus, key: str) -> None:
        if controller not in seen:  # one of each run
            seen.append(controller)
            for name in ("first", "second"):
                await stores[-1].patch(kinds.VMI, "vm1", {"status": {"deviceStatus": {"gpuStatuses": [{"name": name}]}}},
                                       "lab", subresource="status")

    def remember(controller: DeviceStatus, context: ControllerContext) -> None:
        stores.append(context.store)
        usual(controller, context)

    seen: list[DeviceStatus] = []
    stores: list[Store] = []
    usual = DeviceStatus.__init__
    monkeypatch.setattr(DeviceStatus, "__init__", remember)
    monkeypatch.setattr(DeviceStatus, "reconcile", scribble)
    case = kubevirt("status", WAITING, {"patchesAtMost": most}, reconciles=2)
    write(tmp_path / "cases", "made.yaml", [{**case, "name": "writes"}])
    assert {name: got for name, (got, _) in run(pytester, "--cases", str(tmp_path / "cases"), "--cases-not-built").items()} == {
        "made-status-writes": outcome}


def test_what_is_not_in_a_format_fails_and_is_named(pytester: pytest.Pytester, tmp_path: Path) -> None:
    write(tmp_path / "cases", "made.json", [{**case, "name": name} for name, (case, _) in STRANGE.items()])
    got = run(pytester, "--cases", str(tmp_path / "cases"))
    assert len(got) == len(STRANGE)
    for name, (_, word) in STRANGE.items():
        [(outcome, text)] = [became for id_, became in got.items() if id_.endswith(f"-{name}")]
        assert (outcome, word in text) == ("failed", True), f"{name}: {outcome}, {text}"


def test_a_broken_file_fails_alone(pytester: pytest.Pytester, tmp_path: Path) -> None:
    cases = tmp_path / "cases"
    good = {**NOVA, "basis": "quirk"}
    write(cases, "broken.yaml", "- name: [")
    write(cases, "broken.json", "{")
    write(cases, "empty.yaml", "")
    write(cases, "layout.json", {"format": 2, "mood": 1, "cases": [{**good, "name": "of the file"}]})
    write(cases, "list.yaml", ["a", {**good, "name": ""}])
    write(cases, "twice.yaml", [{**good, "name": "same"}, {**good, "name": "same"}])
    (cases / "below").mkdir()
    write(cases / "below", "again.json", {"cases": [{**good, "name": "same"}]})
    (cases / "README.md").write_text("not a case")
    got = run(pytester, "--cases", str(cases))
    failed = {id_: text for id_, (outcome, text) in got.items() if outcome == "failed"}
    assert {id_ for id_, (outcome, _) in got.items() if outcome == "skipped"} == {"again-numa-same", "layout-numa-of the file"}
    assert {id_.rstrip("01") for id_ in failed} == {
        "broken-file-unreadable", "empty-file-empty", "layout-file-layout", "list-unknown-", "list-numa-", "twice-numa-same"}
    assert len(failed) == 2 + 1 + 2 + 2 + 2
    assert all("again.json" in text for id_, text in failed.items() if "same" in id_)


def test_unbuilt_areas_and_quirks_are_skipped_with_a_reason(
    pytester: pytest.Pytester, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(areas, "NOT_BUILT", {"numa": "a reason", "allocator": "a reason", "hotplug": "a reason"})
    write(tmp_path / "cases", "made.yaml", [
        {**NOVA, "name": "known words"}, {**ALLOCATOR, "name": "known words"}, {**HOTPLUG, "name": "known words"},
        {**NOVA, "name": "quirk", "basis": "quirk"}])
    got = run(pytester, "--cases", str(tmp_path / "cases"))
    assert {id_: (outcome, next(word for word in ("area numa", "area allocator", "area hotplug", "quirk") if word in text))
            for id_, (outcome, text) in got.items()} == {
        "made-numa-known words": ("skipped", "area numa"),
        "made-allocator-known words": ("skipped", "area allocator"),
        "made-hotplug-known words": ("skipped", "area hotplug"),
        "made-numa-quirk": ("skipped", "quirk"),
    }


def test_without_a_folder_one_test_is_skipped(
    pytester: pytest.Pytester, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugin, "DEFAULT", tmp_path / "nowhere")
    monkeypatch.setattr(plugin, "NEXT", ())
    assert [(id_, outcome) for id_, (outcome, text) in run(pytester).items() if "--cases" in text] == [("no-cases", "skipped")]


def test_the_usual_folder_is_used_when_it_is_there(
    pytester: pytest.Pytester, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "cases", "made.yaml", [{**NOVA, "name": "found", "basis": "quirk"}])
    write(tmp_path / "more", "more.yaml", [{**NOVA, "name": "also found", "basis": "quirk"}])
    monkeypatch.setattr(plugin, "DEFAULT", tmp_path / "cases")
    monkeypatch.setattr(plugin, "NEXT", (tmp_path / "more", tmp_path / "nowhere"))
    assert list(run(pytester)) == ["made-numa-found", "more-numa-also found"]


def test_a_folder_without_cases_fails(pytester: pytest.Pytester, tmp_path: Path) -> None:
    (tmp_path / "cases").mkdir()
    assert [outcome for outcome, _ in run(pytester, "--cases", str(tmp_path / "cases")).values()] == ["failed"]


def test_a_folder_that_is_not_there_is_a_mistake(pytester: pytest.Pytester, tmp_path: Path) -> None:
    result = pytester.runpytest_inprocess(*COMMAND, "--cases", str(tmp_path / "nowhere"))
    assert result.ret != pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["*there is no such folder*"])


@pytest.mark.thorough
def test_the_command_of_the_documentation(tmp_path: Path) -> None:
    """In a process of its own: a folder elsewhere must not lead pytest away from this repository's settings."""
    write(tmp_path / "cases", "made.yaml", [{**kubevirt("status", WAITING, {"ready": False}), "name": "documented"}])
    command = (sys.executable, "-m", "pytest", "tests/cases", "--cases", str(tmp_path / "cases"), "--cases-not-built", "-q",
               "-p", "no:cacheprovider", "-k", "documented and not command")
    done = subprocess.run(command, cwd=plugin.ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert (done.returncode, "1 passed" in done.stdout) == (0, True), done.stdout + done.stderr


def test_times_stay_text(tmp_path: Path) -> None:
    write(tmp_path / "cases", "times.yaml",
          "- {name: times, area: hotplug, given: [{kind: Node, status: {since: 1970-01-01T00:00:00Z}}]}")
    [case] = read_all(tmp_path / "cases")
    assert case.data["given"][0]["status"] == {"since": "1970-01-01T00:00:00Z"}


def test_programs_of_a_control_plane_that_were_built_are_used_when_cases_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    monkeypatch.setattr(cluster_rights, "_sources", [kubernetes.assets])
    monkeypatch.setattr(cluster_rights, "built_programs", lambda: tmp_path)
    assert cluster_rights.programs() is None
    cluster_rights.use_built_programs()
    cluster_rights.use_built_programs()
    assert cluster_rights.programs() == tmp_path


def test_settings_may_be_text_or_null() -> None:
    made = settings_object({"parallelMigrationsPerCluster": "1", "gracePeriodSeconds": None, "vmRolloutStrategy": None}, None)
    assert made["spec"]["configuration"]["migrations"] == {"parallelMigrationsPerCluster": 1}
    assert "vmRolloutStrategy" not in made["spec"]["configuration"]
    assert made["metadata"]["annotations"] == {}


async def test_a_step_may_create_the_namespace_of_what_it_creates() -> None:
    made = [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "other"}},
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "notes", "namespace": "other"}}]
    steps = [{"at": 0, "do": {"create": made}, "then": {"count": [{"kind": "ConfigMap", "namespace": "other", "equals": 1}]}}]
    case = Case(Path("made.yaml"), "hotplug", "made", {"given": [], "expect": {"steps": steps}})
    assert await run_hotplug.run(case) == []
