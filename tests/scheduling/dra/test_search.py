"""The search leaves out what cannot be, and must still find what trying everything in Kubernetes' order finds first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outfitter.errors import Unsatisfiable
from outfitter.scheduling.config import Features
from outfitter.scheduling.dra.allocated_devices import AllocatedDevices
from outfitter.scheduling.dra.allocator import Allocated, allocate
from outfitter.scheduling.dra.node_devices import PoolSet

DRIVER = "d.example"
NODE = {"metadata": {"name": "here"}}
CLASSES = {"any": {"metadata": {"name": "any"}, "spec": {}}}
FEATURES = Features(list_type_attributes=True)
Object = dict[str, Any]
Given = list[tuple[int, str, str]]  # claim, request, device


class Naive:
    """Every device for every place, one after the other, with nothing remembered and nothing skipped."""

    def __init__(self, devices: Sequence[Object], total: int, claims: Sequence[Object], held: set[str]) -> None:
        self.devices, self.total, self.held = devices, total, held
        self.by_name = {device["name"]: device for device in devices}
        self.claims = claims
        self.places = [(number, request) for number, claim in enumerate(claims)
                       for request in claim["spec"]["devices"]["requests"]]

    def first(self) -> Given | None:
        for _, request in self.places:  # what "all" is must be known before anything is tried
            for sub in request.get("firstAvailable") or [request["exactly"]]:
                if sub["allocationMode"] == "All":
                    self._wanted(sub)
        return next(self._from(0, []), None)

    def _wanted(self, ask: Object) -> list[str]:
        return [device["name"] for device in self.devices if _matches(device, ask)]

    def _from(self, at: int, given: Given) -> Iterator[Given]:
        if at == len(self.places):
            yield given
            return
        request = self.places[at][1]
        for sub in request.get("firstAvailable") or [{**request["exactly"], "name": ""}]:
            name = f"{request['name']}/{sub['name']}" if sub["name"] else request["name"]
            if sub.get("allocationMode") == "All":
                yield from self._all(at, given, name, sub)
            else:
                yield from self._pick(at, given, name, sub, 0)

    def _all(self, at: int, given: Given, name: str, ask: Object) -> Iterator[Given]:
        """Exactly those that match. One that breaks a constraint ends everything."""
        wanted = self._wanted(ask)
        for device in wanted:
            if not self._free(given, at, device, ask) or not self._counted(given, device):
                return
            given = [*given, (self.places[at][0], name, device)]
            if not self._constraints(given):
                raise Unsatisfiable("a constraint")
            if not self._room(given, device):
                return
        if wanted:
            yield from self._from(at + 1, given)

    def _pick(self, at: int, given: Given, name: str, ask: Object, start: int) -> Iterator[Given]:
        if sum((claim, request) == (self.places[at][0], name) for claim, request, _ in given) == ask["count"]:
            yield from self._from(at + 1, given)
            return
        for index in range(start, len(self.devices)):
            device = self.devices[index]
            if (self._free(given, at, device["name"], ask) and _matches(device, ask)
                    and self._counted(given, device["name"])):
                after = [*given, (self.places[at][0], name, device["name"])]
                if self._constraints(after) and self._room(after, device["name"]):
                    yield from self._pick(at, after, name, ask, index + 1)

    def _free(self, given: Given, at: int, name: str, ask: Object) -> bool:
        device, number = self.by_name[name], self.places[at][0]
        before = [(claim, one) for claim, _, one in given]
        if device.get("allowMultipleAllocations"):
            if name in self.held and not ask.get("adminAccess"):
                return False
        elif ask.get("adminAccess"):
            if (number, name) in before:
                return False
        elif name in self.held or any(one == name for _, one in before):
            return False
        return bool(ask.get("adminAccess")) or self._twins(name).isdisjoint(
            {*self.held, *(one for claim, request, one in given if not self._admin(claim, request))})

    def _twins(self, name: str) -> set[str]:
        """Other names of the same hardware, but for parts of it that are counted."""
        device = self.by_name[name]
        return {other["name"] for other in self.devices if other is not device and "pciAddress" in device["attributes"]
                and other["attributes"].get("pciAddress") == device["attributes"]["pciAddress"]
                and not (device.get("consumesCounters") and other.get("consumesCounters"))}

    def _admin(self, claim: int, name: str) -> bool:
        return any(request.get("exactly", {}).get("adminAccess") for number, request in self.places
                   if (number, request["name"]) == (claim, name))

    def _counted(self, given: Given, name: str) -> bool:
        device, before = self.by_name[name], [one for _, _, one in given]
        if not _draw(device) or (device.get("allowMultipleAllocations") and name in before):
            return True
        return self._drawn([*before, name]) <= self.total

    def _room(self, given: Given, name: str) -> bool:
        if not (device := self.by_name[name]).get("allowMultipleAllocations"):
            return True
        return 2 * sum(one == name for _, _, one in given) <= int(device["capacity"]["slots"]["value"])

    def _drawn(self, names: list[str]) -> int:
        """A user's device counts, an admin's access too; only further shares of one device do not."""
        paying = [name for at, name in enumerate(names)
                  if not self.by_name[name].get("allowMultipleAllocations") or name not in names[:at]]
        return sum(_draw(self.by_name[name]) for name in [*paying, *(name for name in self.held if name in self.by_name)])

    def _constraints(self, given: Given) -> bool:
        return all(self._holds(number, one, given) for number, claim in enumerate(self.claims)
                   for one in claim["spec"]["devices"].get("constraints") or ())

    def _holds(self, number: int, one: Object, given: Given) -> bool:
        asked = one.get("requests")
        under = [self.by_name[name] for claim, request, name in given
                 if claim == number and (not asked or request in asked or request.split("/")[0] in asked)]
        attribute = (one.get("matchAttribute") or one.get("distinctAttribute") or "").split("/")[1]
        values = [_members(device, attribute) for device in under]
        if not all(values):
            return False
        if "matchAttribute" in one:
            return not values or bool(set.intersection(*values))
        return all(not values[a] & values[b] for a in range(len(values)) for b in range(a))


def _matches(device: Object, ask: Object) -> bool:
    if "kind" in ask and "kind" not in device["attributes"]:
        raise Unsatisfiable("a selector without an answer")
    return "kind" not in ask or bool(device["attributes"]["kind"]["string"] == ask["kind"])


def _draw(device: Object) -> int:
    return sum(int(use["counters"]["c"]["value"]) for use in device.get("consumesCounters") or ())


def _members(device: Object, attribute: str) -> set[Any]:
    raw = device["attributes"].get(attribute) or {}
    return {raw["int"]} if "int" in raw else set(raw.get("ints") or ())


@st.composite
def devices(draw: st.DrawFn) -> list[Object]:
    out = []
    for index in range(draw(st.integers(1, 6))):
        attributes: Object = {"kind": {"string": draw(st.sampled_from("ab"))}} if draw(st.integers(0, 11)) else {}
        for name in ("numa", "root"):
            match draw(st.integers(0, 5)):
                case 0:
                    pass
                case 1:
                    attributes[name] = {"ints": draw(st.lists(st.integers(0, 2), min_size=1, max_size=2, unique=True))}
                case _:
                    attributes[name] = {"int": draw(st.integers(0, 2))}
        if draw(st.integers(0, 2)) == 0:
            attributes["pciAddress"] = {"string": f"0000:0{draw(st.integers(0, 1))}:00.0"}
        device: Object = {"name": f"d{index}", "attributes": attributes}
        if draw(st.integers(0, 3)) == 0:
            device |= {"allowMultipleAllocations": True, "capacity": {"slots": {
                "value": str(draw(st.integers(2, 5))), "requestPolicy": {"default": "2"}}}}
        if draw(st.integers(0, 2)) == 0:
            amount = {"c": {"value": str(draw(st.integers(1, 3)))}}
            device["consumesCounters"] = [{"counterSet": "set", "counters": amount}]
        out.append(device)
    return out


@st.composite
def asks(draw: st.DrawFn) -> Object:
    out: Object = {"count": draw(st.integers(1, 3)), "allocationMode": "ExactCount"}
    if draw(st.integers(0, 5)) == 0:
        out["allocationMode"] = "All"
    if draw(st.booleans()):
        out["kind"] = draw(st.sampled_from("ab"))
    return out


@st.composite
def claims(draw: st.DrawFn) -> list[Object]:
    out = []
    for number in range(draw(st.integers(1, 2))):
        requests: list[Object] = []
        for index in range(draw(st.integers(1, 3))):
            if draw(st.integers(0, 3)) == 0:
                subs = [{"name": f"s{sub}", **draw(asks())} for sub in range(draw(st.integers(1, 3)))]
                requests.append({"name": f"r{index}", "firstAvailable": subs})
            else:
                admin = {"adminAccess": True} if draw(st.integers(0, 4)) == 0 else {}
                requests.append({"name": f"r{index}", "exactly": draw(asks()) | admin})
        constraints = []
        for _ in range(draw(st.integers(0, 2))):
            one: Object = {draw(st.sampled_from(["matchAttribute", "distinctAttribute"])):
                           f"{DRIVER}/{draw(st.sampled_from(['numa', 'root']))}"}
            if draw(st.booleans()):
                one["requests"] = draw(st.lists(st.sampled_from([request["name"] for request in requests]), min_size=1))
            constraints.append(one)
        spec = {"devices": {"requests": requests, "constraints": constraints}}
        out.append({"metadata": {"name": f"c{number}"}, "spec": spec})
    return out


def real(claim: Object) -> Object:
    """As Kubernetes writes it: the kind is asked for with a selector."""
    def ask(raw: Object) -> Object:
        selectors = [{"cel": {"expression": f'device.attributes["{DRIVER}"].kind == "{raw["kind"]}"'}}] if "kind" in raw else []
        return {**{key: value for key, value in raw.items() if key != "kind"}, "deviceClassName": "any", "selectors": selectors}

    spec = claim["spec"]["devices"]
    requests = [{**request, "exactly": ask(request["exactly"])} if "exactly" in request else
                {**request, "firstAvailable": [ask(sub) for sub in request["firstAvailable"]]}
                for request in spec["requests"]]
    return {**claim, "spec": {"devices": {**spec, "requests": requests}}}


@settings(max_examples=120, deadline=None)
@given(devices(), st.integers(1, 6), claims(), st.sets(st.integers(0, 5), max_size=2))
def test_the_first_answer_of_trying_everything(
    published: list[Object], total: int, wanted: list[Object], taken: set[int]
) -> None:
    held = {f"d{index}" for index in taken}
    try:
        naive = Naive(published, total, wanted, held).first()
    except Unsatisfiable:
        with pytest.raises(Unsatisfiable):
            found(published, total, wanted, held)
        return
    assert found(published, total, wanted, held) == naive


def found(published: list[Object], total: int, wanted: list[Object], taken: set[str]) -> Given | None:
    pool = {"name": "here", "generation": 1, "resourceSliceCount": 2}
    counters = [{"name": "set", "counters": {"c": {"value": str(total)}}}]
    slices = [{"metadata": {"name": name}, "spec": {"driver": DRIVER, "nodeName": "here", "pool": pool, **more}}
              for name, more in (("a", {"devices": published}), ("b", {"sharedCounters": counters}))]
    held = AllocatedDevices({"devices": {"results": [{"driver": DRIVER, "pool": "here", "device": name}]}} for name in taken)
    answer = allocate([real(claim) for claim in wanted], node=NODE, pools=PoolSet(slices), classes=CLASSES.get, held=held,
                      features=FEATURES)
    if not isinstance(answer, Allocated):
        return None
    return [(number, result["request"], result["device"]) for number, allocation in enumerate(answer.allocations)
            for result in allocation["devices"]["results"]]
