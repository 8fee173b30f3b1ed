"""What a person types at a server, and what they see."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import outfitter
from outfitter.api import kinds
from outfitter.api.kinds import Object
from outfitter.cli import wait
from outfitter.store import rest_client
from tests.e2e.process import EXAMPLE, OUTFIT, PATIENCE, ROOT, ForkedUp, Typed, Up, environment, typed

Say = Callable[..., Typed]
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


def config_map(name: str, **parts: Any) -> str:
    meta = {"name": name, **parts.pop("metadata", {})}
    return yaml.safe_dump({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, **parts})


def somebody(up: Up, name: str, change: Object) -> None:
    """Another client changes a ConfigMap without apply."""

    async def patch() -> None:
        async with up.store() as store:
            await store.patch(kinds.CONFIG_MAP, name, change, "default")

    asyncio.run(patch())


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with ForkedUp(tmp_path_factory.mktemp("cli") / "data", simulate="1x1") as running:
        running.blue_runs_and_green_waits()
        yield running


@pytest.fixture
def say(up: Up) -> Say:
    """Type a command; it must end with the code given, without a word on the other stream."""

    def run(*words: str, stdin: str = "", code: int = 0) -> Typed:
        done = typed(*words, kubeconfig=up.kubeconfig, stdin=stdin)
        assert done.code == code, f"outfit {' '.join(words)}: {done}"
        assert code or not done.err
        return done

    return run


# -- apply

def test_applied_twice_is_unchanged(say: Say) -> None:
    text = (EXAMPLE / "1-class.yaml").read_text() + "---\n" + config_map("twice", data={"a": "1"})
    assert say("apply", "-f", "-", stdin=text).out.count("unchanged") == 2
    assert say("apply", "-f", "-", stdin=text).out.splitlines() == [
        "deviceclass.resource.k8s.io/virtual-function unchanged", "resourceclaimtemplate.resource.k8s.io/one-vf unchanged",
        "configmap/twice unchanged"]


def test_a_changed_file_changes_what_it_had_and_leaves_what_others_added(up: Up, say: Say) -> None:
    say("apply", "-f", "-", stdin=config_map("shared", data={"mine": "1", "going": "2"}, metadata={"labels": {"l": "x"}}))
    somebody(up, "shared", {"data": {"theirs": "3"}, "metadata": {"labels": {"theirs": "y"}}})
    done = say("apply", "-f", "-", stdin=config_map("shared", data={"mine": "9"}, metadata={"labels": {}}))
    assert done.out == "configmap/shared configured\n"
    now = json.loads(say("get", "cm", "shared", "-o", "json").out)
    assert now["data"] == {"mine": "9", "theirs": "3"}
    assert now["metadata"]["labels"] == {"theirs": "y"}


def test_files_folders_documents_and_lists(say: Say, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "b.yml").write_text(config_map("from-yml"))
    (folder / "a.yaml").write_text(f"# first\n---\n{config_map('doc-1')}---\n---\n{config_map('doc-2')}")
    (folder / "c.json").write_text(json.dumps(yaml.safe_load(config_map("from-json"))))
    (folder / "d.txt").write_text("not for us")
    items = [yaml.safe_load(config_map(name)) for name in ("item-1", "item-2")]
    listed = yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": items})
    names = ["doc-1", "doc-2", "from-yml", "from-json", "item-1", "item-2"]
    done = say("apply", "-f", str(folder), "-f", "-", stdin=listed)
    assert done.out.splitlines() == [f"configmap/{name} created" for name in names]
    gone = say("delete", "-f", str(folder), "-f", "-", stdin=listed)
    assert gone.out.splitlines() == [f"configmap/{name} deleted" for name in reversed(names)]
    assert not set(names) & set(say("get", "cm", "-o", "name").out.replace("configmap/", "").split())


def test_a_date_stays_text(say: Say) -> None:
    say("apply", "-f", "-", stdin="apiVersion: v1\nkind: ConfigMap\nmetadata: {name: dated}\ndata: {day: 2026-01-02}\n")
    assert json.loads(say("get", "cm", "dated", "-o", "json").out)["data"] == {"day": "2026-01-02"}


def test_generate_name_makes_a_new_one_each_time(say: Say) -> None:
    text = "apiVersion: v1\nkind: ConfigMap\nmetadata: {generateName: made-}\n"
    one, two = (say("apply", "-f", "-", stdin=text).out for _ in range(2))
    assert one != two
    assert re.fullmatch(r"configmap/made-\w{5} created\n", one)


OLDER = {
    "v1beta2": "{name: nic, exactly: {deviceClassName: virtual-function}}",
    "v1beta1": "{name: nic, deviceClassName: virtual-function}",
    "v1alpha3": "{name: nic, deviceClassName: virtual-function}",
}


@pytest.mark.parametrize("version", OLDER)
def test_manifests_of_older_versions(say: Say, version: str) -> None:
    name = f"old-{version}"
    text = f"""
