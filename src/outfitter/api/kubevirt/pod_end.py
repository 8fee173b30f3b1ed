"""Why a launcher pod ended or waits: its status where the node agent runs it, else the termination message that its launcher
left in the container's status (`api.launcher_outcome`). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from outfitter.api.kubevirt import vm

LAUNCHER_FAILED = "LauncherFailed"  # it ended without a reason: it was killed
MAX_REASON = 64  # letters


def reason_of(pod: Mapping[str, Any]) -> tuple[str, str]:
    """Reason and message of a pod; empty where there is neither."""
    status = pod.get("status") or {}
    if status.get("reason") or status.get("message"):
        return str(status.get("reason") or ""), str(status.get("message") or "")
    for container in status.get("containerStatuses") or ():
        terminated = (container.get("state") or {}).get("terminated")
        if container.get("name") == vm.CONTAINER and terminated:
            return _terminated(terminated)
    return "", ""


def _terminated(state: Mapping[str, Any]) -> tuple[str, str]:
    """Without a reason of the launcher the message is the end of its log, or empty."""
    text = str(state.get("message") or "").strip()
    reason, colon, message = text.partition(": ")
    if colon and reason.isalpha() and len(reason) < MAX_REASON:
        return reason, message
    last = f"; the last line of its log: {text.splitlines()[-1]}" if text else ""
    status = f"exit status {state.get('exitCode')} ({state.get('reason') or 'Error'})"
    return LAUNCHER_FAILED, f"the launcher ended with {status}{last}"
