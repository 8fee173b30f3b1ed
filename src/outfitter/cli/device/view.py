"""Reads the devices of a server for `outfit devices`, `device` and `history`; `ledger.device_list` joins what is read."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from outfitter.api import kinds
from outfitter.api.kinds import Kind, Object
from outfitter.cli.client import Client
from outfitter.cli.device.page_warnings import warn_malformed
from outfitter.errors import Forbidden, NotFound
from outfitter.ledger.device_list import DeviceList, ListedDevice, device_list
from outfitter.scheduling.filter import taints


async def read(client: Client, node: str = "") -> DeviceList:
    """Ask for all devices, or for those of one node. NotFound names the nodes that there are."""
    name = f"metadata.name={node}" if node else ""
    slices, pages, inventories, rules = await asyncio.gather(
        listed(client, kinds.RESOURCE_SLICE, f"spec.nodeName={node}" if node else ""),
        listed(client, kinds.LEDGER_PAGE, name), listed(client, kinds.HOST_INVENTORY, name), _rules(client))
    found = device_list(slices, pages, inventories)
    for device in found.devices if rules else ():
        device.taints += tuple(taints.ruled_device(rules, device.id))
    warn_malformed(found.malformed)
    if node and not found.nodes:
        try:
            await client.readable.get(kinds.NODE, node)  # NotFound is handled below; a node without devices is fine
        except NotFound:
            raise NotFound((await read(client)).no_node(node)) from None
    return found


async def _rules(client: Client) -> list[Object]:
    """All DeviceTaintRules; none where the user may not read them."""
    try:
        return await listed(client, kinds.DEVICE_TAINT_RULE)
    except Forbidden:
        return []


async def find_devices(client: Client, words: Sequence[str]) -> list[ListedDevice]:
    """The devices that the user named. If all are of one node, only that node is read at first."""
    places = {word.rpartition("/")[0] for word in words}
    alone = next(iter(places)).rpartition("/")[2] if len(places) == 1 else ""
    try:
        there = await read(client, alone)
        return [there.find(word) for word in words]
    except NotFound:
        if not alone:
            raise
    there = await read(client)  # the word may name a pool without a node; else the error lists similar names
    return [there.find(word) for word in words]


async def listed(client: Client, kind: Kind, fields: str = "") -> list[Object]:
    """All objects of a kind; empty where the server does not have the kind."""
    try:
        return (await client.readable.list(kind, fields=fields)).items
    except NotFound:
        return []
