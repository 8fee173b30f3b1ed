"""A product with valid objects of every kind, and arbitrary JSON planted at any field of any of them, beneath admission."""

from __future__ import annotations

import contextlib
import copy
import itertools
import random
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from typing import Any

from outfitter import app
from outfitter.api import admission, kinds, known_fields
from outfitter.api.kinds import Kind, Object
from outfitter.api.validate import shapes
from outfitter.api.write_request import WriteRequest
from outfitter.cli.client import Client
from outfitter.inventory.config import Config
from outfitter.store.clock import ManualClock
from outfitter.store.id_generator import IdGenerator
from outfitter.store.memory import Memory
from tests.controllers import scenario
from tests.controllers.scenario import Scene

Path = tuple[str | int, ...]
ABSENT = object()  # planted: the field is removed
IDENTITY = ("name", "namespace", "resourceVersion")  # without them no store can hold an object
METADATA = ("uid", "creationTimestamp", "generation", "deletionTimestamp", "deletionGracePeriodSeconds", "labels",
            "annotations", "finalizers", "ownerReferences")
HERE, ELSEWHERE = "here", "elsewhere"  # the namespace of what is planted in, and of the VM that must not be affected
HOST = "node-0"  # of the two hosts, the one whose objects are planted in


class PlantingRules(admission.AdmissionRules):
    """Stores what a test plants instead of what was written."""

    planted: Object | None = None

    def admit(self, change: WriteRequest) -> Object:
        return copy.deepcopy(self.planted) if self.planted is not None else super().admit(change)


class InProcess(Client):
    """A command's connection to the store itself."""

    def __init__(self, store: Memory, namespace: str) -> None:
        super().__init__(None, namespace)
        self.__dict__["store"] = store


class PlantedProduct:
    def __init__(self, store: Memory, rules: PlantingRules, clock: ManualClock) -> None:
        self.store, self.rules, self.clock = store, rules, clock
        self._hosts = scenario.hosts_of("node", 3, 2)
        self._names = IdGenerator(random.Random(1))
        self.product: app.Embedded = self._product()
        self._originals: dict[tuple[Kind, str, str], Object] = {}

    def _product(self) -> app.Embedded:
        return app.Embedded(self.store, self._hosts, clock=self.clock, config=Config())

    def scene(self, namespace: str) -> Scene:
        return Scene(self.product, namespace, self.clock)

    async def restart(self, objects: Iterable[tuple[Kind, Object]]) -> None:
        """What is planted is there when the product starts."""
        await self.product.runner.stop()
        for kind, obj in objects:
            await self.plant(kind, obj)
        self.product = self._product()
        await self.product.start()

    async def plant(self, kind: Kind, obj: Object) -> None:
        """The object as it is given, with a new resourceVersion."""
        meta = obj["metadata"]
        place = kind, meta.get("namespace", ""), meta["name"]
        self._originals.setdefault(place, await self.store.get(kind, meta["name"], meta.get("namespace", "")))
        self.rules.planted = obj
        try:
            await self.store.patch(kind, meta["name"], {}, meta.get("namespace", ""))
        finally:
            self.rules.planted = None

    def original(self, kind: Kind, obj: Object) -> Object:
        """An object as it was before it was planted in, to be written whatever it is now."""
        meta = obj["metadata"]
        whole = self._originals[kind, meta.get("namespace", ""), meta["name"]]
        return {**whole, "metadata": {field: value for field, value in whole["metadata"].items() if field != "resourceVersion"}}

    async def targets(self) -> list[tuple[Kind, Object]]:
        """All that is planted in: of every kind, and nothing that the other VM needs."""
        out = []
        for kind in kinds.ALL:
            for obj in (await self.store.list(kind)).items:
                name, namespace = obj["metadata"]["name"], obj["metadata"].get("namespace", "")
                spec = obj.get("spec") or {}
                if namespace == ELSEWHERE or ELSEWHERE in name or (kind == kinds.NAMESPACE and name != "spare"):
                    continue
                if name.startswith("node-1") or spec.get("nodeName") == "node-1":
                    continue
                out.append((kind, obj))
        return out


@contextlib.asynccontextmanager
async def running() -> AsyncIterator[PlantedProduct]:
    """A VM runs on node-0 with a device; there is an object of every kind."""
    clock, rules = ManualClock(), PlantingRules()
    store = Memory(clock=clock, names=IdGenerator(random.Random(1)), rules=rules)
    planted = PlantedProduct(store, rules, clock)
    await planted.product.start()
    try:
        for name in (HERE, ELSEWHERE, "spare"):
            await store.create(kinds.NAMESPACE, {"metadata": {"name": name}})
        for scene in (planted.scene(HERE), planted.scene(ELSEWHERE)):
            await scene.classes()
            await scene.template()
        await _create_all(planted.scene(HERE))
        yield planted
    finally:
        await planted.product.stop()


