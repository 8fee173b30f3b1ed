"""A placement case while it runs: hosts start, restart and are audited; providers, usages, allocations, devices and warnings
are compared after each step that reports it. Servers come with `run_nova_schedule`."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from outfitter.api import kinds
from outfitter.api.kinds import Object
from outfitter.api.ledger_page.page import Page
from outfitter.api.providers import Provider
from outfitter.errors import Invalid, OutfitterError, StartupRefused
from outfitter.inventory import scan
from outfitter.inventory.providers import MANAGED
from outfitter.ledger import placement_view
from tests.cases.case import Case
from tests.cases.case_product import NotDriven
from tests.cases.nova_cloud import Cloud, shown, uid_of

OWNERSHIP = {MANAGED, "OWNER_NOVA"}  # of every provider that is ours; not listed in a case
KINDS = {Invalid: "invalid_config", StartupRefused: "refuse_start"}
LEFT = {"outfitter.dev/unlisted", "outfitter.dev/vanished"}
NOT_DRIVEN = "there is no such step yet"


class Log(logging.Handler):
    """What the product warns of."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: list[str] = []
        self.faults: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())
        if record.exc_info and record.exc_info[1] is not None:
            text = "".join(traceback.format_exception(record.exc_info[1]))
            self.faults.append(f"a fault of the product: {record.getMessage()}\n{text}")

    def __enter__(self) -> Log:
        logging.getLogger("outfitter").addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger("outfitter").removeHandler(self)


