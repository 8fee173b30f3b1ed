"""Agents of versions that are not supported: reported once for each version, with a code, about their node."""

from __future__ import annotations

from outfitter.api import kinds
from outfitter.controllers.cluster.agent_versions import AgentVersions
from outfitter.controllers.manager import ControllerContext, ControllerManager, settle
from outfitter.store.clock import ManualClock
from outfitter.store.memory import Memory


async def test_agents_are_reported_when_their_version_changes() -> None:
    clock = ManualClock()
    store = Memory(clock=clock)
    context = ControllerContext(store, clock=clock)
    manager = ControllerManager(context, [AgentVersions(context, version="1.4.0")])
    await store.create(kinds.NODE, {"metadata": {"name": "a"}})
    await manager.start()

    async def publish(host: str, version: str) -> None:
        body = {"metadata": {"name": host}, "spec": {"agentVersion": version, "warnings": []}}
        if any(obj["metadata"]["name"] == host for obj in (await store.list(kinds.HOST_INVENTORY)).items):
            await store.patch(kinds.HOST_INVENTORY, host, {"spec": body["spec"]})
        else:
            await store.create(kinds.HOST_INVENTORY, body)
        await settle(lambda kind: store.watch_cache(kind).revision, context, [manager], busy=lambda: store.busy)

    async def reported() -> list[tuple[str, str, str, int]]:
        events = (await store.list(kinds.EVENT)).items
        return sorted((event["involvedObject"]["kind"], event["involvedObject"]["name"], event["reason"], event["count"])
                      for event in events)

    await publish("a", "1.3.0")
    assert await reported() == [], "one minor version behind is supported"
    await publish("a", "1.2.0")
    await store.patch(kinds.HOST_INVENTORY, "a", {"spec": {"warnings": ["x"]}})
    await publish("a", "1.2.0")
    await publish("b", "1.5.0")  # whose Node is not known
    assert await reported() == [("HostInventory", "b", "AgentNewer", 1), ("Node", "a", "AgentTooOld", 1)]
    await publish("a", "1.4.0")
    await publish("a", "1.2.0")
    assert ("Node", "a", "AgentTooOld", 2) in await reported(), "rolled back once more"
    await store.delete(kinds.HOST_INVENTORY, "b")
    await manager.stop()
    await store.close()
