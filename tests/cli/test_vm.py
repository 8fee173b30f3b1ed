"""Virtual machines at the terminal: started, stopped and looked at."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import yaml

from outfitter.api import kinds
from outfitter.api.kinds import Object
from tests.e2e.process import EXAMPLE, ForkedUp, Typed, Up, typed, until

Say = Callable[..., Typed]


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with ForkedUp(tmp_path_factory.mktemp("vm") / "data", simulate="1x1") as running:
        yield running


@pytest.fixture
def say(up: Up) -> Say:
    def run(*words: str, stdin: str = "", code: int = 0) -> Typed:
        done = typed(*words, kubeconfig=up.kubeconfig, stdin=stdin)
        assert done.code == code, f"outfit {' '.join(words)}: {done}"
        return done

    return run


def vm(name: str, strategy: str) -> str:
    instance = next(yaml.safe_load_all((EXAMPLE / "2-blue.yaml").read_text()))
    return yaml.safe_dump({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": {"name": name},
                           "spec": {"runStrategy": strategy, "template": {"spec": instance["spec"]}}})


def rows(done: Typed) -> dict[str, list[str]]:
    return {line.split()[0]: line.split()[1:] for line in done.out.splitlines()[1:]}


def test_vm_lifecycle_with_the_cli(say: Say) -> None:
    say("apply", "-f", str(EXAMPLE / "1-class.yaml"))
    assert say("vm", "list").out == "No VMs found in namespace default.\n"
    say("apply", "-f", "-", stdin=vm("blue", "Halted"))
    until(lambda: rows(say("vm", "list"))["blue"][:3] == ["Stopped", "-", "0/1"], "it is stopped")

    assert say("vm", "start", "blue", "--wait").out.splitlines()[0] == "blue starts"
    until(lambda: rows(say("vm", "list"))["blue"] == ["Running", "node-0", "1/1"], "the list shows it")
    assert say("vm", "start", "blue").out == "blue is already running\n"
    assert say("vm", "pause", "blue", "--wait").out == "blue is paused\n"
    until(lambda: rows(say("vm", "list"))["blue"][0] == "Paused", "the list shows it")
    assert say("why", "vm/blue").out.splitlines()[::2] == [
        "vm/blue stands still on node-0: VMI was paused by user", "  -> outfit vm unpause blue"]
    assert "VMI is already paused" in say("vm", "pause", "blue", code=1).err
    assert "VMI is paused" in say("vm", "soft-reboot", "blue", code=1).err
    assert say("vm", "unpause", "blue", "--wait").out == "blue resumes\n"
    assert "VMI is not paused" in say("vm", "unpause", "blue", code=1).err
    assert say("vm", "reset", "blue", "--wait").out == "blue is reset\n"
    assert say("vm", "soft-reboot", "blue", "--wait").out == "blue is asked to reboot\n"
    until(lambda: rows(say("vm", "list"))["blue"][0] == "Running", "the list shows it")
    said = say("describe", "vmi", "blue").out
    assert [word for word in ("Paused", "Unpaused", "Reset", "SoftRebooted") if f" {word} " not in said] == []
    head, line = say("get", "vmi", "blue", "-o", "wide").out.splitlines()
    assert line[head.index("LIVE-MIGRATABLE"):].split()[0] == "False"
    assert "HostDeviceNotLiveMigratable" in said
    [device] = [line.split() for line in say("vm", "devices", "blue").out.splitlines()[1:]]
    assert device[0] == "nic0"
    assert device[-1] == "node-0"

    first = json.loads(say("get", "vmi", "blue", "-o", "json").out)["metadata"]["uid"]
    say("vm", "restart", "blue", "--wait")
    assert json.loads(say("get", "vmi", "blue", "-o", "json").out)["metadata"]["uid"] != first

    say("apply", "-f", "-", stdin=vm("green", "Manual"))
    assert say("vm", "start", "green").out == "green starts\n"
    until(lambda: "TooFewFree: " in say("vm", "list").out, "green says in short that it waits")
    assert max(map(len, say("vm", "list").out.splitlines())) < 160
    assert "vmi/blue" in say("why", "vm/green").out
    assert say("vm", "stop", "blue", "--wait").out.splitlines()[0] == "blue stops"
    assert say("vm", "stop", "blue").out == "blue is already stopped\n"
    assert "green is already" in say("vm", "start", "green", "--wait").out
    assert "blue" in say("vm", "list", "-A").out.splitlines()[1]
    say("vm", "stop", "green", "--wait")
    say("vm", "start", "blue", "--wait")


def test_a_device_by_resource_name_is_shown_like_any_other(up: Up, say: Say) -> None:
    class_ = yaml.safe_load_all((EXAMPLE / "1-class.yaml").read_text())
    own = next(obj for obj in class_ if obj["kind"] == "DeviceClass")
    own["metadata"] = {"name": "counted"}
    own["spec"]["extendedResourceName"] = "vendor.example/vf"
    say("apply", "-f", "-", stdin=yaml.safe_dump(own))
    say("vm", "stop", "blue", "--wait")
    named = yaml.safe_load(vm("named", "Always"))
    named["spec"]["template"]["spec"] = {"domain": {"devices": {"hostDevices": [
        {"name": "nic0", "deviceName": "vendor.example/vf"}]}}}
    say("apply", "-f", "-", stdin=yaml.safe_dump(named))
    until(lambda: rows(say("vm", "list"))["named"] == ["Running", "node-0", "1/1"], "it runs")
    header, line = say("vm", "devices", "named").out.splitlines()
    cells = dict(zip(header.split(), re.split(r"  +", line), strict=True))
    assert cells["IS"] == "pci-0000-3b-00-0-vf0"
    assert cells["ADDRESS"] == "0000:3b:01.0"
    assert re.fullmatch(r"virt-launcher-named-\w+-extended-resources-\w+ for vendor.example/vf", cells["CLAIM"])
    assert cells["ON"] == "node-0"
    claim = cells["CLAIM"].partition(" ")[0]
    assert f"nic0: pci-0000-3b-00-0-vf0 at 0000:3b:01.0 (vendor.example/vf, claim {claim})" in say("why", "vmi/named").out
    assert "held by vmi/named" in say("devices").out
    head, row = say("get", "vmi", "named").out.splitlines()
    assert row[head.index("DEVICES"):].split()[0] == "1"
    waits = yaml.safe_load(vm("later", "Always"))
    waits["spec"]["template"]["spec"] = named["spec"]["template"]["spec"]
    say("apply", "-f", "-", stdin=yaml.safe_dump(waits))
    until(lambda: rows(say("vm", "list"))["later"][2] == "0/1", "it has nothing yet")
    until(lambda: "not known yet" in typed("vm", "devices", "later", kubeconfig=up.kubeconfig).out, "it waits for it")
    for name in ("named", "later"):
        say("delete", "vm", name)
    say("vm", "start", "blue", "--wait")


def test_a_mediated_device_of_another_driver_is_shown_with_its_type_and_node(say: Say) -> None:
    driver, uuid = "vgpu.example.com", "4b20d080-1b54-4048-85b3-a6a62d165c01"
    attributes = {"mdevUUID": uuid, "mdevType": "nvidia-231", "mdevTypeName": "GRID T4-8Q", "productName": "Tesla T4"}
    name, request = {"name": "vgpus"}, {"name": "gpu", "exactly": {"deviceClassName": "vgpus"}}
    objects: list[Object] = [
        {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": name, "spec": {
            "driver": driver, "nodeName": "node-0", "pool": {"name": "rack-7", "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "vgpu-0", "attributes": {key: {"string": text} for key, text in attributes.items()}}]}},
        {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": name, "spec": {
            "selectors": [{"cel": {"expression": f"device.driver == '{driver}'"}}]}},
        {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": name, "spec": {
            "devices": {"requests": [request]}}},
        {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "metadata": {"name": "seer"}, "spec": {
            "resourceClaims": [{"name": "gpu", "resourceClaimName": "vgpus"}],
            "domain": {"devices": {"gpus": [{"name": "g0", "claimName": "gpu", "requestName": "gpu"}]}}}},
    ]
    say("apply", "-f", "-", stdin=yaml.safe_dump_all(objects))
    until(lambda: rows(say("vm", "list"))["seer"] == ["Running", "node-0", "1/1"], "it runs")
    header, line = say("vm", "devices", "seer").out.splitlines()
    cells = dict(zip(header.split(), re.split(r"  +", line), strict=True))
    assert (cells["ADDRESS"], cells["PRODUCT"], cells["ON"]) == (uuid, "GRID T4-8Q", "node-0"), "the pool is no node"
    assert "GRID T4-8Q" in next(line for line in say("devices").out.splitlines() if "vgpu-0" in line)
    assert say("why", "seer").out.startswith("vmi/seer runs on node-0: nothing is wrong\n")
    say("delete", "resourceslice", "vgpus")
    until(lambda: rows(say("vm", "list"))["seer"][3:4] == ["DeviceNotPublished:"], "the list shows that it is gone")
    assert "DeviceNotPublished" in say("describe", "vmi", "seer").out.partition("Events:")[2]
    lines = say("why", "seer").out.splitlines()
    assert (lines[0], lines[2:]) == ("vmi/seer runs on node-0, and vgpu-0 is not as it should be", [
        "  vgpu-0 of pool rack-7 is no longer published by vgpu.example.com, though the VM has it",
        "  -> see that driver vgpu.example.com runs on node-0 and publishes pool rack-7: outfit get resourceslices"])
    say("apply", "-f", "-", stdin=yaml.safe_dump(objects[0]))
    until(lambda: rows(say("vm", "list"))["seer"][3:] == [], "it is there again")
    say("delete", "vmi", "seer")
    until(lambda: "free" in next(line for line in say("devices").out.splitlines() if "vgpu-0" in line), "it is free again")
    planned = say("plan", "-f", "-", stdin=yaml.safe_dump_all(objects[2:3] + objects[3:])).out
    assert f"({uuid}, GRID T4-8Q)" in planned
    say("delete", "-f", "-", stdin=yaml.safe_dump_all(objects[:3]))


WRONG: dict[str, tuple[list[str], str]] = {
    "nobody": (["start", "nobody"], "there is no VM 'nobody' in namespace default"),
    "a pause without a known name": (["pause", "nobody"], "there is no VM 'nobody'"),
    "a pause of a stopped one": (["pause", "still"], "still is not running; start it with: outfit vm start still"),
    "a stop without a known name": (["stop", "nobody"], "there is no VM 'nobody'"),
    "devices without a known name": (["devices", "nobody"], "there is no VM 'nobody'"),
    "devices of a stopped one": (["devices", "still"], "still is not running, so it has no devices"),
    "no name": (["start", ""], "NAME is empty"),
    "a second name that is wrong": (["start", "still", "nobody"], "there is no VM 'nobody'"),
    "a restart of a stopped one": (["restart", "still"], "still is not running; start it with: outfit vm start still"),
    "an instance alone": (["stop", "alone"], "alone is a VMI without a VM"),
}


@pytest.mark.parametrize("name", WRONG)
def test_failed_action_has_a_reason(name: str, say: Say) -> None:
    say("apply", "-f", "-", stdin=vm("still", "Halted"))
    alone = {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "metadata": {"name": "alone"},
             "spec": {"domain": {"devices": {}}}}
    say("apply", "-f", "-", stdin=yaml.safe_dump(alone))
    until(lambda: rows(say("vm", "list"))["still"][0] == "Stopped", "it is known")
    words, text = WRONG[name]
    assert text in say("vm", *words, code=1).err
    assert rows(say("vm", "list"))["still"][0] == "Stopped", "nothing was done"
    assert rows(say("vm", "list"))["alone"]


@pytest.mark.parametrize(("strategy", "spec"), [
    ("Always", "Halted"), ("Manual", "Manual"), ("RerunOnFailure", "RerunOnFailure"), ("Once", "Once")])
def test_each_strategy_is_stopped_and_started_in_its_own_way(strategy: str, spec: str, say: Say) -> None:
    name = f"own-{strategy.lower()}"
    bare = yaml.safe_load(vm(name, strategy))
    bare["spec"]["template"]["spec"] = {"domain": {"devices": {}}}
    say("apply", "-f", "-", stdin=yaml.safe_dump(bare))
    if strategy == "Manual":
        assert say("vm", "stop", name).out == f"{name} is already stopped\n"
        assert say("vm", "start", name).out == f"{name} starts\n"
    until(lambda: rows(say("vm", "list"))[name][0] == "Running", "it runs")
    say("vm", "stop", name, "--wait")
    assert json.loads(say("get", "vm", name, "-o", "json").out)["spec"]["runStrategy"] == spec
    until(lambda: rows(say("vm", "list"))[name][0] == "Stopped", "it is stopped, and stays so")
    assert say("vm", "stop", name).out == f"{name} is already stopped\n"
    assert say("vm", "start", name, "--wait").out.splitlines()[0] == f"{name} starts"
    say("delete", "vm", name)


def test_one_that_stops_is_started_when_it_has_stopped(up: Up, say: Say) -> None:
    bare = yaml.safe_load(vm("again", "Manual"))
    bare["spec"]["template"]["spec"] = {"domain": {"devices": {}}}
    say("apply", "-f", "-", stdin=yaml.safe_dump(bare))
    say("vm", "start", "again", "--wait")
    first = json.loads(say("get", "vmi", "again", "-o", "json").out)["metadata"]["uid"]
    hold(up, "again", "example.com/look")
    say("vm", "stop", "again")
    assert say("vm", "start", "again").out.startswith("again starts"), "be it that it has stopped by now"
    hold(up, "again")
    say("vm", "start", "again", "--wait")
    assert json.loads(say("get", "vmi", "again", "-o", "json").out)["metadata"]["uid"] != first
    say("delete", "vm", "again")


def test_older_command_name_is_accepted(say: Say) -> None:
    old = {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": {"name": "old"},
           "spec": {"running": False, "template": {"spec": {"domain": {"devices": {}}}}}}
    say("apply", "-f", "-", stdin=yaml.safe_dump(old))
    say("vm", "start", "old", "--wait")
    assert json.loads(say("get", "vm", "old", "-o", "json").out)["spec"]["running"] is True
    say("vm", "stop", "old", "--wait")
    spec = json.loads(say("get", "vm", "old", "-o", "json").out)["spec"]
    assert (spec["running"], "runStrategy" in spec) == (False, False)


def test_vmi_of_another_owner_is_not_shown_as_the_vms(say: Say) -> None:
    spec: dict[str, object] = {"domain": {"devices": {}}}
    machine = {"runStrategy": "Always", "template": {"spec": spec}}
    for kind, body in (("VirtualMachineInstance", spec), ("VirtualMachine", machine)):
        say("apply", "-f", "-", stdin=yaml.safe_dump({
            "apiVersion": "kubevirt.io/v1", "kind": kind, "metadata": {"name": "twice"}, "spec": body}))
    until(lambda: "FailedCreate" in say("vm", "list").out, "the machine says what is in its way")
    until(lambda: sorted(line.split()[1:3] for line in say("vm", "list").out.splitlines() if line.startswith("twice")) == [
        ["Running", "node-0"], ["Starting", "-"]], "the instance runs, and the machine has none")
    say("delete", "vm", "twice")


def test_pending_start_is_cancelled(say: Say) -> None:
    closed = {"apiVersion": "kubevirt.io/v1", "kind": "KubeVirt", "metadata": {"name": "kubevirt"}, "spec": {"configuration": {
        "developerConfiguration": {"disabledFeatureGates": ["HostDevicesWithDRA"]}}}}
    say("apply", "-f", str(EXAMPLE / "1-class.yaml"))
    say("apply", "-f", "-", stdin=vm("later", "Manual"))
    say("apply", "-f", "-", stdin=yaml.safe_dump(closed))
    say("vm", "start", "later")
    until(lambda: "feature gate is not" in say("get", "vm", "later", "-o", "yaml").out, "it says why it does not start")
    assert "later has not started yet, so it has no devices" in say("vm", "devices", "later", code=1).err
    assert say("vm", "stop", "later").out == "later stops\n"
    say("delete", "kubevirt", "kubevirt")
    until(lambda: say("vm", "stop", "later").out == "later is already stopped\n", "it is stopped")
    until(lambda: rows(say("vm", "list"))["later"][0] == "Stopped", "the list shows it")
    say("delete", "vm", "later")


def write(up: Up, name: str, change: Object, subresource: str = "") -> None:
    """Into an instance, past the command."""
    async def patch() -> None:
        async with up.store() as store:
            await store.patch(kinds.VMI, name, change, "default", subresource=subresource)

    asyncio.run(patch())


def hold(up: Up, name: str, *finalizers: str) -> None:
    """So that an instance that goes can be looked at; without finalizers it goes."""
    write(up, name, {"metadata": {"finalizers": list(finalizers)}})


def test_wait_for_stop_does_not_show_why_the_start_waits(up: Up, say: Say) -> None:
    say("apply", "-f", str(EXAMPLE / "1-class.yaml"))
    early = yaml.safe_load(vm("early", "Always"))
    early["spec"]["template"]["spec"]["nodeSelector"] = {"rack": "nowhere"}
    say("apply", "-f", "-", stdin=yaml.safe_dump(early))
    until(lambda: "NodeSelector" in say("vm", "list").out, "it waits for a host")
    hold(up, "early", "example.com/look")
    stopped = say("vm", "stop", "early", "--wait", "--timeout", "2s", code=1)
    hold(up, "early")
    assert stopped.out == "early stops\n"
    assert "nodeSelector" not in stopped.err
    assert "the object stays until its finalizers are taken off: example.com/look" in stopped.err
    say("delete", "vm", "early")


def test_list_shows_the_reason(up: Up, say: Say) -> None:
    def why(name: str) -> str:
        head, *lines = say("vm", "list").out.splitlines()
        [line] = [line for line in lines if line.split()[0] == name]
        return f"{line.split()[1]}: {line[head.index('WHY'):]}"

    def ends(name: str) -> None:
        say("apply", "-f", "-", stdin=yaml.safe_dump({**broken, "metadata": {"name": name}}))
        until(lambda: why(name) == "Running: ", f"{name} runs")
        write(up, name, {"status": {"phase": "Failed", "conditions": [
            {"type": "Ready", "status": "False", "reason": "DomainFailed", "message": "node-0: the lab says so"}]}}, "status")

    broken = yaml.safe_load(vm("broken", "Manual"))
    broken["spec"]["template"]["spec"] = {"domain": {"devices": {}}}
    say("apply", "-f", "-", stdin=yaml.safe_dump(broken))
    say("vm", "start", "broken", "--paused", "--wait")
    until(lambda: why("broken") == "Paused: PausedByUser: a user paused it", "it says why it stands still")
    say("vm", "unpause", "broken")
    ends("broken")
    until(lambda: why("broken") == "Stopped: DomainFailed: its domain failed", "it says how it ended")
    assert say("vm", "stop", "broken").out == "broken is already stopped\n"
    assert "broken" not in say("vm", "devices", "broken", "nobody", code=1).out, "nothing is shown before all are found"
    broken["spec"]["runStrategy"] = "Always"
    ends("crashing")
    until(lambda: re.fullmatch(r"CrashLoopBackOff: it failed; next start at \d{4}-.*Z", why("crashing")), "what comes")
    say("vm", "stop", "crashing")
    until(lambda: why("crashing") == "Stopped: ", "it is over")
    for name in ("broken", "crashing"):
        say("delete", "vm", name)


def test_virtctls_options_are_accepted(up: Up, say: Say) -> None:
    bare = yaml.safe_load(vm("quick", "Halted"))
    bare["spec"]["template"]["spec"] = {"domain": {"devices": {}}, "terminationGracePeriodSeconds": 77}
    say("apply", "-f", "-", stdin=yaml.safe_dump(bare))
    assert say("vm", "start", "quick", "--dry-run").out == "quick starts (dry run: nothing was changed)\n"
    assert json.loads(say("get", "vm", "quick", "-o", "json").out)["spec"]["runStrategy"] == "Halted"
    say("vm", "start", "quick", "--paused", "--wait")
    until(lambda: rows(say("vm", "list"))["quick"][0] == "Paused", "it starts paused")
    assert say("vm", "start", "quick").out == "quick is already running\n"
    assert "VM is already running" in say("vm", "start", "quick", "--paused", code=1).err
    assert "VMI is already paused" in say("vm", "pause", "quick", "--dry-run", code=1).err
    assert say("vm", "unpause", "quick", "--dry-run").out == "quick resumes (dry run: nothing was changed)\n"
    assert "stateChangeRequests" not in json.loads(say("get", "vmi", "quick", "-o", "json").out)["status"]
    say("vm", "unpause", "quick", "--wait")

    first = json.loads(say("get", "vmi", "quick", "-o", "json").out)
    assert say("vm", "restart", "quick", "--force", "--dry-run").out.startswith("quick restarts (dry run")
    assert json.loads(say("get", "vmi", "quick", "-o", "json").out)["spec"] == first["spec"]
    say("vm", "restart", "quick", "--force", "--wait")
    second = json.loads(say("get", "vmi", "quick", "-o", "json").out)
    assert second["metadata"]["uid"] != first["metadata"]["uid"]
    assert second["spec"]["terminationGracePeriodSeconds"] == 77, "that was for once"

    def seconds() -> int:
        return int(json.loads(say("get", "vmi", "quick", "-o", "json").out)["spec"]["terminationGracePeriodSeconds"])

    hold(up, "quick", "example.com/look")
    assert say("vm", "stop", "quick", "--force", "--grace-period", "5").out == "quick stops\n"
    assert seconds() == 5, "where both are said, the seconds count"
    until(lambda: say("vm", "stop", "quick").out == "quick is already stopped\n", "it is off; somebody keeps its object")
    hold(up, "quick")
    say("vm", "stop", "quick", "--wait")
    assert "--wait cannot be combined with --dry-run" in say("vm", "stop", "quick", "--wait", "--dry-run", code=2).err
    assert "-1 is not in the range" in say("vm", "stop", "quick", "--grace-period", "-1", code=2).err
    say("delete", "vm", "quick")


@pytest.fixture
def alone(say: Say) -> None:
    """The one device is free."""
    say("apply", "-f", str(EXAMPLE / "1-class.yaml"))
    if there := json.loads(say("get", "vm", "-o", "json").out)["items"]:
        say("delete", "vm", *(each["metadata"]["name"] for each in there))


@pytest.mark.usefixtures("alone")
def test_wait_times_out_and_names_what_is_missing(up: Up, say: Say) -> None:
    for name in ("first", "second", "third"):  # there is one device
        say("apply", "-f", "-", stdin=vm(name, "Halted"))
    say("vm", "start", "first", "--wait", "--timeout", "2m")
    late = say("vm", "start", "second", "third", "--wait", "--timeout", "0.5s", code=1)
    assert late.out.splitlines()[:2] == ["second starts", "third starts"], "all are asked before one is waited for"
    error, other, rest = late.err.splitlines()
    assert error.startswith("error: second is not running after 0.5s: ")
    assert other.startswith("third is not running after 0.5s: ")
    assert "the request stays in place" in rest
    until(lambda: say("vm", "list").out.count("TooFewFree: ") == 2, "they still wait, as they were asked to")
    again = say("vm", "start", "second", "--wait", "--timeout", "0.5s", code=1).err
    assert re.match(r"error: second is not running after 0.5s: .*0/1 hosts are available", again)
    for name in ("second", "third"):
        say("vm", "stop", name, "--wait", "--timeout", "0")

    hold(up, "first", "kubevirt.io/foregroundDeleteVirtualMachine", "example.com/look")
    held = say("vm", "stop", "first", "--wait", "--timeout", "300ms", code=1)
    assert held.err.startswith("error: first is not stopped after 0.3s: ")
    until(lambda: say("vm", "stop", "first").out == "first is already stopped\n", "it is off")
    hold(up, "first")
    for name in ("first", "second", "third"):
        say("delete", "vm", name)


@pytest.mark.usefixtures("alone")
def test_one_that_has_ended_for_good_is_not_waited_for(up: Up, say: Say) -> None:
    for name in ("first", "second"):
        say("apply", "-f", "-", stdin=vm(name, "Manual"))
    say("vm", "start", "first", "--wait")
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(up.outfit, "vm", "start", "second", "--wait", "--timeout", "0")
        until(lambda: "TooFewFree: " in say("vm", "list").out, "it waits for the device")
        write(up, "second", {"status": {"phase": "Failed", "conditions": [
            {"type": "Ready", "status": "False", "reason": "DomainFailed", "message": "node-0: the lab says so"}]}}, "status")
        assert waits.result().stderr == "error: second has failed: node-0: the lab says so\n"
        assert waits.result().returncode == 1
    assert say("vm", "stop", "second", "--wait", "--timeout", "1h").out == "second is already stopped\n"
    say("vm", "stop", "first", "--wait")
    say("vm", "start", "second", "--wait")  # its earlier end is not taken for that of the new one
    for name in ("first", "second"):
        say("delete", "vm", name)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(("own", "phase"), [(False, "Failed"), (False, "Succeeded"), (True, "Failed")])
def test_one_that_has_ended_is_not_shown_with_devices(own: bool, phase: str, up: Up, say: Say) -> None:
    ended = yaml.safe_load(vm("ended", "Manual"))
    spec = ended["spec"]["template"]["spec"]
    if own:
        [claim] = spec.pop("resourceClaims")
        template = next(obj for obj in yaml.safe_load_all((EXAMPLE / "1-class.yaml").read_text())
                        if obj["kind"] == "ResourceClaimTemplate")
        ended["spec"]["resourceClaimTemplates"] = [{"name": claim["name"], "spec": template["spec"]}]
    say("apply", "-f", "-", stdin=yaml.safe_dump(ended))
    say("vm", "start", "ended", "--wait")
    assert "NOW" not in say("vm", "devices", "ended").out
    write(up, "ended", {"status": {"phase": phase}}, "status")
    now = "kept for the VM by its claim" if own else "released"
    until(lambda: say("vm", "devices", "ended").out.rstrip().endswith(now), "what became of it")
    first, head, row = say("vm", "devices", "ended").out.splitlines()
    how = "failed" if phase == "Failed" else "ended"
    assert first == (f"ended has {how}; it had:" if own else f"ended has {how} and released its devices; it had:")
    assert (head.split()[-1], row[head.index("NOW"):]) == ("NOW", now)
    assert "0000:3b:01.0" in row, "what it had stays known"
    assert rows(say("vm", "list"))["ended"][2] == "0/1"
    head, row = say("get", "vmi", "ended").out.splitlines()
    assert row[head.index("DEVICES"):].split()[0] == "0"
    assert ("1 held" in say("devices").out) == own
    say("delete", "vm", "ended")


TIMES: dict[str, tuple[list[str], str]] = {
    "no time": (
        ["--wait", "--timeout", "soon"],
        "'soon' is not a duration: write a number of seconds, or for example 90s, 5m, 1h30m",
    ),
    "a time before now": (["--wait", "--timeout", "-5"], "'-5' is not a duration"),
    "nothing to wait for": (["--timeout", "5"], "--timeout limits --wait"),
}


@pytest.mark.parametrize("name", TIMES)
def test_a_time_that_is_none(name: str, say: Say) -> None:
    words, text = TIMES[name]
    assert text in say("vm", "start", "nobody", *words, code=2).err
