"""`outfit why` and `outfit plan` on hosts where VMs are stuck for every kind of reason, as a person types it."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from outfitter.api import conditions, kinds, rejection_conditions
from outfitter.api.kinds import Object
from outfitter.api.rejection import RejectionCode as Code
from tests import golden
from tests.e2e.process import ForkedUp, Typed, Up, typed, until

Say = Callable[..., str]
HOSTS = """
hosts:
  - name: net-a
    labels: {rack: r1}
    numa: [{id: 0, cpus: "0-7", memory: 16Gi}, {id: 1, cpus: "8-15", memory: 16Gi}]
    pci:
      - {address: 0000:3b:00.0, vendor: 8086, product: 1592, class: 020000, driver: ice, numa: 0, pcieRoot: pci0000:3a,
         vfs: {count: 2, total: 64, product: 1889, driver: vfio-pci}}
      - {address: 0000:d8:00.0, vendor: 15b3, product: 101d, class: 020000, driver: mlx5_core, numa: 1, pcieRoot: pci0000:d7,
         vfs: {count: 2, total: 16, product: 101e, driver: vfio-pci}}
  - name: gpu-a
    labels: {rack: r2}
    numa: [{id: 0, cpus: "0-7", memory: 16Gi}]
    pci:
      - {address: 0000:65:00.0, vendor: 10de, product: 2204, class: 030000, numa: 0, pcieRoot: pci0000:64, driver: vfio-pci}
