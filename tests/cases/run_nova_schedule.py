"""The steps of a placement case that are about aliases, flavors and servers. Aliases and flavors are read by
`outfit config flavor`, servers are VirtualMachines of the product; hosts and faults are those of the case.

When a case has ended, every host is audited once more: what the pages say must be what the domains have."""

from __future__ import annotations

import json
import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from outfitter.api import kinds
from outfitter.api.kinds import Object
from outfitter.api.ledger_page.page import Page
from outfitter.cli import main
from outfitter.errors import BadRequest, Invalid, OutfitterError, StartupRefused
from outfitter.ledger import placement_view
from outfitter.scheduling.nova import extra_specs as nova_extra_specs
from tests.cases import nova_cloud
from tests.cases.case import Case
from tests.cases.case_product import NotDriven
from tests.cases.nova_cloud import NAMESPACE, Cloud, Fault, cloud, shown, uid_of
from tests.cases.run_nova import Log, Play

NOBODY: Mapping[str, Any] = {
    "host": None, "devices": [], "device_count": 0, "devices_on_host": [], "cell": None, "devices_parent_count": {},
    "devices_by_alias": {}, "device_cell_equals_guest_cell": False}


async def run(case: Case) -> list[str]:
    return await _run(case, audited=True)


async def run_hosts(case: Case) -> list[str]:
    """The areas that are about hosts: what the page of one says may wait for its next audit."""
    return await _run(case, audited=False)


async def _run(case: Case, *, audited: bool) -> list[str]:
    with Log() as log:
        try:
            async with cloud(case.data["given"]) as made:
                schedule = Schedule(made, log)
                wrong = [wrong async for wrong in schedule.play(case)]
                return [*wrong, *(await schedule.audited() if audited else ()), *log.faults]
        except NotDriven as error:
            return [str(error)]


