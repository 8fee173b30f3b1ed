"""Filters and scorers that others wrote: found by entry point, loaded once, and never able to stop a decision by failing.

A filter keeps pods away from hosts, so the lack of one is not harmless: what it was to keep apart would come together. That is
why a plug-in that cannot be loaded keeps the program from starting, by name and with the way out, instead of being skipped
silently; and why a filter that fails rejects the host. A scorer that fails adds nothing, and is reported."""

from __future__ import annotations

import functools
import math
import os
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any, Protocol, runtime_checkable

from outfitter.api.rejection import Rejection, RejectionCode
from outfitter.errors import StartupRefused

GROUP = "outfitter.scheduling"
SKIP = "OUTFITTER_SKIP_PLUGINS"  # the variable: names of plug-ins, separated by commas
MOST = 100.0  # points that a scorer can give
Object = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class GivenDevice:
    """A device that a pod would get on a host."""

    driver: str
    pool: str
    name: str
    request: str  # of the claim that asked for it
    numa: int | None = None  # None: not known
    pcie_root: str | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict)  # full name -> plain value, as published


@runtime_checkable
class Filter(Protocol):
    """Pure and quick: called for each host that fits otherwise. What it is given is not its own: read it, never change it."""

    name: str

    def filter(self, pod: Object, node: Object, devices: Sequence[GivenDevice]) -> str | None:
        """Why the pod may not run on the node with these devices, for a person; None if it may."""
        ...


@runtime_checkable
class Scorer(Protocol):
    """As a filter, for hosts that may be taken."""

    name: str

    def score(self, pod: Object, node: Object, devices: Sequence[GivenDevice]) -> float:
        """0 to 100, more is better; beyond is cut."""
        ...


@dataclass(frozen=True, slots=True)
class PluginScore:
    """What the scorers add to a host, with a text of each."""

    value: float = 0.0
    texts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SchedulerPlugins:
    """What was loaded, in the order of names. One plug-in may be both."""

    filters: tuple[Filter, ...] = ()
    scorers: tuple[Scorer, ...] = ()

    def rejections(self, pod: Object, node: Object, devices: Sequence[GivenDevice] = ()) -> tuple[Rejection, ...]:
        """Why the pod may not run there; empty if no filter rejects it."""
        return tuple(rejection for one in self.filters if (rejection := _ask(one, pod, node, devices)) is not None)

    def points(self, pod: Object, node: Object, devices: Sequence[GivenDevice] = ()) -> PluginScore:
        value, texts = 0.0, []
        for one in self.scorers:
            try:
                points = _number(one.score(pod, node, devices))
            except Exception as error:  # whatever it is, it is theirs
                texts.append(f"{_failed(one, error)}, so it adds nothing")
            else:
                value += points
                texts.append(f"plug-in {one.name}: {points:g}")
        return PluginScore(value, tuple(texts))


NO_PLUGINS = SchedulerPlugins()


def _number(given: object) -> float:
    if isinstance(given, bool) or not isinstance(given, int | float) or math.isnan(min(given, MOST)):
        raise TypeError(f"it answered {given!r:.60}, which is no number")
    return float(min(max(given, 0.0), MOST))


def _ask(one: Filter, pod: Object, node: Object, devices: Sequence[GivenDevice]) -> Rejection | None:
    try:
        message = _reason(one.filter(pod, node, devices))
    except Exception as error:  # any fault of the plug-in
        return Rejection.of(RejectionCode.PLUGIN_FAILED, plugin=one.name, error=_short(error))
    if message is None:
        return None
    return Rejection.of(RejectionCode.PLUGIN_REJECTED, plugin=one.name, message=message or "no, without a reason")


def _reason(given: object) -> str | None:
    if given is None or isinstance(given, str):
        return given
    raise TypeError(f"it answered {given!r:.60}, which is neither a reason nor None")


def _failed(one: Filter | Scorer, error: Exception) -> str:
    return f"plug-in {one.name} failed ({_short(error)})"


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error)[:200]}"


def skipped(environment: Mapping[str, str] = os.environ) -> list[str]:
    """Plug-ins that the operator disables."""
    return [name for name in environment.get(SKIP, "").split(",") if name]


@functools.lru_cache(maxsize=1)  # it reads the metadata of every package that is installed
def _installed(path: tuple[str, ...]) -> metadata.EntryPoints:
    """`path`: sys.path, where packages are looked for."""
    return metadata.entry_points(group=GROUP)


def load(skip: Collection[str] = (), found: Iterable[metadata.EntryPoint] | None = None) -> SchedulerPlugins:
    """Everything that is installed, once, at the start. `skip`: names that the operator disables.

    StartupRefused, naming each of them, if one cannot be loaded, is neither a filter nor a scorer, or has the name of
    another; and for a name in `skip` that no plug-in has, because it is then probably misspelt."""
    entries = sorted(_installed(tuple(sys.path)) if found is None else found, key=lambda one: (one.name, one.value))
    wrong = [f"{name} is to be skipped, but there is no such plug-in" for name in sorted(skip)
             if name not in {entry.name for entry in entries}]
    loaded: dict[str, object] = {}
    for entry in entries:
        if entry.name in skip:
            continue
        try:
            thing = entry.load()
            plugin: object = thing() if callable(thing) else thing
            mistakes = list(_mistakes(plugin, entry.name))
        except Exception as error:  # foreign code can fail in any way
            mistakes = [f"cannot be loaded: {type(error).__name__}: {error}"]
        if entry.name in loaded:
            mistakes.append("has the name of another one")
        if mistakes:
            wrong.append(f"{_title(entry)} {' and '.join(mistakes)}")
        else:
            loaded[entry.name] = plugin
    if wrong:
        raise StartupRefused(f"scheduling plug-ins: {'; '.join(wrong)}. Repair or uninstall it, or start with "
                             f"{SKIP}=name")
    return SchedulerPlugins(tuple(one for one in loaded.values() if isinstance(one, Filter)),
                   tuple(one for one in loaded.values() if isinstance(one, Scorer)))


def _mistakes(plugin: object, name: str) -> Iterator[str]:
    if (called := getattr(plugin, "name", None)) != name:
        yield f"calls itself {called!r}: its name must be that of its entry point"
    verbs = [verb for verb in ("filter", "score") if hasattr(plugin, verb)]
    if not verbs:
        yield "has neither filter(pod, node, devices) nor score(pod, node, devices)"
    for verb in verbs:
        if not callable(getattr(plugin, verb)):
            yield f"has a {verb} that cannot be called"


def _title(entry: metadata.EntryPoint) -> str:
    package = f" of {entry.dist.name} {entry.dist.version}" if entry.dist else ""
    return f"{entry.name}{package} ({entry.value})"
