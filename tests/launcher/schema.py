"""libvirt's own schema of domains, where it is installed."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
from lxml import etree

SCHEMA = Path("/usr/share/libvirt/schemas/domain.rng")


def needed(test: Any) -> Any:
    """A test that needs the schema."""
    skip = pytest.mark.skipif(not SCHEMA.exists(), reason=f"needs libvirt's schema {SCHEMA}; on Debian it comes with libvirt0")
    return pytest.mark.parts(skip(test))


@functools.cache
def _schema() -> Any:
    return etree.RelaxNG(etree.parse(str(SCHEMA)))


def wrong(xml: str) -> str:
    """What the schema says against a domain; empty: nothing."""
    schema = _schema()
    return "" if schema.validate(etree.fromstring(xml.encode())) else str(schema.error_log)
