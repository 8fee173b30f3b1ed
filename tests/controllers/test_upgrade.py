"""Update and rollback as docs/upgrade.md describes them: what a product finds that another version has written."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outfitter.api import conditions, kinds
from outfitter.api.kinds import Kind, Object
from outfitter.errors import Invalid
from outfitter.install import crds, resources
from tests.controllers import scenario as scenes
from tests.controllers.numa_hosts import flavor, machine, scene
from tests.controllers.scenario import Scene
from tests.install import previous_release
from tests.kubernetes import Cluster

ADDED = {"ofALaterVersion": {"any": ["thing", 1]}}  # a field that this version does not know


async def _running_state(here: Scene) -> dict[str, Any]:
    """What a running VM consists of, without what any write changes."""
    vmi, page = await here.find(kinds.VMI, "blue"), await here.find(kinds.LEDGER_PAGE, "elm")
    assert vmi is not None
    assert page is not None
    [domain] = await here.domains()
    return {"uid": vmi["metadata"]["uid"], "devices": vmi["status"]["deviceStatus"], "bookings": page["spec"]["bookings"],
            "xml": domain.xml, "phase": vmi["status"]["phase"]}


async def test_running_vms_and_fields_of_a_later_version_outlive_the_change_of_versions(tmp_path: Path) -> None:
    async with scene(data=tmp_path) as here:
        await flavor(here, "large", "gpu:1, nic:1")
        await machine(here, "blue", "large")
        await here.running("blue")
        before = await _running_state(here)
        await here.store.patch(kinds.VMI, "blue", {"status": ADDED}, here.namespace, subresource="status")
        await here.store.patch(kinds.LEDGER_PAGE, "elm", {"spec": ADDED})
        await here.store.patch(kinds.RESOURCE_SLICE, (await here.all(kinds.RESOURCE_SLICE))[0]["metadata"]["name"], ADDED)
    async with scene(data=tmp_path) as here:
        await here.settle()
        assert await _running_state(here) == before, "adopted, not restarted"
        await machine(here, "green", "large")  # writes the same page
        await here.running("green")
        await here.delete(kinds.VMI, "green")
        await here.gone("green")
        for kind, name in ((kinds.VMI, "blue"), (kinds.LEDGER_PAGE, "elm")):
            kept = await here.find(kind, name) or {}
            part = kept["status"] if kind == kinds.VMI else kept["spec"]
            assert part["ofALaterVersion"] == ADDED["ofALaterVersion"], f"kept by all writers of {kind.kind}"
        await here.delete(kinds.VMI, "blue")
        await here.gone("blue")
        await here.empty()


async def _define(here: Scene, definition: Callable[[Kind], Object]) -> None:
    for kind in (*crds.KUBEVIRT, *crds.OURS):
        await here.store.patch(resources.CRD, kind.resource, {"spec": {"versions": definition(kind)["spec"]["versions"]}})


@pytest.mark.cluster
async def test_definitions_are_exchanged_under_a_running_vm(control_plane: Cluster) -> None:
    """The definitions of the previous release and those of this one, in both directions, while controllers and agents work."""
    async with scenes.on_cluster(control_plane, f"up-{uuid.uuid4().hex[:8]}", 2) as here:
        await here.classes()
        await here.template()
        await here.machine("blue")
        before = await here.running("blue")
        await here.store.patch(kinds.VMI, "blue", {"status": ADDED}, here.namespace, subresource="status")
        await here.store.patch(kinds.LEDGER_PAGE, here.host.name, {"spec": ADDED})
        await _define(here, lambda kind: previous_release.definition(kind, kind.version))
        await _define(here, crds.definition)
        await here.machine("green")  # its VMI, pod, page and status are written by watchers that the exchange has cut off
        await here.running("green")
        vmi, page = await here.running("blue"), await here.find(kinds.LEDGER_PAGE, here.host.name)
        assert page is not None
        assert vmi["metadata"]["uid"] == before["metadata"]["uid"]
        assert vmi["status"]["deviceStatus"] == before["status"]["deviceStatus"]
        assert (vmi["status"]["ofALaterVersion"], page["spec"]["ofALaterVersion"]) == (ADDED["ofALaterVersion"],) * 2
        for name in ("blue", "green"):
            await here.delete(kinds.VMI, name)
        await here.gone("blue", "green")
        await here.empty()


def _without_gates(spec: Object) -> Object:
    return {"domain": {"memory": {"guest": "1Gi"}, **spec}}


async def test_before_a_rollback_gates_are_closed_and_their_users_deleted() -> None:
    """As document 000 asks for: disable the gate, delete the VMIs that use DRA devices, then nothing of them is left."""
    async with scenes.embedded(vfs=2) as here:
        await here.classes()
        await here.template()
        await here.create(kinds.KUBEVIRT, "kubevirt", {})
        await here.machine("blue")
        await here.create(kinds.VMI, "plain", _without_gates({}))
        for name in ("blue", "plain"):
            await here.running(name)
        off = {"spec": {"configuration": {"developerConfiguration": {
            "disabledFeatureGates": ["GPUsWithDRA", "HostDevicesWithDRA", "NetworkDevicesWithDRA"]}}}}
        await here.store.patch(kinds.KUBEVIRT, "kubevirt", off, here.namespace)

        async def in_use(status: str) -> bool:
            found = conditions.find(await here.find(kinds.KUBEVIRT, "kubevirt") or {}, "DisabledGatesInUse")
            return found is not None and found["status"] == status and (("here/blue" in found["message"]) == (status == "True"))

        await here.reach(lambda: in_use("True"), "blue is named")
        with pytest.raises(Invalid, match="HostDevicesWithDRA"):
            await here.machine("green")
        await here.delete(kinds.VMI, "blue")
        await here.reach(lambda: in_use("False"), "no VMI uses a closed gate")
        assert [vmi["metadata"]["name"] for vmi in await here.all(kinds.VMI)] == ["plain"], "it needs no gate"
        assert await here.bookings() == []
        plain = await here.running("plain")
        assert "deviceStatus" not in plain["status"]
        await here.create(kinds.VMI, "plainer", _without_gates({}))
        await here.running("plainer")
