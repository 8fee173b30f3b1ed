"""Devices that must be made ready, and hosts that are skipped for a while because they were not."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from outfitter.scheduling.dra import binding_conditions

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def result(share: str = "", device: str = "x0") -> dict[str, Any]:
    return {"driver": "d", "pool": "p", "device": device, "request": "r", "bindingConditions": ["Ready"],
            "bindingFailureConditions": ["Broken"], **({"shareID": share} if share else {})}


def claim(*results: dict[str, Any], since: datetime = NOW, **said: str) -> dict[str, Any]:
    """With what was said of shares of x0: its id -> the condition that is true."""
    devices = [{"driver": "d", "pool": "p", "device": "x0", **({"shareID": share} if share != "whole" else {}),
                "conditions": [{"type": type_, "status": "True"}]} for share, type_ in said.items()]
    return {"status": {"allocation": {"devices": {"results": list(results)}, "allocationTimestamp": since.isoformat()},
                       "devices": devices}}


CASES = {
    "nothing was said": ([claim(result())], "waiting"),
    "it is ready": ([claim(result(), whole="Ready")], "ready"),
    "it has failed": ([claim(result(), whole="Broken")], "failed"),
    "of one share that is ready another is not": ([claim(result("a"), result("b"), a="Ready")], "waiting"),
    "both shares are": ([claim(result("a"), result("b"), a="Ready", b="Ready")], "ready"),
    "another share failed": ([claim(result("a"), a="Ready", b="Broken")], "ready"),
    "the older of two claims decides how long": ([
        claim(result(), since=NOW - timedelta(seconds=600)), claim(result())], "failed"),
    "ready is ready, however late": ([claim(result(), since=NOW - timedelta(seconds=999), whole="Ready")], "ready"),
}


@pytest.mark.parametrize("name", CASES)
def test_of_all_claims_together(name: str) -> None:
    claims, state = CASES[name]
    assert binding_conditions.readiness(claims, NOW).state == state


def test_skipped_hosts_expire_one_by_one() -> None:
    pod: dict[str, Any] = {"metadata": {"annotations": {"mine": "stays"}}}
    pod["metadata"]["annotations"] |= binding_conditions.skipping(pod, "a", "broke", NOW, 60)
    later = NOW + timedelta(seconds=30)
    pod["metadata"]["annotations"] |= binding_conditions.skipping(pod, "b", "slow", later, 60)
    assert {host: why for host, (_, why) in binding_conditions.skipped_hosts(pod, later).items()} == {"a": "broke", "b": "slow"}
    assert list(binding_conditions.skipped_hosts(pod, NOW + timedelta(seconds=60))) == ["b"]
    assert binding_conditions.skipped_hosts(pod, NOW + timedelta(seconds=90)) == {}
    pod["metadata"]["annotations"] |= binding_conditions.skipping(pod, "c", "", NOW + timedelta(seconds=70), 60)
    assert "broke" not in pod["metadata"]["annotations"][binding_conditions.SKIPPED_HOSTS], "expired entries are dropped"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"a": 1}', '{"a": ["soon", "x"]}', '{"a": ["2026-01-01T00:00:00", "x"]}'])
def test_malformed_annotation_skips_no_host(text: str) -> None:
    assert binding_conditions.skipped_hosts({"metadata": {"annotations": {binding_conditions.SKIPPED_HOSTS: text}}}, NOW) == {}
