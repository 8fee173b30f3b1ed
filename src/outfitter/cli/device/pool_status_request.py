"""Asks a server for the counts of a driver's pools by a ResourcePoolStatusRequest: created, read when it is answered, deleted.
For `outfit devices` of users who may not see devices, on servers that have no PoolStatuses."""

from __future__ import annotations

import asyncio
import contextlib

from outfitter.api import conditions, kinds
from outfitter.api.kinds import Object
from outfitter.api.validate.dra.pool_status_requests import MOST_POOLS
from outfitter.cli.client import Client
from outfitter.errors import Forbidden, NotFound, TimedOut
from outfitter.store.id_generator import IdGenerator

ANSWER_WITHIN = 30.0  # seconds
LOOK_EVERY = 0.2


async def ask(client: Client, driver: str) -> Object:
    """The status of the answered request. NotFound: the server does not have the kind; Forbidden: the user may not create, get
    or delete it; TimedOut: there was no answer."""
    name = f"outfit-devices-{IdGenerator().suffix()}"
    kind, store = kinds.POOL_STATUS_REQUEST, client.store
    await store.create(kind, {
        "apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": name},
        "spec": {"driver": driver, "limit": MOST_POOLS}})
    try:
        async with asyncio.timeout(ANSWER_WITHIN):
            while True:
                status: Object = (await store.get(kind, name)).get("status") or {}
                if status:
                    return status
                await asyncio.sleep(LOOK_EVERY)
    except TimeoutError:
        raise TimedOut(f"{kind.resource} {name} for {driver} was not answered within {ANSWER_WITHIN:.0f}s: a pool of it may be "
                       "published incompletely, or the controller that answers may be switched off") from None
    finally:
        with contextlib.suppress(NotFound, Forbidden):  # it expires an hour later
            await store.delete(kind, name)


def failure(status: Object) -> str:
    """Why a request could not be answered; "" if it was."""
    failed = conditions.find({"status": status}, "Failed") or {}
    return str(failed.get("message", "no reason given")) if failed.get("status") == "True" else ""