apiVersion: resource.k8s.io/{version}
kind: ResourceClaimTemplate
metadata: {{name: {name}}}
spec: {{spec: {{devices: {{requests: [{OLDER[version]}]}}}}}}
---
apiVersion: resource.k8s.io/{version}
kind: DeviceClass
metadata: {{name: {name}}}
spec: {{selectors: [{{cel: {{expression: device.driver == "pci.outfitter.dev"}}}}]}}
"""
    assert say("apply", "-f", "-", stdin=text).out.splitlines() == [
        f"resourceclaimtemplate.resource.k8s.io/{name} created", f"deviceclass.resource.k8s.io/{name} created"]
    assert say("apply", "-f", "-", stdin=text).out.count("unchanged") == 2
    now = yaml.safe_load(say("get", "resourceclaimtemplates", name, "-o", "yaml").out)
    assert now["apiVersion"] == "resource.k8s.io/v1"
    assert now["spec"]["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"] == "virtual-function"
    assert say("delete", "-f", "-", stdin=text).out.count("deleted") == 2


def test_an_invalid_object_shows_every_cause_once(say: Say) -> None:
    text = """
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata: {name: bad}
spec:
  resourceClaims: [{name: Bad_Name, resourceClaimTemplateName: one-vf}]
  domain: {devices: {hostDevices: [{name: nic0, claimName: nowhere, requestName: nic}]}}
"""
    done = say("apply", "-f", "-", stdin=text, code=1)
    assert done.out == ""
    head, *causes = done.err.splitlines()
    assert head == 'error: standard input: VirtualMachineInstance.kubevirt.io "bad" is invalid:'
    assert [cause.split(":")[0].strip() for cause in causes] == ["spec.resourceClaims[0].name", "spec.resourceClaims"]
    assert causes[1].endswith('spec.domain.devices.hostDevices[0] uses "nowhere"')
    assert say("get", "vmi", "bad", code=1).err == 'error: virtualmachineinstances.kubevirt.io "bad" not found\n'


def test_more_causes_than_the_servers_text_has_are_all_shown(say: Say) -> None:
    names = "".join(f"{{name: g{number}}}, " for number in range(12))
    head = "{apiVersion: kubevirt.io/v1, kind: VirtualMachineInstance, metadata: {name: bad}, "
    done = say("apply", "-f", "-", code=1, stdin=head + "spec: {domain: {devices: {gpus: [" + names + "]}}}}")
    assert len(done.err.splitlines()) == 1 + 12
    assert "more" not in done.err


def test_warnings_of_the_server_are_passed_on(up: Up, say: Say) -> None:
    text = """
apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata: {name: warned}
spec:
  runStrategy: Halted
  template: {spec: {resourceClaims: [{name: a, resourceClaimName: nowhere}], domain: {}}}
