"""`outfit devices`: every device with its holder, since when, and why the rest is not offered; as a table, a tree or JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import click

from outfitter.api.ledger_page.page import Booking
from outfitter.cli import printers, time_format, tree_printer
from outfitter.cli.client import Client
from outfitter.cli.device import pools, tree
from outfitter.cli.device.text import NONE, counts, print_lines, since, state_text
from outfitter.cli.device.view import read
from outfitter.errors import Forbidden
from outfitter.ledger.device_list import DeviceList, ListedDevice

WIDEST = 44  # characters of a product name unless -o wide
HEAD = ("NODE", "DEVICE", "ADDRESS", "KIND", "PRODUCT", "NUMA")
WIDE = ("DRIVER", "GROUP", "MEMBERS", "PCIE ROOT", "PARENT", "CLASS", "TRAITS", "NETWORK", "SERIAL", "SINCE", "PUBLISHED BY")


async def devices(
    client: Client, *, node: str | None, states: Sequence[str], drivers: Sequence[str], how: str, everything: bool
) -> None:
    try:
        views, now = _of_drivers(await read(client, node or ""), drivers), time_format.now()
    except Forbidden as refused:
        detailed = bool(states) or everything or how == "tree"
        await pools.print_pools(client, refused, node=node, drivers=drivers, how=how, detailed=detailed)
        return
    if how == "json":
        chosen = [device for device in views.devices if _chosen(device, states, withheld=everything)]
        click.echo(json.dumps([as_json(device) for device in chosen], indent=2))
        return
    chosen = [device for device in views.devices if _chosen(device, states, withheld=everything or how == "tree")]
    if not chosen:
        print_lines([_nothing(views, node, states), *views.unfinished])
    elif how == "tree":
        tree_lines = tree.lines(chosen, views.warnings if not states else {}, now, plain=tree_printer.is_ascii_only())
        print_lines([*tree_lines, *_foot(views, chosen, states, reasons_shown=True)])
    else:
        print_lines([*table(chosen, now, wide=how == "wide"), "", *_foot(views, chosen, states, reasons_shown=everything)])


def _of_drivers(views: DeviceList, drivers: Sequence[str]) -> DeviceList:
    """Only devices of these drivers; all, if there are none."""
    if not drivers:
        return views
    return replace(views, devices=tuple(device for device in views.devices if device.id.driver in drivers))


def _chosen(device: ListedDevice, states: Sequence[str], *, withheld: bool) -> bool:
    return any(state in device.states for state in states) if states else device.offered or withheld


# -- a row

def table(chosen: Sequence[ListedDevice], now: datetime, *, wide: bool) -> list[str]:
    rows = [[*HEAD, *(WIDE if wide else ()), "STATE"]]
    rows += [[*_cells(device, wide), *(_more(device) if wide else ()), state_text(device, now)] for device in chosen]
    return printers.columns([[cell or NONE for cell in row] for row in rows])


def _cells(device: ListedDevice, wide: bool) -> list[str]:
    product = device.product
    return [device.node or f"({device.id.pool})", device.id.device, device.address or device.uuid, device.kind,
            product if wide or len(product) <= WIDEST else f"{product[:WIDEST - 3]}...", _text(device.numa)]


def _more(device: ListedDevice) -> list[str]:
    return [device.text("driver"), _text(device.number("iommuGroup")), " ".join(device.words("members")),
            device.text("resource.kubernetes.io/pcieRoot", "pcieRoot"), device.text("parent"), device.text("resourceClass"),
            ",".join(device.words("traits")), device.text("physicalNetwork"), device.text("serial"), since(device),
            device.id.driver if device.published else ""]


def _text(number: int | None) -> str:
    return "" if number is None else str(number)


# -- the summary below

def _foot(views: DeviceList, chosen: Sequence[ListedDevice], states: Sequence[str], *, reasons_shown: bool) -> Iterator[str]:
    hidden = sum(not device.offered for device in views.devices)
    if states:
        yield f"{len(chosen)} of {len(views.devices)} devices"
    else:
        yield counts(views.devices) + (
            f"; {hidden} not offered{'' if reasons_shown else ' (--all shows why)'}" if hidden else ""
        )
    yield from views.unfinished


def _nothing(views: DeviceList, node: str | None, states: Sequence[str]) -> str:
    where, hidden = f" of {node}" if node else "", sum(not device.offered for device in views.devices)
    if states and views.devices:
        return f"No device{where} is {' or '.join(states)} ({counts(views.devices)}, {hidden} not offered)."
    if hidden:
        return f"No device{where} is offered; {hidden} not offered (--all shows why)."
    return f"No device{where} is known."


# -- for programs

def as_json(device: ListedDevice) -> dict[str, Any]:
    """docs/commands.md lists the keys; every key is always present, null when the value is not known."""
    text = device.text
    return {
        "node": device.node or None,
        "name": device.id.device,
        "pool": device.id.pool,
        "publishedBy": device.id.driver,
        "address": device.address or None,
        "uuid": device.uuid or None,
        "kind": device.kind or None,
        "vendor": text("vendor") or None,
        "vendorName": text("vendorName") or None,
        "product": text("product") or None,
        "productName": text("productName") or None,
        "class": text("class") or None,
        "className": text("className") or None,
        "mdevType": text("mdevType") or None,
        "mdevTypeName": text("mdevTypeName") or None,
        "driver": text("driver") or None,
        "numa": device.numa,
        "iommuGroup": device.number("iommuGroup"),
        "members": device.words("members"),
        "pcieRoot": text("resource.kubernetes.io/pcieRoot", "pcieRoot") or None,
        "parent": text("parent") or None,
        "resourceClass": text("resourceClass") or None,
        "traits": device.words("traits"),
        "physicalNetwork": text("physicalNetwork") or None,
        "interface": text("interface") or None,
        "serial": text("serial") or None,
        "offered": device.offered,
        "state": device.state,
        "states": list(device.states),
        "since": since(device) or None,
        "reason": device.reason
        or next((record.reason for record_type, record in device.records if record_type == device.state), "")
        or None,
        "holders": [_holder(booking) for booking in device.bookings],
        "outOfService": [
            {
                "state": record_type,
                "reason": record.reason or None,
                "by": record.by or None,
                "since": record.since or None,
                "origin": record.origin or None,
            }
            for record_type, record in device.records
        ],
        "blockedBy": [other.id.device for other in device.blocked_by],
        "sameHardware": [{"driver": other.driver, "pool": other.pool, "name": other.device} for other in device.same_as],
        "taints": [dict(taint) for taint in device.taints],
    }


def _holder(booking: Booking) -> dict[str, Any]:
    holder = booking.holder
    return {"kind": holder.kind, "namespace": holder.namespace or None, "name": holder.name, "uid": holder.uid,
            "purpose": holder.purpose or None, "request": booking.request or None, "state": booking.state,
            "booked": booking.since, "prepared": booking.prepared or None, "amount": booking.amount}
