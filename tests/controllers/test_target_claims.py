"""The claims of a migration's target: the first one's spec, narrowed to devices in which its state can arrive."""

from __future__ import annotations

from typing import Any

from outfitter import cel
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import reattached_devices
from outfitter.api.kubevirt.feature_gates import Gates
from outfitter.controllers.migrations import target_claims
from outfitter.scheduling.device_migration import DeviceMigration, SourceView

JOB: Object = {"metadata": {"name": "move", "uid": "job-uid"}, "spec": {}}
SELECTOR: Object = {"cel": {"expression": "true"}}


def claim(request: Object, *results: str, **devices: Any) -> Object:
    given = [{"request": name, "driver": "a.test", "pool": "node-a", "device": f"gpu-{number}"}
             for number, name in enumerate(results)]
    return {"metadata": {"name": "first", "namespace": "lab", "labels": {"team": "red"}, "annotations": {
                "note": "kept", "resource.kubernetes.io/pod-claim-name": "acc"}},
            "spec": {"devices": {"requests": [request], **devices}}, "status": {"allocation": {"devices": {"results": given}}}}


def second(
    source: Object, attributes: Object, entry: Object | None = None, reattached: tuple[DeviceMigration, ...] = ()
) -> list[Object]:
    listed = entry or {"name": "acc", "resourceClaimTemplateName": "one"}
    vmi = {"metadata": {"name": "blue", "namespace": "lab", "uid": "u"}, "status": {"nodeName": "node-a"},
           "spec": {"domain": {"devices": {"gpus": [{"name": "g0", "claimName": "acc", "requestName": "card"}]}},
                    "resourceClaims": [listed]}}
    pod = {"metadata": {"name": "p", "namespace": "lab"}, "spec": {"resourceClaims": [listed]}, "status": {
        "resourceClaimStatuses": [{"name": "acc", "resourceClaimName": "first"}]}}
    view = SourceView(pod, lambda namespace, name: source if name == "first" else None,
                      lambda result, host: {"name": result["device"], "attributes": attributes}, Gates())
    return target_claims.target_claims(vmi, JOB, target_claims.with_reattached(pod, reattached), view)


def selects(made: Object, attributes: Object, driver: str = "a.test") -> bool:
    """Whether the request of a claim is for such a device."""
    [request] = made["spec"]["devices"]["requests"]
    body = request.get("exactly") or request["firstAvailable"][0]
    device = cel.CelDevice.from_slice(driver, {"name": "x", "attributes": attributes})
    return all(cel.compile_selector(one["cel"]["expression"]).matches(device) for one in body["selectors"])


MARKED: Object = {"liveMigratable": {"bool": True}}
EXACT: Object = {"name": "card", "exactly": {"deviceClassName": "c", "selectors": [SELECTOR]}}


def test_state_arrives_in_a_marked_device_of_the_same_driver_and_product() -> None:
    [made] = second(claim(EXACT, "card"), MARKED | {"product": {"string": "20b0"}})
    assert made["spec"]["devices"]["requests"][0]["exactly"]["selectors"][0] == SELECTOR, "what the claim asks for stays"
    assert selects(made, MARKED | {"product": {"string": "20b0"}})
    assert not selects(made, {"product": {"string": "20b0"}})
    assert not selects(made, MARKED | {"product": {"string": "20b1"}})
    assert not selects(made, MARKED | {"product": {"string": "20b0"}}, "b.test")
    [plain] = second(claim(EXACT, "card"), MARKED)
    assert selects(plain, MARKED | {"product": {"string": "20b1"}}), "a driver that publishes no product"


def test_mediated_device_arrives_in_a_mediated_device_of_its_type() -> None:
    uuid: Object = {"mdevUUID": {"string": "aa"}}
    [made] = second(claim(EXACT, "card"), uuid | {"mdevType": {"string": "nvidia-63"}})
    assert selects(made, uuid | {"mdevType": {"string": "nvidia-63"}})
    assert not selects(made, {"mdevType": {"string": "nvidia-63"}})
    assert not selects(made, uuid | {"mdevType": {"string": "nvidia-64"}})


def test_device_that_is_reattached_is_replaced_by_any_of_the_same_driver_and_product() -> None:
    reattached = (DeviceMigration("g0", "reattached", list="gpus"),)
    for had in ({}, MARKED):
        [made] = second(claim(EXACT, "card"), had | {"product": {"string": "20b0"}}, reattached=reattached)
        assert selects(made, {"product": {"string": "20b0"}})
        assert selects(made, MARKED | {"product": {"string": "20b0"}})
        assert not selects(made, {"product": {"string": "20b1"}})
        assert not selects(made, {"product": {"string": "20b0"}}, "b.test")


def test_target_that_reattaches_devices_is_a_host_that_plugs_them() -> None:
    pod: Object = {"metadata": {"name": "t"}, "spec": {"nodeSelector": {"zone": "a"}}}
    others = (DeviceMigration("g0", "travels", list="gpus"), DeviceMigration("fast", "reattached"))
    assert target_claims.with_reattached(pod, others) == pod
    found = target_claims.with_reattached(pod, (*others, DeviceMigration("g1", "reattached", list="gpus")))
    assert found["spec"]["nodeSelector"] == {"zone": "a", "outfitter.dev/plug-in-place": "true"}
    assert reattached_devices.planned_for(found) == {("gpus", "g1")}


def test_same_alternative_and_as_many_devices() -> None:
    either = {"name": "card", "firstAvailable": [
        {"name": "big", "deviceClassName": "c"}, {"name": "small", "deviceClassName": "c", "allocationMode": "All"}]}
    [made] = second(claim(either, "card/small", "card/small", constraints=[
        {"requests": ["card/big"], "matchAttribute": "a/x"}, {"requests": ["card/big", "card/small"], "matchAttribute": "a/y"},
        {"matchAttribute": "a/z"}], config=[{"requests": ["card/big"], "opaque": {}}]), MARKED)
    devices = made["spec"]["devices"]
    [alternative] = devices["requests"][0]["firstAvailable"]
    assert (alternative["name"], alternative["allocationMode"], alternative["count"]) == ("small", "ExactCount", 2)
    assert devices["constraints"] == [{"requests": ["card/small"], "matchAttribute": "a/y"}, {"matchAttribute": "a/z"}]
    assert devices["config"] == []


def test_second_claim_names_the_first_and_goes_with_the_pod() -> None:
    source = claim(EXACT, "card")
    [made] = second(source, MARKED)
    meta = made["metadata"]
    assert (meta["labels"], meta["annotations"]) == ({"team": "red"}, {
        "note": "kept", target_claims.REPLACES: "first", target_claims.ENTRY: "acc"})
    assert [made] == second(source, MARKED), "the same for the same migration"
    again = {**made, "status": source["status"]}
    assert len(second({**again, "metadata": {**meta, "name": "first"}}, MARKED)[0]["spec"]["devices"]["requests"][0]["exactly"][
        "selectors"]) == 2, "a second migration adds nothing"
    pod = target_claims.with_target_claims({"metadata": {"name": "t", "uid": "t-uid"}, "spec": {"resourceClaims": [
        {"name": "acc", "resourceClaimTemplateName": "one"}, {"name": "nics", "resourceClaimTemplateName": "vf"}]}}, [made])
    assert pod["spec"]["resourceClaims"] == [
        {"name": "acc", "resourceClaimName": meta["name"]}, {"name": "nics", "resourceClaimTemplateName": "vf"}]
    [owner] = target_claims.owned_by(made, pod)["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"], owner["controller"]) == ("Pod", "t-uid", True)