class Play:
    """A case while it runs. What only some areas need is added by those who run them."""

    failures: tuple[type[OutfitterError], ...] = (Invalid, StartupRefused)  # what a step may fail with

    def __init__(self, made: Cloud, log: Log) -> None:
        self.cloud, self.log = made, log
        self.error: OutfitterError | None = None
        self.matched: dict[str, int | None] = {}
        self.snapshots: list[dict[str, Provider]] = []  # after each step
        self.stored: tuple[Mapping[str, Any], ...] = ()

    async def play(self, case: Case) -> Any:
        self.first = await self._trees()
        self.roots = await self._roots()
        steps: Sequence[Mapping[str, Any]] = case.data.get("when") or ()
        for number, step in enumerate(steps):
            before, pages = await self._trees(), await self._raw_pages()
            self.error = None
            try:
                await self._do(step)
            except self.failures as error:
                self.error = error
            self.snapshots.append(await self._trees())
            expected = [step.get("expect") or {}, *([case.expect] if number == len(steps) - 1 else [])]
            for expect in expected:
                for wrong in await self._compare(expect):
                    yield f"step {number} ({step['op']}): {wrong}"
            if self.error is not None:
                if not any("error" in expect for expect in expected):
                    yield f"step {number} ({step['op']}): failed: {self.error}"
                if not any("providers" in expect for expect in expected) and before != self.snapshots[-1]:
                    yield f"step {number} ({step['op']}): refused, but the providers changed"
                if pages != await self._raw_pages():
                    yield f"step {number} ({step['op']}): refused, but a page changed"

    async def _do(self, step: Mapping[str, Any]) -> None:
        match step["op"]:
            case "match_devices":
                self.matched = self.cloud.match(step)
            case "start_host":
                await self.cloud.start(step["host"])
                self.matched = self.cloud.match({})
            case "restart_host":
                await self.cloud.restart(step)
                self.matched = self.cloud.match({})
            case "periodic":
                await self.cloud.audit(step["host"])
            case "set_reserved":
                await self.cloud.reserve(step["provider"], step["resource_class"], step["reserved"])
            case "delete":
                await self.cloud.delete(step["server"])
            case other:
                raise NotDriven(f"step {other}: {NOT_DRIVEN}")

    # -- what there is

    async def _trees(self) -> dict[str, Provider]:
        """Every provider, by name."""
        trees = await placement_view.trees(self.cloud.store)
        return {provider.name: provider for tree in trees.values() for provider in tree}

    async def _pages(self) -> dict[str, Page]:
        listing = await self.cloud.store.list(kinds.LEDGER_PAGE)
        return {page["metadata"]["name"]: Page(page) for page in listing.items}

    async def _raw_pages(self) -> list[Object]:
        return (await self.cloud.store.list(kinds.LEDGER_PAGE)).items

    async def _rows(self) -> dict[str, placement_view.Row]:
        pages = await self._pages()
        return {row.provider.name: row for host, tree in (await placement_view.trees(self.cloud.store)).items()
                for row in placement_view.rows(tree, pages.get(host) or Page(Page.blank(host)))}

    async def _allocations(self) -> placement_view.Allocations:
        trees = await placement_view.trees(self.cloud.store)
        return placement_view.allocations(trees.values(), (await self._pages()).values())

    async def _roots(self) -> dict[str, list[tuple[str, str]]]:
        """Consumer -> what it has of hosts themselves."""
        out: dict[str, list[tuple[str, str]]] = {}
        for host, page in (await self._pages()).items():
            for booking in page.bookings:
                if "resources" in booking.amount:
                    out.setdefault(booking.holder.uid, []).append((host, shown(booking.amount)))
        return out

    # -- what is expected

    async def _compare(self, expect: Mapping[str, Any]) -> list[str]:
        wrong: list[str] = []
        for key, wanted in expect.items():
            check = getattr(self, f"_check_{key}", None)
            if key == "on_host":
                continue
            if check is None:
                raise NotDriven(f"{key} cannot be compared yet")
            found: Any = check(wanted, expect)
            wrong += [text async for text in found] if hasattr(found, "__aiter__") else list(found)
        return wrong

    def _check_error(self, wanted: Mapping[str, Any], _: Any) -> Iterator[str]:
        allowed = wanted["kind"] if isinstance(wanted["kind"], list) else [wanted["kind"]]
        if self.error is None:
            yield f"an error {allowed} was expected"
            return
        kind = self._kind(self.error)
        if kind not in allowed:
            yield f"the error is {kind}, not {allowed}: {self.error}"
        yield from (f"the message lacks {part!r}: {self.error}" for part in wanted.get("contains") or ()
                    if str(part).lower() not in str(self.error).lower())

    def _kind(self, error: OutfitterError) -> str:
        return next(word for class_, word in KINDS.items() if isinstance(error, class_))

    def _check_matched(self, wanted: Mapping[str, int | None], _: Any) -> Iterator[str]:
        for address, entry in wanted.items():
            if self.matched.get(address, "missing") != entry:
                yield f"{address} is matched by {self.matched.get(address, 'missing')}, not {entry}"

    async def _check_providers(self, wanted: Sequence[Mapping[str, Any]], expect: Mapping[str, Any]) -> Any:
        have = {name: row for name, row in (await self._rows()).items() if MANAGED in row.provider.traits
                and expect.get("on_host") in (None, row.provider.parent)}
        if set(have) != {each["name"] for each in wanted}:
            yield f"providers are {sorted(have)}, not {sorted(each['name'] for each in wanted)}"
        for each in wanted:
            if each["name"] in have:
                for wrong in self._provider(each, have[each["name"]]):
                    yield f"{each['name']}: {wrong}"

    def _provider(self, wanted: Mapping[str, Any], row: placement_view.Row) -> Iterator[str]:
        provider = row.provider
        if "parent" in wanted and provider.parent != wanted["parent"]:
            yield f"parent is {provider.parent}, not {wanted['parent']}"
        if "traits" in wanted and provider.traits - OWNERSHIP != set(wanted["traits"]):
            yield f"traits are {sorted(provider.traits - OWNERSHIP)}, not {sorted(wanted['traits'])}"
        if "inventories" in wanted:
            if set(row.inventories) != set(wanted["inventories"]):
                yield f"classes are {sorted(row.inventories)}, not {sorted(wanted['inventories'])}"
            for name, value in wanted["inventories"].items():
                fields = value if isinstance(value, Mapping) else {"total": value, "max_unit": value}
                have = row.inventories[name].to_object() if name in row.inventories else {}
                yield from (f"{name}.{key} is {have.get(key)}, not {number}" for key, number in fields.items()
                            if have.get(key) != number)
        if "same_uuid_as_after_step" in wanted:
            old = self.snapshots[wanted["same_uuid_as_after_step"]].get(provider.name)
            if old is None or old.uuid != provider.uuid:
                yield f"uuid is {provider.uuid}, it was {old and old.uuid}"

    async def _check_usages(self, wanted: Mapping[str, Mapping[str, int]], _: Any) -> Any:
        rows = await self._rows()
        for name, amounts in wanted.items():
            have = rows[name].used if name in rows else None
            if have != amounts:
                yield f"used of {name} is {have}, not {amounts}"

    async def _check_allocations(self, wanted: Mapping[str, Mapping[str, Any]], _: Any) -> Any:
        everything = await self._allocations()
        for consumer, expected in wanted.items():
            have = {name: amounts for name, amounts in everything.get(uid_of(consumer), {}).items()
                    if name not in self.cloud.boxes}
            if have != expected:
                yield f"{consumer} has {shown(have)}, not {shown(expected)}"

    async def _check_allocation_totals(self, wanted: Mapping[str, int], _: Any) -> Any:
        everything = await self._allocations()
        for consumer, total in wanted.items():
            have = sum(sum(amounts.values()) for name, amounts in everything.get(uid_of(consumer), {}).items()
                       if name not in self.cloud.boxes)
            if have != total:
                yield f"{consumer} has {have} in all, not {total}"

    async def _check_extra_providers_untouched(self, wanted: Any, _: Any) -> Any:
        given = [each["name"] for each in self.cloud.given.get("extra_providers") or ()]
        for name in wanted if isinstance(wanted, list) else given:
            if (await self._trees()).get(name) != self.first[name]:
                yield f"{name} was changed"

    async def _check_root_allocations_unchanged(self, wanted: Sequence[str], _: Any) -> Any:
        have = await self._roots()
        for name in wanted:
            if have.get(uid_of(name)) != self.roots.get(uid_of(name)) or not have.get(uid_of(name)):
                yield f"what {name} has of the host was {self.roots.get(uid_of(name))} and is {have.get(uid_of(name))}"

    def _check_provider_generations_unchanged_since_step(self, wanted: int, _: Any) -> Iterator[str]:
        now, then = self.snapshots[-1], self.snapshots[wanted]
        for name in now.keys() | then.keys():
            if name not in now or name not in then or now[name].generation != then[name].generation:
                yield f"{name} changed since step {wanted}"

    async def _check_devices(self, wanted: Mapping[str, Mapping[str, Mapping[str, str]]], _: Any) -> Any:
        for host, devices in wanted.items():
            have = await self._device_states(host)
            for address, expected in devices.items():
                state = have.get(address, {"status": "removed"})
                if any(state.get(key) != value for key, value in expected.items()):
                    yield f"{address} on {host} is {state}, not {expected}"

    async def _device_states(self, host: str) -> dict[str, dict[str, str]]:
        """Every device that the host publishes, as its page says."""
        pages, names = await self._pages(), self.cloud.names
        held = {booking.device.device: booking for booking in pages[host].bookings if booking.counted} if host in pages else {}
        addresses = {device.name: device.address for device in scan.scan(self.cloud.boxes[host].tree()).devices}
        out = {}
        slices = (await self.cloud.store.list(kinds.RESOURCE_SLICE, fields=f"spec.nodeName={host}")).items
        for device in (device for obj in slices for device in obj["spec"].get("devices") or ()):
            booking = held.get(device["name"])
            if booking is None and any(taint["key"] in LEFT for taint in device.get("taints") or ()):
                continue  # it only waits to be taken out
            address = addresses.get(device["name"]) or device["attributes"]["resource.kubernetes.io/pciBusID"]["string"]
            out[address] = {"status": "available"} if booking is None else {
                "status": {"booked": "claimed"}.get(booking.state, "allocated"),
                "owner": names.get(booking.holder.uid, booking.holder.name)}
        return out

    def _check_log(self, wanted: Any, _: Any) -> Iterator[str]:
        text = "\n".join(self.log.said).lower()
        for part in wanted if isinstance(wanted, list) else [wanted]:
            if str(part).lower() not in text:
                yield f"nobody warns of {part!r}: {self.log.said}"

    async def _check_servers(self, wanted: Mapping[str, Mapping[str, Any]], _: Any) -> Any:
        for name, expected in wanted.items():
            for wrong in await self._server(name, expected):
                yield wrong

    async def _server(self, name: str, expected: Mapping[str, Any]) -> list[str]:
        """What differs of one server."""
        have = await self._state(name)
        if unknown := [key for key in expected if key not in have]:
            raise NotDriven(f"servers.{unknown[0]} cannot be compared yet")
        return [f"{name}.{key} is {have[key]}, not {value}" for key, value in expected.items()
                if have[key] != (sorted(value) if isinstance(value, list) else value)]

    async def _state(self, name: str) -> dict[str, Any]:
        """A server as its host has it."""
        for box in self.cloud.boxes.values():
            if found := (await box.hypervisor.domains()).get(uid_of(name)):
                return {"status": "ACTIVE", "host": box.name, "devices": sorted(found.devices),
                        "device_count": len(found.devices), "devices_on_host": sorted(found.devices)}
        return {"status": "DELETED", "host": None, "devices": []}
