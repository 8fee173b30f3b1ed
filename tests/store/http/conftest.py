"""The HTTP client on both event loops: roles run on uvloop where there is one, and its transports differ from asyncio's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import pytest

from outfitter.roles.process import loop_factory


def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"asyncio": asyncio.new_event_loop, "uvloop": loop_factory()}
