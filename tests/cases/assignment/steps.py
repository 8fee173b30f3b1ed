"""The steps of a case (`op`), and the objects that it describes in short form."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any

from outfitter.api.kinds import Object
from tests.cases.assignment.drivers import PlayedDriver
from tests.cases.assignment.plugins import PlayedPlugin, register
from tests.cases.assignment.pod_view import pod_path
from tests.cases.assignment.world import PlayedNode, World
from tests.cases.case_product import Answer, NotDriven

Step = Mapping[str, Any]
UID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class StepError(Exception):
    """The product refused a step."""

    def __init__(self, message: str, fields: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.fields = fields


class Steps:
    def __init__(self, world: World) -> None:
        self._world = world
        self._races: dict[str, Step] = {}
        self._restarting: set[PlayedNode] = set()  # whose agent is to run, and cannot reach the API server
        self._namespaces = dict(_claim_namespaces(world))
        for node in world.nodes.values():
            node.store.before_write = self._before_write
        self._ops: dict[str, Callable[[Step], Awaitable[None]]] = {
            "create": self._create, "delete": self._delete, "finish": self._finish, "race": self._race, "api": self._api,
            "start_plugin": self._start_plugin, "stop_plugin": self._stop_plugin, "update_plugin": self._update_plugin,
            "start_driver": self._start_driver, "stop_driver": self._stop_driver, "update_driver": self._update_driver,
            "register": self._register, "stop_agent": self._stop_agent, "start_agent": self._start_agent,
            "restart_agent": self._restart_agent, "advance": self._advance, "watch": self._watch,
        }

    async def run(self, step: Step) -> None:
        """StepError: it was refused."""
        if step["op"] not in self._ops:
            raise NotDriven(f"op {step['op']} is not driven yet")
        await self._ops[step["op"]](step)

    async def begin(self) -> None:
        """The world before the first step."""
        given, world = self._world.given, self._world
        for name, keys in (given.get("plugins") or {}).items():
            world.plugins[name] = PlayedPlugin(name, keys, world.node(keys.get("node")).folder, self.seen)
        for name, keys in (given.get("drivers") or {}).items():
            world.drivers[name] = PlayedDriver(name, keys, world.node(keys.get("node")).folder, self.seen,
                                               lambda claim: world.claims.get(claim, ()))
        await self._create({"pods": given.get("pods") or (), "claims": given.get("claims")})
        for node in world.nodes.values():
            await node.start()
        for plugin in world.plugins.values():
            if plugin.keys.get("running", True):
                await self._start(plugin, refused=True)
        for driver in world.drivers.values():
            if driver.keys.get("running", True):
                await self._start_driver_process(driver)
        await world.settle()

    async def seen(self, method: str, name: str) -> None:
        """A call that a plugin got: what is in the API at this moment came before it."""
        await self._world.observe()
        self._world.log.append(f"{method} {name}")

    # -- objects

    async def _create(self, step: Step) -> None:
        for name, claim in (step.get("claims") or {}).items():
            self._world.claims[name] = claim["results"]
            await self._namespace(self._namespaces.get(name, "default"))
            requests = [{"name": request, "exactly": {"deviceClassName": "any"}}
                        for request in dict.fromkeys(result["request"] for result in claim["results"])]
            _check(await self._world.send("POST", self._claims_path(name), {
                "metadata": {"name": name}, "spec": {"devices": {"requests": requests}}}))
        for pod in step.get("pods") or ():
            namespace = pod.get("namespace", "default")
            await self._namespace(namespace)
            answer = await self._world.send("POST", f"/api/v1/namespaces/{namespace}/pods", self._pod(pod))
            _check(answer)
            self._world.created[answer.body["metadata"]["uid"]] = self._pod(pod)["spec"]
            for claim in dict.fromkeys((pod.get("claims") or {}).values()):
                await self._allocate(claim, answer.body)

    async def _namespace(self, name: str) -> None:
        await self._world.send("POST", "/api/v1/namespaces", {"metadata": {"name": name}})

    def _claims_path(self, claim: str) -> str:
        return f"/apis/resource.k8s.io/v1/namespaces/{self._namespaces.get(claim, 'default')}/resourceclaims"

    async def _allocate(self, name: str, pod: Object) -> None:
        """Write the allocation of a claim, and reserve it for one more pod."""
        path, meta = f"{self._claims_path(name)}/{name}", pod["metadata"]
        claim = await self._world.must("GET", path)
        results = [{**result, "pool": pod["spec"]["nodeName"]} for result in self._world.claims[name]]
        users = [*((claim.get("status") or {}).get("reservedFor") or ()),
                 {"resource": "pods", "name": meta["name"], "uid": meta["uid"]}]
        await self._world.must("PATCH", f"{path}/status", {"status": {
            "allocation": {"devices": {"results": results}}, "reservedFor": users}})

    def _pod(self, pod: Mapping[str, Any]) -> Object:
        spec = {"nodeName": pod.get("node") or self._world.first.name,
                "containers": [_container(each) for each in pod["containers"]]}
        if pod.get("init"):
            spec["initContainers"] = [_container(each) for each in pod["init"]]
        if pod.get("claims"):
            spec["resourceClaims"] = [{"name": name, "resourceClaimName": claim} for name, claim in pod["claims"].items()]
        return {"metadata": {"name": pod["name"]}, "spec": spec}

    async def _delete(self, step: Step) -> None:
        _check(await self._world.send("DELETE", pod_path(step["pod"])))

    async def _finish(self, step: Step) -> None:
        answer = await self._world.send("PATCH", pod_path(step["pod"]) + "/status", {"status": {"phase": step["phase"]}})
        _check(answer)
        self._world.finished.add(answer.body["metadata"]["uid"])

    async def _race(self, step: Step) -> None:
        name = step["pod"] if "/" in step["pod"] else f"default/{step['pod']}"
        self._races[name] = step

    async def _before_write(self, name: str) -> None:
        if name not in self._races:
            return
        step = self._races.pop(name)
        change: Object = {}
        if step.get("labels"):
            change["metadata"] = {"labels": step["labels"]}
        if step.get("assigned"):
            pod, fields = await self._world.must("GET", pod_path(name)), {
                each: {"assignedDevices": _assigned(devices)} for each, devices in step["assigned"].items()}
            change["spec"] = {part: [{**each, **fields.get(each["name"], {})} for each in pod["spec"][part]]
                              for part in ("initContainers", "containers") if pod["spec"].get(part)}
        await self._world.must("PATCH", pod_path(name), change)

    async def _api(self, step: Step) -> None:
        for node in self._world.nodes.values():
            node.store.set_mode("" if step["agent"] == "back" else step["agent"])
        while self._restarting and step["agent"] != "away":
            await self._start_process(self._restarting.pop())

    # -- plugins

    async def _start(self, plugin: PlayedPlugin, *, refused: bool = False) -> None:
        """`refused`: it may be refused without an error of the step."""
        await plugin.listen()
        if not self._world.node(plugin.keys.get("node")).alive:
            return  # it registers when there is an agent
        error = await self._world.wait_for(asyncio.create_task(plugin.register()))
        if plugin.watched:
            await self._world.wait_for(asyncio.create_task(plugin.asked.wait()))
        if error is not None and not refused:
            raise StepError(error)

    async def _start_plugin(self, step: Step) -> None:
        plugin = self._world.plugins[step["plugin"]]
        plugin.update(_changes(step))
        await self._start(plugin)

    async def _stop_plugin(self, step: Step) -> None:
        await self._world.plugins[step["plugin"]].stop()

    async def _update_plugin(self, step: Step) -> None:
        self._world.plugins[step["plugin"]].update(_changes(step))

    async def _register(self, step: Step) -> None:
        node = self._world.node(step.get("node"))
        endpoint = step.get("endpoint")
        if endpoint is None:
            name = f"registered-{len(self._world.plugins)}"
            keys = {key: step[key] for key in ("resource", "version", "node") if key in step}
            plugin = PlayedPlugin(name, keys, node.folder, self.seen)
            self._world.plugins[name] = plugin
            await plugin.listen()
            endpoint = plugin.socket.name
        call = register(node.folder, step.get("version", "v1beta1"), step["resource"], endpoint)
        error = await self._world.wait_for(asyncio.create_task(call))
        if error is not None:
            raise StepError(error)

    # -- drivers

    async def _start_driver_process(self, driver: PlayedDriver) -> None:
        """Until the agent has told it whether it is registered."""
        driver.asked.clear()
        await driver.listen()
        await self._publish(driver)
        if self._world.node(driver.keys.get("node")).alive:
            await self._world.wait_for(asyncio.create_task(driver.asked.wait()))

    async def _publish(self, driver: PlayedDriver) -> None:
        path, content = "/apis/resource.k8s.io/v1/resourceslices", driver.slice()
        if driver.keys.get("devices") is not None and not (await self._world.send("POST", path, content)).ok:
            devices = {"spec": {"devices": content["spec"]["devices"]}}
            await self._world.must("PATCH", f"{path}/{content['metadata']['name']}", devices)

    async def _start_driver(self, step: Step) -> None:
        driver = self._world.drivers[step["driver"]]
        driver.update(_changes(step))
        await self._start_driver_process(driver)

    async def _stop_driver(self, step: Step) -> None:
        await self._world.drivers[step["driver"]].stop()

    async def _update_driver(self, step: Step) -> None:
        driver = self._world.drivers[step["driver"]]
        driver.update(_changes(step))
        if "devices" in step and driver.running:
            await self._publish(driver)

    # -- agents and time

    async def _stop_agent(self, step: Step) -> None:
        node = self._world.node(step.get("node"))
        await self._kill(node)
        self._change_checkpoints(node, step.get("checkpoint", "kept"))

    async def _start_agent(self, step: Step) -> None:
        node = self._world.node(step.get("node"))
        self._change_checkpoints(node, step.get("checkpoint", "kept"))
        await self._start_process(node)

    async def _start_process(self, node: PlayedNode) -> None:
        """Of the agent. It ends while the API server is away; its supervisor starts it until it is there."""
        if node.store.mode == "away":
            self._restarting.add(node)
            return
        for plugin in self._world.plugins.values():
            if plugin.watched and not plugin.keys.get("returns", True) and plugin.socket.is_relative_to(node.folder):
                await plugin.stop()  # an agent finds every socket that is there
        plugins = [each for each in self._world.plugins.values() if each.running and each.socket.is_relative_to(node.folder)]
        drivers = [each for each in self._world.drivers.values() if each.running and each.socket.is_relative_to(node.folder)]
        found: list[PlayedPlugin | PlayedDriver] = [*(each for each in plugins if each.watched), *drivers]  # by their sockets
        for player in found:
            player.asked.clear()
        await node.start()
        for plugin in plugins:
            if not plugin.watched and plugin.keys.get("returns", True):
                await self._start(plugin, refused=True)
        for player in found:
            await self._world.wait_for(asyncio.create_task(player.asked.wait()))
        for driver in drivers:
            await self._publish(driver)

    async def _restart_agent(self, step: Step) -> None:
        await self._kill(self._world.node(step.get("node")))
        await self._start_agent(step)

    async def _kill(self, node: PlayedNode) -> None:
        self._restarting.discard(node)
        await node.kill()

    def _change_checkpoints(self, node: PlayedNode, how: str) -> None:
        for name, content in node.checkpoints().items():
            path = node.folder / name
            if how == "lost":
                path.unlink(missing_ok=True)
            elif how == "torn" and content is not None:
                path.write_bytes(content[:len(content) // 2])
            elif how == "stale":
                before = node.stale.get(name)
                path.unlink(missing_ok=True)
                if before is not None:
                    path.write_bytes(before)
            elif how == "corrupt" and content is not None:
                path.write_bytes(_one_id_changed(content))

    async def _watch(self, step: Step) -> None:
        self._world.node(step.get("node")).watch()

    async def _advance(self, step: Step) -> None:
        await self._world.settle(float(step["seconds"]))


def _check(answer: Answer) -> None:
    if not answer.ok:
        raise StepError(str(answer.body.get("message")), [field for field, _ in answer.causes])


def _claim_namespaces(world: World) -> Iterator[tuple[str, str]]:
    """A claim is in the namespace of its pods."""
    for step in (world.given, *(world.case.data.get("when") or ())):
        for pod in step.get("pods") or ():
            yield from ((claim, pod.get("namespace", "default")) for claim in (pod.get("claims") or {}).values())


def _changes(step: Step) -> dict[str, Any]:
    return {key: value for key, value in step.items() if key not in ("op", "plugin", "driver", "expect")}


def _container(given: Mapping[str, Any]) -> Object:
    out: Object = {"name": given["name"], "image": "example.com/image"}
    resources: Object = {}
    if given.get("limits"):
        resources["limits"] = {name: str(count) for name, count in given["limits"].items()}
    if given.get("claims"):
        words = [str(each).partition("/") for each in given["claims"]]
        resources["claims"] = [{"name": name, **({"request": request} if request else {})} for name, _, request in words]
    if resources:
        out["resources"] = resources
    if given.get("assigned"):
        out["assignedDevices"] = _assigned(given["assigned"])
    if given.get("restart"):
        out["restartPolicy"] = given["restart"]
    return out


def _assigned(devices: Mapping[str, Sequence[str]]) -> list[Object]:
    return [{"resourceName": resource, "deviceIDs": list(map(str, ids))} for resource, ids in devices.items()]


def _one_id_changed(content: bytes) -> bytes:
    """The file with one id changed, where it has one: of a device, or of a claim."""
    try:
        whole = json.loads(content)
    except ValueError:
        return content  # torn before, and not written since
    data = whole["Data"]
    if isinstance(data, str):
        whole["Data"] = UID.sub(lambda found: f"0{found[0][1:]}" if found[0][0] != "0" else f"1{found[0][1:]}", data, count=1)
        return json.dumps(whole).encode()
    lists = [ids for entry in data["PodDeviceEntries"] or () for ids in entry["DeviceIDs"].values()]
    lists += (data["RegisteredDevices"] or {}).values()
    if ids := next(filter(None, lists), None):
        ids[0] += "x"
    return json.dumps(whole).encode()
