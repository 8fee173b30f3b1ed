"""Short answers name the cause where devices match and none is free: the DeviceTaintRule, in the condition, the event, `outfit
why` and `outfit plan`."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from outfitter.api import conditions, rejection_conditions
from outfitter.api.rejection import RejectionCode as Code
from tests.cli.test_why import VF, class_, listed, machine, template
from tests.e2e.process import ForkedUp, Up, typed, until

HOSTS = """
hosts:
  - name: net
    count: 2
    numa: [{id: 0, cpus: "0-7", memory: 16Gi}]
    pci:
      - {address: 0000:3b:00.0, vendor: 8086, product: 1592, class: 020000, driver: ice, numa: 0,
         vfs: {count: 2, product: 1889, driver: vfio-pci}}
"""
RULE = {"apiVersion": "resource.k8s.io/v1beta2", "kind": "DeviceTaintRule", "metadata": {"name": "firmware-update"}, "spec": {
    "deviceSelector": {"driver": "pci.outfitter.dev"}, "taint": {"key": "example.com/drain", "effect": "NoSchedule"}}}
NAMED = "tainted example.com/drain:NoSchedule by DeviceTaintRule firmware-update"


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    folder = tmp_path_factory.mktemp("causes")
    (folder / "hosts.yaml").write_text(HOSTS)
    with ForkedUp(folder / "data", simulate=str(folder / "hosts.yaml")) as running:
        assert typed("apply", "-f", "-", kubeconfig=running.kubeconfig, stdin=listed(
            RULE, class_("vf", VF), template("one-vf", "vf"), machine("blue", "one-vf"))).code == 0
        yield running


def out(up: Up, *words: str, stdin: str = "", code: int = 0) -> str:
    done = typed(*words, kubeconfig=up.kubeconfig, stdin=stdin)
    assert done.code == code, f"outfit {' '.join(words)}: {done}"
    return done.out


def test_conditions_and_event_name_the_rule(up: Up) -> None:
    def condition() -> str:
        found = json.loads(out(up, "get", "vmi", "blue", "-o", "json"))
        return str((conditions.find(found, "PodScheduled") or {}).get("message"))

    until(lambda: NAMED in condition(), "the VMI's condition names the rule")
    found = json.loads(out(up, "get", "vmi", "blue", "-o", "json"))
    coded = conditions.find(found, f"{rejection_conditions.PREFIX}{Code.TOO_FEW_FREE}") or {}
    assert NAMED in coded["message"]
    events = json.loads(out(up, "get", "events", "-o", "json"))["items"]
    assert any(event["reason"] == "FailedScheduling" and NAMED in event["message"] for event in events)


def test_why_names_the_rule_in_its_short_answer(up: Up) -> None:
    lines = out(up, "why", "vmi/blue").splitlines()
    assert any(" 2 match, 0 free" in line and NAMED in line for line in lines)
    assert "  -> net-0 could take it after: kubectl delete devicetaintrule firmware-update" in lines
    answer = json.loads(out(up, "why", "vmi/blue", "-o", "json", "--long"))
    tainted = [one for host in answer["hosts"] for one in host["devices"] if one["code"] == Code.TAINTED]
    assert [one["detail"]["rules"] for one in tainted] == [["firmware-update"]] * 4


def test_plan_names_the_rule(up: Up) -> None:
    assert NAMED in out(up, "plan", "-f", "-", stdin=listed(machine("green", "one-vf")), code=1)
