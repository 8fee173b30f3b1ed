"""What a person reads of a pod that waits, has what it wanted, or can never have it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from outfitter.api.device import DeviceId
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import vm as vm_api
from outfitter.api.page import OutOfServiceRecord, Page
from outfitter.scheduling.explain import claim as explain_claim
from outfitter.scheduling.explain import pod as explain_pod
from outfitter.scheduling.explain import vm
from outfitter.scheduling.explain.cluster_objects import Facts
from outfitter.scheduling.explain.explanation import Explanation
from tests.scheduling.builders import CLASSES, DRIVER, HELD, SINCE, VF, A, allocated, ask, claim, dev, node, page, part, pod

# -- explain: what a person reads


def instance(**status: Any) -> Object:
    return {"metadata": {"name": "blue", "namespace": "here", "uid": "uid-blue"}, "status": status, "spec": {
        "resourceClaims": [{"name": "entry-c", "resourceClaimName": "c"}],
        "domain": {"devices": {"hostDevices": [{"name": "nic0", "claimName": "entry-c", "requestName": "nic"}]}}}}


def facts(*pods: Object, claims: Sequence[Object] = (), pages: Sequence[Page] = ()) -> Facts:
    return Facts([], pods, claims, list(CLASSES.values()), [A], [entry.object for entry in pages], [node("a")])


def launcher(**more: Any) -> Object:
    made = pod("c", **more.pop("spec", {}))
    made["metadata"]["ownerReferences"] = [
        {"kind": "VirtualMachineInstance", "uid": "uid-blue", "name": "blue", "controller": True}]
    return {**made, **more}


GIVEN = {"hostDeviceStatuses": [{"name": "nic0", "deviceResourceClaimStatus": {
    "name": "a0", "resourceClaimName": "c", "attributes": {"pciAddress": "0000:3b:01.0"}}}]}
ANSWERS: dict[str, tuple[Explanation, str, list[str]]] = {
    "a machine that runs": (
        vm.instance(facts(), instance(phase="Running", nodeName="a", deviceStatus=GIVEN)),
        "Running",
        ["vmi/blue runs on a: nothing is wrong", "  nic0: a0 at 0000:3b:01.0 (claim c)"],
    ),
    "a machine that is paused": (
        vm.instance(
            facts(),
            instance(
                phase="Running",
                nodeName="a",
                deviceStatus=GIVEN,
                conditions=[{"type": "Paused", "status": "True", "reason": "PausedIOError", "message": "no space left"}],
            ),
        ),
        "Paused",
        ["vmi/blue stands still on a: no space left", "  nic0: a0 at 0000:3b:01.0 (claim c)", "  -> outfit vm unpause blue"],
    ),
    "a machine without a pod": (
        vm.instance(facts(), instance(conditions=[{"type": "Synchronized", "status": "False", "message": "no room"}])),
        "Waiting pod",
        ["vmi/blue has no pod yet: no room"],
    ),
    "a machine that failed": (
        vm.instance(facts(), instance(phase="Failed", conditions=[{"type": "Ready", "message": "gone"}])),
        "Failed",
        ["vmi/blue has failed: gone"],
    ),
    "a machine that waits for a device": (
        vm.instance(facts(launcher(), claims=[claim("c")], pages=[page("a", ("a0", "train"))]), instance(phase="Scheduling")),
        "Waiting devices",
        [
            "vmi/blue waits: 0/1 hosts are available: the devices that it asks for are there, but not to be had now",
            f"  a: request nic wants 1: 1 match, 0 free (a0: held by vmi/train since {SINCE})",
            "  -> a could take it once vmi/train ends",
        ],
    ),
    "a machine whose node says why": (
        vm.instance(
            facts(
                launcher(spec={"nodeName": "a"}, status={"phase": "Pending", "message": "a0 is held by x"}),
                claims=[claim("c")],
                pages=[page("a", ("a0", "c"))],
            ),
            instance(phase="Scheduling"),
        ),
        "Waiting node",
        [
            "vmi/blue is Scheduling: pod/pod is on a and Pending: a0 is held by x",
            f"  a0 on a for request nic: booked since {SINCE}, by vmi/c",
            "  devices not known yet: nic0",
        ],
    ),
    "a machine whose devices are not known on its host": (
        vm.instance(
            facts(
                launcher(spec={"nodeName": "a"}, status={"phase": "Running"}),
                claims=[claim("c")],
                pages=[page("a", ("a0", "c"))],
            ),
            instance(
                phase="Scheduled",
                conditions=[{"type": "DevicesReady", "status": "False", "message": "nic0: claim c has no request nik"}],
            ),
        ),
        "Waiting deviceStatus",
        [
            "vmi/blue waits on a: nic0: claim c has no request nik",
            f"  a0 on a for request nic: booked since {SINCE}, by vmi/c",
            "  -> outfit delete vmi blue, and apply it again with a requestName that there is",
        ],
    ),
    "a claim that another machine uses": (
        explain_pod.pod(
            facts(launcher(), claims=[claim("c", **allocated("a", "a0", users=["pod", "web"]))]),
            {**pod("c"), "metadata": {**pod("c")["metadata"], "name": "second", "uid": "uid-second"}},
        ),
        "Waiting claim",
        [
            "pod/second waits: claim c is in use by vmi/blue, pod/web",
            "  -> it can start once vmi/blue and pod/web end; or give it a claim of its own (resourceClaimTemplateName)",
        ],
    ),
    "a machine whose node prepares its device": (
        vm.instance(
            facts(
                launcher(spec={"nodeName": "a"}, status={"phase": "Pending"}),
                claims=[claim("c")],
                pages=[page("a", ("a0", "c"))],
            ),
            instance(phase="Scheduled", deviceStatus=GIVEN),
        ),
        "Waiting node",
        [
            "vmi/blue is Scheduled: pod/pod is on a and Pending: the node agent there prepares a0",
            f"  a0 on a for request nic: booked since {SINCE}, by vmi/c",
        ],
    ),
    "a pod on a node that went": (
        explain_pod.pod(facts(), pod(nodeName="z")),
        "Waiting node",
        ["pod/pod is on z, which does not exist any more: what was there is ended within a minute"],
    ),
    "a machine on a node that went": (
        vm.instance(facts(pages=[page("z")]), instance(phase="Running", nodeName="z")),
        "Waiting node",
        [
            "vmi/blue is on z, which does not exist any more: what was there is ended within a minute",
            "  -> outfit delete page z, which gives back what was handed over there",
        ],
    ),
    "a machine on a node that is not ready": (
        vm.instance(
            replace(facts(), nodes=[node("a", ready=False)]), instance(phase="Running", nodeName="a", deviceStatus=GIVEN)
        ),
        "Waiting node",
        [
            "vmi/blue is on a, which is not ready: the kubelet stopped posting",
            "  nic0: a0 at 0000:3b:01.0 (claim c)",
            "  -> see whether the node agent runs on a",
        ],
    ),
    "a machine whose node may not be read": (
        vm.instance(replace(facts(), nodes=[], unread=("nodes",)), instance(phase="Running", nodeName="a", deviceStatus=GIVEN)),
        "Running",
        ["vmi/blue runs on a: nothing is wrong", "  nic0: a0 at 0000:3b:01.0 (claim c)"],
    ),
    "a claim that is going and was handed over by a node that went": (
        explain_claim.claim(
            facts(pages=[page("z", ("a0", "c"), state="prepared")]),
            {**claim("c"), "metadata": {**claim("c")["metadata"], "deletionTimestamp": SINCE, "finalizers": ["f"]}},
        ),
        "Deleting end",
        [
            f"claim/c is being deleted since {SINCE}; it waits for f",
            f"  a0 on z for request nic: prepared since {SINCE}, by vmi/c",
            "  -> outfit delete page z, which gives back what was handed over there",
        ],
    ),
    "a pod with scheduling gates": (
        explain_pod.pod(facts(), pod(schedulingGates=[{"name": "a.test/quota"}])),
        "Waiting gates",
        [
            "pod/pod waits until its scheduling gates are taken away: a.test/quota",
            "  -> whoever set them takes them out of spec.schedulingGates",
        ],
    ),
    "a pod of somebody else's scheduler": (
        explain_pod.pod(facts(claims=[claim("c")]), pod("c", schedulerName="volcano")),
        "Waiting scheduler",
        [
            "pod/pod waits for scheduler volcano, which is not ours",
            "  by what is published and held it fits on a",
            "  -> see whether volcano runs, or take spec.schedulerName out",
        ],
    ),
    "a pod that fits, and kube-scheduler says no": (
        explain_pod.pod(
            facts(claims=[claim("c")]),
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
        [
            "pod/pod waits for default-scheduler; by what is published and held it fits on a",
            "  default-scheduler says: 0/1 nodes are available: 1 too sunny.",
        ],
    ),
    "what a claim of another driver holds counts without a page": (
        explain_pod.pod(facts(claims=[claim("c"), claim("d", **allocated("a", "a0", users=["web"]))]), pod("c")),
        "Waiting devices",
        [
            "pod/pod waits: 0/1 hosts are available: the devices that it asks for are there, but not to be had now",
            "  a: request nic wants 1: 1 match, 0 free (a0: held by pod/web in here)",
            "  -> a could take it once pod/web ends",
        ],
    ),
    "a machine that is going": (
        vm.instance(
            facts(),
            {
                **instance(),
                "metadata": {**instance()["metadata"], "deletionTimestamp": SINCE, "finalizers": [vm_api.FINALIZER]},
            },
        ),
        "Deleting end",
        [f"vmi/blue is being deleted since {SINCE}; it waits for foregroundDeleteVirtualMachine"],
    ),
    "a pod that fits": (
        explain_pod.pod(facts(claims=[claim("c")]), launcher()),
        "Fits scheduler",
        ["pod/pod fits on a and is about to be given it"],
    ),
    "a pod whose claim is not there": (
        explain_pod.pod(facts(claims=[claim("cc")]), pod("c")),
        "Waiting claim",
        [
            "pod/pod waits: claim c (resourceClaims entry entry-c) does not exist",
            "  -> apply a ResourceClaim c in namespace here; did you mean cc?",
        ],
    ),
    "a claim that holds": (
        explain_claim.claim(facts(pages=[page("a", ("a0", "c"), state="prepared")]), claim("c")),
        "Holding",
        ["claim/c holds 1 device: nothing is wrong", f"  a0 on a for request nic: prepared since {SINCE}, by vmi/c"],
    ),
    "a claim of another driver that holds": (
        explain_claim.claim(facts(), claim("c", **allocated("a", "a0", users=["web"]))),
        "Holding",
        ["claim/c holds 1 device for pod/web in here: nothing is wrong", f"  a0 of pool a ({DRIVER}) for request nic"],
    ),
    "a claim that is going": (
        explain_claim.claim(
            facts(),
            {
                **claim("c", **allocated("a", "a0", users=["web"])),
                "metadata": {**claim("c")["metadata"], "deletionTimestamp": SINCE},
            },
        ),
        "Deleting end",
        [f"claim/c is being deleted since {SINCE}; it waits for pod/web to end"],
    ),
    "a claim that nobody uses": (
        explain_claim.claim(facts(), claim("c")),
        "Unused",
        ["claim/c has no devices: no pod uses it, and devices are given when one does"],
    ),
    "a claim whose pod waits": (
        explain_claim.claim(facts(launcher(spec={"nodeSelector": {"zone": "east"}}), claims=[claim("c")]), claim("c")),
        "Waiting devices",
        [
            "claim/c has no devices: pod/pod waits: 0/1 hosts are available: no host takes it",
            "  a: nodeSelector wants zone=east; it has no such label",
        ],
    ),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_explain(name: str) -> None:
    answer, state, wanted = ANSWERS[name]
    assert answer.text() == wanted
    assert f"{answer.state} {answer.waits_for}".strip() == state


def test_an_answer_for_programs() -> None:
    answer = explain_pod.pod(facts(claims=[claim("c")], pages=[page("a", ("a0", "train"))]), pod("c"))
    short, long = answer.to_object(), answer.to_object(long=True)
    assert (short["state"], short["waitsFor"]) == ("Waiting", "devices")
    assert short["reasons"] == [{"reason": "request nic wants 1: 1 match, 0 free", "hosts": ["a"]}]
    assert "hosts" not in short
    assert long["hosts"][0]["devices"] == [{"device": "a0", "request": "nic", "code": "held", "why": HELD}]


def test_who_may_not_read_the_hosts_is_told_what_the_scheduler_said() -> None:
    known = replace(facts(claims=[claim("c")]), unread=("nodes",))
    told = {**pod("c"), "status": {"conditions": [{"type": "PodScheduled", "status": "False", "message": "no room"}]}}
    assert explain_pod.pod(known, told).text() == [
        "pod/pod waits: no room", "  you may not read nodes, without which nobody can tell more; ask somebody who may"]


RELIEF = {
    "one of two": (1, {"a0": "red", "a1": "blue"}, {}, ["a could take it once vmi/red in here or vmi/blue in here ends"]),
    "two together": (2, {"a0": "red", "a1": "blue"}, {}, ["a could take it once vmi/red in here and vmi/blue in here end"]),
    "a mark": (2, {"a0": "red"}, {"a1": "reserved"}, []),
    "a mark alone": (1, {"a0": "red"}, {"a1": "quarantined"}, [
        "a could take it after: outfit device restore a/a1", "a could take it once vmi/red in here ends"]),
}


@pytest.mark.parametrize("name", RELIEF)
def test_what_would_help_is_tried_out(name: str) -> None:
    count, held, marks, wanted = RELIEF[name]
    taken = page("a", *held.items())
    for device, which in marks.items():
        taken = Page(taken.with_marks(which, [OutOfServiceRecord(DeviceId(DRIVER, "a", device), "", "admin", SINCE)]))  # type: ignore[arg-type]
    known = replace(facts(claims=[claim("c", ask("nic", count=count))], pages=[taken]),
                    slices=[part("a", dev("a0", **VF), dev("a1", **VF))])
    assert list(explain_pod.pod(known, pod("c")).todo) == wanted


def test_what_can_never_be_is_told() -> None:
    near = {**claim("c"), "spec": {"devices": {"requests": [ask("nic", count=2)],
                                               "constraints": [{"matchAttribute": f"{DRIVER}/numa"}]}}}
    known = replace(facts(claims=[near]), slices=[part("a", *(dev(f"a{n}", kind="VF", numa=n) for n in range(2)))])
    assert explain_pod.pod(known, pod("c")).todo == ("a could not take it even if nobody held anything there: ask for less",)


def test_a_cordoned_host_that_would_do_is_told() -> None:
    known = replace(facts(claims=[claim("c")]), nodes=[node("a", cordoned=True)])
    assert explain_pod.pod(known, pod("c")).todo == ("a could take it after: kubectl uncordon a",)
    full = replace(known, pages=[page("a", ("a0", "train")).object])
    assert explain_pod.pod(full, pod("c")).todo == ()
