"""Areas alias, prefilter, scheduling, numa and claim: aliases are read, flavors become requests, and servers are booted. What
is chosen and booked is the product's doing; hosts and faults are those of the case.

When a case is over, every host is audited once more: what the pages say must be what the machines have."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from outfitter.api.page import Page
from outfitter.api.rejection_text import render
from outfitter.errors import BadRequest, Invalid, OutfitterError, StartupRefused
from outfitter.scheduling.nova import alias, boot, request_groups
from outfitter.scheduling.nova import extra_specs as nova_extra_specs
from outfitter.scheduling.nova.alias import Alias
from outfitter.scheduling.nova.boot import Order, Placed
from outfitter.scheduling.nova.extra_specs import FlavorRequest
from outfitter.scheduling.nova.host_state import NoValidHost
from tests.cases.case import Case
from tests.cases.case_product import NotDriven
from tests.cases.nova_cloud import NOW, Cloud, Fault, House, cloud, shown, uid_of
from tests.cases.run_nova import Log, Play


async def run(case: Case) -> list[str]:
    with Log() as log:
        try:
            async with cloud(case.data["given"]) as made:
                play = Schedule(made, log)
                return [wrong async for wrong in play.play(case)] + await play.audited()
        except NotDriven as error:
            return [str(error)]


async def run_hosts(case: Case) -> list[str]:
    """The areas that are about hosts alone: servers may be booted in them too."""
    with Log() as log:
        try:
            async with cloud(case.data["given"]) as made:
                return [wrong async for wrong in Schedule(made, log).play(case)]
        except NotDriven as error:
            return [str(error)]


class Schedule(Play):
    failures = (Invalid, StartupRefused, BadRequest)

    def __init__(self, made: Cloud, log: Log) -> None:
        super().__init__(made, log)
        self.aliases: Mapping[str, Alias] | None = None
        self.ask: FlavorRequest | None = None  # of the last request that was built
        self.faults: list[Fault] = []
        self.results: dict[str, Placed | NoValidHost] = {}  # server -> what became of it
        self.refused: NoValidHost | None = None  # by the last step
        self.about_alias = False  # the error is

    # -- steps

    async def _do(self, step: Mapping[str, Any]) -> None:
        self.refused, self.about_alias = None, False
        match step["op"]:
            case "load_alias":
                self.aliases = self._aliases(step)
            case "build_request":
                self.ask = self._ask(step["flavor"])
            case "boot" if "count" in step:
                await self._boot_all([f"{step['server']}-{number + 1}" for number in range(step["count"])], step)
            case "boot":
                await self._boot(self._order(step["server"], step), step)
            case "boot_concurrently":
                line = asyncio.Barrier(len(step["servers"]))
                orders = [self._order(name, step) for name in step["servers"]]
                await asyncio.gather(*(self._boot(order, step, line) for order in orders))
            case "inject":
                self.faults.append(_fault(step))
            case "delete":
                self.results.pop(step["server"], None)
                await super()._do(step)
            case _:
                await super()._do(step)

    def _aliases(self, step: Mapping[str, Any]) -> dict[str, Alias]:
        values = step.get("alias", self.cloud.given.get("alias") or [])
        switches = {**self.cloud.switches, **(step.get("config") or {})}
        self.about_alias = True
        found = alias.parse(values if isinstance(values, list) else [values], in_placement=bool(switches["pci_in_placement"]))
        self.about_alias = False
        return found

    def _ask(self, given: Mapping[str, Any]) -> FlavorRequest:
        return nova_extra_specs.read(extra_specs(given), self._aliases({}), new_id=lambda: str(uuid.uuid4()),
                           in_placement=bool(self.cloud.switches["pci_in_placement"]), vcpus=vcpus(given))

    def _order(self, name: str, step: Mapping[str, Any]) -> Order:
        return Order(uid_of(name), name, self._ask(step["flavor"]), NOW)

    async def _boot(self, order: Order, step: Mapping[str, Any], line: asyncio.Barrier | None = None) -> None:
        self._note(order.name, await boot.boot(House(self.cloud, self.faults, line), order, only=step.get("host")))

    async def _boot_all(self, names: Sequence[str], step: Mapping[str, Any]) -> None:
        house = House(self.cloud, self.faults)
        results = await boot.boot_all(house, [self._order(name, step) for name in names], only=step.get("host"))
        for name, result in zip(names, results, strict=True):
            self._note(name, result)

    def _note(self, name: str, result: Placed | NoValidHost) -> None:
        self.cloud.names[uid_of(name)] = name
        self.results[name] = result
        if isinstance(result, NoValidHost):
            self.refused = result

    async def audited(self) -> list[str]:
        """What the pages say after one more audit that they did not say before."""
        before = await self._pages()
        for box in self.cloud.boxes.values():
            if box.keeper is not None:
                await self.cloud.audit(box.name)
        after = await self._pages()
        return [f"an audit at the end changed the page of {name}: {shown(_held(before.get(name)))} became "
                f"{shown(_held(page))}" for name, page in after.items() if _held(before.get(name)) != _held(page)]

    # -- what is expected

    def _kind(self, error: OutfitterError) -> str:
        if isinstance(error, BadRequest):
            return "bad_request"
        return "invalid_alias" if self.about_alias else super()._kind(error)

    def _check_error(self, wanted: Mapping[str, Any], expect: Any) -> Iterator[str]:
        if self.error is not None or self.refused is None:
            yield from super()._check_error(wanted, expect)
            return
        allowed = wanted["kind"] if isinstance(wanted["kind"], list) else [wanted["kind"]]
        text = "\n".join([self.refused.summary, *(f"{host}: {render(why.rejection)}" for host, why in self.refused.hosts)])
        if "no_valid_host" not in allowed:
            yield f"the error is no_valid_host, not {allowed}: {text}"
        yield from (f"the message lacks {part!r}: {text}" for part in wanted.get("contains") or ()
                    if str(part).lower() not in text.lower())

    def _check_aliases(self, wanted: Mapping[str, Mapping[str, Any]], _: Any) -> Iterator[str]:
        have = {name: {"numa_policy": each.numa_policy, "specs": [dict(spec.written) for spec in each.specs]}
                for name, each in (self.aliases or {}).items()}
        if self.aliases is None or set(have) != set(wanted):
            yield f"aliases are {sorted(have)}, not {sorted(wanted)}"
        for name, expected in wanted.items():
            for key, value in expected.items():
                if (got := have.get(name, {}).get(key)) != value:
                    yield f"{key} of {name} is {shown(got)}, not {shown(value)}"

    def _check_requests(self, wanted: Sequence[Mapping[str, Any]], _: Any) -> Iterator[str]:
        have = [{"alias": each.alias, "count": each.count, "numa_policy": each.numa_policy,
                 **{key: [dict(spec.written) for spec in each.specs] for key in ("spec", "specs")}}
                for each in self._asked().requests]
        if len(have) != len(wanted):
            yield f"there are {len(have)} requests, not {len(wanted)}"
        if len({each.request_id for each in self._asked().requests}) != len(have):
            yield "two requests have the same id"
        for number, (got, expected) in enumerate(zip(have, wanted, strict=False)):
            yield from (f"{key} of request {number} is {got.get(key)}, not {value}" for key, value in expected.items()
                        if got.get(key) != value)

    def _check_request_groups(self, wanted: Sequence[Mapping[str, Any]], _: Any) -> Iterator[str]:
        have = request_groups.query(self._asked()).groups
        if any(group.suffix != f"{group.request_id}-{group.index}" for group in have):
            yield f"suffixes are {[group.suffix for group in have]}"
        for pattern in (each["suffix_pattern"] for each in wanted if "suffix_pattern" in each):
            yield from self._check_suffix_pattern(pattern, _)
        labels = {group.request_id for group in have}
        got = Counter(tuple(sorted(_words(group.index, group.resources, group.traits.required, group.traits.forbidden)
                                   for group in have if group.request_id == label)) for label in labels)
        meant = Counter(tuple(sorted(_words(each.get("index"), each["resources"], each.get("required", ()),
                                            each.get("forbidden", ())) for each in wanted if each.get("request") == label))
                        for label in {each.get("request") for each in wanted})
        if got != meant:
            yield f"groups are {sorted(got.elements())}, not {sorted(meant.elements())}"

    def _check_suffix_pattern(self, wanted: str, _: Any) -> Iterator[str]:
        for group in request_groups.query(self._asked()).groups:
            if not re.fullmatch(wanted, group.suffix):
                yield f"the suffix {group.suffix} is not {wanted}"

    def _check_query(self, wanted: Mapping[str, Any], _: Any) -> Iterator[str]:
        have: dict[str, list[str]] = {}
        for name, value in request_groups.query(self._asked()).parameters():
            have.setdefault(name, []).append(value)
        for name, value in wanted.items():
            expected = None if value is None else [",".join(map(str, value)) if isinstance(value, list) else str(value)]
            if have.get(name) != expected:
                yield f"{name} of the query is {have.get(name)}, not {expected}"

    def _asked(self) -> FlavorRequest:
        if self.ask is None:
            raise NotDriven(f"no request was built: {self.error}")
        return self.ask

    async def _state(self, name: str) -> dict[str, Any]:
        have, result = await super()._state(name), self.results.get(name)
        if isinstance(result, NoValidHost):
            return {**have, "status": "ERROR" if have["status"] == "DELETED" else have["status"], "device_count": 0,
                    "devices_on_host": [], "cell": None, "devices_parent_count": {}, "device_cell_equals_guest_cell": False}
        if result is None or have["status"] != "ACTIVE":
            return have
        cells, given = result.choice.cells, result.choice.given
        return {
            **have, "cell": cells[0] if len(cells) == 1 else list(cells) or None,
            "devices_by_alias": {name: sorted(each.device.address for each in given if each.request.alias == name)
                                 for name in {each.request.alias for each in given}},
            "devices_parent_count": dict(Counter(self._parent(have["host"], address) for address in have["devices"])),
            "device_cell_equals_guest_cell": all(each.device.numa in cells for each in given),
        }

    def _parent(self, host: str, address: str) -> str:
        return next(device.get("parent") or address for device in self.cloud.boxes[host].pci if device["address"] == address)

    async def _server(self, name: str, expected: Mapping[str, Any]) -> list[str]:
        plain = {key: value for key, value in expected.items() if key not in ("devices_one_of", "devices_by_alias")}
        wrong = await super()._server(name, plain)
        have = await self._state(name)
        if "devices_one_of" in expected and not _one_of(have["devices"], expected["devices_one_of"]):
            wrong.append(f"{name} has {have['devices']}, none of {expected['devices_one_of']}")
        for key, devices in (expected.get("devices_by_alias") or {}).items():
            if (got := have.get("devices_by_alias", {}).get(key, [])) != sorted(devices):
                wrong.append(f"{name} has {got} for {key}, not {devices}")
        return wrong

    async def _check_exactly_one_of(self, wanted: Mapping[str, Any], _: Any) -> Any:
        if "servers" in wanted:
            matching = [name for name in wanted["servers"] if not await self._server(name, wanted["is"])]
            if len(matching) != 1:
                yield f"{matching} are {wanted['is']}: exactly one of {wanted['servers']} should be"
            for name in set(wanted["servers"]) - set(matching[:1]):
                for wrong in await self._server(name, wanted.get("others") or {}):
                    yield wrong
        if "providers" in wanted:
            used = {name: row.used for name, row in (await self._rows()).items()}
            matching = [name for name in wanted["providers"] if used.get(name) == wanted["used"]]
            others = [name for name in wanted["providers"] if used.get(name) == wanted["others_used"]]
            if len(matching) != 1 or len(others) != len(wanted["providers"]) - 1:
                yield f"exactly one of {wanted['providers']} should have {wanted['used']}: used are {used}"

    async def _check_only_host_of_server_has_claimed_devices(self, wanted: str, _: Any) -> Any:
        home = (await self._state(wanted))["host"]
        for host, page in (await self._pages()).items():
            held = [booking.device.device for booking in page.bookings if booking.counted]
            if bool(held) != (host == home):
                yield f"{host} has {held} booked, and {wanted} is on {home}"

    async def _check_all_servers_of(self, wanted: Any, expect: Mapping[str, Any]) -> Any:
        """`base`, or {server: base, ...} or {base: {...}} with what is expected of every member."""
        if isinstance(wanted, str):
            wanted = {wanted: {}}
        elif "server" in wanted:
            wanted = {wanted["server"]: {key: value for key, value in wanted.items() if key != "server"}}
        for base, said in wanted.items():
            members = [name for name in self.results if re.fullmatch(re.escape(base) + r"-\d+", name)]
            if not members:
                yield f"there are no servers of {base}"
            plain = {key: value for key, value in said.items() if key != "distinct_devices"}
            for name in members:
                for wrong in await self._server(name, plain):
                    yield wrong
            if said.get("distinct_devices") or expect.get("distinct_devices"):
                states = [await self._state(name) for name in members]
                devices = [(state["host"], device) for state in states for device in state["devices"]]
                if len(set(devices)) != len(devices) or not devices:
                    yield f"the devices of {members} are {devices}"

    def _check_distinct_devices(self, wanted: Any, expect: Mapping[str, Any]) -> Iterator[str]:
        if "all_servers_of" not in expect:
            yield "distinct_devices says nothing without all_servers_of"


def extra_specs(given: Mapping[str, Any]) -> dict[str, str]:
    """A case's flavor in the words of a flavor."""
    said = {
        nova_extra_specs.ALIAS: given.get("alias"),
        nova_extra_specs.POLICY: given.get("numa_policy"),
        nova_extra_specs.GROUPS: given.get("group_policy"),
        "hw:numa_nodes": given.get("guest_cells"),
        "hw:cpu_policy": "dedicated" if given.get("pinned") else None,
    }
    return {key: str(value) for key, value in said.items() if value is not None}


def vcpus(given: Mapping[str, Any]) -> int:
    found: int = given.get("vcpus", given.get("guest_cells", 1))
    return found


def _held(page: Page | None) -> list[tuple[str, str, str]]:
    return sorted((booking.device.device, booking.holder.name, booking.state) for booking in page.bookings) if page else []


def _words(index: Any, resources: Mapping[str, int], required: Any, forbidden: Any) -> str:
    return shown([index, dict(resources), sorted(required), sorted(forbidden)])


def _one_of(have: Sequence[str], allowed: Sequence[Any]) -> bool:
    if any(isinstance(each, list) for each in allowed):
        return any(sorted(each) == list(have) for each in allowed)
    return bool(have) and set(have) <= set(allowed)


def _fault(step: Mapping[str, Any]) -> Fault:
    fault, address = step.get("fault"), step.get("address") or step.get("tracker_device_taken") or ""
    if isinstance(fault, Mapping):
        fault, address = next((name, value if isinstance(value, str) else address) for name, value in fault.items())
    kind = fault or "tracker_device_taken"
    if kind not in ("spawn_failure", "tracker_device_taken"):
        raise NotDriven(f"there is no fault {kind}")
    return Fault(kind, step.get("host", "first_selected"), step.get("times", 1), address)
