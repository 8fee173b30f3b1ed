"""LedgerPages that users edit by hand, as kubectl does, while VMs hold and keep devices: the rules of pages hold for them."""

from __future__ import annotations

import copy
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from outfitter.api import kinds
from outfitter.api.kinds import Object
from outfitter.api.ledger_page.page import Page, pool_page
from outfitter.apiserver.app import App
from outfitter.apiserver.auth import MASTERS, User
from outfitter.store.memory import Memory
from tests.apiserver.asgi import JSON_PATCH, MERGE, Client, Reply
from tests.controllers import scenario
from tests.controllers.scenario import Scene

PAGES, NODES = "/apis/outfitter.dev/v1alpha1/ledgerpages", "/api/v1/nodes"
PAGE, VFS = f"{PAGES}/node-0", [f"pci-0000-3b-00-0-vf{number}" for number in range(4)]


@dataclass
class Cloud:
    """A host with four devices: blue runs with one, amber is stopped and keeps one."""

    scene: Scene
    client: Client

    async def page(self) -> Object:
        found: Object = (await self.client.get(PAGE)).json
        return found

    async def held(self) -> dict[str, str]:
        """Device -> state and holder."""
        return {one.device.device: f"{one.state} {one.holder.purpose}" for one in Page(await self.page()).bookings}

    async def put(self, page: Object, **query: str) -> Reply:
        return await self.client.call("PUT", PAGE, page, query=query)

    async def booking(self, name: str, claim: Object, **fields: Any) -> Object:
        """What could be booked for a claim."""
        slices = (await self.scene.store.list(kinds.RESOURCE_SLICE)).items
        published = {each["name"]: each for part in slices for each in part["spec"]["devices"]}
        attributes = published.get(name, {}).get("attributes", {})
        address = attributes.get("resource.kubernetes.io/pciBusID", {}).get("string")
        meta = claim["metadata"]
        return {"device": {"driver": self.scene.driver, "pool": "node-0", "device": name}, "request": "nic",
                "holder": {"kind": "ResourceClaim", "namespace": "here", "name": meta["name"], "uid": meta["uid"]},
                "state": "booked", "since": "2026-01-01T00:00:00Z", "amount": {"whole": True},
                **({"hardware": [address]} if address else {}), **fields}


@pytest.fixture
async def cloud() -> AsyncIterator[Cloud]:
    async with scenario.embedded(4) as scene:
        await scene.classes()
        await scene.template()
        await scene.machine("blue")
        await scene.running("blue")
        await scene.create(kinds.VM, "amber", {"runStrategy": "Always", "resourceClaimTemplates": [
            {"name": "network", "spec": {"spec": scene.claim_spec()}}], "template": {"spec": {
                "domain": {"memory": {"guest": "1Gi"}, "devices": {"hostDevices": [scenario.device()]}}}}})
        await scene.running("amber")
        await scene.store.patch(kinds.VM, "amber", {"spec": {"runStrategy": "Halted"}}, "here")
        await scene.settle()
        assert isinstance(scene.store, Memory)
        cloud = Cloud(scene, Client(App(scene.store, tokens={"admin": User("admin", (MASTERS,))})))
        assert await cloud.held() == {VFS[0]: "prepared vmi/blue", VFS[1]: "released vmi/amber"}
        yield cloud


def without(page: Object, *devices: str) -> Object:
    spec = page["spec"]
    return {**page, "spec": {**spec, "bookings": [
        entry for entry in spec["bookings"] if entry["device"]["device"] not in devices]}}


def message(reply: Reply) -> str:
    return f"{reply.status} {reply.json.get('message')}"


REMOVED = {
    "a prepared booking": (VFS[0], r"422 .*spec.bookings: Forbidden: \S+vf0 for vmi/blue .* is prepared; to free it, delete"),
    "what a stopped VM keeps": (
        VFS[1], r"422 .*vf1 for vmi/amber .* is kept; to free it: kubectl delete resourceclaim amber-network\S* -n here"),
}


@pytest.mark.parametrize("name", REMOVED)
async def test_nothing_that_is_held_or_kept_is_removed(cloud: Cloud, name: str) -> None:
    """By replacing the page, by patches of both kinds, and in a dry run."""
    device, words = REMOVED[name]
    before = await cloud.page()
    fewer = without(before, device)
    place = [entry["device"]["device"] for entry in before["spec"]["bookings"]].index(device)
    answers = [
        await cloud.put(fewer), await cloud.put(fewer, dryRun="All"),
        await cloud.client.patch(PAGE, {"spec": {"bookings": fewer["spec"]["bookings"]}}, MERGE),
        await cloud.client.patch(PAGE, [{"op": "remove", "path": f"/spec/bookings/{place}"}], JSON_PATCH),
    ]
    assert [re.search(words, message(answer)) is not None for answer in answers] == [True] * 4, message(answers[0])
    assert await cloud.page() == before


