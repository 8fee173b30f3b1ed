"""Why a VM, pod or claim waits or what it has: states and codes as a table, the words as a golden file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from outfitter.api.device import DeviceId
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import vm as vm_api
from outfitter.api.ledger_page.page import OutOfServiceRecord, Page
from outfitter.api.rejection import RejectionCode
from outfitter.scheduling.explain import claim as explain_claim
from outfitter.scheduling.explain import pod as explain_pod
from outfitter.scheduling.explain import vm
from outfitter.scheduling.explain.cluster_objects import ClusterObjects
from outfitter.scheduling.explain.explanation import Explanation
from tests import golden
from tests.rejected import Code
from tests.scheduling.builders import CLASSES, DRIVER, SINCE, VF, A, allocated, ask, claim, dev, node, page, part, pod

# -- explain: what a person reads


def instance(**status: Any) -> Object:
    return {"metadata": {"name": "blue", "namespace": "here", "uid": "uid-blue"}, "status": status, "spec": {
        "resourceClaims": [{"name": "entry-c", "resourceClaimName": "c"}],
        "domain": {"devices": {"hostDevices": [{"name": "nic0", "claimName": "entry-c", "requestName": "nic"}]}}}}


MISSPELT = {**instance()["spec"], "domain": {"devices": {"hostDevices": [
    {"name": "nic0", "claimName": "entry-c", "requestName": "nik"}]}}}


def cluster(*pods: Object, claims: Sequence[Object] = (), pages: Sequence[Page] = ()) -> ClusterObjects:
    return ClusterObjects([], pods, claims, list(CLASSES.values()), [A], [entry.object for entry in pages], [node("a")])


def launcher(**more: Any) -> Object:
    made = pod("c", **more.pop("spec", {}))
    made["metadata"]["ownerReferences"] = [
        {"kind": "VirtualMachineInstance", "uid": "uid-blue", "name": "blue", "controller": True}]
    return {**made, **more}


GIVEN = {"hostDeviceStatuses": [{"name": "nic0", "deviceResourceClaimStatus": {
    "name": "a0", "resourceClaimName": "c", "attributes": {"pciAddress": "0000:3b:01.0"}}}]}
UNRELEASED = {"type": "DevicesUnreleased", "status": "True", "reason": "FailedReleaseDevices", "message": "read-only"}
ANSWERS: dict[str, tuple[Explanation, str, tuple[RejectionCode, ...]]] = {
    "a VM that runs": (
        vm.instance(cluster(), instance(phase="Running", nodeName="a", deviceStatus=GIVEN)),
        "Running",
        (),
    ),
    "a VM that is paused": (
        vm.instance(
            cluster(),
            instance(
                phase="Running",
                nodeName="a",
                deviceStatus=GIVEN,
                conditions=[{"type": "Paused", "status": "True", "reason": "PausedIOError", "message": "no space left"}],
            ),
        ),
        "Paused",
        (),
    ),
    "a VM without a pod": (
        vm.instance(cluster(), instance(conditions=[{"type": "Synchronized", "status": "False", "message": "no room"}])),
        "Waiting pod",
        (),
    ),
    "a VM that failed": (
        vm.instance(cluster(), instance(phase="Failed", conditions=[{"type": "Ready", "message": "gone"}])),
        "Failed",
        (),
    ),
    "a VM that failed and still holds its device": (
        vm.instance(cluster(launcher(status={"phase": "Failed", "conditions": [UNRELEASED]})), instance(phase="Failed")),
        "Failed",
        (),
    ),
    "a pod that ended and still holds its device": (
        explain_pod.pod(cluster(), launcher(status={"phase": "Succeeded", "message": "done", "conditions": [UNRELEASED]})),
        "Ended",
        (),
    ),
    "a VM that waits for a device": (
        vm.instance(cluster(launcher(), claims=[claim("c")], pages=[page("a", ("a0", "train"))]), instance(phase="Scheduling")),
        "Waiting devices",
        (Code.TOO_FEW_FREE,),
    ),
    "a VM whose node gives the reason": (
        vm.instance(
            cluster(
                launcher(spec={"nodeName": "a"}, status={"phase": "Pending", "message": "a0 is held by x"}),
                claims=[claim("c")],
                pages=[page("a", ("a0", "c"))],
            ),
            instance(phase="Scheduling"),
        ),
        "Waiting node",
        (),
    ),
    "a VM that named a request which its claim does not have": (
        vm.instance(
            cluster(),
            instance(
                phase="Failed",
                conditions=[
                    {"type": "Ready", "status": "False", "reason": "SyncFailed", "message": 'claim c has no request "nik"'},
                    {"type": "rejected.outfitter.dev/RequestMissing", "status": "True", "reason": "RequestMissing"},
                ],
            )
            | {"spec": MISSPELT},
        ),
        "Failed",
        (),
    ),
    "a VM whose devices are not known on its host": (
        vm.instance(
            cluster(
                launcher(spec={"nodeName": "a"}, status={"phase": "Running"}),
                claims=[claim("c")],
                pages=[page("a", ("a0", "c"))],
            ),
            instance(
                phase="Scheduled",
                conditions=[{"type": "DevicesReady", "status": "False", "message": "nic0: a0 is not published by pci.test"}],
            ),
        ),
        "Waiting deviceStatus",
        (),
    ),
    "a claim that another VM uses": (
        explain_pod.pod(
            cluster(launcher(), claims=[claim("c", **allocated("a", "a0", users=["pod", "web"]))]),
            {**pod("c"), "metadata": {**pod("c")["metadata"], "name": "second", "uid": "uid-second"}},
        ),
        "Waiting claim",
        (Code.CLAIM_IN_USE,),
    ),
    "a VM whose node prepares its device": (
        vm.instance(
            cluster(
                launcher(spec={"nodeName": "a"}, status={"phase": "Pending"}),
                claims=[claim("c")],
                pages=[page("a", ("a0", "c"))],
            ),
            instance(phase="Scheduled", deviceStatus=GIVEN),
        ),
        "Waiting node",
        (),
    ),
    "a pod on a node that went": (
        explain_pod.pod(cluster(), pod(nodeName="z")),
        "Waiting node",
        (),
    ),
    "a VM on a node that went": (
        vm.instance(cluster(pages=[page("z")]), instance(phase="Running", nodeName="z")),
        "Waiting node",
        (),
    ),
    "a VM on a node that is not ready": (
        vm.instance(
            replace(cluster(), nodes=[node("a", ready=False)]), instance(phase="Running", nodeName="a", deviceStatus=GIVEN)
        ),
        "Waiting node",
        (),
    ),
    "a VM whose node may not be read": (
        vm.instance(
            replace(cluster(), nodes=[], unread=("nodes",)), instance(phase="Running", nodeName="a", deviceStatus=GIVEN)
        ),
        "Running",
        (),
    ),
    "a claim that is going and was prepared by a node that went": (
        explain_claim.claim(
            cluster(pages=[page("z", ("a0", "c"), state="prepared")]),
            {**claim("c"), "metadata": {**claim("c")["metadata"], "deletionTimestamp": SINCE, "finalizers": ["f"]}},
        ),
        "Deleting end",
        (),
    ),
    "a pod with scheduling gates": (
        explain_pod.pod(cluster(), pod(schedulingGates=[{"name": "a.test/quota"}])),
        "Waiting gates",
        (),
    ),
    "a pod of another owner's scheduler": (
        explain_pod.pod(cluster(claims=[claim("c")]), pod("c", schedulerName="volcano")),
        "Waiting scheduler",
        (),
    ),
    "a pod that fits, and kube-scheduler says no": (
        explain_pod.pod(
            cluster(claims=[claim("c")]),
            {
                **pod("c"),
                "status": {
                    "conditions": [
                        {"type": "PodScheduled", "status": "False", "message": "0/1 nodes are available: 1 too sunny."}
                    ]
                },
            },
        ),
        "Waiting scheduler",
        (),
    ),
    "what a claim of another driver holds counts without a page": (
        explain_pod.pod(cluster(claims=[claim("c"), claim("d", **allocated("a", "a0", users=["web"]))]), pod("c")),
        "Waiting devices",
        (Code.TOO_FEW_FREE,),
    ),
    "a VM that is going": (
        vm.instance(
            cluster(),
            {
                **instance(),
                "metadata": {**instance()["metadata"], "deletionTimestamp": SINCE, "finalizers": [vm_api.FINALIZER]},
            },
        ),
        "Deleting end",
        (),
    ),
    "a pod that fits": (
        explain_pod.pod(cluster(claims=[claim("c")]), launcher()),
        "Fits scheduler",
        (),
    ),
    "a pod whose claim is not there": (
        explain_pod.pod(cluster(claims=[claim("cc")]), pod("c")),
        "Waiting claim",
        (Code.CLAIM_MISSING,),
    ),
    "a claim that holds": (
        explain_claim.claim(cluster(pages=[page("a", ("a0", "c"), state="prepared")]), claim("c")),
        "Holding",
        (),
    ),
    "a claim of another driver that holds": (
        explain_claim.claim(cluster(), claim("c", **allocated("a", "a0", users=["web"]))),
        "Holding",
        (),
    ),
    "a claim that is going": (
        explain_claim.claim(
            cluster(),
            {
                **claim("c", **allocated("a", "a0", users=["web"])),
                "metadata": {**claim("c")["metadata"], "deletionTimestamp": SINCE},
            },
        ),
        "Deleting end",
        (),
    ),
    "a claim that is not used": (
        explain_claim.claim(cluster(), claim("c")),
        "Unused",
        (),
    ),
    "a claim whose pod waits": (
        explain_claim.claim(cluster(launcher(spec={"nodeSelector": {"zone": "east"}}), claims=[claim("c")]), claim("c")),
        "Waiting devices",
        (Code.NODE_SELECTOR,),
    ),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_explain(name: str) -> None:
    answer, state, codes = ANSWERS[name]
    assert f"{answer.state} {answer.waits_for}".strip() == state
    assert answer.codes == codes


def test_words() -> None:
    golden.check(
        __file__,
        "explain",
        {name: answer.text() for name, (answer, _, _) in ANSWERS.items()}
        | {
            "with every host and device": LONG.text(long=True),
            "what to type for more": LONG.text(more="outfit why pod/pod --long"),
            "without the right to read nodes": UNREADABLE.text(),
            **{name: relief(name).todo for name in RELIEF},
            "what can never be": NEVER.todo,
            "a cordoned host that would do": UNCORDON.todo,
        },
    )


def test_an_answer_for_programs() -> None:
    answer = explain_pod.pod(cluster(claims=[claim("c")], pages=[page("a", ("a0", "train"))]), pod("c"))
    short, long = answer.to_object(), answer.to_object(long=True)
    assert (short["state"], short["waitsFor"]) == ("Waiting", "devices")
    [reason] = short["reasons"]
    assert (reason["hosts"], short["codes"], "hosts" in short) == (["a"], ["TooFewFree"], False)
    assert _without_message(reason["rejections"]) == [
        {"code": "TooFewFree", "detail": {"request": "nic", "wanted": 1, "match": 1, "free": 0}}]
    [host] = long["hosts"]
    assert (host["host"], host["rejections"]) == ("a", reason["rejections"])
    assert _without_message(host["devices"]) == [{
        "code": "Held", "device": {"driver": DRIVER, "pool": "a", "name": "a0"}, "since": SINCE, "detail": {"request": "nic"},
        "holder": {"kind": "ResourceClaim", "namespace": "here", "name": "train", "uid": "uid-train", "purpose": "vmi/train"}}]


def test_a_rejection_of_the_pod_itself_for_programs() -> None:
    found = explain_pod.pod(cluster(claims=[claim("cc")]), pod("c")).to_object()
    assert (found["waitsFor"], found["codes"]) == ("claim", ["ClaimMissing"])
    assert _without_message(found["rejections"]) == [{"code": "ClaimMissing", "detail": {"claim": "c", "entry": "entry-c"}}]


def _without_message(rejections: Sequence[Object]) -> list[Object]:
    assert all(rejection["message"] for rejection in rejections)
    return [{key: value for key, value in rejection.items() if key != "message"} for rejection in rejections]


UNREADABLE = explain_pod.pod(
    replace(cluster(claims=[claim("c")]), unread=("nodes",)),
    {**pod("c"), "status": {"conditions": [{"type": "PodScheduled", "status": "False", "message": "no room"}]}})
LONG = explain_pod.pod(cluster(claims=[claim("c")], pages=[page("a", ("a0", "train"))]), pod("c"))


def test_user_without_access_to_hosts_sees_the_schedulers_message() -> None:
    assert (UNREADABLE.state, UNREADABLE.waits_for, UNREADABLE.codes) == ("Waiting", "scheduler", ())
    assert "no room" in UNREADABLE.sentence
    assert "nodes" in UNREADABLE.lines[0]


RELIEF: dict[str, tuple[int, dict[str, str], dict[str, str], list[tuple[str, ...]]]] = {  # what each line of advice names
    "one of two": (1, {"a0": "red", "a1": "blue"}, {}, [("a", "vmi/red", "vmi/blue")]),
    "two together": (2, {"a0": "red", "a1": "blue"}, {}, [("a", "vmi/red", "vmi/blue")]),
    "an out-of-service record": (2, {"a0": "red"}, {"a1": "reserved"}, []),
    "a record alone": (1, {"a0": "red"}, {"a1": "quarantined"}, [("outfit device restore a/a1",), ("a", "vmi/red")]),
}


def relief(name: str) -> Explanation:
    count, held, marks, _ = RELIEF[name]
    taken = page("a", *held.items())
    for device, which in marks.items():
        taken = Page(taken.with_records(which, [OutOfServiceRecord(DeviceId(DRIVER, "a", device), "", "admin", SINCE)]))  # type: ignore[arg-type]
    known = replace(cluster(claims=[claim("c", ask("nic", count=count))], pages=[taken]),
                    slices=[part("a", dev("a0", **VF), dev("a1", **VF))])
    return explain_pod.pod(known, pod("c"))


@pytest.mark.parametrize("name", RELIEF)
def test_what_would_help_is_tried_out(name: str) -> None:
    wanted = RELIEF[name][3]
    found = relief(name).todo
    assert len(found) == len(wanted)
    assert all(word in line for line, words in zip(found, wanted, strict=True) for word in words)


NEAR = {**claim("c"), "spec": {"devices": {"requests": [ask("nic", count=2)],
                                           "constraints": [{"matchAttribute": f"{DRIVER}/numa"}]}}}
NEVER = explain_pod.pod(
    replace(cluster(claims=[NEAR]), slices=[part("a", *(dev(f"a{n}", kind="VF", numa=n) for n in range(2)))]), pod("c"))
CORDONED = replace(cluster(claims=[claim("c")]), nodes=[node("a", cordoned=True)])
UNCORDON = explain_pod.pod(CORDONED, pod("c"))


def test_impossible_request_is_reported() -> None:
    assert NEVER.codes == (Code.CONSTRAINT_UNMET,)
    assert [line.split()[0] for line in NEVER.todo] == ["a"]


def test_cordoned_host_that_would_fit_is_suggested() -> None:
    assert UNCORDON.codes == (Code.NODE_CORDONED,)
    assert ["kubectl uncordon a" in line for line in UNCORDON.todo] == [True]
    full = replace(CORDONED, pages=[page("a", ("a0", "train")).object])
    assert explain_pod.pod(full, pod("c")).todo == ()


def test_times_are_rendered_from_values_and_sentences_are_not_edited() -> None:
    def shown(stored: str) -> str:
        return f"<{stored}>"

    waits = replace(cluster(launcher(), claims=[claim("c")], pages=[page("a", ("a0", "train"))]), time=shown)
    [line] = [each for each in vm.instance(waits, instance(phase="Scheduling")).text(time=shown) if "held by" in each]
    assert f"since <{SINCE}>" in line
    message = {"phase": "Pending", "message": f"a0 failed at {SINCE}"}
    there = replace(cluster(launcher(spec={"nodeName": "a"}, status=message), claims=[claim("c")],
                            pages=[page("a", ("a0", "c"))]), time=shown)
    first, held, *_ = vm.instance(there, instance(phase="Scheduling")).text(time=shown)
    assert first.endswith(f"a0 failed at {SINCE}"), "the node's own words"
    assert f"since <{SINCE}>" in held
