"""What is published and what is held, kept up to date by events, and asked for every pod: which hosts can take these claims?

The question is answered for all hosts at once by counting (`host_columns`), and the exact search (`allocate`) runs only where
it can succeed. Counting never rules out a host that could serve; it may let one through that cannot."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from outfitter.api import rejection
from outfitter.api.device import DeviceId
from outfitter.api.kinds import LEDGER_PAGE, Kind, Object
from outfitter.api.ledger_page.page import OUT_OF_SERVICE_STATES, Booking, Holder, Limits, Page, is_pool_page, pool_page
from outfitter.api.rejection import Rejection
from outfitter.errors import Unsatisfiable
from outfitter.scheduling.config import Features
from outfitter.scheduling.dra import selector_cache
from outfitter.scheduling.dra.allocated_devices import AllocatedDevices
from outfitter.scheduling.dra.attested_slices import AttestedSlices
from outfitter.scheduling.dra.claim_request import ClaimDeviceRequest, CompiledClaim
from outfitter.scheduling.dra.constraints import Constraint
from outfitter.scheduling.dra.host_columns import Count, HostColumns
from outfitter.scheduling.dra.node_devices import NodeDevices, PoolSet
from outfitter.scheduling.dra.slices import PublishedDevice, quantity_text
from outfitter.scheduling.filter.taints import RECORDED_ON_PAGE

FEATURES = Features.of({})
_Name = TypeVar("_Name")


class DeviceIndex:
    """Fed with objects by name; None takes one out. What follows from a change is computed at the next question."""

    def __init__(self, features: Features = FEATURES) -> None:
        self.features = features
        self.held = AllocatedDevices()
        self._attested = AttestedSlices()
        self._slices: dict[str, Object] = {}  # without devices that their host does not have
        self._pages: dict[str, Page] = {}
        self._blank: dict[str, Page] = {}  # of hosts that have none
        self._mentions: dict[tuple[str, str], set[str]] = {}  # pool -> pages with bookings or records of its devices
        self._unpaged: dict[Holder, list[tuple[Object, Rejection]]] = {}  # claim -> results that are on no page
        self._nodes: dict[str, Object] = {}
        self._rules: dict[str, Object] = {}
        self.unreadable: dict[tuple[str, str], Rejection] = {}  # kind and name -> what is skipped
        self._withheld: dict[str, Rejection] = {}  # page that cannot be read -> the same: what it holds is not known
        self._undetermined: dict[str, Rejection] = {}  # page with an entry that names no device -> the same
        self._pools = PoolSet(())
        # What changed since the last question: slices, as the pools know them; hosts; pools that pages mention
        self._changed: dict[str, Object | None] = {}
        self._moved: set[str] = set()
        self._touched: set[tuple[str, str]] = set()
        self._rehung: set[str] = set()  # hosts of which pages record other hardware as held
        self._ruled = False  # DeviceTaintRules changed
        self._columns = HostColumns(features)

    @classmethod
    def of(cls, slices: Iterable[Object], pages: Iterable[Page], nodes: Iterable[Object],
           features: Features = FEATURES, rules: Iterable[Object] = (), *,
           inventories: Iterable[Object] = ()) -> DeviceIndex:
        """All at once."""
        index = cls(features)
        for inventory in inventories:
            index.put_inventory(inventory["metadata"]["name"], inventory)
        for number, obj in enumerate(slices):
            index.put_slice(f"{obj['metadata']['name']}|{number}", obj)
        for rule in rules:
            index.put_rule(rule["metadata"]["name"], rule)
        for page in pages:
            index.put_page(page.host, page)
        for node in nodes:
            index.put_node(node["metadata"]["name"], node)
        return index

    # -- feeding

    def put_slice(self, name: str, obj: Object | None) -> None:
        self._changed.setdefault(name, self._slices.get(name))
        kept = self._attested.put(name, obj)
        _put(self._slices, name, kept)
        if kept is not None and self._withheld:
            self._withhold(kept)

    def put_inventory(self, name: str, inventory: Object | None) -> None:
        """A HostInventory."""
        for slice_name, obj in self._attested.put_inventory(name, inventory):
            self.put_slice(slice_name, obj)

    def put_rule(self, name: str, rule: Object | None) -> None:
        """A DeviceTaintRule."""
        _put(self._rules, name, rule if self.features.device_taints and self.features.device_taint_rules else None)
        self._ruled = True

    def put_node(self, name: str, node: Object | None) -> None:
        old = self._nodes.get(name)
        _put(self._nodes, name, node)
        if old is None or node is None or _labels(old) != _labels(node):
            self._moved.add(name)

    def hold(self, result: Object, held: Rejection) -> None:
        """A device that a claim was allocated and that is on no page: another driver's."""
        if held.holder is not None:
            self._unpaged.setdefault(held.holder, []).append((result, held))
        self.held.add({"devices": {"results": [result]}}, held)
        self._touched.add((result["driver"], result["pool"]))

    def put_page(self, name: str, page: Page | None) -> None:
        old = self._pages.pop(name, None)
        dropped, added = _changed_bookings(old, page)
        if old is not None:
            for booking in dropped:
                self.held.drop(booking, name)
            for record in (record for state in OUT_OF_SERVICE_STATES for record in old.records(state)):
                self.held.whole.pop(record.device, None)
        self._undetermined.pop(name, None)
        if page is not None:
            self._pages[name] = page
            if page.undetermined:
                self._undetermined[name] = rejection.undetermined(name, page.malformed)
            for state in OUT_OF_SERVICE_STATES:
                for record in page.records(state):
                    self.held.whole[record.device] = rejection.out_of_service(state, record)
            for booking in added:
                self.held.hold(booking, name)
        self._rehung |= {booking.node or name for booking in (*dropped, *added) if booking.counted and booking.hardware}
        before, after = (_pools_of(one) if one is not None else set() for one in (old, page))
        for pool in before - after:
            self._mentions[pool].discard(name)
        for pool in after - before:
            self._mentions.setdefault(pool, set()).add(name)
        self._touched |= before | after

    def put_unreadable(self, kind: Kind, name: str, skipped: Rejection | None) -> None:
        """An object of the cluster that is skipped, and None when it no longer is. While a page cannot be read, no device is
        given out that may be on it: of the host, or of the pool."""
        _put(self.unreadable, (kind.kind, name), skipped)
        if kind == LEDGER_PAGE:
            for device in [device for device, held in self.held.whole.items() if held is self._withheld.get(name)]:
                del self.held.whole[device]
                self._touched.add((device.driver, device.pool))
            _put(self._withheld, name, skipped)
            for obj in self._slices.values() if is_pool_page(name) else ():
                self._withhold(obj)

    def _withhold(self, obj: Object) -> None:
        """The devices of a slice, while the page of their pool cannot be read."""
        driver, pool = obj["spec"]["driver"], obj["spec"]["pool"]["name"]
        if (skipped := self._withheld.get(pool_page(driver, pool))) is not None:
            self._touched.add((driver, pool))
            for device in obj["spec"].get("devices") or ():
                self.held.whole.setdefault(DeviceId(driver, pool, device["name"]), skipped)

    @property
    def withheld_hosts(self) -> Mapping[str, Rejection]:
        """Hosts of whose page it is not known what it holds."""
        return {**self._undetermined, **self._withheld}

    # -- what if

    def restricted_to(self, hosts: Iterable[str], *, bare: bool = False) -> DeviceIndex:
        """An index of these hosts alone, whose pages and nodes can be changed without changing this one. What was read of
        slices and what selectors match is shared. `bare`: without published taints that repeat what a page records."""
        self._refresh()
        out = DeviceIndex(self.features)
        out._nodes = {name: self._nodes[name] for name in hosts if name in self._nodes}
        out._moved = set(out._nodes)
        out._pools = self._pools.restricted_to(out._nodes, RECORDED_ON_PAGE if bare else frozenset())
        pools = out._pools.ids
        pages = {*out._nodes, *(name for pool in pools for name in self._mentions.get(pool, ()))}
        for name in sorted(pages & self._pages.keys()):
            out.put_page(name, self._pages[name])
        for result, held in (each for those in self._unpaged.values() for each in those):
            if (result["driver"], result["pool"]) in pools:
                out.hold(result, held)
        out.held.kept = self.held.kept
        out.unreadable, out._withheld = self.unreadable, self._withheld
        out.held.whole |= {device: held for device, held in self.held.whole.items()
                           if self._withheld and held in self._withheld.values()}
        return out

    def with_pages(self, pages: Iterable[Page]) -> DeviceIndex:
        """A copy with other pages in the place of their namesakes. Published taints that repeat what a page records go with
        it: only pages count."""
        out = self.restricted_to(self._nodes, bare=True)
        for page in pages:
            out.put_page(page.host, page)
        return out

    def without(self, holders: Collection[str]) -> DeviceIndex:
        """A copy in which these holders (uids) hold nothing."""
        out = self.with_pages(Page(page.leaving(booking.key for booking in page.bookings if booking.holder.uid in holders))
                              for page in self._pages.values() if any(one.holder.uid in holders for one in page.bookings))
        for holder in [holder for holder in out._unpaged if holder.uid in holders]:
            for result, _ in out._unpaged.pop(holder):
                out.held.remove({"devices": {"results": [result]}})
                out._touched.add((result["driver"], result["pool"]))
        return out

    def without_rules(self, names: Collection[str]) -> DeviceIndex:
        """A copy without these DeviceTaintRules."""
        out = self.restricted_to(self._nodes)
        out._pools = out._pools.without_rules(names)
        return out

    @property
    def pages(self) -> Collection[Page]:
        return self._pages.values()

    def unpaged(self, device: str) -> list[Holder]:
        """Claims with a device of this name that is on no page."""
        return [holder for holder, those in self._unpaged.items() if any(result["device"] == device for result, _ in those)]

    @property
    def holders(self) -> set[str]:
        """The uids of all who hold something."""
        return {booking.holder.uid for page in self._pages.values() for booking in page.bookings} | {
            holder.uid for holder in self._unpaged}

    # -- asking

    @property
    def pools(self) -> PoolSet:
        self._refresh()
        return self._pools

    @property
    def names(self) -> list[str]:
        """The names of the hosts, in order: the rows of the last question."""
        return self._columns.names

    @property
    def hosts(self) -> list[str]:
        """The names of all hosts, in the order of the rows, as they are now."""
        self._refresh()
        return self.names

    def node(self, name: str) -> Object:
        return self._nodes[name]

    def page(self, name: str) -> Page:
        """A page as it is known here, empty if it is not; the same value until it changes."""
        return self._pages.get(name) or self._blank.setdefault(name, Page(Page.blank(name)))

    def candidates(self, demands: Sequence[CompiledClaim]) -> list[int]:
        """The rows that counting does not rule out, in the order of the hosts' names."""
        self._refresh()
        rows: Sequence[int] = range(len(self.names))
        for demand in demands:
            for request in demand.requests:
                if len(request) == 1:
                    rows = self._columns.passing(request[0], demand.constraints, rows)
                else:
                    fits = set[int]().union(*(self._columns.passing(ask, demand.constraints, rows) for ask in request))
                    rows = [row for row in rows if row in fits]
        return list(rows)

    def check_selector_cost(self, demands: Sequence[CompiledClaim]) -> None:
        """Unsatisfiable when the selectors of claims cost too much on all devices together."""
        self._refresh()
        costs: dict[tuple[str, ...], int] = {}
        asks = [(demand, ask) for demand in demands for request in demand.requests for ask in request]
        for demand, ask in asks:
            if ask.selectors in costs:
                continue
            question = self._pools.contents.question(ask.selectors)
            question.others = sum(costs.values())
            try:
                self._columns.column(ask.selectors)
            except Unsatisfiable as error:
                raise selector_cache.over_budget(f"{demand.title}, request {ask.name}") from error
            finally:
                question.others = 0
            costs[ask.selectors] = question.spent
            if sum(costs.values()) > selector_cache.BUDGET:
                raise selector_cache.over_budget(f"{demand.title}, request {ask.name}")

    def matching(self, demands: Sequence[CompiledClaim]) -> list[int]:
        """The rows with enough devices of the kind for each request by itself, free or held."""
        self._refresh()
        return self._columns.matching(demands)

    def count(self, row: int, ask: ClaimDeviceRequest) -> Count | None:
        """What counting knows of a request at a host; None where only a search can tell."""
        return self._columns.count(row, ask)

    def passing(self, ask: ClaimDeviceRequest, under: Sequence[Constraint], rows: Sequence[int]) -> list[int]:
        """Those of the rows that counting does not rule out for a request, or for one of its alternatives."""
        return self._columns.passing(ask, under, rows)

    def open(self, row: int, demands: Sequence[CompiledClaim]) -> Iterator[PublishedDevice]:
        """The free devices of a host that could serve one of the requests; all if nothing is asked for."""
        return self._columns.open(row, demands)

    def counted(self, demands: Sequence[CompiledClaim]) -> bool:
        """Whether counting alone is the answer: one request of like kind, and nothing that only a search can tell."""
        if len(demands) != 1 or len(demands[0].requests) != 1 or len(demands[0].requests[0]) != 1:
            return False
        self._refresh()
        ask = demands[0].requests[0][0]
        return not (self._columns.coarse or ask.everything or ask.admin or ask.tolerations or ask.capacity or ask.derived
                    or len(ask.constraints) > 1 or self._columns.column(ask.selectors).wrong)

    def called(self, name: str) -> list[DeviceId]:
        """All devices of a name."""
        return sorted({device.id for site in self._fresh() for device in site.devices if device.id.device == name})

    def where(self, device: DeviceId) -> list[str]:
        """The hosts that can use a device."""
        return [site.name for site in self._fresh() if any(
            each.id == device and site.there >> place & 1 for place, each in enumerate(site.devices))]

    def _fresh(self) -> list[NodeDevices]:
        self._refresh()
        return self._columns.sites

    def node_devices(self, row: int) -> NodeDevices:
        return self._columns.sites[row]

    def device(self, row: int, name: DeviceId) -> PublishedDevice | None:
        return next((device for device in self._columns.sites[row].devices if device.id == name), None)

    # -- applying what changed

    def _refresh(self) -> None:
        """Apply the events, for the hosts that they concern."""
        if not (self._moved or self._ruled or self._changed or self._touched):
            return
        self._columns.forget_counts()
        look, everywhere = self._moved, False  # hosts whose devices may be others now, or all
        for name in sorted(self._moved):
            self._columns.put_host(name, name in self._nodes)
        if self._ruled:  # every device may have other taints
            self._pools = PoolSet(self._slices.values(), [self._rules[name] for name in sorted(self._rules)])
            self._ruled, self._changed, everywhere = False, {}, True
        if self._changed:
            self._pools.contents.slices_changed()
        for name, before in self._changed.items():
            nodes = self._pools.change(before, self._slices.get(name))
            everywhere |= nodes is None
            look |= nodes or set()
        self._moved, self._changed = set(), {}
        looked: Collection[int] = range(len(self.names)) if everywhere else set(self._columns.rows(look, self._nodes))
        for row in looked:
            site = self._pools.at(self._nodes[self.names[row]], self.features)
            self._columns.look(row, site, self._pools.contents)
            self._columns.recount(row, self.held)
        if self._touched:
            if len(looked) < len(self.names):
                for row in {*self._reaching(self._touched), *self._columns.rows(self._rehung, self._nodes)}.difference(looked):
                    self._columns.recount(row, self.held)
            self._touched, self._rehung = set(), set()

    def _reaching(self, pools: set[tuple[str, str]]) -> list[int]:
        """The hosts that may reach one of these pools."""
        nodes = [self._pools.nodes(pool) for pool in pools]
        if None in nodes:
            return [row for row, site in enumerate(self._columns.sites) if any(pool.id in pools for pool in site.pools)]
        return self._columns.rows(set[str]().union(*(each for each in nodes if each is not None)), self._nodes)

    # -- what a booking needs to know

    def page_name(self, device: DeviceId, host: str) -> str:
        """The page on which a device is booked that is used on a host: the host's, or its pool's if others reach it too."""
        return host if self.pools.tied(device.driver, device.pool) else pool_page(device.driver, device.pool)

    def other_page_names(self, device: DeviceId, host: str) -> list[str]:
        """The pages on which it stands if its pool was a host's and is shared now, or the other way round, or if another driver
        does not know yet which it is."""
        places = {pool_page(device.driver, device.pool), host, *([device.pool] if device.pool in self._nodes else ())}
        return sorted(places - {self.page_name(device, host)})

    def hardware(self, device: DeviceId, host: str) -> tuple[str, ...]:
        """What of a host a device is that is used there; empty: not published."""
        found = self._used_at(device, host)
        return tuple(sorted(found.hardware)) if found is not None else ()

    def twins(self, device: DeviceId, host: str) -> list[PublishedDevice]:
        """Other names of the hardware that a device is on a host."""
        site = self._pools.at(self._nodes[host], self.features)
        place = next((place for place in site.twins if site.devices[place].id == device), None)
        mask = site.twins[place] if place is not None else 0
        return [device for place, device in enumerate(site.devices) if mask >> place & 1]

    def prepared_under_another_name(self, device: DeviceId, host: str) -> Rejection | None:
        """The booking that has the hardware of a device prepared on a host, if it is one of another device."""
        if not self.held.hardware.get(host) or (found := self._used_at(device, host)) is None:
            return None
        return self.held.why_hardware_prepared(found, host)

    def _used_at(self, device: DeviceId, host: str) -> PublishedDevice | None:
        site = self._pools.at(self._nodes[host], self.features)
        return next((each for each in site.devices if each.id == device), None)

    def limits(self, host: str) -> Limits:
        """What was published of a host's devices, to be counted against."""
        site = self._pools.at(self._nodes[host], self.features)
        capacity = {device.id: {name: str(each.get("value")) for name, each in (device.raw.get("capacity") or {}).items()}
                    for device in site.devices if device.shared}
        counters = {(*pool.id, name): {counter: quantity_text(amount) for counter, amount in counters.items()}
                    for pool in site.pools for name, counters in pool.counters.items()}
        return Limits(capacity, counters)

    def uses(self, device: DeviceId, host: str) -> dict[str, dict[str, str]]:
        """What a device takes of counters that it shares with others."""
        found = self._used_at(device, host)
        return {use.set: {name: quantity_text(amount) for name, amount in use.counters.items()}
                for use in (found.uses if found is not None else ())}


