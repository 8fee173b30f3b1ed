"""Files become cases: read, distinguished by format, and checked against the format's vocabulary.

Nothing here raises: what is wrong with a file or a case travels with it as a problem, and its test fails with that."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import yaml

from tests.cases import assignment_vocabulary, dra_vocabulary, kubevirt_vocabulary, nova_vocabulary
from tests.cases.vocabulary import Check

SUFFIXES = (".yaml", ".json")
AREAS: Mapping[str, tuple[str, Check]] = {  # area -> the format it belongs to, and its vocabulary
    **{area: ("kubevirt", kubevirt_vocabulary.case(area)) for area in kubevirt_vocabulary.EXPECT},
    **dict.fromkeys(nova_vocabulary.AREAS, ("nova", nova_vocabulary.CASE)),
    **dict.fromkeys(assignment_vocabulary.AREAS, ("assignment", assignment_vocabulary.CASE)),
    "allocator": ("dra", dra_vocabulary.ALLOCATOR),
    "cel": ("dra", dra_vocabulary.CEL),
}


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Times stay text, as in JSON."""

    yaml_implicit_resolvers: ClassVar[Mapping[str, Any]] = {
        letter: [(tag, pattern) for tag, pattern in known if tag != "tag:yaml.org,2002:timestamp"]
        for letter, known in yaml.SafeLoader.yaml_implicit_resolvers.items()}


@dataclass(slots=True)
class Case:
    """One case of one file. `problems` is why it cannot be run; empty: it is in the format."""

    file: Path
    area: str
    name: str
    data: Mapping[str, Any]
    problems: list[str] = field(default_factory=list)

    @property
    def id(self) -> str:
        return f"{self.file.stem}-{self.area}-{self.name}"

    def without(self, keys: Collection[str]) -> Case:
        """The same case, without these keys of it."""
        return replace(self, data={key: value for key, value in self.data.items() if key not in keys})

    @property
    def basis(self) -> str:
        return str(self.data.get("basis", ""))

    @property
    def config(self) -> Mapping[str, Any]:
        return self.data.get("config") or {}

    @property
    def expect(self) -> Mapping[str, Any]:
        return self.data.get("expect") or {}


def read_all(*folders: Path) -> list[Case]:
    """Every case below the folders, in the order of the files; a name that was seen before in the same format is a problem."""
    seen: dict[tuple[str, str], Path] = {}
    out: list[Case] = []
    for file in _files(folders):
        for case in read(file):
            place = (AREAS[case.area][0] if case.area in AREAS else case.area, case.name)
            if place in seen:
                case.problems.append(f'the name "{case.name}" is taken by a case of {seen[place].name}: names are unique')
            seen.setdefault(place, file)
            out.append(case)
    return out


def _files(folders: Sequence[Path]) -> list[Path]:
    return [file for folder in folders
            for file in sorted(path for path in folder.rglob("*") if path.suffix in SUFFIXES and path.is_file())]


def read(file: Path) -> Iterator[Case]:
    try:
        text = file.read_text(encoding="utf-8")
        content = json.loads(text) if file.suffix == ".json" else yaml.load(text, Loader=_Loader)
    except (OSError, ValueError, yaml.YAMLError) as error:
        yield _broken(file, "unreadable", f"cannot be read: {error}")
        return
    cases = content
    if isinstance(content, Mapping):
        for problem in dra_vocabulary.FILE(content, ""):
            yield _broken(file, "layout", problem)
        if content.get("format", 1) != 1:
            yield _broken(file, "layout", f"format {content['format']!r} is not known; known is 1")
        cases = content.get("cases")
    if not isinstance(cases, list) or not cases:
        yield _broken(file, "empty", "holds no cases: a list of cases, or a mapping with such a list under cases, is expected")
        return
    for index, data in enumerate(cases):
        yield _case(file, index, data)


def _broken(file: Path, name: str, problem: str) -> Case:
    return Case(file, "file", name, {}, [f"{file.name}: {problem}"])


def _case(file: Path, index: int, data: Any) -> Case:
    if not isinstance(data, Mapping):
        return Case(file, "unknown", str(index), {}, [f"case {index} is not a mapping: {data!r}"])
    area, name = _area(data), data.get("name")
    case = Case(file, area, str(name or index), data)
    if not isinstance(name, str) or not name:
        case.problems.append(f'case {index}: the key "name" is missing')
    if area not in AREAS:
        case.problems.append(f'unknown area "{area}"; known are: {", ".join(sorted(AREAS))}' if "area" in data else
                             "the case has no area, and neither claims nor expression to tell its format by")
        return case
    case.problems += AREAS[area][1](data, "")
    if not case.problems and not _expects(data):
        case.problems.append("the case expects nothing")
    return case


def _area(data: Mapping[str, Any]) -> str:
    if "area" in data:
        return str(data["area"])
    return "allocator" if "claims" in data else "cel" if "expression" in data else "unknown"


def _expects(data: Mapping[str, Any]) -> bool:
    if "expression" in data:
        return any(key.startswith("expect") for key in data)
    return bool(data.get("expect")) or any(step.get("expect") for step in data.get("when") or ())
