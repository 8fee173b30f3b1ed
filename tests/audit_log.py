"""kube-apiserver's audit log: who asked what of it. Used by tests and by benchmarks; needs no pytest:

    cluster = Cluster(folder, apiserver_flags=audit_log.flags(folder))
    ...
    for request in audit_log.requests(folder): ...
"""

from __future__ import annotations

import json
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import msgspec

SELECTORS = ("fieldSelector", "labelSelector")
LARGEST = 4096  # MB, after which the server begins another file; by itself it would after 100
POLICY = {"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"],
          "rules": [{"level": "Metadata"}]}


@dataclass(frozen=True, slots=True)
class AuditedRequest:
    client: str  # the program: "kube-scheduler", "outfitter-controller"
    account: str  # name of the user or service account
    verb: str  # "create", "patch", "watch"
    resource: str  # "pods", "resourceclaims/status"; "" for a path that is no resource
    name: str
    code: int  # HTTP status
    received: datetime
    query: str = ""

    @property
    def selector(self) -> str:
        """The selectors of a list or watch, "" for none."""
        query = urllib.parse.parse_qs(self.query)
        return ",".join(query[key][0] for key in SELECTORS if key in query)

    def __str__(self) -> str:
        return " ".join(filter(None, (self.verb, self.resource, self.selector)))


def flags(folder: Path) -> list[str]:
    """Arguments of kube-apiserver that make it write the log into a folder; a request is in it when it is answered, a watch
    when it begins."""
    folder.mkdir(parents=True, exist_ok=True)
    policy = folder / "audit-policy.json"
    policy.write_text(json.dumps(POLICY))
    return [f"--audit-policy-file={policy}", f"--audit-log-path={folder / 'audit.log'}", "--audit-log-mode=blocking",
            f"--audit-log-maxsize={LARGEST}"]


def requests(folder: Path) -> Iterator[AuditedRequest]:
    """Each once. The last line may be half written."""
    begun: set[str] = set()
    with (folder / "audit.log").open("rb") as log:
        for line in log:
            if not line.endswith(b"\n"):
                return
            entry = msgspec.json.decode(line)
            if entry["auditID"] in begun or (entry["stage"] == "ResponseStarted" and entry["verb"] != "watch"):
                continue
            begun.add(entry["auditID"])
            about = entry.get("objectRef") or {}
            resource = "/".join(part for part in (about.get("resource"), about.get("subresource")) if part)
            account = (entry.get("user") or {}).get("username", "").rpartition(":")[2]
            yield AuditedRequest(entry.get("userAgent", "").partition("/")[0], account, entry["verb"], resource,
                                 about.get("name", ""), (entry.get("responseStatus") or {}).get("code", 0),
                                 datetime.fromisoformat(entry["requestReceivedTimestamp"]),
                                 entry["requestURI"].partition("?")[2])
