"""The table of errors, compared with the classes."""

from __future__ import annotations

import re
from collections.abc import Iterator

from outfitter import errors
from outfitter.errors import OutfitterError

ROW = re.compile(r"[├└│─ ]*(\w+) +(\d+) +(\w+) +(outfitter\.[a-z_.]+)")


def tree(root: type[OutfitterError] = OutfitterError) -> Iterator[type[OutfitterError]]:
    yield root
    for child in root.__subclasses__():
        if child.__module__ == errors.__name__:
            yield from tree(child)


def test_the_table_is_what_the_classes_say() -> None:
    rows = {found[1]: (int(found[2]), found[3], found[4]) for line in (errors.__doc__ or "").splitlines()
            if (found := ROW.match(line))}
    assert rows == {one.__name__: (one.status, one.kube_reason, one.code) for one in tree()}
    assert len({code for _, _, code in rows.values()}) == len(rows), "each error has a code of its own"