"""
ATTRIBUTES = 'device.attributes["pci.outfitter.dev"]'
VF, GPU = f'{ATTRIBUTES}.kind == "VF"', f'{ATTRIBUTES}.vendor == "10de"'
GPU_NAME = "pci-0000-64-65-00-0"
VFS = [f"pci-0000-{card}-vf{number}" for card in ("3a-3b-00-0", "d7-d8-00-0") for number in (0, 1)]


def class_(name: str, expression: str) -> Object:
    return {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": name}, "spec": {
        "selectors": [{"cel": {"expression": f'device.driver == "pci.outfitter.dev" && {expression}'}}]}}


def template(name: str, class_name: str, *constraints: Object, **exactly: Any) -> Object:
    requests = [{"name": "it", "exactly": {"deviceClassName": class_name, **exactly}}]
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"name": name}, "spec": {
        "spec": {"devices": {"requests": requests, "constraints": list(constraints)}}}}


def machine(name: str, template_name: str, memory: str = "1Gi", **spec: Any) -> Object:
    return {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "metadata": {"name": name}, "spec": {
        "resourceClaims": [{"name": "dev", "resourceClaimTemplateName": template_name}],
        "domain": {"memory": {"guest": memory},
                   "devices": {"hostDevices": [{"name": "d0", "claimName": "dev", "requestName": "it"}]}}, **spec}}


def listed(*objects: Object) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})


THINGS = listed(
    class_("vf", VF), class_("gpu", GPU), template("one-vf", "vf"), template("one-gpu", "gpu"),
    template("three-near", "vf", {"matchAttribute": "resource.kubernetes.io/numaNode"}, count=3),
    template("a100", "gpu", selectors=[{"cel": {"expression": f'{ATTRIBUTES}.product == "20b0"'}}]),
    template("no-class", "gpus"), template("two-vfs", "vf", count=2))
STUCK = listed(
    machine("gpu2", "one-gpu"), machine("near", "three-near"), machine("a100", "a100"), machine("noclass", "no-class"),
    machine("notemplate", "one-vff"), machine("foreign", "one-vf", schedulerName="volcano"),
    machine("far", "one-vf", nodeSelector={"rack": "r9"}), machine("huge", "one-vf", memory="100Gi"),
    machine("marked", "one-vf", nodeSelector={"rack": "r1"}))


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """gpu1 has the only GPU, all VFs are out of service, and all others are stuck."""
    folder = tmp_path_factory.mktemp("why")
    (folder / "hosts.yaml").write_text(HOSTS)
    with ForkedUp(folder / "data", simulate=str(folder / "hosts.yaml")) as running:
        def do(*words: str, stdin: str = "") -> str:
            done = typed(*words, kubeconfig=running.kubeconfig, stdin=stdin)
            assert done.code == 0, done
            return done.out

        do("apply", "-f", "-", stdin=THINGS)
        do("device", "reserve", *(f"net-a/{name}" for name in VFS[:3]), "--reason", "maintenance")
        do("device", "quarantine", f"net-a/{VFS[3]}", "--reason", "fell off the bus")
        do("apply", "-f", "-", stdin=listed(machine("gpu1", "one-gpu")))
        until(lambda: " Running " in do("get", "vmi", "gpu1"), "gpu1 runs")
        do("apply", "-f", "-", stdin=STUCK)
        until(lambda: do("get", "vmi").count("Scheduling") == 9, "everybody else waits")
        until(lambda: all(condition(running, name) for name in ("gpu2", "near", "a100", "noclass", "far", "huge", "marked")),
              "the scheduler has spoken of all of them")
        yield running


@pytest.fixture
def say(up: Up) -> Say:
    def run(*words: str, stdin: str = "", code: int = 0) -> str:
        done: Typed = typed(*words, kubeconfig=up.kubeconfig, stdin=stdin)
        assert done.code == code, f"outfit {' '.join(words)}: {done}"
        return done.out

    return run


def vmi(up: Up, name: str) -> Object:
    async def read() -> Object:
        async with up.store() as store:
            return await store.get(kinds.VMI, name, "default")

    return asyncio.run(read())


def condition(up: Up, name: str) -> str:
    return str((conditions.find(vmi(up, name), "PodScheduled") or {}).get("message") or "")


@dataclass(frozen=True)
class Stuck:
    reasons: tuple[tuple[str, Code, Object], ...] = ()  # hosts, the code, and some of its detail; the nearest first
    own: tuple[Code, Object] | None = None  # of the pod or its claims, where no host is asked
    todo: tuple[str, ...] = ()  # what each line of advice contains
    waits_for: str = "devices"


ONE = {"request": "it", "wanted": 1}
UNRESERVE = f"outfit device unreserve net-a/{VFS[0]}"
NO_RACK: Object = {"label": "rack", "wanted": "r1", "has": "r2"}
SITUATIONS = {
    "gpu2": Stuck((("gpu-a", Code.TOO_FEW_FREE, {**ONE, "match": 1, "free": 0}), ("net-a", Code.NO_MATCH, {"devices": 4})),
                  todo=("vmi/gpu1",)),
    "a100": Stuck((("gpu-a", Code.NO_MATCH, {"devices": 1}), ("net-a", Code.NO_MATCH, {"devices": 4}))),
    "noclass": Stuck(own=(Code.CLASS_MISSING, {"class": "gpus"}), todo=("did you mean gpu?",), waits_for="class"),
    "notemplate": Stuck(own=(Code.CLAIM_NOT_CREATED, {"entry": "dev", "template": "one-vff"}), todo=("did you mean one-vf?",),
                        waits_for="template"),
    "foreign": Stuck((("net-a", Code.TOO_FEW_FREE, {**ONE, "match": 4, "free": 0}), ("gpu-a", Code.NO_MATCH, {})),
                     todo=(UNRESERVE,), waits_for="scheduler"),
    "far": Stuck((("gpu-a net-a", Code.NODE_SELECTOR, {"label": "rack", "wanted": "r9", "has": "r2"}),)),
    "huge": Stuck((("gpu-a net-a", Code.INSUFFICIENT_RESOURCE, {"resource": "memory"}),)),
    "marked": Stuck((("net-a", Code.TOO_FEW_FREE, {**ONE, "match": 4, "free": 0}), ("gpu-a", Code.NODE_SELECTOR, NO_RACK)),
                    todo=(UNRESERVE,)),
    "near": Stuck((("net-a", Code.TOO_FEW_FREE, {"request": "it", "wanted": 3, "match": 4, "free": 0}),
                   ("gpu-a", Code.NO_MATCH, {})), todo=("net-a",)),
}


def test_what_a_taint_rule_forbids_is_not_suggested(say: Say) -> None:
    """When gpu1 ends the GPU is free, and gpu2 may not have it all the same."""
    rule = {"apiVersion": "resource.k8s.io/v1beta2", "kind": "DeviceTaintRule", "metadata": {"name": "no-gpu"}, "spec": {
        "deviceSelector": {"device": GPU_NAME}, "taint": {"key": "burnt", "effect": "NoSchedule"}}}
    say("apply", "-f", "-", stdin=listed(rule))
    try:
        advice = [line for line in say("why", "gpu2").splitlines() if line.startswith("  ->")]
    finally:
        say("delete", "devicetaintrule", "no-gpu")
    assert len(advice) == 1
    assert "vmi/gpu1" not in advice[0]
    assert all(word in advice[0] for word in ("gpu-a", GPU_NAME, "burnt:NoSchedule"))


@pytest.mark.parametrize("name", SITUATIONS)
def test_short_answers(up: Up, say: Say, name: str) -> None:
    case, found = SITUATIONS[name], json.loads(say("why", name, "-o", "json"))
    assert (found["state"], found["waitsFor"]) == ("Waiting", case.waits_for)
    assert [
        (" ".join(reason["hosts"]), one["code"]) for reason in found.get("reasons", ()) for one in reason["rejections"]
    ] == [(hosts, code) for hosts, code, _ in case.reasons]
    given = [one for reason in found.get("reasons", ()) for one in reason["rejections"]] + found.get("rejections", [])
    details = [detail for *_, detail in case.reasons] + ([case.own[1]] if case.own else [])
    assert [{**one["detail"], **detail} for one, detail in zip(given, details, strict=True)] == [one["detail"] for one in given]
    codes = [code for _, code, _ in case.reasons] + ([case.own[0]] if case.own else [])
    assert found["codes"] == list(dict.fromkeys(codes))
    assert len(found["todo"]) == len(case.todo)
    assert all(word in line for line, word in zip(found["todo"], case.todo, strict=True))
    assert len(say("why", name).splitlines()) <= 8
    said = condition(up, name)
    assert bool(said) == (name != "foreign"), "another scheduler has it"
    assert len(said) <= 1000
    assert set(rejection_conditions.of(vmi(up, name))) == (set(codes) if name != "foreign" else set())


def test_words(say: Say) -> None:
    """What a person reads, as a golden file."""
    golden.check(__file__, "why", {
        **{name: [plain(line) for line in say("why", name).splitlines()] for name in SITUATIONS if name != "huge"},
        **{f"{name} --long": [plain(line) for line in say("why", name, "--long").splitlines()] for name in ("marked", "gpu2")}})


def plain(line: str) -> str:
    """Without times and made-up names."""
    return re.sub(r"virt-launcher-(\w+)-\w+-dev-\w+", r"virt-launcher-\1-...", re.sub(r"since \d\d:\d\d", "since HH:MM", line))


def test_the_list_names_a_scheduler_that_is_not_ours(say: Say) -> None:
    [row] = [line for line in say("vm", "list").splitlines() if line.startswith("foreign ")]
    assert row.endswith("scheduler volcano has not bound it to a host")


def test_the_tables_have_a_code_and_a_few_words(say: Say) -> None:
    """The sentence is in `describe` and `why`."""
    for words, column in ((("get", "vmi"), "WAITING"), (("vm", "list"), "WHY")):
        head, *rows = say(*words).splitlines()
        shown = {row.split()[0]: row[head.index(column):].strip() for row in rows}
        wanted = {name: str(case.own[0] if case.own else case.reasons[0][1]) for name, case in SITUATIONS.items()}
        del wanted["foreign"]  # another scheduler has it
        assert {name: shown[name].partition(":")[0] for name in wanted} == wanted
        assert max(map(len, shown.values())) <= 60
        assert shown["gpu1"] == ""
    assert "pci-0000-64-65-00-0: held by vmi/gpu1" in say("describe", "vmi", "gpu2")


def test_a_wait_that_stays_the_same_is_not_written_again(up: Up, say: Say) -> None:
    """Another VM comes and goes; what is said of those who wait stays, letter by letter, and so do their revisions."""
    def waiting() -> list[tuple[str, str]]:
        found = json.loads(say("get", "pods", "-o", "json"))["items"]
        return sorted((pod["metadata"]["name"], pod["metadata"]["resourceVersion"]) for pod in found
                      if not pod["spec"].get("nodeName"))

    before = waiting()
    say("apply", "-f", "-", stdin=listed({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "metadata": {"name": "passing"},
        "spec": {"domain": {"devices": {}}}}))
    until(lambda: " Running " in say("get", "vmi", "passing"), "it runs")
    say("delete", "vmi", "passing")
    assert waiting() == before


def test_long_answer_lists_each_device(say: Say) -> None:
    assert say("why", "marked", "-l") == say("why", "vmi/marked", "--long")
    hosts = {one["host"]: one for one in json.loads(say("why", "gpu2", "-l", "-o", "json"))["hosts"]}
    assert {one["device"]["name"]: (one["code"], one["detail"]["owner"], one["detail"]["term"], one["detail"]["has"])
            for one in hosts["net-a"]["devices"]} == {
        name: ("SelectorFalse", "class gpu", 'vendor == "10de"', {"vendor": vendor})
        for name, vendor in zip(VFS, ("8086", "8086", "15b3", "15b3"), strict=True)}
    [held] = hosts["gpu-a"]["devices"]
    assert (held["code"], held["device"]["name"], held["holder"]["purpose"]) == ("Held", GPU_NAME, "vmi/gpu1")


def test_for_programs_times_are_exact_and_each_device_has_a_code(say: Say) -> None:
    found = json.loads(say("why", "marked", "--long", "-o", "json"))
    assert (found["about"], found["namespace"], found["state"]) == ("vmi/marked", "default", "Waiting")
    net = next(one for one in found["hosts"] if one["host"] == "net-a")
    assert {one["device"]["name"]: (one["code"], one["detail"]["reason"]) for one in net["devices"]} == {
        **dict.fromkeys(VFS[:3], ("Reserved", "maintenance")), VFS[3]: ("Quarantined", "fell off the bus")}
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ", net["devices"][0]["since"])
    both = json.loads(say("why", "gpu1", "gpu2", "-o", "json"))
    assert [one["state"] for one in both] == ["Running", "Waiting"]


def test_pod_with_scheduling_gates_is_not_placed(say: Say) -> None:
    gated: Object = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "gated"}, "spec": {
        "schedulingGates": [{"name": "a.test/quota"}], "containers": [{"name": "c", "image": "i"}]}}
    free: Object = {**gated, "metadata": {"name": "free"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    say("apply", "-f", "-", stdin=listed(gated, free))
    until(lambda: "Running" in say("get", "pod", "free"), "the one without gates runs")
    assert say("why", "pod/gated").startswith("pod/gated waits until its scheduling gates are removed: a.test/quota")
    say("delete", "pods", "gated", "free")


def test_vm_is_explained_by_its_vmi(say: Say) -> None:
    halted = {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": {"name": "off"}, "spec": {
        "runStrategy": "Halted", "template": {"spec": machine("off", "one-gpu")["spec"]}}}
    waiting = {**halted, "metadata": {"name": "on"}, "spec": {**halted["spec"], "runStrategy": "Always"}}  # type: ignore[dict-item]
    say("apply", "-f", "-", stdin=listed(halted, waiting))
    assert say("why", "vm/off").splitlines() == [
        "vm/off is stopped, as its run strategy Halted says: nothing is wrong", "  -> outfit vm start off"]
    assert say("why", "off") == say("why", "vm", "off")
    until(lambda: "vmi/gpu1" in say("why", "vm/on"), "its instance waits")
    assert say("why", "vm/on").startswith("vm/on waits: 0/2 hosts are available")
    say("delete", "vm", "off", "on")


def test_vm_explanation_names_the_next_step(say: Say) -> None:
    plain: Object = {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": {"name": "plain"}, "spec": {
        "runStrategy": "Always", "template": {"spec": {"domain": {"memory": {"guest": "64Mi"}}}}}}
    say("apply", "-f", "-", stdin=listed(plain))
    until(lambda: "nothing is wrong" in say("why", "vm/plain"), "it runs")
    changed = {**plain, "spec": {**plain["spec"], "template": {"spec": {"domain": {"memory": {"guest": "128Mi"}}}}}}
    say("apply", "-f", "-", stdin=listed(changed))
    until(lambda: "restart" in say("why", "vm/plain"), "it is told that the change is not there yet")
    assert say("why", "vm/plain").splitlines()[0].endswith("; a change of its template waits for a restart")
    assert say("why", "vm/plain").splitlines()[1:] == [
        "  a non-live-updatable field was changed in the template spec: it counts from the next start on: "
        "spec.template.spec.domain.memory.guest", "  -> outfit vm restart plain"]
    manual = {**plain, "metadata": {"name": "manual"}, "spec": {**plain["spec"], "runStrategy": "Manual"}}
    taken = {**plain, "metadata": {"name": "gpu1"}}
    say("apply", "-f", "-", stdin=listed(manual, taken))
    until(lambda: "Stopped" in say("get", "vm", "manual"), "it is stopped")
    assert say("why", "vm/manual").splitlines() == [
        "vm/manual is stopped, and its run strategy Manual leaves that to you: nothing is wrong", "  -> outfit vm start manual"]
    until(lambda: "exists that this VM does not own" in say("why", "vm/gpu1"), "another has its name")
    assert say("why", "vm/gpu1").splitlines()[1:] == [
        "  -> outfit delete vmi gpu1, which ends that instance; or give the VM another name"]
    say("delete", "vm", "plain", "manual", "gpu1")


def test_nothing_is_wrong(say: Say) -> None:
    assert say("why", "gpu1").startswith("vmi/gpu1 runs on gpu-a: nothing is wrong\n")


def test_running_vm_whose_device_is_out_of_service(say: Say) -> None:
    say("device", "quarantine", f"gpu-a/{GPU_NAME}", "--reason", "too hot")
    until(lambda: "too hot" in say("describe", "vmi", "gpu1"), "the VMI has the condition")
    lines = say("why", "gpu1").splitlines()
    assert (lines[0], lines[3:]) == (f"vmi/gpu1 runs on gpu-a, and {GPU_NAME} is not as it should be", [
        f"  -> outfit device restore gpu-a/{GPU_NAME}, when it can be trusted again"])
    assert re.fullmatch(rf"  {GPU_NAME} is quarantined since \d\d:\d\d: too hot", lines[2])
    say("device", "restore", f"gpu-a/{GPU_NAME}")
    until(lambda: say("why", "gpu1").startswith("vmi/gpu1 runs on gpu-a: nothing is wrong\n"), "the condition is gone")


def test_running_vm_whose_device_left_the_bus(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts.yaml"
    hosts.write_text(HOSTS)
    with ForkedUp(tmp_path / "data", simulate=str(hosts)) as up:
        up.ok("apply", "-f", "-", stdin=listed(class_("gpu", GPU), template("one-gpu", "gpu"), machine("hot", "one-gpu")))
        until(lambda: up.phase("hot") == "Running", "it runs")
        up.kill()
    hosts.write_text("\n".join(line for line in HOSTS.splitlines() if "10de" not in line).rstrip().removesuffix("pci:"))
    with ForkedUp(tmp_path / "data", simulate=str(hosts)) as up:
        lines = up.ok("why", "hot").splitlines()
        assert (lines[0], lines[2:]) == (f"vmi/hot runs on gpu-a, and {GPU_NAME} is not as it should be", [
            f"  {GPU_NAME} is no longer on the bus of gpu-a, though the VM has it",
            "  -> see what became of it: outfit devices --node gpu-a --state vanished"])
        assert GPU_NAME in up.ok("devices", "--node", "gpu-a", "--state", "vanished")
        until(lambda: "DeviceVanished" in up.ok("describe", "vmi", "hot").partition("Events:")[2], "the VMI has an event")
        assert json.loads(up.ok("why", "hot", "-o", "json"))["codes"] == ["DeviceVanished"]
        head, row = up.ok("get", "vmi", "hot").splitlines()
        assert row[head.index("WAITING"):].startswith("DeviceVanished: ")


def test_the_same_stands_in_the_event_and_in_the_description(up: Up, say: Say) -> None:
    pod = next(word for word in say("get", "pods", "-o", "name").split() if "gpu2" in word)
    described = say("describe", pod)
    assert condition(up, "gpu2") in described.partition("Events:")[2]
    assert "vmi/gpu1 ends" in described.partition("Why:")[2]


# -- plan


def test_plan_counts_devices_of_earlier_vms(say: Say, tmp_path: Path) -> None:
    say("delete", "vmi", "marked")  # it would take one of them
    say("device", "unreserve", *(f"net-a/{name}" for name in VFS[:3]))
    until(lambda: len(say("get", "vmi", "-o", "name").split()) == 9 == len(say("get", "pods", "-o", "name").split()),
          "it is gone, and so is what earlier stories left")
    until(lambda: "outfitter.dev/reserved" not in say("get", "resourceslices", "-o", "json"), "the host offers them again")
    file = tmp_path / "four.json"
    file.write_text(listed(*(machine(f"m{number}", "one-vf" if number else "two-vfs") for number in range(4))))

    def there() -> str:
        return say("get", "pages", "-o", "json") + say("get", "vmi,pods,resourceclaims", "-o", "name")

    before = there()
    lines = say("plan", "-f", str(file), code=1).splitlines()
    given = [line.split()[1] for line in lines if line.startswith("  dev/it: ")]
    assert sorted(given) == VFS[:3]
    assert lines[-1] == "4 planned: 2 fit, 2 would wait"
    assert any(re.search(r"vmi/m\d of this plan", line) for line in lines)
    told = json.loads(say("plan", "-f", str(file), "-o", "json", code=1))
    assert [one["fits"] for one in told] == [True, True, False, False]
    assert (told[0]["host"], len(told[0]["devices"])) == ("net-a", 2)
    assert told[0]["why"]
    assert "reasons" in told[2]
    assert there() == before


def test_a_plan_that_fits_ends_well(say: Say) -> None:
    plain = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "plain"},
             "spec": {"containers": [{"name": "c", "image": "i"}]}}
    assert say("plan", "-f", "-", stdin=listed(plain)).startswith("pod/plain would go to ")
    missing = say("plan", "-f", "-", stdin=listed(machine("lost", "one-vff")), code=1)
    assert "vmi/lost would wait: " in missing
    assert "ResourceClaimTemplate one-vff" in missing


def test_a_plan_with_a_claim_of_the_vm_s_own_from_a_template(say: Say) -> None:
    def vm(name: str, template: str) -> Object:
        spec = machine(name, template)["spec"]
        return {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": {"name": name}, "spec": {
            "runStrategy": "Always", "resourceClaimTemplates": [{"name": "dev", "resourceClaimTemplateName": template}],
            "template": {"spec": spec}}}

    lines = say("plan", "-f", "-", stdin=listed(vm("kept", "one-vf"), vm("lost", "one-vff")), code=1).splitlines()
    assert lines[0].startswith("vm/kept would go to net-a ")
    assert re.match(r"  dev/it: pci-\S+-vf\d", lines[1])
    assert "vm/lost would wait: claim dev cannot be created: there is no ResourceClaimTemplate one-vff" in lines


def test_dedicated_cpus_are_planned_and_shown(say: Say) -> None:
    def own(name: str, cores: int) -> Object:
        return {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "metadata": {"name": name}, "spec": {
            "nodeSelector": {"rack": "r1"}, "domain": {"memory": {"guest": "64Mi"}, "cpu": {
                "cores": cores, "dedicatedCpuPlacement": True}}}}

    lines = say("plan", "-f", "-", stdin=listed(own("p0", 8), own("p1", 7), own("p2", 2)), code=1).splitlines()
    assert lines[-1] == "3 planned: 2 fit, 1 would wait"
    say("apply", "-f", "-", stdin=listed(own("p1", 3)))
    until(lambda: " Running " in say("get", "vmi", "p1"), "p1 runs")
    told = re.search(r"CPUs (0-2|8-10) of NUMA cell (0|1) for itself", say("why", "vmi/p1"))  # where fewer devices are free
    assert told is not None
    pod = next(word for word in say("get", "pods", "-o", "name").split() if "-p1-" in word)
    assert f"with 3 CPUs of cell {told[2]} ({told[1]}) for itself" in say("why", pod)
    assert f'<vcpupin vcpu="2" cpuset="{told[1].partition("-")[2]}" />' in say("domxml", "p1")
    say("delete", "vmi", "p1")


def test_a_secret_that_is_missing_is_named(say: Say) -> None:
    lost: Object = {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "metadata": {"name": "lost"}, "spec": {
        "domain": {"memory": {"guest": "64Mi"}}, "volumes": [{"name": "a", "cloudInitNoCloud": {"secretRef": {"name": "s"}}}]}}
    say("apply", "-f", "-", stdin=listed(lost))
    field = "spec.volumes[0].cloudInitNoCloud.secretRef"
    until(lambda: f"{field}: there is no Secret s yet" in say("why", "vmi/lost"), "it says what it waits for")
    assert say("why", "vmi/lost").startswith("vmi/lost is Scheduled: ")
    assert "nothing is wrong" not in say("why", "vmi/lost")
    say("delete", "vmi", "lost")


def test_skipped_nic_is_named(say: Say) -> None:
    spec = {"networks": [{"name": "lan", "pod": {}}],
            "domain": {"memory": {"guest": "64Mi"}, "devices": {"interfaces": [{"name": "lan", "passt": {}}]}}}
    without = {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "metadata": {"name": "without"}, "spec": spec}
    say("apply", "-f", "-", stdin=listed(without))
    until(lambda: "runs on" in say("why", "vmi/without"), "it runs")
    lines = say("why", "vmi/without").splitlines()
    assert lines[0].endswith(", without network card lan")
    assert lines[1] == "  lan: skipped, the binding passt is not supported: use bridge, masquerade, slirp or sriov"
    say("delete", "vmi", "without")


def test_a_host_that_is_not_there_is_named(tmp_path: Path) -> None:
    """Two VMs on two hosts; then outfitter is started with one of the hosts alone."""
    with ForkedUp(tmp_path / "data", simulate="2x1") as up:
        up.ok("apply", "-f", "-", stdin=listed(
            class_("vf", VF), template("one-vf", "vf"), machine("far0", "one-vf"), machine("far1", "one-vf"), *(
                {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": {"name": f"vm{number}"}, "spec": {
                    "runStrategy": "Always", "template": {"spec": {
                        "domain": {"memory": {"guest": "64Mi"}},
                        "nodeSelector": {"kubernetes.io/hostname": f"node-{number}"}}}}} for number in (0, 1))))
        vmis = ("far0", "far1", "vm0", "vm1")
        until(lambda: {up.phase(name) for name in vmis} == {"Running"}, "all run")
        up.kill()
    with ForkedUp(tmp_path / "data", simulate="1x1") as up:
        host = "node-1, which is not ready: this host is not among those that outfitter was started with"
        helps = ("  -> start outfitter with node-1 among its hosts; if it is gone for good: outfit delete node node-1 and then "
                 "outfit delete page node-1")
        told = {name: up.ok("why", f"vmi/{name}").splitlines() for name in ("far0", "far1", "vm0", "vm1")}
        [far] = [name for name in ("far0", "far1") if told[name][0] == f"vmi/{name} is on {host}"]
        assert told[far][2:] == [helps]
        assert [told["vm0"][0], told["vm1"]] == ["vmi/vm0 runs on node-0: nothing is wrong", [f"vmi/vm1 is on {host}", helps]]

        stopped = typed("vm", "stop", "vm1", "--wait", "--timeout", "1s", "--force", kubeconfig=up.kubeconfig)
        assert stopped.out.splitlines() == ["vm1 stops", f"  vm1 waits: it is on {host}"]
        assert stopped.err.splitlines()[-2:] == [
            f"error: vm1 is not stopped after 1s: it is on {host}",
            "the request stays in place (outfit why shows more)"]
        lines = up.ok("why", "vm/vm1").splitlines()
        assert re.fullmatch(rf"vm/vm1 is stopping since \S+; it waits for {host}", lines[0])
        assert lines[1:] == [helps]
        assert up.ok("why", "vmi/vm1").startswith("vmi/vm1 is being deleted since ")
        deleted = typed("delete", "vmi", far, "--timeout", "2s", kubeconfig=up.kubeconfig)
        assert f"  {far} waits: it is on {host}" in deleted.out.splitlines()
        assert f"error: {far} is not gone after 2s: it is on {host}" in deleted.err.splitlines()


def test_claim_in_use_and_wrong_request_are_explained_with_suggestions(tmp_path: Path) -> None:
    shared = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "shared"}, "spec": template(
        "shared", "vf")["spec"]["spec"]}
    by_claim: Any = {"resourceClaims": [{"name": "dev", "resourceClaimName": "shared"}]}
    odd = machine("odd", "one-vf")
    odd["spec"]["domain"]["devices"]["hostDevices"][0]["requestName"] = "that"
    behind = {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": {"name": "behind"}, "spec": {
        "runStrategy": "Always", "template": {"spec": odd["spec"]}}}
    with ForkedUp(tmp_path / "data", simulate="1x3") as up:
        up.ok("apply", "-f", "-", stdin=listed(class_("vf", VF), shared, machine("v1", "", **by_claim)))
        until(lambda: up.phase("v1") == "Running", "v1 runs")
        up.ok("apply", "-f", "-", stdin=listed(machine("v2", "", **by_claim), odd, behind, template("one-vf", "vf")))
        until(lambda: Code.CLAIM_IN_USE in up.ok("why", "v2", "-o", "json"), "v2 waits")
        told = json.loads(up.ok("why", "v2", "-o", "json"))
        assert (told["state"], told["codes"], told["todo"]) == ("Waiting", [Code.CLAIM_IN_USE], [
            "it can start once vmi/v1 ends; or give it a claim of its own (resourceClaimTemplateName)"])
        assert [one["detail"]["users"] for one in told["rejections"]] == [["vmi/v1"]]
        for about, helps in (("vmi/odd", "outfit delete vmi odd, and apply it again with a requestName that there is"),
                             ("vm/behind", "correct requestName in the template of vm/behind, then: outfit vm restart behind")):
            until(lambda about=about: "RequestMissing" in up.ok("why", about, "-o", "json"), "it is rejected")  # type: ignore[misc]
            told = json.loads(up.ok("why", about, "-o", "json"))
            [found] = told["rejections"]
            assert (told["state"], told["codes"], told["todo"]) == ("Waiting", [Code.REQUEST_MISSING], [helps])
            assert (found["detail"]["request"], found["detail"]["requests"]) == ("that", ["it"])
        assert [booking["holder"]["purpose"] for booking in json.loads(up.ok("get", "page", "node-0", "-o", "json"))["spec"][
            "bookings"]] == ["vmi/v1"], "they hold nothing"
