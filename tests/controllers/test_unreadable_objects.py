"""Objects in the store that cannot be read: each is skipped with an event, and all others go on."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import io
import itertools
import json
from collections.abc import Awaitable, Callable, Iterable
from datetime import timedelta
from typing import Any

import hypothesis
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from outfitter.api import kinds, rejection_conditions
from outfitter.api.kinds import Kind, Object
from outfitter.api.rejection import RejectionCode
from outfitter.api.validate import readable
from outfitter.apiserver import auth
from outfitter.apiserver.app import App
from outfitter.cli import history, object_commands, providers, why
from outfitter.cli.device import listing
from outfitter.cli.vm import view
from outfitter.errors import OutfitterError
from outfitter.ledger import history as ledger_history
from tests.apiserver import asgi
from tests.controllers import planting, scenario
from tests.controllers.planting import ABSENT, ELSEWHERE, HERE, InProcess, PlantedProduct

TEXTS = st.sampled_from(["", "0", "x", "-1", "a/b", "1Gi", "2026-01-31T12:04:00Z", "\u00e9" * 70])
PLAIN = st.one_of(st.none(), st.booleans(), st.integers(-2**63, 2**63 - 1), st.floats(allow_nan=False, allow_infinity=False),
                  TEXTS)
VALUES = st.one_of(st.just(ABSENT), PLAIN, st.recursive(PLAIN, lambda inner: st.one_of(
    st.lists(inner, max_size=3), st.dictionaries(TEXTS | st.just("name"), inner, max_size=3)), max_leaves=6))
EXPLAINED = {kinds.VMI: "vmi", kinds.VM: "vm", kinds.POD: "pod", kinds.RESOURCE_CLAIM: "claim"}


async def survives(planted: PlantedProduct, *objects: tuple[Kind, Object], restart: bool) -> None:
    """With objects as they are given, an unrelated VM starts with a device and ends, and every command answers."""
    held = {(host.name, device) for host in planted.product.hosts for domain in (await host.hypervisor.domains()).values()
            for device in domain.devices}
    if restart:
        await planted.restart(objects)
    for kind, obj in objects if not restart else ():
        await planted.plant(kind, obj)
        await planted.product.settle()
    scene = planted.scene(ELSEWHERE)
    await scene.settle()
    await scene.machine("other")
    instance = await scene.running("other")
    [address] = scenario.addresses(instance)
    if kinds.LEDGER_PAGE not in [kind for kind, _ in objects]:
        assert (instance["status"]["nodeName"], address) not in held
    await answers(planted, objects)
    await scene.delete(kinds.VMI, "other")
    await scene.gone("other")


async def answers(planted: PlantedProduct, objects: Iterable[tuple[Kind, Object]]) -> None:
    here, elsewhere = InProcess(planted.store, HERE), InProcess(planted.store, ELSEWHERE)
    asked = [f"{EXPLAINED[kind]}/{obj['metadata']['name']}" for kind, obj in objects if kind in EXPLAINED]
    commands: list[Callable[[], Awaitable[None]]] = [
        lambda: why.why(elsewhere, ["vmi/other"], long=True, how=""),
        lambda: view.list_(here, everywhere=True),
        lambda: listing.devices(here, node=None, states=(), drivers=(), how="table", everything=True),
        lambda: providers.providers(here, node=None, how="table"),
        lambda: history.history(here, "node-0/pci-0000-3b-00-0-vf0", how="table"),
        *(functools.partial(why.why, here, [word], long=True, how="json") for word in (
            "vmi/waits", "vm/green", "vmi/blue", "claim/unused", *asked)),
        *(functools.partial(object_commands.describe, InProcess(planted.store, obj["metadata"].get("namespace", "")),
                            [f"{kind.resource}/{obj['metadata']['name']}"]) for kind, obj in objects)]
    for command in commands:
        with contextlib.suppress(OutfitterError):  # a message: the page of the device cannot be read, or the object is gone
            assert (await said(command()))[0]
    client = asgi.Client(App(planted.store, tokens={"admin": auth.User("admin", (auth.MASTERS,))}))
    for kind in {kind for kind, _ in objects}:
        place = f"/namespaces/{HERE}" if kind.namespaced else ""
        path = f"/{'apis' if kind.group else 'api'}/{kind.api_version}{place}/{kind.plural}"
        for query in ({}, {"labelSelector": "a=b"}):
            reply = await client.call("GET", path, accept=asgi.TABLE, query=query)
            assert reply.status == 200, reply.data
    for kind, obj in objects:
        meta = obj["metadata"]
        place = f"/namespaces/{meta['namespace']}" if kind.namespaced else ""
        path = f"/{'apis' if kind.group else 'api'}/{kind.api_version}{place}/{kind.plural}/{meta['name']}"
        for method, body in (("GET", None), ("DELETE", None), ("PUT", planted.original(kind, obj))):
            reply = await client.call(method, path, body, query={} if body is None and method == "GET" else {"dryRun": "All"})
            assert reply.status < 500, (method, reply.data)
    assert planted.product.metrics.text()


async def said(command: Awaitable[None]) -> tuple[str, str]:
    """What a command prints, and its warnings."""
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as warnings:
        await command
    return out.getvalue(), warnings.getvalue()


Where = tuple[int, int, int]  # which kind, object and field of those that there are: of each number the remainder counts


async def example(plantings: list[tuple[Where, Any]], *, restart: bool) -> None:
    async with planting.running() as planted:
        targets = await planted.targets()
        every = list(dict.fromkeys(kind for kind, _ in targets))
        objects: dict[tuple[Kind, str], Object] = {}
        shown = []
        for (which, name, field), value in plantings:
            kind = every[which % len(every)]
            those = [obj for each, obj in targets if each == kind]
            obj = those[name % len(those)]
            paths = planting.paths(kind, obj)
            path = paths[field % len(paths)]
            objects[kind, obj["metadata"]["uid"]] = planting.with_value(obj, path, value)
            shown.append(f"{kind.kind} {obj['metadata']['name']} {path} = {'ABSENT' if value is ABSENT else value!r}")
        try:
            await survives(planted, *((kind, obj) for (kind, _), obj in objects.items()), restart=restart)
        except BaseException as error:
            error.add_note("\n".join([*shown, f"{restart=}"]))
            raise


NUMBER = st.integers(0, 10**6)
EXAMPLES = given(st.lists(st.tuples(st.tuples(NUMBER, NUMBER, NUMBER), VALUES), min_size=10, max_size=16), st.booleans())
FOUND_FIRST = (Phase.generate,)  # an example takes long: the first that fails is reported as it is


@settings(max_examples=4, phases=FOUND_FIRST)
@EXAMPLES
def test_arbitrary_json_in_any_field(plantings: list[tuple[Where, Any]], restart: bool) -> None:
    asyncio.run(example(plantings, restart=restart))


@pytest.mark.long(seeds=range(8))
def test_arbitrary_json_in_any_field_for_long(seed: int) -> None:
    @settings(max_examples=40, phases=FOUND_FIRST, derandomize=False)
    @hypothesis.seed(seed)
    @EXAMPLES
    def examples(plantings: list[tuple[Where, Any]], restart: bool) -> None:
        asyncio.run(example(plantings, restart=restart))

    examples()


# -- slices


def selector(requirement: Any) -> Object:
    return {"nodeSelectorTerms": [{"matchExpressions": [requirement]}]}


SLICES: dict[str, tuple[str, Object]] = {
    "a node selector that is text": ("spec.nodeSelector", {"nodeSelector": "0"}),
    "a node selector with a key that is an object": (
        "spec.nodeSelector.nodeSelectorTerms[0].matchExpressions[0].key",
        {"nodeSelector": selector({"key": {}, "operator": "Exists"})}),
    "a node selector with an operator that is none": (
        "spec.nodeSelector.nodeSelectorTerms[0].matchExpressions[0].operator",
        {"nodeSelector": selector({"key": "a", "operator": "Like"})}),
    "a device with capacity that is no amount": (
        "spec.devices[0].capacity.memory.value", {"allNodes": True, "devices": [
            {"name": "a", "capacity": {"memory": {"value": {}}}}]}),
}


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("name", SLICES)
async def test_a_slice(name: str, restart: bool) -> None:
    field, spec = SLICES[name]
    async with planting.running() as planted:
        pool = {"name": "bad", "generation": 1, "resourceSliceCount": 1}
        whole: Object = {"driver": "other.example.com", "pool": pool, "devices": []}
        stored = await planted.store.create(kinds.RESOURCE_SLICE, {
            "metadata": {"name": "bad"}, "spec": {**whole, "allNodes": True}})
        bad = {**stored, "spec": {**whole, **spec}}
        await survives(planted, (kinds.RESOURCE_SLICE, bad), restart=restart)
        [event] = [event for event in (await planted.store.list(kinds.EVENT)).items if event["reason"] == "ObjectUnreadable"]
        assert event["involvedObject"]["name"] == "bad"
        assert f"{field}: " in event["message"]
        assert "kubectl edit resourceslices.resource.k8s.io bad" in event["message"]
        assert 'outfitter_unreadable_objects{kind="ResourceSlice"} 1.0' in planted.product.metrics.text()[0].decode()


async def test_a_node_with_an_amount_that_admission_refuses() -> None:
    """It can be read, and no update of it would be admitted: its host writes it without that amount."""
    async with planting.running() as planted:
        node = await planted.store.get(kinds.NODE, planting.HOST)
        amounts = {**node["status"]["allocatable"], "x": "-1", "example.com/fpga": "2"}
        await survives(planted, (kinds.NODE, {**node, "status": {**node["status"], "allocatable": amounts}}), restart=True)
        kept = (await planted.store.get(kinds.NODE, planting.HOST))["status"]["allocatable"]
        assert (kept.get("x"), kept["example.com/fpga"]) == (None, "2")


# -- past bookings


LATER = "2099-01-01T00:00:00Z"
PAST_BOOKINGS = list(itertools.product(
    (("spec",), ("spec", "device"), ("spec", "device", "pool"), ("spec", "holder", "uid"), ("spec", "booked"),
     ("spec", "prepared"), ("spec", "ended"), ("spec", "amount", "capacity"), ("metadata", "uid"),
     ("metadata", "creationTimestamp"), ("metadata", "labels")),
    (5, "x", {}, ABSENT)))

async def test_history_leaves_out_a_past_booking_that_cannot_be_read() -> None:
    async with planting.running() as planted:
        [ended] = (await planted.store.list(kinds.PAST_BOOKING)).items
        device = ended["spec"]["device"]
        removed = await planted.store.create(kinds.PAST_BOOKING, {
            "metadata": {"name": "removed", "labels": {ledger_history.DEVICE: "removed"}},
            "spec": {**ended["spec"], "device": {**device, "device": "removed"}}})
        asked = ((ended, f"{device['pool']}/{device['device']}"), (removed, "removed"))  # a device, and one that is gone
        for (path, value), (past, word) in itertools.product(PAST_BOOKINGS, asked):
            await planted.plant(kinds.PAST_BOOKING, planting.with_value(past, path, value))
            for how in ("table", "json"):
                with contextlib.suppress(OutfitterError):  # there is no device of which nothing is recorded
                    assert (await said(history.history(InProcess(planted.store, HERE), word, how=how)))[0], (path, value)
            assert await ledger_history.expire(planted.store, LATER, timedelta(days=99999)) == 0
        await planted.plant(kinds.PAST_BOOKING, planting.with_value(ended, ("spec", "device"), 5))
        out, warnings = await said(history.history(InProcess(planted.store, HERE), asked[0][1], how="table"))
        assert "no booking is recorded" in out
        assert f"PastBooking {ended['metadata']['name']} cannot be read: spec.device: " in warnings
        await planted.plant(kinds.PAST_BOOKING, planting.with_value(removed, ("metadata", "uid"), ABSENT))
        assert await ledger_history.expire(planted.store, LATER, timedelta(days=1)) == 2


# -- what depends on an object that cannot be read


async def waiting_on_host(planted: PlantedProduct) -> str:
    """A VM that only the planted host can take, and why it waits."""
    scene = planted.scene(ELSEWHERE)
    await scene.machine("bound", nodeSelector={"kubernetes.io/hostname": planting.HOST})

    async def check() -> str:
        return str((await scene.condition("bound", "PodScheduled") or {}).get("message", ""))

    return await scene.reach(check, "bound waits")


async def test_no_device_of_a_host_is_given_out_whose_page_cannot_be_read() -> None:
    async with planting.running() as planted:
        page = await planted.store.get(kinds.LEDGER_PAGE, planting.HOST)
        for restart in (False, True):
            broken = planting.with_value(page, ("spec", "bookings"), "x")
            if restart:
                await planted.restart([(kinds.LEDGER_PAGE, broken)])
            else:
                await planted.plant(kinds.LEDGER_PAGE, broken)
                message = await waiting_on_host(planted)
                assert "LedgerPage node-0 cannot be read: spec.bookings: " in message
            domains = [domain.name for host in planted.product.hosts
                       for domain in (await host.hypervisor.domains()).values()]
            assert sorted(domains) == ["here_blue", "here_green"]
        scene = planted.scene(ELSEWHERE)
        assert RejectionCode.OBJECT_UNREADABLE in rejection_conditions.of(await scene.pod("bound"))
        out, warnings = await said(why.why(InProcess(planted.store, ELSEWHERE), ["vmi/bound"], long=False, how=""))
        assert "LedgerPage node-0 cannot be read" in out
        assert "LedgerPage node-0 cannot be read" in warnings
        await planted.plant(kinds.LEDGER_PAGE, page)
        await scene.running("bound")
        devices = [booking.device for booking in await scene.bookings()]
        assert len(devices) == len(set(devices)) == 3


async def test_a_running_vm_stays_while_its_pod_claim_or_vmi_cannot_be_read() -> None:
    async with planting.running() as planted:
        scene = planted.scene(HERE)
        pod = await scene.pod("blue")
        [claim] = [claim for claim in await scene.all(kinds.RESOURCE_CLAIM)
                   if claim["metadata"]["name"].startswith(pod["metadata"]["name"])]
        vmi = await scene.find(kinds.VMI, "blue")
        assert vmi is not None
        for kind, obj, path in ((kinds.POD, pod, ("spec", "nodeName")), (kinds.POD, pod, ("metadata", "ownerReferences")),
                                (kinds.RESOURCE_CLAIM, claim, ("status", "allocation")), (kinds.VMI, vmi, ("spec",)),
                                (kinds.VMI, vmi, ("metadata", "uid"))):
            for restart in (False, True):
                await survives(planted, (kind, planting.with_value(obj, path, 5)), restart=restart)
                assert "here_blue" in [domain.name for domain in await scene.domains()], (kind.kind, path, restart)
                assert await scene.find(kind, obj["metadata"]["name"])
                await planted.plant(kind, obj)
                scene = planted.scene(HERE)
                await scene.running("blue")
        await scene.check_books()


async def test_a_vm_whose_class_cannot_be_read_waits_with_the_field() -> None:
    async with planting.running() as planted:
        scene = planted.scene(HERE)
        device_class = await planted.store.get(kinds.DEVICE_CLASS, HERE)
        await planted.plant(kinds.DEVICE_CLASS, planting.with_value(device_class, ("spec", "selectors"), {}))
        await scene.machine("red")
        message = await scene.waits("red", "PodScheduled", "DeviceClass here cannot be read: spec.selectors: ")
        assert "kubectl edit deviceclasses.resource.k8s.io here" in message
        assert RejectionCode.OBJECT_UNREADABLE in rejection_conditions.of(await scene.pod("red"))
        await planted.plant(kinds.DEVICE_CLASS, device_class)
        await scene.running("red")


async def test_why_answers_for_an_object_that_cannot_be_read() -> None:
    async with planting.running() as planted:
        scene, client = planted.scene(HERE), InProcess(planted.store, HERE)
        vmi = await scene.find(kinds.VMI, "blue")
        assert vmi is not None
        await planted.plant(kinds.VMI, planting.with_value(vmi, ("spec", "domain"), "x"))
        out, _ = await said(why.why(client, ["vmi/blue"], long=False, how=""))
        assert out.splitlines() == [
            'vmi/blue cannot be read and is skipped: spec.domain: Invalid value: "x": must be an object',
            "  -> repair or delete it: kubectl edit virtualmachineinstances.kubevirt.io blue -n here"]
        out, _ = await said(why.why(client, ["vmi/blue"], long=False, how="json"))
        answer = json.loads(out)
        assert (answer["state"], answer["waitsFor"], answer["codes"]) == ("Unreadable", "repair", ["ObjectUnreadable"])


async def test_an_object_that_cannot_be_read_is_repaired_and_deleted_by_the_api() -> None:
    async with planting.running() as planted:
        client = asgi.Client(App(planted.store, tokens={"admin": auth.User("admin", (auth.MASTERS,))}))
        for kind, name in ((kinds.DEVICE_CLASS, HERE), (kinds.FLAVOR, "small"), (kinds.DEVICE_TAINT_RULE, "rule")):
            good = await planted.store.get(kind, name)
            path = kind.path(name=name)
            own = {field: good["metadata"][field] for field in ("name", "uid", "creationTimestamp")}
            wrong: list[tuple[planting.Path, Any]] = [
                (("spec",), 5), *((("metadata", field), value) for field in planting.METADATA for value in (5, "", ABSENT))]
            for (place, value), sent in itertools.product(wrong, (own, {"name": name})):
                held = planting.with_value(good, ("metadata", "finalizers"), ["example.com/held"])
                await planted.plant(kind, planting.with_value(held, place, value))
                revision = (await planted.store.get(kind, name))["metadata"]["resourceVersion"]
                reply = await client.call("PUT", path, {**good, "metadata": {**sent, "resourceVersion": revision}})
                assert reply.status == 200, (kind.kind, place, value, reply.data)
                assert readable.problem(kind, reply.json) is None, (kind.kind, place, value)
                assert reply.json["metadata"].items() >= (own if sent is own else {}).items()
            for field in ("finalizers", "uid"):
                await planted.plant(kind, planting.with_value(good, ("metadata", field), 5))
                reply = await client.call("DELETE", path, query={"dryRun": "All"})
                assert reply.status == 200, (kind.kind, reply.data)
            command = object_commands.delete(
                InProcess(planted.store, ""), [f"{kind.resource}/{name}"], [], wait=True, timeout=60.0)
            await said(command)
            assert (await client.call("GET", path)).status == 404
