"""The kubelet plugin of kubernetes-sigs/dra-example-driver (make judges), a process; `scripts/dra-example-driver` builds it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.e2e.process import ROOT

DRIVER = "gpu.example.com"
PATIENCE = 60.0  # seconds


def program() -> Path | None:
    found = subprocess.run([ROOT / "scripts" / "dra-example-driver", "--path"], capture_output=True, text=True, check=False)
    return None if found.returncode else Path(found.stdout.strip()) / "dra-example-kubeletplugin"


class ExampleDriver:
    """On a node with two GPUs. `kubelet`: the kubelet's folder."""

    def __init__(self, program: Path, kubeconfig: Path, node: str, kubelet: Path, cdi: Path) -> None:
        self.cdi, self.log = cdi, cdi.with_name("driver.log")
        self._words = [
            "setpriv", "--pdeathsig", "KILL", "--", str(program), f"--kubeconfig={kubeconfig}", f"--node-name={node}",
            f"--cdi-root={cdi}", f"--kubelet-registrar-directory-path={kubelet / 'plugins_registry'}",
            f"--kubelet-plugins-directory-path={kubelet / 'plugins'}", "--num-devices=2", "--v=4"]
        self._env = {"PATH": os.environ.get("PATH", ""), "NODE_NAME": node}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as file:
            self._process = subprocess.Popen(self._words, env=self._env, stdin=subprocess.DEVNULL, stdout=file, stderr=file,
                                             start_new_session=True)

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(PATIENCE)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(PATIENCE)

    def check(self) -> None:
        if self._process is not None and self._process.poll() is not None:
            raise AssertionError(f"the example driver ended with {self._process.returncode}:\n{self.log.read_text()[-4000:]}")

    def prepared(self, claim_uid: str) -> list[Path]:
        """The CDI files that it wrote for a claim."""
        return [path for path in self.cdi.iterdir() if claim_uid in path.name]