class Schedule(Play):
    failures = (Invalid, StartupRefused, BadRequest)

    def __init__(self, made: Cloud, log: Log) -> None:
        super().__init__(made, log)
        self.aliases: Mapping[str, Any] | None = None  # as `outfit config flavor` shows them
        self.flavor: Mapping[str, Any] | None = None  # the last flavor, as it shows that
        self.why: dict[str, list[str]] = {}  # server that does not run -> what `outfit why` says of it
        self.refused: list[str] | None = None  # the same, by the last step
        self.about_alias = False  # the error is

    # -- steps

    async def _do(self, step: Mapping[str, Any]) -> None:
        self.refused, self.about_alias = None, False
        match step["op"]:
            case "load_alias":
                self.aliases = self._config_flavor({"alias": self.cloud.given.get("alias"), **step}, {}, 1)["aliases"]
            case "build_request":
                self.flavor = self._config_flavor({}, extra_specs(step["flavor"]), vcpus(step["flavor"]))
            case "boot" if "count" in step:
                await self._boot([f"{step['server']}-{number + 1}" for number in range(step["count"])], step, together=True)
            case "boot":
                await self._boot([step["server"]], step)
            case "boot_concurrently":
                await self._boot(step["servers"], step)
            case "delete":
                self.why.pop(step["server"], None)
                await super()._do(step)
            case "inject":
                self.cloud.faults.append(_fault(step))
            case _:
                await super()._do(step)

    def _config_flavor(self, step: Mapping[str, Any], specs: Mapping[str, str], vcpus: int) -> Mapping[str, Any]:
        """What `outfit config flavor` prints, with the aliases and switches of the case or of the step. Invalid: an alias is
        wrong; BadRequest: an extra spec is."""
        switches = {**self.cloud.switches, **(step.get("config") or {})}
        aliases = step.get("alias", self.cloud.given.get("alias"))
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            file.write(nova_cloud.settings_text({"alias": aliases}, switches=switches))
            file.flush()
            said = [f"{key}={value}" for key, value in specs.items()]
            command = ["config", "flavor", str(Path(file.name)), *said, "--vcpus", str(vcpus), "-o", "json"]
            result = CliRunner().invoke(main.commands(_no_server), command)
        if isinstance(result.exception, OutfitterError):
            self.about_alias = isinstance(result.exception, Invalid)
            raise result.exception
        if result.exception is not None:
            raise NotDriven(f"outfit {' '.join(command)}: {result.output or result.exception!r}")
        found: Mapping[str, Any] = json.loads(result.stdout)
        return found

    async def _boot(self, servers: Sequence[str], step: Mapping[str, Any], *, together: bool = False) -> None:
        given = step["flavor"]
        self._config_flavor({}, {}, 1)  # a server cannot be created while an alias is wrong
        flavor = {"vcpus": vcpus(given), "memory": "512Mi", "disk": "1Gi", "extraSpecs": extra_specs(given)}
        await self.cloud.boot(servers, flavor, step.get("host"), together=together)
        waiting = []
        for server in servers:
            vmi = await self.cloud.instance(server)
            status = (vmi or {}).get("status") or {}
            if status.get("phase") == "Running":
                self.why.pop(server, None)
                if claim := (status.get("flavor") or {}).get("claimName"):
                    uid = (await self.cloud.store.get(kinds.RESOURCE_CLAIM, claim, NAMESPACE))["metadata"]["uid"]
                    self.cloud.names[uid] = server
            else:
                waiting.append(server)
                self.why[server] = self.refused = await self.cloud.why(server)
        for server in waiting:  # it would go on when it can; in a case it has failed
            await self.cloud.delete(server)

    async def audited(self) -> list[str]:
        """What the pages say after one more audit that they did not say before."""
        before = await self._pages()
        for box in self.cloud.boxes.values():
            if box.agent is not None:
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
        text = "\n".join(self.refused)
        if "no_valid_host" not in allowed:
            yield f"the error is no_valid_host, not {allowed}: {text}"
        yield from (f"the message lacks {part!r}: {text}" for part in wanted.get("contains") or ()
                    if str(part).lower() not in text.lower())

    async def _allocations(self) -> placement_view.Allocations:
        found = await super()._allocations()
        return {uid_of(self.cloud.names[uid]) if uid in self.cloud.names else uid: amounts for uid, amounts in found.items()}

    def _check_aliases(self, wanted: Mapping[str, Mapping[str, Any]], _: Any) -> Iterator[str]:
        have = self.aliases or {}
        if self.aliases is None or set(have) != set(wanted):
            yield f"aliases are {sorted(have)}, not {sorted(wanted)}"
        for name, expected in wanted.items():
            for key, value in expected.items():
                if (got := have.get(name, {}).get(key)) != value:
                    yield f"{key} of {name} is {shown(got)}, not {shown(value)}"

    def _check_requests(self, wanted: Sequence[Mapping[str, Any]], _: Any) -> Iterator[str]:
        have = self._asked("requests")
        if len(have) != len(wanted):
            yield f"there are {len(have)} requests, not {len(wanted)}"
        if len({each["request_id"] for each in have}) != len(have):
            yield "two requests have the same id"
        both = [{**each, "spec": each["specs"]} for each in have]
        for number, (got, expected) in enumerate(zip(both, wanted, strict=False)):
            yield from (f"{key} of request {number} is {got.get(key)}, not {value}" for key, value in expected.items()
                        if got.get(key) != value)

    def _check_request_groups(self, wanted: Sequence[Mapping[str, Any]], _: Any) -> Iterator[str]:
        have = self._asked("groups")
        if any(group["suffix"] != f"{group['request_id']}-{group['index']}" for group in have):
            yield f"suffixes are {[group['suffix'] for group in have]}"
        for pattern in (each["suffix_pattern"] for each in wanted if "suffix_pattern" in each):
            yield from self._check_suffix_pattern(pattern, _)
        labels = {group["request_id"] for group in have}
        got = Counter(tuple(sorted(_words(group["index"], group["resources"], group["required"], group["forbidden"])
                                   for group in have if group["request_id"] == label)) for label in labels)
        meant = Counter(tuple(sorted(_words(each.get("index"), each["resources"], each.get("required", ()),
                                            each.get("forbidden", ())) for each in wanted if each.get("request") == label))
                        for label in {each.get("request") for each in wanted})
        if got != meant:
            yield f"groups are {sorted(got.elements())}, not {sorted(meant.elements())}"

    def _check_suffix_pattern(self, wanted: str, _: Any) -> Iterator[str]:
        for group in self._asked("groups"):
            if not re.fullmatch(wanted, group["suffix"]):
                yield f"the suffix {group['suffix']} is not {wanted}"

    def _check_query(self, wanted: Mapping[str, Any], _: Any) -> Iterator[str]:
        have: dict[str, list[str]] = {}
        for name, value in self._asked("query"):
            have.setdefault(name, []).append(value)
        for name, value in wanted.items():
            expected = None if value is None else [",".join(map(str, value)) if isinstance(value, list) else str(value)]
            if have.get(name) != expected:
                yield f"{name} of the query is {have.get(name)}, not {expected}"

    def _asked(self, key: str) -> list[Any]:
        if self.flavor is None:
            raise NotDriven(f"no request was built: {self.error}")
        found: list[Any] = self.flavor[key]
        return found

    async def _state(self, name: str) -> dict[str, Any]:
        if name in self.why and name not in self.cloud.machines:
            return {**NOBODY, "status": "ERROR"}
        if name not in self.cloud.machines:
            return await super()._state(name)
        vmi = await self.cloud.instance(name)
        return await self._running(vmi) if vmi is not None else {**NOBODY, "status": "DELETED"}

    async def _running(self, vmi: Object) -> dict[str, Any]:
        status = vmi["status"]
        host, record = status["nodeName"], status.get("flavor") or {}
        domain = (await self.cloud.boxes[host].hypervisor.domains())[vmi["metadata"]["uid"]]
        given = [(entry["name"].rpartition("-")[0], entry["deviceResourceClaimStatus"]["attributes"]["pciAddress"])
                 for entry in (status.get("deviceStatus") or {}).get("hostDeviceStatuses") or ()]
        alias_of = {entry["name"]: entry["alias"] for entry in record.get("devices") or ()}
        cells, devices = record.get("hostCells") or [], sorted(domain.devices)
        near = {device["address"]: device.get("numa_node") for device in self.cloud.boxes[host].pci}
        return {
            "status": {"Running": "ACTIVE"}.get(status["phase"], status["phase"]), "host": host, "devices": devices,
            "device_count": len(devices), "devices_on_host": devices, "cell": cells[0] if len(cells) == 1 else cells or None,
            "devices_by_alias": {alias: sorted(address for request, address in given if alias_of[request] == alias)
                                 for alias in alias_of.values()},
            "devices_parent_count": dict(Counter(self._parent(host, address) for address in devices)),
            "device_cell_equals_guest_cell": all(near[address] in cells for address in devices),
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
            members = [name for name in {**self.cloud.machines, **self.why} if re.fullmatch(re.escape(base) + r"-\d+", name)]
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


def _no_server(**_: object) -> None:
    raise AssertionError("no server is started")


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
