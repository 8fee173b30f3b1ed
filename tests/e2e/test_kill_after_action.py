"""kill -9 of the product right after an action request was acknowledged: the next start carries it out, and finds a paused VM
as it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.e2e.process import ForkedUp, Up, until

MACHINE = """
apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata: {name: blue}
spec: {runStrategy: Always, template: {spec: {domain: {memory: {guest: 1Gi}, devices: {}}}}}
"""


def word(up: Up) -> str:
    found: Any = json.loads(up.ok("get", "vm", "blue", "-o", "json"))
    return str((found.get("status") or {}).get("printableStatus"))


def marked(up: Up) -> bool:
    """Whether the hypervisor's own files say that it is paused."""
    return any(name.endswith(".paused") for name in up.domains())


def test_acknowledged_action_request_is_executed(tmp_path: Path) -> None:
    up = ForkedUp(tmp_path / "data")
    with up:
        up.ok("apply", "-f", "-", stdin=MACHINE)
        until(lambda: word(up) == "Running", "it runs")
        uid = json.loads(up.ok("get", "vmi", "blue", "-o", "json"))["metadata"]["uid"]
        for action, then in (("pause", "Paused"), ("unpause", "Running"), ("pause", "Paused")):
            up.ok("vm", action, "blue")
            up.kill()
            up.start()
            until(lambda then=then: (word(up), marked(up)) == (then, then == "Paused"), f"after {action} it is {then}")  # type: ignore[misc]
        up.kill()
        up.start()
        until(lambda: word(up) == "Paused", "a paused machine is found paused")
        assert json.loads(up.ok("get", "vmi", "blue", "-o", "json"))["metadata"]["uid"] == uid, "it is the same all the time"
        up.ok("vm", "stop", "blue", "--wait")
        assert up.domains() == {}
        assert up.stop() == 0
