"""Plug-ins: an installed package is found, a broken one keeps the program from starting, one that fails is named."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from outfitter.api.rejection import Rejection
from outfitter.errors import StartupRefused
from outfitter.scheduling import plugins, score
from outfitter.scheduling.plugins import GROUP, Filter, GivenDevice, PluginScore, SchedulerPlugins, Scorer
from tests.rejected import Code, no

EXAMPLE = Path(__file__).parent.parent / "plugins" / "team_rules"
NOTHING: Sequence[GivenDevice] = ()


def thing(name: str, team: str = "") -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": {"team": team} if team else {}}}


# -- an installed package


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example, built and installed as a user would, without a network."""
    source, target = tmp_path_factory.mktemp("source") / "team_rules", tmp_path_factory.mktemp("site")
    shutil.copytree(EXAMPLE, source)
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-build-isolation",
         "--no-index", "--target", str(target), str(source)], check=True, capture_output=True, text=True, timeout=600)
    return target


@pytest.fixture
def installed(site: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SchedulerPlugins]:
    monkeypatch.syspath_prepend(site)
    yield plugins.load()
    sys.modules.pop("team_rules", None)


def test_an_installed_package_is_found(installed: SchedulerPlugins) -> None:
    assert [one.name for one in installed.filters] == ["keep-apart"]
    assert [one.name for one in installed.scorers] == ["own-hosts"]


FILTERED = {
    "team a off the hosts of team b": (
        thing("p", "a"), thing("h", "b"), (
            no(Code.PLUGIN_REJECTED, plugin="keep-apart", message="the host is for team b, the pod is of team a"),)),
    "team a on its own": (thing("p", "a"), thing("h", "a"), ()),
    "team a on a host of no owner": (thing("p", "a"), thing("h"), ()),
    "a pod of no owner": (thing("p"), thing("h", "b"), ()),
}


@pytest.mark.parametrize("name", FILTERED)
def test_the_filter_of_the_example(name: str, installed: SchedulerPlugins) -> None:
    pod, node, wanted = FILTERED[name]
    assert installed.rejections(pod, node) == wanted


def test_the_scorer_of_the_example_moves_a_pod_to_its_own_hosts(installed: SchedulerPlugins) -> None:
    pod, nodes = thing("p", "a"), [thing("h1"), thing("h2", "a")]
    extra = {node["metadata"]["name"]: installed.points(pod, node) for node in nodes}
    ranked = score.rank([score.HostCandidate("h1"), score.HostCandidate("h2")],
                        extra={host: (points.value, points.texts) for host, points in extra.items()})
    assert [one.host for one in ranked] == ["h2", "h1"]
    assert ranked[0].why.endswith("; plug-in own-hosts: 100")


@pytest.mark.usefixtures("installed")
def test_plugin_can_be_skipped() -> None:
    rest = plugins.load(skip=["keep-apart"])
    assert (len(rest.filters), len(rest.scorers)) == (0, 1)


def test_without_packages_there_are_none() -> None:
    none = plugins.load(found=[])
    assert none == SchedulerPlugins()
    assert none.rejections(thing("p"), thing("h")) == ()
    assert none.points(thing("p"), thing("h")) == PluginScore(0.0)


# -- what is wrong at the start


class Good:
    name = "good"

    def filter(self, pod: Any, node: Any, devices: Any) -> str | None:
        return None

    def score(self, pod: Any, node: Any, devices: Any) -> float:
        return 1.0


class Misnamed(Good):
    name = "other"


class Idle:
    name = "idle"


class Deaf:
    name = "deaf"
    filter = "yes"


def failing() -> Good:
    raise RuntimeError("no licence")


made = Good()
HERE = __name__


def entry(name: str, value: str) -> metadata.EntryPoint:
    return metadata.EntryPoint(name, f"{HERE}:{value}" if ":" not in value else value, GROUP)