async def test_bookings_are_not_changed_by_hand(cloud: Cloud) -> None:
    """Not even so that another claim has the device, or that it is known as other hardware."""
    page = await cloud.page()
    other = await cloud.scene.claim("mine")
    for change in ({"state": "released"}, {"state": "booked"}, {"hardware": ["0000:ff:00.0"]}, {"hardware": None},
                   {"holder": {**page["spec"]["bookings"][0]["holder"], "uid": other["metadata"]["uid"]}},
                   {"device": {**page["spec"]["bookings"][0]["device"], "device": VFS[2]}}, {"since": "2020-01-01T00:00:00Z"}):
        for place in (0, 1):
            edited = copy.deepcopy(page)
            edited["spec"]["bookings"][place] |= change
            if edited == page:
                continue
            assert re.search("422 .*spec.bookings.*: Forbidden: ", message(await cloud.put(edited))), change
    assert await cloud.page() == page


ADDED: dict[str, tuple[str, dict[str, Any], str]] = {
    "a device that another has prepared": (VFS[0], {}, r"422 .*vf0 is held by vmi/blue"),
    "a device that a stopped VM keeps": (VFS[1], {}, r"422 .*vf1 is held by vmi/amber"),
    "a second prepared booking": (VFS[0], {"state": "prepared"}, r'422 .*spec.bookings\[2\].state: .*booking is "booked"'),
    "a device that is not published": ("vf-none", {}, r"422 .*spec.bookings\[2\].device: .*/vf-none is not published"),
    "a device of a host that is none": (
        VFS[2], {"device": {"driver": "node.example.com", "pool": "node-9", "device": VFS[2]}}, "422 .*is not published"),
    "hardware that it is not": (VFS[2], {"hardware": []}, r"422 .*spec.bookings\[2\].hardware: .*\['0000:3b:01.2'\]"),
    "a holder that is none": (VFS[2], {"holder": {"kind": "ResourceClaim", "namespace": "here", "name": "no", "uid": "u"}},
                              r"422 .*spec.bookings\[2\].holder: .*claim here/no with uid u does not exist"),
    "a holder of another kind": (VFS[2], {"holder": {"kind": "Domain", "name": "d", "uid": "u"}},
                                 r"422 .*spec.bookings\[2\].holder.kind"),
    "a share of what is not shared": (VFS[2], {"amount": {"shareID": "s", "capacity": {}}}, "422 .*cannot be shared"),
}


@pytest.mark.parametrize("name", ADDED)
async def test_only_what_is_free_and_published_is_added(cloud: Cloud, name: str) -> None:
    device, fields, words = ADDED[name]
    page = await cloud.page()
    added = await cloud.booking(device, await cloud.scene.claim("mine"), **fields)
    answer = await cloud.put({**page, "spec": {**page["spec"], "bookings": [*page["spec"]["bookings"], added]}})
    assert re.search(words, message(answer)), message(answer)
    assert await cloud.page() == page


async def test_a_free_device_can_be_booked_by_hand_and_is_free_when_its_claim_is_gone(cloud: Cloud) -> None:
    page, claim = await cloud.page(), await cloud.scene.claim("mine")
    added = await cloud.booking(VFS[2], claim)
    more = {**page, "spec": {**page["spec"], "bookings": [*page["spec"]["bookings"], added]}}
    twice = {**page, "spec": {**page["spec"], "bookings": [*page["spec"]["bookings"], added, added]}}
    assert re.search("422 .*is booked twice", message(await cloud.put(twice)))
    assert (await cloud.put(more)).status == 200
    await cloud.scene.settle()
    assert (await cloud.put(without(await cloud.page(), VFS[2]))).status == 422, "its claim exists"
    await cloud.scene.delete(kinds.RESOURCE_CLAIM, "mine")
    await cloud.scene.settle()
    assert await cloud.held() == {VFS[0]: "prepared vmi/blue", VFS[1]: "released vmi/amber"}


async def test_a_device_is_booked_on_its_own_page(cloud: Cloud) -> None:
    claim = await cloud.scene.claim("mine")
    for device in (VFS[0], VFS[2]):
        made = await cloud.client.post(PAGES, {**Page.blank("elsewhere"), "spec": {"bookings": [
            await cloud.booking(device, claim)]}})
        assert re.search("422 .* is booked on page node-0, not on elsewhere", message(made))


async def test_a_page_with_holders_is_not_deleted(cloud: Cloud) -> None:
    """By whichever way it would end: its own deletion, a collection's, an owner's, or a finalizer that is removed later."""
    before = await cloud.page()
    for answer in (await cloud.client.delete(PAGE), await cloud.client.delete(PAGE, query={"propagationPolicy": "Foreground"}),
                   await cloud.client.delete(PAGE, query={"gracePeriodSeconds": "0"}), await cloud.client.delete(PAGES)):
        assert re.search('403 ledgerpages.outfitter.dev "node-0" is forbidden: .*for vmi/blue .*for vmi/amber', message(answer))
    node = (await cloud.client.get(f"{NODES}/node-0")).json["metadata"]
    owner = {"apiVersion": "v1", "kind": "Node", "name": "node-0", "uid": node["uid"]}
    owned = await cloud.client.patch(PAGE, {"metadata": {"ownerReferences": [owner]}}, MERGE)
    assert re.search("422 .*metadata.ownerReferences: Forbidden", message(owned))
    assert await cloud.page() == before


