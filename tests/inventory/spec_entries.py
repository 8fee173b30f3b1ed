"""Entries of device_spec without a configuration file around them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from outfitter.inventory import device_spec_parser, strict_yaml
from outfitter.inventory.device_spec import DeviceSpec


def parse_entries(values: Sequence[Any], path: str = "device_spec", *, report: bool) -> DeviceSpec:
    """Invalid has a cause for each mistake."""
    reader = strict_yaml.Reader(path)
    spec = device_spec_parser.read_entries(reader, values, path, report=report)
    reader.finish(shown=len(reader.causes))
    return spec