"""
    done = typed("apply", "-f", "-", kubeconfig=up.kubeconfig, stdin=text)
    assert (done.code, done.out) == (0, "virtualmachine.kubevirt.io/warned created\n")
    at = "spec.template.spec.resourceClaims[0].resourceClaimName"
    assert done.err == (f'warning: {at}: there is no ResourceClaim "nowhere" in namespace "default" yet; the VM waits for '
                        "it\n")
    say("delete", "vm", "warned")


def test_an_unknown_field_is_refused(say: Say) -> None:
    done = say("apply", "-f", "-", stdin=config_map("strict", dota={"a": "1"}), code=1)
    assert 'unknown field "dota"' in done.err


def test_rejection_names_file_and_line(say: Say, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.yaml").write_text(f"{config_map(f'{name}-1')}---\n{config_map(f'{name}-2')}")
    (tmp_path / "c.yaml").write_text(f"{config_map('c-1')}---\n{config_map('c-2', dota={})}")
    done = say("apply", "-f", str(tmp_path), code=1)
    assert done.err.startswith(f"error: {tmp_path}/c.yaml, document 2, ConfigMap c-2: ")
    say("delete", "cm", "a-1", "a-2", "b-1", "b-2", "c-1")


def test_an_annotation_that_no_apply_has_written(up: Up, say: Say) -> None:
    say("apply", "-f", "-", stdin=config_map("broken"))
    somebody(up, "broken", {"metadata": {"annotations": {LAST_APPLIED: "{"}}})
    done = say("apply", "-f", "-", stdin=config_map("broken", data={"a": "1"}), code=1)
    assert f"configmap/broken: the annotation {LAST_APPLIED} is not JSON that apply wrote" in done.err


# -- get and describe

SEEN: dict[str, tuple[list[str], str]] = {
    "a table": (["get", "vmi", "blue"], r"NAME +AGE +PHASE.*\nblue +\S+ +Running.*\n"),
    "by kind and name": (["get", "vmi/blue", "node/node-0"], r"NAME.*\nblue .*\n\nNAME.*\nnode-0 .*\n"),
    "more columns": (["get", "pods", "-o", "wide"], r"NAME.* NODE .*\n(virt-launcher-.*\n){2}"),
    "names": (["get", "vmi", "-o", "name"], r"virtualmachineinstance\.kubevirt\.io/blue\nvirtualmachineinstance\.\S+/green\n"),
    "everywhere": (["get", "vmi", "-A"], r"NAMESPACE +NAME .*\ndefault +blue .*\ndefault +green .*\n"),
    "everywhere, of a kind without namespaces": (["get", "nodes", "-A"], r"NAME .*\nnode-0 .*\n"),
    "in another namespace": (["get", "vmi", "-n", "kube-system"], r"No virtualmachineinstances found in .* kube-system\.\n"),
    "the namespace before the command": (["-n", "kube-system", "get", "vmi"], r"No .* in namespace kube-system\.\n"),
    "by field": (["get", "pods", "--field-selector", "spec.nodeName=node-0", "-o", "name"], r"pod/virt-launcher-blue-\S+\n"),
    "by label": (["get", "nodes", "-l", "outfitter.dev/simulated=true", "-o", "name"], "node/node-0\n"),
    "by label that none has": (["get", "nodes", "-l", "no=such"], r"No nodes found\.\n"),
    "several kinds": (["get", "nodes,ns", "-o", "name"], "node/node-0\nnamespace/default\nnamespace/kube-system\n"),
    "all that runs": (["get", "all", "-o", "name"], r"(pod/\S+\n){2}(virtualmachineinstance.kubevirt.io/\S+\n){2}"),
    "long words for a kind": (["get", "VirtualMachineInstance", "blue", "-o", "name"], ".*/blue\n"),
    "with its group": (["get", "resourceclaimtemplates.resource.k8s.io", "-o", "name"], ".*/one-vf\n"),
    "a description": (["describe", "vmi", "blue"], r"Name: +blue\n(.*\n)*Events:\n(.*\n)*Why:\n  vmi/blue runs .*\n.*\n"),
    "two descriptions": (["describe", "no/node-0", "ns/default"], r"Name: +node-0\n(.*\n)*Events: +none\n\nName: +def(.*\n)*"),
    "the versions": (["version"], rf"outfit {re.escape(outfitter.__version__)}\nserver v\S+\n"),
    "the versions as JSON": (["version", "-o", "json"],
                             r'{"clientVersion": {"gitVersion": "\d\S+"}, "serverVersion": {.*"gitVersion": "v\S+".*}}\n'),
}


@pytest.mark.parametrize("name", SEEN)
def test_what_is_seen(say: Say, name: str) -> None:
    words, pattern = SEEN[name]
    out = say(*words).out
    assert re.fullmatch(pattern, out), out


def test_objects_as_yaml_and_json(say: Say) -> None:
    one = yaml.safe_load(say("get", "vmi", "blue", "-o", "yaml").out)
    assert (one["kind"], one["metadata"]["name"], one["status"]["phase"]) == ("VirtualMachineInstance", "blue", "Running")
    many = json.loads(say("get", "vmi,nodes", "-o", "json").out)
    assert (many["kind"], [item["metadata"]["name"] for item in many["items"]]) == ("List", ["blue", "green", "node-0"])
    none = json.loads(say("get", "vmi", "-n", "kube-system", "-o", "json").out)
    assert none == {"apiVersion": "v1", "kind": "List", "items": []}


MISSING: dict[str, tuple[list[str], str]] = {
    "get": (["get", "vmi", "red"], 'error: virtualmachineinstances.kubevirt.io "red" not found\n'),
    "get in yaml": (["get", "vmi", "red", "-o", "yaml"], 'error: virtualmachineinstances.kubevirt.io "red" not found\n'),
    "describe": (["describe", "node", "red"], 'error: nodes "red" not found\n'),
    "delete": (["delete", "pod", "red"], 'error: pods "red" not found\n'),
    "domxml": (["domxml", "red"], 'error: virtualmachineinstances.kubevirt.io "red" not found\n'),
    "why of a VM": (["why", "vmi/red"], 'error: virtualmachineinstances.kubevirt.io "red" not found\n'),
    "why of anything": (["why", "red"], "error: there is no VM, VMI, pod, claim or migration 'red' in namespace default\n"),
}


@pytest.mark.parametrize("name", MISSING)
def test_not_found(say: Say, name: str) -> None:
    words, err = MISSING[name]
    assert say(*words, code=1) == Typed(1, "", err)


@pytest.mark.parametrize(("how", "out"), {
    "table": r"NAME .*\nblue .*\n", "name": r"virtualmachineinstance\.kubevirt\.io/blue\n",
    "yaml": r"apiVersion: v1\nkind: List\nitems:\n(.*\n)*    name: blue\n(.*\n)*",
}.items())
def test_what_is_there_is_shown_before_what_is_not(say: Say, how: str, out: str) -> None:
    done = say("get", "vmi", "red", "blue", "pink", "-o", how, code=1)
    assert re.fullmatch(out, done.out), done.out
    assert done.err == "".join(f'error: virtualmachineinstances.kubevirt.io "{name}" not found\n' for name in ("red", "pink"))


def test_a_selector_that_makes_no_sense(say: Say) -> None:
    assert "no=such=label" in say("get", "vmi", "-l", "no=such=label", code=1).err
    assert "spec.colour" in say("get", "vmi", "--field-selector", "spec.colour=red", code=1).err


# -- why and domxml

SPELLINGS = [["vmi/green"], ["vmi", "green"], ["green"], ["vm/green"], ["virtualmachineinstance/green"], ["vmis", "green"],
             ["-n", "default", "green"]]


@pytest.mark.parametrize("words", SPELLINGS, ids=" ".join)
def test_why_in_every_spelling(say: Say, words: list[str]) -> None:
    out = say("why", *words).out
    assert out.startswith("vmi/green waits: 0/1 hosts are available: ")
    assert "vmi/blue" in out


def test_why_of_pods_and_claims(say: Say) -> None:
    pod = next(word for word in say("get", "pods", "-o", "name").out.split() if "blue" in word)
    claim = say("get", "resourceclaims", "-o", "name").out.split()[0].partition("/")[2]
    assert "runs on node-0: nothing is wrong" in say("why", pod).out
    assert "runs on node-0: nothing is wrong" in say("why", pod.partition("/")[2]).out
    for words in ([f"claim/{claim}"], ["claim", claim], [f"resourceclaim/{claim}"], [claim]):
        assert say("why", *words).out.startswith(
            f"claim/{claim} holds 1 device: nothing is wrong\n  pci-0000-3b-00-0-vf0 on node-0")
    both = say("why", "vmi", "blue", "green").out
    assert both == say("why", "vmi/blue", "vmi/green").out == say("why", "blue").out + say("why", "green").out


NOBODY = """
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata: {name: plain}
spec: {domain: {devices: {}}}
"""


def test_plan_names_host_and_devices_and_writes_nothing(say: Say) -> None:
    before = say("get", "vmi,pods,resourceclaims,pages", "-o", "name").out
    plain = say("plan", "-f", "-", stdin=NOBODY).out
    assert plain.startswith("vmi/plain would go to node-0 (pack: ")
    again = say("plan", "-f", str(EXAMPLE), code=1).out
    assert "vmi/blue is running already, on node-0" in again
    assert "vmi/green would wait: 0/1 hosts are available" in again
    assert any("pci-0000-3b-00-0-vf0" in line and "vmi/blue" in line for line in again.splitlines())
    assert say("get", "vmi,pods,resourceclaims,pages", "-o", "name").out == before
    nothing = say("plan", "-f", str(EXAMPLE / "1-class.yaml"), code=1).err
    assert "there is no VirtualMachine, VirtualMachineInstance or Pod to plan for" in nothing


def test_plan_uses_objects_of_the_file(say: Say) -> None:
    wanted = """
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: card}
spec: {selectors: [{cel: {expression: 'device.attributes["pci.outfitter.dev"].kind == "PF"'}}]}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: whole}
spec: {devices: {requests: [{name: card, exactly: {deviceClassName: card}}]}}
---
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata: {name: big}
spec:
  domain: {devices: {hostDevices: [{name: card, claimName: it, requestName: card}]}}
  resourceClaims: [{name: it, resourceClaimName: whole}]
