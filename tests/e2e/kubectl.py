"""A real kubectl, typed against `outfit up`."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from tests.e2e.process import PATIENCE, ROOT, Up, environment


class Kubectl:
    def __init__(self, up: Up) -> None:
        assets = os.environ.get("KUBEBUILDER_ASSETS", "")
        found = shutil.which("kubectl", path=assets) or shutil.which("kubectl")
        if found is None:
            pytest.skip("needs a kubectl in PATH or KUBEBUILDER_ASSETS")
        self.program, self.env = found, environment(up.home, KUBECONFIG=str(up.kubeconfig))

    def __call__(self, *words: str, code: int = 0, **env: str) -> str:
        done = subprocess.run([self.program, *words], env={**self.env, **env}, cwd=ROOT, text=True, capture_output=True,
                              timeout=PATIENCE, check=False)
        assert done.returncode == code, f"kubectl {' '.join(words)}: {done.returncode}: {done.stdout}{done.stderr}"
        return done.stdout

    def watch(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen([self.program, *words], env=self.env, cwd=ROOT, text=True, stdout=subprocess.PIPE)
