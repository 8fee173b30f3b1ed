from __future__ import annotations

import pytest

from outfitter.store.clock import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()
