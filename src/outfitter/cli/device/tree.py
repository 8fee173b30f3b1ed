"""Devices as a tree for the terminal: hosts, NUMA nodes, PFs with their VFs and mediated devices, and the state of each."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import groupby

from outfitter.cli import tree_printer
from outfitter.cli.device import text
from outfitter.cli.tree_printer import Branch
from outfitter.ledger.device_list import ListedDevice

MANY = 4  # this many alike devices in a row are one line, if they are free or not offered
BRIDGE = "06"  # PCI base class of bridges

_INDEX = re.compile(r"-vf([0-9]+)$")


def lines(
    chosen: Sequence[ListedDevice], warnings: Mapping[str, Sequence[str]], now: datetime, *, plain: bool
) -> Iterator[str]:
    for branch in hosts(chosen, warnings, now):
        yield from tree_printer.for_terminal(tree_printer.tree_lines(branch), plain=plain)
        yield ""


def hosts(chosen: Sequence[ListedDevice], warnings: Mapping[str, Sequence[str]], now: datetime) -> Iterator[Branch]:
    for host, run in groupby(chosen, key=lambda device: device.node or (f"pool {device.id.pool}" if device.page else "")):
        here = list(run)
        at = {device.address: device.numa for device in here if device.address}
        by_numa: dict[int | None, list[ListedDevice]] = defaultdict(list)
        for device in here:
            by_numa[at.get(device.text("parent"), device.numa)].append(
                device
            )  # a VF or mdev is listed on the node of its parent
        below = [Branch("no NUMA node" if numa is None else f"NUMA node {numa}", list(_functions(by_numa[numa], now)))
                 for numa in sorted(by_numa, key=lambda numa: (numa is None, numa or 0))]
        below += [Branch(f"warning: {text}") for text in warnings.get(host, ())]
        hidden = sum(not device.offered for device in here)
        title = text.counts(here) + (f"; {hidden} not offered" if hidden else "")
        yield Branch(f"{host or 'on no node'}  {title}", below)


def _functions(here: Sequence[ListedDevice], now: datetime) -> Iterator[Branch]:
    """Functions without a parent, with their VFs and mediated devices below them."""
    known = {device.address for device in here if device.address}
    children: dict[str, list[ListedDevice]] = defaultdict(list)
    for device in here:
        if parent := device.text("parent"):
            children[parent].append(device)
    bridges = [device for device in here if _is_bridge(device)]
    for device in here:
        parent = device.text("parent")
        if parent and parent not in known:  # filtered out itself
            if children[parent][0] is device:
                yield Branch(parent, list(_folded(children[parent], now)))
        elif not parent and not _is_bridge(device):
            yield Branch(_line([device], now), list(_folded(children[device.address], now)) if device.address else [])
    if bridges:
        yield Branch(f"{len(bridges)} bridge{'s' if len(bridges) > 1 else ''}, never offered")


def _is_bridge(device: ListedDevice) -> bool:
    return not device.offered and device.text("class").startswith(BRIDGE)


def _folded(below: Sequence[ListedDevice], now: datetime) -> Iterator[Branch]:
    """Consecutive alike devices as one line, if they are many and all free or all withheld."""
    for _, run in groupby(below, key=lambda device: (
            text.state_text(device, now), device.kind, device.product, bool(_index(device)))):
        alike = list(run)
        if len(alike) >= MANY and (alike[0].states in (("free",), ("withheld",))):
            yield Branch(_line(alike, now))
        else:
            yield from (Branch(_line([device], now)) for device in alike)


def _index(device: ListedDevice) -> str:
    match = _INDEX.search(device.id.device)
    return f"vf{match[1]}" if match else ""


def _line(alike: Sequence[ListedDevice], now: datetime) -> str:
    first, last = alike[0], alike[-1]
    where = [device.address or device.uuid for device in (first, last)]
    if len(alike) > 1:
        called, at = f"{_index(first)}..{_index(last)}" if _index(first) else "", f"{where[0]}..{where[1]}"
        state = f"{len(alike)} {text.state_text(first, now)}"
    else:
        called, at, state = _index(first), where[0], text.state_text(first, now)
    others = [member for member in first.words("members") if member != first.address]
    at = f"{at} with {' '.join(others)}" if others else at
    return "  ".join(_some([called, at or first.id.device, first.kind, first.product, state]))


def _some(parts: Iterable[str]) -> list[str]:
    return [part for part in parts if part]
