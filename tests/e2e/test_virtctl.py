"""KubeVirt's own virtctl, as `scripts/virtctl` builds it, against `outfit up`: what its users type, and what it prints."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.process import PATIENCE, ForkedUp, Up, environment, until

VIRTCTL = shutil.which("virtctl")
pytestmark = [
    pytest.mark.parts,
    pytest.mark.skipif(VIRTCTL is None, reason="there is no virtctl in PATH; scripts/virtctl builds one and prints its folder"),
]
MACHINE = """
apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata: {name: NAME}
spec: {runStrategy: STRATEGY, template: {spec: {domain: {memory: {guest: 1Gi}, devices: {}}}}}
"""

NOWHERE = """
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstanceMigration
metadata: {name: nowhere}
spec: {vmiName: moves, addedNodeSelector: {example.com/rack: none}}
"""


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with ForkedUp(tmp_path_factory.mktemp("virtctl") / "data", simulate="2x1") as running:
        yield running


def say(up: Up, *words: str, fails: bool = False) -> str:
    assert VIRTCTL is not None
    done = subprocess.run([VIRTCTL, *words], env=environment(up.home, KUBECONFIG=str(up.kubeconfig)), text=True,
                          capture_output=True, timeout=PATIENCE, check=False)
    assert (done.returncode != 0) is fails, done
    return done.stdout + done.stderr


def make(up: Up, name: str, strategy: str) -> str:
    up.ok("apply", "-f", "-", stdin=MACHINE.replace("NAME", name).replace("STRATEGY", strategy))
    return name


def shown(up: Up, kind: str, name: str) -> Any:
    return json.loads(up.ok("get", kind, name, "-o", "json"))


def reach(up: Up, name: str, word: str) -> None:
    until(lambda: (shown(up, "vm", name).get("status") or {}).get("printableStatus") == word, f"{name} is {word}")


def another(up: Up, name: str, than: str) -> str:
    """The uid of the instance that follows one."""
    def check() -> str:
        found = [obj["metadata"] for obj in json.loads(up.ok("get", "vmi", "-o", "json"))["items"]]
        return next((str(meta["uid"]) for meta in found if meta["name"] == name and meta["uid"] != than), "")

    return until(check, f"another instance of {name}")


def test_migrate_and_cancel(up: Up) -> None:
    name = make(up, "moves", "Always")
    reach(up, name, "Running")
    source = shown(up, "vmi", name)["status"]["nodeName"]
    assert "VM moves was scheduled to migrate" in say(up, "migrate", name)
    until(lambda: shown(up, "vmi", name)["status"]["nodeName"] != source, "it has moved")
    until(lambda: all(job["status"]["phase"] == "Succeeded" for job in migrations(up)), "its migration has ended")
    up.ok("apply", "-f", "-", stdin=NOWHERE)
    assert "in-flight migration" in say(up, "migrate", name, fails=True)
    say(up, "migrate-cancel", name)
    until(lambda: "nowhere" not in [job["metadata"]["name"] for job in migrations(up)], "it is cancelled")
    assert shown(up, "vmi", name)["status"]["phase"] == "Running"
    up.ok("delete", "vm", name)


def migrations(up: Up) -> list[Any]:
    found: list[Any] = json.loads(up.ok("get", "vmim", "-o", "json"))["items"]
    return found


def test_vm_lifecycle(up: Up) -> None:
    name = make(up, "blue", "Halted")
    assert "Server Version" in say(up, "version")
    assert "VM blue was scheduled to start" in say(up, "start", name, "--paused")
    reach(up, name, "Paused")
    say(up, "unpause", "vm", name)
    reach(up, name, "Running")
    say(up, "pause", "vm", name)
    reach(up, name, "Paused")
    say(up, "unpause", "vmi", name)
    reach(up, name, "Running")
    for action in ("soft-reboot", "reset"):
        assert f"VMI blue was scheduled to {action}" in say(up, action, name)
    until(lambda: {"SoftRebooted", "Reset"} <= set(up.ok("describe", "vmi", name).split()), "both are told")
    first = shown(up, "vmi", name)["metadata"]["uid"]
    say(up, "restart", name)
    second = another(up, name, first)
    reach(up, name, "Running")
    say(up, "restart", name, "--force", "--grace-period=0")
    another(up, name, second)
    reach(up, name, "Running")
    say(up, "stop", name, "--force", "--grace-period=0")
    reach(up, name, "Stopped")
    assert shown(up, "vm", name)["spec"]["runStrategy"] == "Halted"


def test_pause_unpause_and_reset(up: Up) -> None:
    name = make(up, "manual", "Manual")
    reach(up, name, "Stopped")
    say(up, "start", name, "--paused")
    reach(up, name, "Paused")
    say(up, "stop", name)
    reach(up, name, "Stopped")
    say(up, "start", name)
    reach(up, name, "Running")
    say(up, "stop", name, "--force", "--grace-period=5")
    reach(up, name, "Stopped")
    assert shown(up, "vm", name)["spec"]["runStrategy"] == "Manual"


OFF, RUNS, STANDS, ONCE = "still", "runs", "stands", "once"
STATES = {OFF: ("Halted", "Stopped"), RUNS: ("Always", "Running"), STANDS: ("Always", "Paused"), ONCE: ("Once", "Running")}


@pytest.fixture(scope="module")
def machines(up: Up) -> Up:
    """One in each state, which what is refused and what is only tried leave as they are."""
    for name, (strategy, _) in STATES.items():
        make(up, name, strategy)
    reach(up, STANDS, "Running")
    say(up, "pause", "vm", STANDS)
    for name, (_, word) in STATES.items():
        reach(up, name, word)
    return up


def picture(up: Up) -> list[tuple[str, object, object]]:
    """All of every VM and instance that people or tools may have written."""
    found = json.loads(up.ok("get", "vm,vmi", "-o", "json"))["items"]
    return sorted((f"{obj['kind']}/{obj['metadata']['name']}", obj["spec"], obj["status"]) for obj in found
                  if obj["metadata"]["name"] in STATES)


TRIED = {
    "start": ("start", OFF, "--dry-run"),
    "start paused": ("start", OFF, "--paused", "--dry-run"),
    "stop": ("stop", RUNS, "--dry-run"),
    "stop by force": ("stop", RUNS, "--force", "--grace-period=0", "--dry-run"),
    "restart": ("restart", RUNS, "--dry-run"),
    "restart by force": ("restart", RUNS, "--force", "--grace-period=0", "--dry-run"),
    "pause": ("pause", "vm", RUNS, "--dry-run"),
    "unpause": ("unpause", "vmi", STANDS, "--dry-run"),
}


@pytest.mark.parametrize("name", TRIED)
def test_a_dry_run_changes_nothing(name: str, machines: Up) -> None:
    before = picture(machines)
    say(machines, *TRIED[name])
    assert picture(machines) == before


ON_VM, ON_VMI = ("Operation cannot be fulfilled on virtualmachine.kubevirt.io", "Operation cannot be fulfilled on "
                 "virtualmachineinstance.kubevirt.io")
REFUSED: dict[str, tuple[tuple[str, ...], str]] = {
    "start of an unknown name": (("start", "nobody"), 'virtualmachine.kubevirt.io "nobody" not found'),
    "stop of an unknown name": (("stop", "nobody"), 'virtualmachine.kubevirt.io "nobody" not found'),
    "restart of an unknown name": (("restart", "nobody"), 'virtualmachine.kubevirt.io "nobody" not found'),
    "pause of no VM": (("pause", "vm", "nobody"), 'Error getting VirtualMachine nobody: virtualmachines.kubevirt.io "nobody"'),
    "pause no instance": (("pause", "vmi", "nobody"), 'virtualmachineinstance.kubevirt.io "nobody" not found'),
    "unpause no instance": (("unpause", "vmi", "nobody"), 'virtualmachineinstance.kubevirt.io "nobody" not found'),
    "reboot of an unknown name": (("soft-reboot", "nobody"), 'virtualmachineinstance.kubevirt.io "nobody" not found'),
    "reset of an unknown name": (("reset", "nobody"), 'virtualmachineinstance.kubevirt.io "nobody" not found'),
    "in another namespace": (("start", OFF, "-n", "kube-system"), 'virtualmachine.kubevirt.io "still" not found'),
    "start what runs": (("start", RUNS), f'{ON_VM} "runs": VM is already running'),
    "start what runs once": (("start", ONCE), f'{ON_VM} "once": VM is already running'),
    "stop what is off": (("stop", OFF), f'{ON_VM} "still": VM is not running'),
    "restart what is off": (("restart", OFF), "Halted does not support manual restart requests"),
    "restart what runs once": (("restart", ONCE), "Once does not support manual restart requests"),
    "pause what is off": (("pause", "vm", OFF), "VirtualMachine still is not set to run"),
    "unpause what is off": (("unpause", "vm", OFF), 'virtualmachineinstance.kubevirt.io "still" not found'),
    "reset what is off": (("reset", OFF), 'virtualmachineinstance.kubevirt.io "still" not found'),
    "pause what is paused": (("pause", "vmi", STANDS), f'{ON_VMI} "stands": VMI is already paused'),
    "unpause what goes on": (("unpause", "vm", RUNS), f'{ON_VMI} "runs": VMI is not paused'),
    "reboot what is paused": (("soft-reboot", STANDS), f'{ON_VMI} "stands": VMI is paused'),
    "a dry run of what cannot be": (("pause", "vm", STANDS, "--dry-run"), "VMI is already paused"),
    "less than no time": (("stop", RUNS, "--force", "--grace-period=-1"), "gracePeriod has to be greater or equal to 0"),
    "migrate what is off": (("migrate", OFF), f'{ON_VM} "still": VM is not running'),
    "console": (("console", RUNS), "outfitter does not open a console"),
    "userlist": (("userlist", RUNS), "it takes an agent in the guest"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_rejections_have_kubevirts_messages(name: str, machines: Up) -> None:
    words, text = REFUSED[name]
    before = picture(machines)
    seen = say(machines, *words, fails=True)
    assert text in seen
    assert "different from the KubeVirt version" not in seen
    assert picture(machines) == before
