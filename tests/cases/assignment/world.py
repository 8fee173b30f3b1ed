"""The world of a case: the product's API server and controllers, an agent and a kubelet folder for each node, an injected
clock, and what is played around them. `settle` waits until nothing happens any more."""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from outfitter import app
from outfitter.api import admission, kinds
from outfitter.api.kinds import Kind, Object
from outfitter.controllers.manager import ControllerContext, ControllerManager
from outfitter.errors import Invalid
from outfitter.inventory.config import Config, HostSettings, TopologyManagerSettings, UnhealthyDevice
from outfitter.inventory.simulation import hosts_file
from outfitter.roles.hosts import simulated_hosts
from outfitter.roles.node import HostAgents
from outfitter.store.id_generator import IdGenerator
from outfitter.store.memory import Memory
from tests.cases.assignment.agent_store import AgentStore
from tests.cases.assignment.drivers import CountedDriver, PlayedDriver
from tests.cases.assignment.monitors import Monitor, PodStream, PodView
from tests.cases.assignment.plugins import WAIT, PlayedPlugin, Wire
from tests.cases.assignment.pod_view import has_all, pod_name
from tests.cases.case import Case
from tests.cases.case_product import Answer, Api, NotDriven
from tests.cases.step_engine import StepClock

SETTLES = 10.0  # seconds that may pass on the product's clock after a step
QUIET = 5  # turns of the event loop in which nothing is to be done
CHECKPOINTS = ("device-plugins/kubelet_internal_checkpoint", "dra_manager_state")


class PlayedNode:
    """A node: its agent, which may be killed, and its kubelet folder."""

    def __init__(self, world: World, name: str, keys: Mapping[str, Any]) -> None:
        self.name, self.keys, self._world = name, keys, world
        self.folder = world.folder / name
        self.folder.mkdir()
        self.store = AgentStore(world.store)
        self.assigned_field = True  # the server keeps the field of containers
        self.stale: dict[str, bytes | None] = {}
        self.monitor: Monitor | None = None  # None while the agent does not run
        self._stream: PodStream | None = None
        self._watches: list[PodStream] = []
        self.events: list[str] = []  # of the streams that the case opened
        self._starts = 0  # of the agent
        self._shown: dict[str, str] = {}  # uid of a pod that its readers have -> name
        self.context: ControllerContext | None = None
        self._manager: ControllerManager | None = None
        self._agents: HostAgents | None = None
        numbers = keys.get("numa") or [0]
        rows = keys.get("distances") or [[10 if one == other else 20 for other in numbers] for one in numbers]
        numa = [{"id": number, "cpus": f"{number * 2}-{number * 2 + 1}", "memory": "4Gi", "distances": row}
                for number, row in zip(numbers, rows, strict=True)]
        text = yaml.safe_dump({"hosts": [{"name": name, "memory": f"{4 * len(numa)}Gi", "numa": numa}]})
        settings = TopologyManagerSettings(keys.get("policy", "none"), keys.get("scope", "container"),
                                           {name: str(value).lower() for name, value in (keys.get("options") or {}).items()})
        config = Config(HostSettings(topology_manager=settings,
                                     unhealthy_device=UnhealthyDevice(keys.get("unhealthy_device", "nothing"))))
        [host] = simulated_hosts(hosts_file.parse(text).hosts, config=config)
        self._host = replace(host, kubelet_dir=self.folder)

    async def start(self) -> None:
        self._starts += 1
        self._shown.clear()
        context = ControllerContext(self.store, clock=self._world.clock, names=self._world.names, component="kubelet")
        try:
            self._agents = HostAgents(context, [self._host], assigned_field=self.assigned_field,
                                      connect=self._world.wire.connect,
                                      connect_driver=lambda socket, services: CountedDriver(socket, services, self._world.wire))
        except Invalid:
            return  # its configuration is refused: it does not start
        self.context = context
        self._manager = ControllerManager(self.context, self._agents.controllers)
        await self._agents.start()
        await self._manager.start()
        await self._agents.serve_readers()
        self.monitor = Monitor(self.folder)
        self._stream = PodStream(self.monitor, self._streamed)

    def _streamed(self, kind: str, pod: PodView | None) -> None:
        if pod is not None and kind != "DELETED":
            self._listed(pod)
        elif pod is not None:
            self._unlisted(pod.uid, pod.name)

    def _listed(self, pod: PodView) -> None:
        self._shown[pod.uid] = pod.name
        self._world.add(f"listed {pod.name}", pod.uid, self._starts)
        if pod.runs:
            self._world.add(f"started {pod.name}", pod.uid, self._starts)

    def _unlisted(self, uid: str, name: str) -> None:
        self._shown.pop(uid, None)
        self._world.add(f"unlisted {name}", uid, self._starts)

    async def observe(self) -> None:
        """What its readers show at this moment, which their streams may not have brought yet."""
        if self.monitor is None:
            return
        shown = dict(self._shown)  # their streams may bring more meanwhile
        listed = await self.monitor.listed()
        for pod in listed:
            self._listed(pod)
        uids = {pod.uid for pod in listed}
        for uid, name in shown.items():
            if uid not in uids:
                self._unlisted(uid, name)

    def watch(self) -> None:
        """Open a stream whose events count for the case."""
        if self.monitor is None:
            raise NotDriven(f"op watch: the agent of {self.name} does not run")
        self._watches.append(PodStream(self.monitor, self._watched))

    def _watched(self, kind: str, pod: PodView | None) -> None:
        if kind != "MODIFIED":
            self.events.append(f"{kind} {pod.name}" if pod is not None else kind)

    async def caught_up(self) -> None:
        for stream in [*([self._stream] if self._stream is not None else []), *self._watches]:
            await stream.caught_up()

    async def kill(self) -> None:
        if self._manager is None or self._agents is None:
            return
        for stream in [*([self._stream] if self._stream is not None else []), *self._watches]:
            await stream.stop()
        self._stream, self.monitor = None, None
        self._watches.clear()
        await self._manager.stop()
        await self._agents.stop()
        self._manager = self._agents = self.context = None

    @property
    def alive(self) -> bool:
        return self._manager is not None

    @property
    def can_write(self) -> bool:
        """After the API server was away, an agent is back when its watches are open again: that waits for the clock."""
        return self.alive and not self.store.mode and not self.store.broken

    @property
    def idle(self) -> bool:
        if self._manager is None or self.context is None:
            return True
        seen = self.store.mode == "away" or all(
            int(informer.revision or 0) >= self._world.store.watch_cache(kind).revision
            for kind, informer in self.context.informers.items() if kind not in self.store.broken)
        return seen and self._manager.idle

    def checkpoints(self) -> dict[str, bytes | None]:
        return {name: path.read_bytes() if (path := self.folder / name).exists() else None for name in CHECKPOINTS}


