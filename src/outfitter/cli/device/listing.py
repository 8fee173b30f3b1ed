"""`outfit devices`: every device, who has it, since when, and why the rest is not offered."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

import click

from outfitter.api.page import Booking
from outfitter.cli import printers, time_format, tree_printer
from outfitter.cli.client import Client
from outfitter.cli.device import tree
from outfitter.cli.device.text import NONE, counts, say, sentence, since
from outfitter.cli.device.view import Everything, Known, read

WIDEST = 44  # characters of a product in a table that is not wide
HEAD = ("NODE", "DEVICE", "ADDRESS", "KIND", "PRODUCT", "NUMA")
WIDE = ("DRIVER", "GROUP", "MEMBERS", "PCIE ROOT", "PARENT", "CLASS", "TRAITS", "NETWORK", "SERIAL", "SINCE", "PUBLISHED BY")


async def devices(client: Client, *, node: str | None, states: Sequence[str], how: str, everything: bool) -> None:
    there, now = await read(client, node or ""), time_format.now()
    if how == "json":
        chosen = [device for device in there.devices if _chosen(device, states, withheld=everything)]
        click.echo(json.dumps([as_json(device) for device in chosen], indent=2))
        return
    chosen = [device for device in there.devices if _chosen(device, states, withheld=everything or how == "tree")]
    if not chosen:
        say([_nothing(there, node, states), *there.unfinished])
    elif how == "tree":
        drawn = tree.lines(chosen, there.warnings if not states else {}, now, plain=tree_printer.is_plain())
        say([*drawn, *_foot(there, chosen, states, told=True)])
    else:
        say([*table(chosen, now, wide=how == "wide"), "", *_foot(there, chosen, states, told=everything)])


def _chosen(device: Known, states: Sequence[str], *, withheld: bool) -> bool:
    return any(state in device.states for state in states) if states else device.offered or withheld


# -- a row

def table(chosen: Sequence[Known], now: datetime, *, wide: bool) -> list[str]:
    rows = [[*HEAD, *(WIDE if wide else ()), "STATE"]]
    rows += [[*_cells(device, wide), *(_more(device) if wide else ()), sentence(device, now)] for device in chosen]
    return printers.columns([[cell or NONE for cell in row] for row in rows])


def _cells(device: Known, wide: bool) -> list[str]:
    product = device.product
    return [device.node or f"({device.id.pool})", device.id.device, device.address or device.uuid, device.kind,
            product if wide or len(product) <= WIDEST else f"{product[:WIDEST - 3]}...", _text(device.numa)]


def _more(device: Known) -> list[str]:
    return [device.text("driver"), _text(device.number("iommuGroup")), " ".join(device.words("members")),
            device.text("resource.kubernetes.io/pcieRoot", "pcieRoot"), device.text("parent"), device.text("resourceClass"),
            ",".join(device.words("traits")), device.text("physicalNetwork"), device.text("serial"), since(device),
            device.id.driver if device.published else ""]


def _text(number: int | None) -> str:
    return "" if number is None else str(number)


# -- what stands below

def _foot(there: Everything, chosen: Sequence[Known], states: Sequence[str], *, told: bool) -> Iterator[str]:
    hidden = sum(not device.offered for device in there.devices)
    if states:
        yield f"{len(chosen)} of {len(there.devices)} devices"
    else:
        yield counts(there.devices) + (f"; {hidden} not offered{'' if told else ' (--all shows why)'}" if hidden else "")
    yield from there.unfinished


def _nothing(there: Everything, node: str | None, states: Sequence[str]) -> str:
    where, hidden = f" of {node}" if node else "", sum(not device.offered for device in there.devices)
    if states and there.devices:
        return f"No device{where} is {' or '.join(states)} ({counts(there.devices)}, {hidden} not offered)."
    if hidden:
        return f"No device{where} is offered; {hidden} not offered (--all shows why)."
    return f"No device{where} is known."


# -- for programs

def as_json(device: Known) -> dict[str, Any]:
    """docs/commands.md lists the keys; each is always there, null when nobody says it."""
    text = device.text
    return {
        "node": device.node or None, "name": device.id.device, "pool": device.id.pool, "publishedBy": device.id.driver,
        "address": device.address or None, "uuid": device.uuid or None, "kind": device.kind or None,
        "vendor": text("vendor") or None, "vendorName": text("vendorName") or None,
        "product": text("product") or None, "productName": text("productName") or None,
        "class": text("class") or None, "className": text("className") or None,
        "mdevType": text("mdevType") or None, "mdevTypeName": text("mdevTypeName") or None,
        "driver": text("driver") or None, "numa": device.numa, "iommuGroup": device.number("iommuGroup"),
        "members": device.words("members"), "pcieRoot": text("resource.kubernetes.io/pcieRoot", "pcieRoot") or None,
        "parent": text("parent") or None, "resourceClass": text("resourceClass") or None, "traits": device.words("traits"),
        "physicalNetwork": text("physicalNetwork") or None, "interface": text("interface") or None,
        "serial": text("serial") or None,
        "offered": device.offered, "state": device.state, "states": list(device.states), "since": since(device) or None,
        "reason": device.reason or next((mark.reason for which, mark in device.marks if which == device.state), "") or None,
        "holders": [_holder(booking) for booking in device.bookings],
        "marks": [{"mark": which, "reason": mark.reason or None, "by": mark.by or None, "since": mark.since or None,
                   "origin": mark.origin or None} for which, mark in device.marks],
        "blockedBy": [other.id.device for other in device.in_the_way], "taints": [dict(taint) for taint in device.taints],
    }


def _holder(booking: Booking) -> dict[str, Any]:
    who = booking.holder
    return {"kind": who.kind, "namespace": who.namespace or None, "name": who.name, "uid": who.uid,
            "purpose": who.purpose or None, "request": booking.request or None, "state": booking.state,
            "booked": booking.since, "prepared": booking.prepared or None, "amount": booking.amount}
