"""`outfit why` of a user who may not read what is asked about."""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from outfitter.store import pki
from tests import fake_http
from tests.e2e.process import typed


class Refusing(BaseHTTPRequestHandler):
    """Refuses VMs, and has nothing else."""

    def do_GET(self) -> None:
        code, reason = (403, "Forbidden") if "/virtualmachines/" in self.path else (404, "NotFound")
        status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason,
                  "message": f"{self.path.rpartition('/')[2]} is {reason}"}
        content = json.dumps(status).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *words: Any) -> None:
        pass


@pytest.mark.parametrize("what", ["vm/blue", "blue"])
def test_what_may_not_be_read_is_not_said_to_be_missing(what: str, tmp_path: Path) -> None:
    with fake_http.serving(Refusing) as port:
        kubeconfig = tmp_path / "kubeconfig"
        kubeconfig.write_text(json.dumps(pki.kubeconfig(f"http://127.0.0.1:{port}", token="none")))
        done = typed("why", what, kubeconfig=kubeconfig)
    assert (done.code, "blue is Forbidden" in done.err, "there is no" in done.err) == (1, True, False)