"""
    [planned] = json.loads(say("plan", "-f", "-", "-o", "json", stdin=wanted, code=1).out)
    assert (planned["about"], planned["fits"], planned["codes"]) == ("vmi/big", False, ["NoMatch"])


def _asking(name: str = "asking", claim: str = "net", request: str = "requestName: nic", memory: str = "1Gi",
            template: str = "one-vf") -> str:
    return f"""
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata: {{name: "{name}"}}
spec:
  resourceClaims: [{{name: net, resourceClaimTemplateName: {template}}}]
  domain: {{memory: {{guest: {memory}}}, devices: {{hostDevices: [{{name: nic0, claimName: {claim}, {request}}}]}}}}
"""


REFUSED = {
    "a field that is misspelt": (
        _asking(request="requestNme: nic"), 'unknown field "spec.domain.devices.hostDevices[0].requestNme"'),
    "a claim that is not listed": (_asking(claim="nets"), 'spec.domain.devices.hostDevices[0] uses "nets"'),
    "less than no memory": (_asking(memory="-1Gi"), "spec.domain.memory.guest: "),
    "an invalid name": (_asking(name="blü"), "metadata.name: "),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_plan_refuses_what_an_apply_refuses(say: Say, name: str) -> None:
    text, says = REFUSED[name]
    planned, applied = (say(verb, "-f", "-", stdin=text, code=1) for verb in ("plan", "apply"))
    assert planned == applied
    assert says in planned.err


def test_a_device_that_no_request_asks_for_would_not_come(say: Say) -> None:
    out = say("plan", "-f", "-", stdin=_asking(request="requestName: nix"), code=1).out
    assert out == ("vmi/asking would wait: spec.domain.devices.hostDevices[0].requestName: claim net has no request "
                   '"nix"; it has nic\n')


def test_plan_accepts_older_versions_and_server_output(say: Say) -> None:
    older = f"""
