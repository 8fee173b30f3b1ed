"""The layout of the package: class names are unique, and no folder holds more modules than a reader can survey."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import outfitter

PACKAGE = Path(outfitter.__file__).parent
MOST_MODULES = 25  # in one folder; the aim is about 20


def test_class_names_are_unique() -> None:
    defined: dict[str, list[str]] = defaultdict(list)
    for path in PACKAGE.rglob("*.py"):
        for name in re.findall(r"^ *class (\w+)[(:]", path.read_text(), re.MULTILINE):
            defined[name].append(str(path.relative_to(PACKAGE)))
    assert len(defined) > 100
    assert {name: places for name, places in defined.items() if len(places) > 1} == {}


def test_no_folder_is_too_full() -> None:
    folders = {path.parent for path in PACKAGE.rglob("*.py")}
    counts = {str(folder.relative_to(PACKAGE)): len(list(folder.glob("*.py"))) for folder in folders}
    assert {folder: count for folder, count in counts.items() if count > MOST_MODULES} == {}