class World:
    def __init__(self, case: Case) -> None:
        self.case, self.given = case, case.data.get("given") or {}
        self.clock = StepClock(datetime(2026, 1, 1, tzinfo=UTC))
        self.names = IdGenerator(random.Random(1))
        self.store = Memory(clock=self.clock, names=self.names, rules=admission.AdmissionRules())
        self.product = app.Embedded(self.store, (), clock=self.clock)
        self.api = Api(self.product)
        self.wire = Wire()
        self.folder = Path(tempfile.mkdtemp(prefix="oc-", dir="/tmp"))  # short: unix sockets
        nodes = self.given.get("nodes") or {"n1": {}}
        self.nodes = {name: PlayedNode(self, name, keys or {}) for name, keys in nodes.items()}
        self.plugins: dict[str, PlayedPlugin] = {}
        self.drivers: dict[str, PlayedDriver] = {}
        self.claims: dict[str, Sequence[Mapping[str, str]]] = {}  # claim -> its allocation results
        self._known: dict[str, str] = {}  # uid of a pod that was there -> name
        self.created: dict[str, Object] = {}  # uid -> the spec that the case wrote
        self.finished: set[str] = set()  # uids of pods that the case ended
        self.log: list[str] = []  # what happened, in order: "Allocate gpu", "started p"
        self._logged: set[tuple[str, str, int]] = set()

    @property
    def first(self) -> PlayedNode:
        return next(iter(self.nodes.values()))

    def node(self, name: str | None) -> PlayedNode:
        return self.nodes[name] if name else self.first

    # -- settling

    async def quiet(self) -> None:
        """Until nothing is to be done at this moment of the product's clock."""
        until, turns = time.monotonic() + WAIT, 0
        while turns < QUIET:
            wired = self._wired()
            await asyncio.sleep(0 if wired else 0.0005)
            turns = turns + 1 if wired and self._idle() else 0
            if not turns and time.monotonic() > until:
                raise AssertionError(f"the case does not come to rest: {self._busy()}")

    def _idle(self) -> bool:
        informers = self.product.context.informers.items()
        seen = all(int(informer.revision or 0) >= self.store.watch_cache(kind).revision for kind, informer in informers)
        return seen and self.product.runner.idle and all(node.idle for node in self.nodes.values())

    def _wired(self) -> bool:
        if self.wire.calls:
            return False
        sent = {player.socket: player.counts() for player in self._players().values()}
        received = {path: sorted(each[0] for each in streams) for path, streams in self.wire.received.items()}
        return all(sent.get(path, []) == received.get(path, []) for path in {*sent, *received})

    def _busy(self) -> str:
        nodes = {name: node.idle for name, node in self.nodes.items()}
        return (f"calls {self.wire.calls}, streams {self.wire.received} of {[p.counts() for p in self._players().values()]}, "
                f"nodes idle {nodes}, controllers idle {self.product.runner.idle}")

    async def settle(self, seconds: float = SETTLES) -> None:
        end = self.clock.monotonic() + seconds
        while True:
            await self.quiet()
            due = self.clock.due()
            if due is None or due > end:
                break
            self.clock.advance(max(0.0, due - self.clock.monotonic()))
        self.clock.advance(max(0.0, end - self.clock.monotonic()))
        await self.quiet()
        for node in self.nodes.values():
            await node.caught_up()

    async def wait_for(self, work: asyncio.Task[Any]) -> Any:
        """The result of something that the product may take some seconds of its clock for."""
        until = time.monotonic() + WAIT
        while not work.done() and time.monotonic() < until:
            await asyncio.wait({work}, timeout=0.02)
            if not work.done() and not self.wire.calls and (due := self.clock.due()) is not None:
                self.clock.advance(max(0.0, due - self.clock.monotonic()))
        if not work.done():
            work.cancel()
            raise AssertionError("a call of the case is not answered")
        return work.result()

    # -- what happened

    def _players(self) -> Mapping[str, PlayedPlugin | PlayedDriver]:
        return {**self.plugins, **self.drivers}

    def players(self) -> list[str]:
        return list(self._players())

    def calls(self, name: str) -> list[tuple[str, Any]]:
        return self._players()[name].calls

    def notified(self, name: str) -> tuple[bool, str] | None:
        return self._players()[name].notified

    def add(self, item: str, uid: str, start: int = 0) -> None:
        """To the log, once for a pod, and of its readers once for each start of the agent."""
        if (key := (item, uid, start)) not in self._logged:
            self._logged.add(key)
            self.log.append(item)

    def uid(self, name: str) -> str:
        """Of the pod that has a name, or had it last; of none where there was no such pod."""
        return next((uid for uid, each in reversed(self._known.items()) if each == name), "")

    async def observe(self) -> None:
        """Add what the API and the readers show by now to the log."""
        for node in self.nodes.values():
            await node.observe()
        pods = {pod["metadata"]["uid"]: pod for pod in (await self.pods()).values()}
        self._known |= {uid: pod_name(pod) for uid, pod in pods.items()}
        for uid, pod in pods.items():
            if has_all(pod):
                self.add(f"written {self._known[uid]}", uid)
            if (pod.get("status") or {}).get("phase") == "Failed":
                self.add(f"failed {self._known[uid]}", uid)
        for uid in self._known.keys() - pods.keys():
            self.add(f"gone {self._known[uid]}", uid)

    # -- requests

    async def send(self, method: str, path: str, body: Object | None = None) -> Answer:
        return await self.api.send(method, path, body)

    async def all(self, kind: Kind) -> list[Object]:
        words = ["apis", kind.group, kind.version] if kind.group else ["api", kind.version]
        return list((await self.send("GET", "/" + "/".join([*words, kind.plural]))).body["items"])

    async def pods(self) -> dict[str, Object]:
        return {pod_name(pod): pod for pod in await self.all(kinds.POD)}

    async def must(self, method: str, path: str, body: Object | None = None) -> Object:
        answer = await self.send(method, path, body)
        if not answer.ok:
            raise NotDriven(f"{method} {path} was refused with {answer.status}: {answer.body.get('message')}")
        return answer.body


@contextlib.asynccontextmanager
async def world_of(case: Case) -> AsyncIterator[World]:
    world = World(case)
    await world.product.start()
    try:
        yield world
    finally:
        for node in world.nodes.values():
            await node.kill()
        for plugin in world.plugins.values():
            await plugin.stop()
        for driver in world.drivers.values():
            await driver.stop()
        await world.product.stop()
        shutil.rmtree(world.folder, ignore_errors=True)
