"""PoolStatuses: counts for users who may not see who holds devices."""

from __future__ import annotations

import json

from outfitter.api import kinds
from outfitter.api.kinds import Object
from outfitter.apiserver.aggregated.pool_status import KEPT
from outfitter.store.clock import ManualClock
from outfitter.store.memory import Memory
from tests.apiserver.aggregated.proxied import ProxiedClient, Reviews, SeamStore
from tests.apiserver.asgi import TABLE
from tests.cli.test_device_view import BLUE, booking, page, published, vf

POOLS = "/apis/status.outfitter.dev/v1alpha1/poolstatuses"


def rule(*, effect: str, **selector: str) -> Object:
    """A DeviceTaintRule, of one device unless another selector is given."""
    chosen = selector or {"device": vf(2)["name"]}
    return {"metadata": {"name": effect.lower()},
            "spec": {"deviceSelector": chosen, "taint": {"key": "a.b/c", "effect": effect}}}


async def fill(store: SeamStore) -> None:
    """Beneath admission, which would ask for the node and more."""
    plain = Memory(clock=store.clock)
    for kind, obj in ((kinds.RESOURCE_SLICE, published(vf(0), vf(1), vf(2))), (kinds.LEDGER_PAGE, page(booking()))):
        store.listed[kind] = [await plain.create(kind, obj)]
    await plain.close()


async def test_counts_name_no_holder(proxied: ProxiedClient, ruled: SeamStore, reviews: Reviews) -> None:
    await fill(ruled)
    answer = await proxied.get(POOLS)
    assert answer.json == {"kind": "PoolStatusList", "apiVersion": "status.outfitter.dev/v1alpha1", "metadata": {}, "items": [
        {"kind": "PoolStatus", "apiVersion": "status.outfitter.dev/v1alpha1",
         "metadata": {"name": "pci.outfitter.dev.node-0"}, "driver": "pci.outfitter.dev", "poolName": "node-0",
         "nodeName": "node-0", "generation": 1, "resourceSliceCount": 1, "totalDevices": 3, "allocatedDevices": 1,
         "availableDevices": 2, "unavailableDevices": 0}]}
    assert reviews.asked[-1]["resourceAttributes"] == {
        "verb": "list", "group": "status.outfitter.dev", "version": "v1alpha1", "resource": "poolstatuses", "namespace": "",
        "subresource": "", "name": ""}
    shown = (await proxied.get(POOLS, accept=TABLE)).json
    assert shown["rows"][0]["cells"] == ["node-0", "pci.outfitter.dev", "node-0", 3, 1, 2, 0]
    for text in (answer.data.decode(), json.dumps(shown)):
        assert not any(word in text for word in (BLUE.name, BLUE.uid, "blue", "default", "card-vf"))


async def test_devices_that_a_rule_taints_are_unavailable(proxied: ProxiedClient, ruled: SeamStore) -> None:
    await fill(ruled)
    rules = [rule(effect="NoSchedule"), rule(effect="None", driver="pci.outfitter.dev")]
    ruled.listed[kinds.DEVICE_TAINT_RULE] = [await ruled.create(kinds.DEVICE_TAINT_RULE, each) for each in rules]
    [pool] = (await proxied.get(POOLS)).json["items"]
    assert (pool["allocatedDevices"], pool["availableDevices"], pool["unavailableDevices"]) == (1, 1, 1)


async def test_a_cluster_without_taint_rules_is_counted(proxied: ProxiedClient, ruled: SeamStore) -> None:
    await fill(ruled)
    ruled.unknown = {kinds.DEVICE_TAINT_RULE}
    [pool] = (await proxied.get(POOLS)).json["items"]
    assert pool["availableDevices"] == 2


async def test_the_ledger_is_read_at_most_every_few_seconds(
    proxied: ProxiedClient, ruled: SeamStore, clock: ManualClock
) -> None:
    await fill(ruled)
    for _ in range(3):
        assert len((await proxied.get(POOLS)).json["items"]) == 1
    ruled.listed = {}
    assert len((await proxied.get(POOLS)).json["items"]) == 1
    clock.advance(KEPT)
    assert (await proxied.get(POOLS)).json["items"] == []


async def test_refused_users_and_requests(proxied: ProxiedClient, reviews: Reviews) -> None:
    assert (await proxied.get(POOLS, watch="1")).status == 405
    assert (await proxied.post(POOLS, {})).status == 405
    assert (await proxied.get(f"{POOLS}/pci.outfitter.dev.node-0")).status == 404
    reviews.allowed = False
    answer = await proxied.get(POOLS)
    assert (answer.status, answer.json["message"]) == (403, (
        'poolstatuses.status.outfitter.dev is forbidden: User "bob" cannot list resource "poolstatuses" in API group '
        '"status.outfitter.dev" at the cluster scope'))