apiVersion: resource.k8s.io/v1beta1
kind: ResourceClaimTemplate
metadata: {{name: older}}
spec: {{spec: {{devices: {{requests: [{OLDER["v1beta1"]}]}}}}}}
---
{_asking(template="older")}"""
    assert "vmi/asking would wait: 0/1 hosts are available" in say("plan", "-f", "-", stdin=older, code=1).out
    shown = say("get", "vmi", "blue", "-o", "yaml").out
    assert say("plan", "-f", "-", stdin=shown).out == "vmi/blue is running already, on node-0\n"


def test_domain_of_a_vmi(say: Say) -> None:
    assert "<name>default_blue</name>" in say("domxml", "blue").out
    assert say("domxml", "vmi/blue").out == say("domxml", "blue").out
    assert "vmi/green has no domain yet" in say("domxml", "green", code=1).err


def test_stopped_vmi_has_no_domain(say: Say) -> None:
    machine = """
apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata: {name: amber}
spec: {runStrategy: Halted, template: {spec: {domain: {}}}}
"""
    say("apply", "-f", "-", stdin=machine)
    for word in ("amber", "vm/amber"):
        assert say("domxml", word, code=1).err == (
            "error: amber is not running, so it has no domain; start it with: outfit vm start amber\n")
    say("delete", "vm", "amber")


# -- delete

def test_deleting_several_reports_missing_ones_at_the_end(say: Say) -> None:
    say("apply", "-f", "-", stdin=f"{config_map('one')}---\n{config_map('three')}")
    done = say("delete", "cm", "one", "two", "three", "four", code=1)
    assert done.out == "configmap/one deleted\nconfigmap/three deleted\n"
    assert done.err == 'error: configmaps "two" not found\nerror: configmaps "four" not found\n'


def test_no_wait_returns_while_it_is_still_there(say: Say) -> None:
    say("apply", "-f", "-", stdin=config_map("slow", metadata={"finalizers": ["example.com/mine"]}))
    assert say("delete", "cm/slow", "--no-wait").out == "configmap/slow deleted\n"
    assert json.loads(say("get", "cm", "slow", "-o", "json").out)["metadata"]["deletionTimestamp"]


def _start(up: Up, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen([OUTFIT, *words], env=environment(up.home, KUBECONFIG=str(up.kubeconfig)), cwd=ROOT, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)


def test_ctrl_c_while_a_delete_waits(up: Up, say: Say) -> None:
    say("apply", "-f", "-", stdin=config_map("stuck", metadata={"finalizers": ["example.com/mine"]}))
    with _start(up, "delete", "cm", "stuck") as waiting:
        assert waiting.stdout is not None
        assert waiting.stdout.readline() == "configmap/stuck deleted\n"
        waiting.send_signal(signal.SIGINT)
        _, err = waiting.communicate(timeout=PATIENCE)
    assert waiting.returncode == 130
    assert err.strip() == ""


def test_ctrl_c_before_a_command_has_begun(tmp_path: Path) -> None:
    """While it still reads itself. The first module that it imports says when that is."""
    (tmp_path / "click.py").write_text("import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)\n")
    done = subprocess.run([OUTFIT, "version", "--client"], env=environment(tmp_path, PYTHONPATH=str(tmp_path)), cwd=ROOT,
                          text=True, capture_output=True, timeout=PATIENCE, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_delete_waits_until_the_object_is_gone(up: Up, say: Say) -> None:
    say("apply", "-f", "-", stdin=config_map("held", metadata={"finalizers": ["example.com/mine"]}))
    with _start(up, "delete", "cm", "held") as waiting:
        assert waiting.stdout is not None
        assert waiting.stdout.readline() == "configmap/held deleted\n"
        assert waiting.poll() is None
        somebody(up, "held", {"metadata": {"finalizers": None}})
        assert waiting.wait(PATIENCE) == 0


def test_delete_reports_what_it_waits_for_and_times_out(say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wait, "QUIET", 0.05)
    text = config_map("kept", metadata={"finalizers": ["example.com/mine"]}) + "---\n" + config_map("free")
    say("apply", "-f", "-", stdin=text)
    done = say("delete", "cm", "kept", "free", "--timeout", "0.5", code=1)
    why = "it has metadata.finalizers: example.com/mine"
    assert done.out == f"configmap/kept deleted\nconfigmap/free deleted\n  kept waits: {why}\n"
    assert done.err == (f"error: kept is not gone after 0.5s: {why}\n"
                        "the deletion stays requested: objects go when nothing blocks them\n")


USED = {"reservedFor": [{"resource": "pods", "name": "a"}, {"resource": "pods", "name": "b"}]}
HOLDS: dict[str, tuple[kinds.Kind, Object, str]] = {
    "its users": (kinds.RESOURCE_CLAIM, {"metadata": {"finalizers": ["x"]}, "status": USED}, "it is in use by pods/a, pods/b"),
    "its guest": (kinds.VMI, {"metadata": {"finalizers": ["x"]}, "spec": {"terminationGracePeriodSeconds": 7},
                                   "status": {"phase": "Running"}}, "its guest has 7s to shut down"),
    "its time": (kinds.POD, {"metadata": {"deletionGracePeriodSeconds": 30}}, "its grace period is 30s"),
    "nothing that it says": (kinds.POD, {"metadata": {}}, "it still exists"),
}


@pytest.mark.parametrize("name", HOLDS)
def test_what_holds_a_deleted_object(name: str) -> None:
    kind, obj, says = HOLDS[name]
    assert wait.blocking_reason(kind, obj) == says


# -- the other end

@pytest.mark.parametrize("words", [["get", "events", "-o", "yaml"], ["get", "vmi"], ["describe", "vmi", "blue"]], ids=" ".join)
def test_a_reader_that_goes_away_makes_no_noise(up: Up, words: list[str]) -> None:
    with _start(up, *words) as writing:
        assert writing.stdout is not None
        writing.stdout.close()
        assert writing.stderr is not None
        assert writing.stderr.read() == ""
    assert writing.returncode in (0, 141)


def test_a_server_that_is_not_there(up: Up, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rest_client, "BACKOFF", (0.0,))
    text = re.sub(r"https://127.0.0.1:\d+", "https://127.0.0.1:1", up.kubeconfig.read_text())
    (tmp_path / "config").write_text(text)
    done = typed("get", "vmi", kubeconfig=tmp_path / "config")
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("error: https://127.0.0.1:1 cannot be reached")
    assert f"the address is from {tmp_path / 'config'}" in done.err
    assert "is that server running?" in done.err


def test_a_token_that_the_server_does_not_know(up: Up, tmp_path: Path) -> None:
    config = yaml.safe_load(up.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": "wrong"}
    (tmp_path / "config").write_text(yaml.safe_dump(config))
    done = typed("get", "vmi", kubeconfig=tmp_path / "config")
    assert (done.code, done.out) == (1, "")
    assert "Unauthorized" in done.err
