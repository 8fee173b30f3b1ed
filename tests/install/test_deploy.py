"""deploy/ is what `outfit install` applies."""

from __future__ import annotations

import importlib
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from outfitter.install import manifests, resources
from outfitter.install.names import InstallOptions
from tests.e2e.process import ROOT
from tests.kubernetes import assets


def test_deploy_is_what_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    wanted = importlib.import_module("deploy").files()
    folder = ROOT / "deploy"
    found = {
        str(path.relative_to(folder)): path.read_text()
        for name in ("base/*", "components/*/*", "images/*.lock")
        for path in folder.glob(name)
    }
    assert found.keys() == wanted.keys(), "run make deploy"
    assert [path for path in wanted if found[path] != wanted[path]] == [], "run make deploy"


@pytest.mark.kubectl
@pytest.mark.parametrize("simulation", [False, True])
def test_kustomize_builds_it(tmp_path: Path, simulation: bool) -> None:
    folder = assets()
    kubectl = shutil.which("kubectl") or (folder / "kubectl" if folder else None)
    if kubectl is None:
        pytest.skip("needs kubectl in PATH or KUBEBUILDER_ASSETS")
    shutil.copytree(ROOT / "deploy", tmp_path / "deploy")
    overlay = {"resources": ["../deploy/base"], "components": ["../deploy/components/simulation"] if simulation else []}
    (tmp_path / "overlay").mkdir()
    (tmp_path / "overlay" / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
    done = subprocess.run([kubectl, "kustomize", tmp_path / "overlay"], text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    built = {resources.key_of(obj): obj for obj in yaml.load_all(done.stdout, Loader=yaml.CSafeLoader)}
    wanted = {resources.key_of(obj): obj for obj in manifests.objects(InstallOptions(simulation=simulation))}
    assert built == wanted
