"""What is sent to the webhook: our kinds and no others, each with a failure policy and its reason."""

from __future__ import annotations

from pathlib import Path

from outfitter.api import kinds
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import reattached_devices
from outfitter.webhook import rules
from outfitter.webhook.rules import RULES

OURS = {kind for kind in kinds.ALL if not kind.builtin and kind != kinds.NETWORK_ATTACHMENT}  # that one is Multus's


def client(path: str) -> Object:
    return {"url": f"https://127.0.0.1:1{path}"}


def sent(rule: rules.WebhookRule) -> set[tuple[str, str]]:
    return {(kind.plural, operation) for kind in rule.kinds for operation in rule.operations if not rule.subresource}


def test_every_kind_of_ours_is_checked_when_it_is_created_and_changed() -> None:
    checked = set().union(*(sent(rule) for rule in RULES if not rule.mutating))
    assert {(kind.plural, operation) for kind in OURS for operation in ("CREATE", "UPDATE")} <= checked


def test_no_kind_of_kubernetes_waits_for_the_webhook() -> None:
    assert {kind for rule in RULES for kind in rule.kinds} <= OURS
    for mutating in (False, True):
        for entry in rules.entries("ns", client, mutating=mutating):
            words = [word for rule in entry["rules"] for field in ("apiGroups", "apiVersions", "resources", "operations")
                     for word in rule[field]]
            assert not any("*" in word for word in words)


def test_what_must_never_get_in_is_refused_while_the_webhook_is_away() -> None:
    assert {rule.name: rule.failure_policy for rule in RULES if not rule.mutating} == dict.fromkeys(
        ("vms", "status", "pages", "configuration", "inventory"), "Fail")
    assert all(rule.reason for rule in RULES)


def test_deletes_wait_for_the_webhook_for_pages_alone() -> None:
    assert {(rule.name, kind) for rule in RULES if "DELETE" in rule.operations for kind in rule.kinds} == {
        ("pages", kinds.LEDGER_PAGE)}


def test_our_own_updates_are_not_sent() -> None:
    assert {operation for rule in RULES for operation in rule.own} == {"CREATE"}
    for entry in rules.entries("elsewhere", client, mutating=False):
        assert "system:serviceaccount:elsewhere:outfitter-node" in entry["matchConditions"][0]["expression"]


def test_the_annotation_of_a_vmi_that_is_checked_is_sent_though_the_spec_is_kept() -> None:
    conditions = {entry["name"]: [one["expression"] for one in entry["matchConditions"] if one["name"] == "new-spec"]
                  for entry in rules.entries("ns", client, mutating=False)}
    assert {name for name, [*found] in conditions.items() if any(reattached_devices.DECLARED in one for one in found)} == {
        "vms.outfitter.dev"}
    assert len(conditions["configuration.outfitter.dev"]) == 1


def test_beside_kubevirt_its_kinds_are_left_to_its_own_webhook() -> None:
    entries = rules.entries("ns", client, mutating=False, companion=True)
    assert {group for entry in entries for rule in entry["rules"] for group in rule["apiGroups"]} == {"outfitter.dev"}
    assert rules.entries("ns", client, mutating=True, companion=True) == []


def test_the_docs_have_each_rule_with_its_reason() -> None:
    text = (Path(__file__).parents[2] / "docs" / "webhook.md").read_text()
    for rule in RULES:
        row = next(line for line in text.splitlines() if line.startswith(f"| `{rule.name}` |"))
        assert row.endswith(f"| {rule.reason} |")
        assert ("refused" if rule.failure_policy == "Fail" else "admitted unseen") in row
