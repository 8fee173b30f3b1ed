from __future__ import annotations

from pathlib import Path

from tests import collection

ROOT = Path(__file__).parent.parent


def test_what_is_called_slow_is_there() -> None:
    files = [path.relative_to(ROOT).as_posix() for path in ROOT.glob("tests/**/test_*.py")]
    ranks = set(map(collection.rank, files))
    assert ranks == set(range(len(collection.SLOW) + 1)), "an entry of SLOW that no file begins with"