async def test_a_page_that_was_deleted_stays_while_something_is_booked_on_it_since(cloud: Cloud) -> None:
    other = f"{PAGES}/{pool_page('rack.example.com', 'rack')}"
    slice_ = {"driver": "rack.example.com", "pool": {"name": "rack", "generation": 1, "resourceSliceCount": 1},
              "allNodes": True, "devices": [{"name": "x0"}]}
    await cloud.scene.create(kinds.RESOURCE_SLICE, "rack", slice_)
    made = await cloud.client.post(PAGES, {**Page.blank(other.rpartition("/")[2]), "metadata": {
        "name": other.rpartition("/")[2], "finalizers": ["example.com/mine"]}})
    assert made.status == 201
    assert (await cloud.client.delete(other)).status == 200
    page = (await cloud.client.get(other)).json
    assert page["metadata"]["deletionTimestamp"]
    booking = await cloud.booking("x0", await cloud.scene.claim("mine"), hardware=[], device={
        "driver": "rack.example.com", "pool": "rack", "device": "x0"})
    page["spec"]["bookings"] = [booking]
    assert (await cloud.client.call("PUT", other, page)).status == 200
    refused = await cloud.client.patch(other, {"metadata": {"finalizers": None}}, MERGE)
    assert re.search("403 .*x0 for ResourceClaim mine in here is held", message(refused))
    await cloud.scene.delete(kinds.RESOURCE_CLAIM, "mine")
    await cloud.scene.settle()
    assert (await cloud.client.patch(other, {"metadata": {"finalizers": None}}, MERGE)).status == 200
    assert (await cloud.client.get(other)).status == 404


@pytest.mark.parametrize("policy", ["Background", "Foreground", "Orphan"])
async def test_a_live_host_whose_node_is_deleted_keeps_its_page(cloud: Cloud, policy: str) -> None:
    """And the next VM gets none of the devices that are held there."""
    before = await cloud.held()
    assert (await cloud.client.delete(f"{NODES}/node-0", query={"propagationPolicy": policy})).status == 200
    assert message(await cloud.client.delete(PAGE)).startswith("403"), "its VMs run, and amber keeps a device"
    assert (await cloud.put(without(await cloud.page(), *VFS[:2]))).status == 422
    await cloud.scene.machine("green")
    await cloud.scene.running("green")
    assert await cloud.held() == {**before, VFS[2]: "prepared vmi/green"}
    assert sorted(domain.devices for domain in await cloud.scene.domains()) == [("0000:3b:01.0",), ("0000:3b:01.2",)]


async def test_reservations_are_edited_by_hand_but_a_device_is_not_clean_while_it_is_held(cloud: Cloud) -> None:
    page = await cloud.page()
    records = [{"device": page["spec"]["bookings"][0]["device"], "reason": "r", "by": "me", "since": "2026-01-01T00:00:00Z"}]
    for state in ("reserved", "quarantined", "unclean"):
        assert (await cloud.client.patch(PAGE, {"spec": {state: records}}, MERGE)).status == 200
    refused = await cloud.client.patch(PAGE, {"spec": {"reserved": [], "quarantined": [], "unclean": []}}, MERGE)
    assert re.search("422 .*spec.unclean: Forbidden: .*vf0 for vmi/blue .* outfit device clear node-0/", message(refused))
    assert (await cloud.client.patch(PAGE, {"spec": {"reserved": [], "quarantined": []}}, MERGE)).status == 200


async def test_what_is_held_stays_when_it_is_no_longer_published(cloud: Cloud) -> None:
    """And neither the scheduler nor a user books another device that is not published."""
    [part] = await cloud.scene.all(kinds.RESOURCE_SLICE)
    before, claim = await cloud.held(), await cloud.scene.claim("mine")
    booking = await cloud.booking(VFS[2], claim)
    part["spec"]["devices"] = [device for device in part["spec"]["devices"] if device["name"] == VFS[3]]
    await cloud.scene.store.replace(kinds.RESOURCE_SLICE, part)
    page = await cloud.page()
    more = await cloud.put({**page, "spec": {**page["spec"], "bookings": [*page["spec"]["bookings"], booking]}})
    assert re.search(f"422 .*{VFS[2]} is not published", message(more))
    assert (await cloud.client.patch(PAGE, {"metadata": {"labels": {"a": "b"}}}, MERGE)).status == 200
    assert await cloud.held() == before