BROKEN = {
    "no such module": ([entry("lost", "nowhere_at_all:X")], r"lost \(nowhere_at_all:X\) cannot be loaded: ModuleNotFoundError"),
    "no such object": ([entry("lost", "Nobody")], r"lost .* cannot be loaded: AttributeError"),
    "it fails while it is made": ([entry("good", "failing")], r"good .* cannot be loaded: RuntimeError: no licence"),
    "neither filter nor scorer": ([entry("idle", "Idle")], r"idle .* has neither filter\(pod, node, devices\) nor score"),
    "what should be a method is none": ([entry("deaf", "Deaf")], r"deaf .* has a filter that cannot be called"),
    "another name": ([entry("good", "Misnamed")], r"good .* calls itself 'other': its name must be that of its entry point"),
    "the same name twice": ([entry("good", "Good"), entry("good", "made")], r"good .* has the name of another one"),
    "all of them are named": ([entry("lost", "Nobody"), entry("idle", "Idle")], r"idle .*; lost .*\. Repair or uninstall it"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_plugin_keeps_the_program_from_starting(name: str) -> None:
    entries, message = BROKEN[name]
    with pytest.raises(StartupRefused, match=message):
        plugins.load(found=entries)


def test_skipped_plugin_may_be_broken_but_must_exist() -> None:
    assert plugins.load(skip=["lost"], found=[entry("lost", "Nobody"), entry("good", "Good")]).filters[0].name == "good"
    with pytest.raises(StartupRefused, match="lots is to be skipped, but there is no such plug-in"):
        plugins.load(skip=["lots"], found=[entry("lost", "Good")])


def test_a_class_a_function_or_an_object() -> None:
    assert plugins.load(found=[entry("good", "made")]).filters == (made,)
    loaded = plugins.load(found=[entry("good", "Good")])
    assert list[object](loaded.filters) == list[object](loaded.scorers)
    assert isinstance(loaded.filters[0], Filter)
    assert isinstance(loaded.scorers[0], Scorer)


# -- what is wrong while they are asked


class Answers:
    def __init__(self, name: str, answer: Any) -> None:
        self.name, self.answer = name, answer

    def filter(self, pod: Any, node: Any, devices: Sequence[GivenDevice]) -> Any:
        return self._say(devices)

    def score(self, pod: Any, node: Any, devices: Sequence[GivenDevice]) -> Any:
        return self._say(devices)

    def _say(self, devices: Sequence[GivenDevice]) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer(devices) if callable(self.answer) else self.answer


def no_number(answer: str) -> PluginScore:
    return PluginScore(0.0, (f"plug-in x failed (TypeError: it answered {answer}, which is no number), so it adds nothing",))


FAILED = "plug-in x failed (KeyError: 'zone')"
ASKED: dict[str, tuple[Any, Rejection | None]] = {
    "it does not mind": (None, None),
    "a reason": ("too hot", no(Code.PLUGIN_REJECTED, plugin="x", message="too hot")),
    "no reason": ("", no(Code.PLUGIN_REJECTED, plugin="x", message="no, without a reason")),
    "an exception rejects": (KeyError("zone"), no(Code.PLUGIN_FAILED, plugin="x", error="KeyError: 'zone'")),
    "an answer of another kind rejects": (True, no(
        Code.PLUGIN_FAILED, plugin="x", error="TypeError: it answered True, which is neither a reason nor None")),
    "it sees the devices": (
        lambda devices: devices[0].name, no(Code.PLUGIN_REJECTED, plugin="x", message="gpu-0")),
}
SCORED: dict[str, tuple[Any, PluginScore]] = {
    "a number": (12.5, PluginScore(12.5, ("plug-in x: 12.5",))),
    "a whole number": (7, PluginScore(7.0, ("plug-in x: 7",))),
    "below nothing": (-5, PluginScore(0.0, ("plug-in x: 0",))),
    "beyond the most": (1e9, PluginScore(100.0, ("plug-in x: 100",))),
    "beyond all": (float("inf"), PluginScore(100.0, ("plug-in x: 100",))),
    "beyond what a float can hold": (10**400, PluginScore(100.0, ("plug-in x: 100",))),
    "no number": (float("nan"), no_number("nan")),
    "a text": ("9", no_number("'9'")),
    "nothing": (None, no_number("None")),
    "yes": (True, no_number("True")),
    "an exception": (KeyError("zone"), PluginScore(0.0, (f"{FAILED}, so it adds nothing",))),
    "it sees the devices": (len, PluginScore(1.0, ("plug-in x: 1",))),
}
GPU = GivenDevice("gpu.example.com", "h", "gpu-0", "gpu", 0, "pci0000:00", {"gpu.example.com/model": "a"})


@pytest.mark.parametrize("name", ASKED)
def test_filters(name: str) -> None:
    answer, rejection = ASKED[name]
    both = SchedulerPlugins((Answers("x", answer), Good()))
    assert both.rejections(thing("p"), thing("h"), [GPU]) == (() if rejection is None else (rejection,))


@pytest.mark.parametrize("name", SCORED)
def test_scorers(name: str) -> None:
    answer, points = SCORED[name]
    assert SchedulerPlugins(scorers=(Answers("x", answer),)).points(thing("p"), thing("h"), [GPU]) == points


def test_every_filter_is_asked_and_every_score_is_added() -> None:
    two = SchedulerPlugins(
        (Answers("x", "one"), Answers("y", "two")), (Answers("x", KeyError("zone")), Answers("y", 3), Good())
    )
    assert two.rejections(thing("p"), thing("h"), NOTHING) == (
        no(Code.PLUGIN_REJECTED, plugin="x", message="one"), no(Code.PLUGIN_REJECTED, plugin="y", message="two"))
    assert two.points(thing("p"), thing("h"), NOTHING) == PluginScore(
        4.0, (f"{FAILED}, so it adds nothing", "plug-in y: 3", "plug-in good: 1"))


def test_an_interrupt_is_not_a_reason() -> None:
    def stop(_: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        SchedulerPlugins((Answers("x", stop),)).rejections(thing("p"), thing("h"), NOTHING)