def _put(table: dict[_Name, Any], name: _Name, obj: Any | None) -> None:
    if obj is None:
        table.pop(name, None)
    else:
        table[name] = obj


def _changed_bookings(old: Page | None, new: Page | None) -> tuple[Sequence[Booking], Sequence[Booking]]:
    """What is to be dropped of a page, and what is to be added then: all bookings of the devices whose bookings differ. Of a
    page with records, which share places with bookings, all."""
    if old is None or new is None or any(any(map(page.records, OUT_OF_SERVICE_STATES)) for page in (old, new)):
        return old.bookings if old is not None else (), new.bookings if new is not None else ()
    gone, added = old.differing(new)
    if not gone:
        return (), added
    left, fresh = {booking.device for booking in gone}, set(map(id, added))
    return ([booking for booking in old.bookings if booking.device in left],
            [booking for booking in new.bookings if booking.device in left or id(booking) in fresh])


def _pools_of(page: Page) -> set[tuple[str, str]]:
    recorded = {(record.device.driver, record.device.pool)
                for state in OUT_OF_SERVICE_STATES for record in page.records(state)}
    return recorded | {entry.bookings[0].device[:2] for entry in page.entries if entry.bookings}


def _labels(node: Object) -> Any:
    return node["metadata"].get("labels"), (node.get("status") or {}).get("declaredFeatures")
