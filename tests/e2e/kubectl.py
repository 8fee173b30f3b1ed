"""A real kubectl, typed against `outfit up`."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence

import pytest

from tests.e2e.process import PATIENCE, ROOT, Up, environment


class Kubectl:
    def __init__(self, up: Up) -> None:
        assets = os.environ.get("KUBEBUILDER_ASSETS", "")
        found = shutil.which("kubectl", path=assets) or shutil.which("kubectl")
        if found is None:
            pytest.skip("needs a kubectl in PATH or KUBEBUILDER_ASSETS")
        self.program, self.env = found, environment(up.home, KUBECONFIG=str(up.kubeconfig))

    def __call__(self, *words: str, code: int = 0, stdin: str = "", **env: str) -> str:
        done = self._run(words, stdin, env)
        assert done.returncode == code, f"kubectl {' '.join(words)}: {done.returncode}: {done.stdout}{done.stderr}"
        return done.stdout

    def refused(self, *words: str, stdin: str = "") -> str:
        """Why a command failed."""
        done = self._run(words, stdin, {})
        assert done.returncode == 1, f"kubectl {' '.join(words)}: {done.returncode}: {done.stdout}{done.stderr}"
        return done.stderr

    def _run(self, words: Sequence[str], stdin: str, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run([self.program, *words], env={**self.env, **env}, cwd=ROOT, text=True, capture_output=True,
                              input=stdin, timeout=PATIENCE, check=False)

    def watch(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen([self.program, *words], env=self.env, cwd=ROOT, text=True, stdout=subprocess.PIPE)