async def _create_all(scene: Scene) -> None:
    """An object of every kind, most fields of which are set."""
    await scene.create(kinds.FLAVOR, "small", {"vcpus": 1, "memory": "1Gi", "extraSpecs": {"hw:cpu_policy": "shared"}})
    await scene.create(kinds.NETWORK_ATTACHMENT, "lan", {"config": '{"cniVersion": "0.3.1", "name": "lan", "type": "bridge"}'})
    await scene.create(kinds.KUBEVIRT, "kubevirt", {"configuration": {
        "developerConfiguration": {"featureGates": ["GPUsWithDRA"]}}})
    await scene.create(kinds.LEASE, "lease", {"holderIdentity": "x", "leaseDurationSeconds": 15})
    await scene.create(kinds.DEVICE_TAINT_RULE, "rule", {
        "deviceSelector": {"pool": HOST}, "taint": {"key": "example.com/noted", "value": "x", "effect": "None"}})
    place = {"namespace": scene.namespace}
    for kind, more in ((kinds.CONFIG_MAP, {"data": {"a": "b"}}), (kinds.SECRET, {"stringData": {"a": "b"}}),
                       (kinds.SERVICE_ACCOUNT, {})):
        await scene.store.create(kind, {"metadata": {"name": "plain", **place}, **more})
    on_host: Any = {"nodeSelector": {"kubernetes.io/hostname": HOST}}
    await scene.machine("blue", **on_host)
    await scene.running("blue")
    spec = {"domain": {"memory": {"guest": "1Gi"}, "devices": {"hostDevices": [scenario.device(claim="own")]}}, **on_host}
    await scene.create(kinds.VM, "green", {
        "runStrategy": "Always", "template": {"metadata": {"labels": {"a": "b"}}, "spec": spec},
        "resourceClaimTemplates": [{"name": "own", "spec": {"spec": scene.claim_spec()}, "persistWhenStopped": True}]})
    await scene.running("green")
    await scene.claim("unused")
    await scene.machine("waits", template="missing")
    await scene.machine("gone", **on_host)
    await scene.running("gone")
    await scene.delete(kinds.VMI, "gone")
    await scene.gone("gone")
    await scene.settle()


# -- where, and what


def paths(kind: Kind, obj: Object) -> list[Path]:
    """All fields of an object, and those that it could have."""
    found = dict.fromkeys([*_there(obj, ()), *_shaped({"metadata": shapes.METADATA, **shapes.SHAPES.get(kind.kind, {})}, ()),
                           *_known(known_fields.tree(kind, kind.version), ())])
    kept = [("metadata",), *(("metadata", name) for name in IDENTITY)]
    if kind == kinds.LEDGER_PAGE:
        kept.append(("metadata", "deletionTimestamp"))  # without a finalizer that deletes it, and with it what is held
    return [path for path in found if path and path not in kept]


def _items(value: Any) -> Iterable[tuple[str | int, Any]]:
    return value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()


def _there(value: Any, path: Path) -> Iterator[Path]:
    yield path
    for key, inner in _items(value):
        yield from _there(inner, (*path, key))


def _shaped(shape: Any, path: Path) -> Iterator[Path]:
    yield path
    if isinstance(shape, list):
        yield from _shaped(shape[0], (*path, 0))
    elif isinstance(shape, Mapping):
        for key, inner in shape.items():
            yield from _shaped(inner, (*path, "x" if key == "*" else key.rstrip("!")))


def _known(tree: Any, path: Path) -> Iterator[Path]:
    yield path
    for key, inner in (tree or {}).items():
        yield from _known(inner, (*path, "x" if key == "*" else key))


def with_value(obj: Object, path: Path, value: Any) -> Object:
    """A copy with another value at a path. What is missing on the way is made; what is in the way is replaced."""
    out = copy.deepcopy(obj)
    place: Any = out
    for key, following in itertools.pairwise(path):
        inner = next((value for each, value in _items(place) if each == key), None)
        if not isinstance(inner, list if isinstance(following, int) else dict):
            inner = [] if isinstance(following, int) else {}
            _set(place, key, inner)
        place = inner
    _set(place, path[-1], value)
    return out


def _set(place: Any, key: Any, value: Any) -> None:
    if isinstance(place, list):
        place[key:key + 1] = [] if value is ABSENT else [value]
    elif value is ABSENT:
        place.pop(key, None)
    else:
        place[key] = value
