#!/usr/bin/env python3
"""Write deploy/: what `outfit install` applies, as a kustomize base, with the simulation as a component. `make deploy` runs it;
a test fails when deploy/ is out of date."""

from __future__ import annotations

import contextlib
import re
import sys
import tomllib
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from outfitter.api.kinds import Object
from outfitter.cli.install.actions import as_yaml
from outfitter.install import manifests, resources
from outfitter.install.names import InstallOptions

ROOT = Path(__file__).parents[1]
HEAD = "# Written by make deploy from src/outfitter/install.\n"
RBAC = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
FILES = {"Namespace": "namespace", "CustomResourceDefinition": "crds", "DeviceClass": "device-class",
         **dict.fromkeys(RBAC, "rbac"),
         **dict.fromkeys(("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"), "node-policy"),
         **dict.fromkeys(("ValidatingWebhookConfiguration", "MutatingWebhookConfiguration", "APIService"), "webhooks")}


def files() -> Mapping[str, str]:
    """The content of every file below deploy/ that is generated, by its path there."""
    base = manifests.objects(InstallOptions())
    known = set(map(resources.key_of, base))
    simulation = [obj for obj in manifests.objects(InstallOptions(simulation=True)) if resources.key_of(obj) not in known]
    return {**_folder("base", "Kustomization", base), **_folder("components/simulation", "Component", simulation),
            "images/requirements.lock": runtime_lock()}


def runtime_lock() -> str:
    """The entries of requirements.lock that the product needs: no tools of its development."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    left = [Requirement(text) for text in (*project["dependencies"], *project["optional-dependencies"]["kubelet"])]
    found: set[str] = set()
    while left:
        name = canonicalize_name(left.pop().name)
        if name not in found:
            found.add(name)
            with contextlib.suppress(metadata.PackageNotFoundError):  # for another system
                left += [needed for needed in map(Requirement, metadata.requires(name) or ())
                         if "extra" not in str(needed.marker)]
    entries = re.split(r"^(?=\S)", (ROOT / "requirements.lock").read_text(), flags=re.MULTILINE)
    return HEAD.replace("src/outfitter/install", "requirements.lock") + "".join(
        entry for entry in entries if canonicalize_name(re.split(r"[^\w.-]", entry)[0]) in found)


def _folder(path: str, kind: str, objects: list[Object]) -> dict[str, str]:
    grouped: dict[str, list[Object]] = {}
    for obj in objects:
        grouped.setdefault(FILES.get(obj["kind"], "workloads"), []).append(obj)
    version = "v1beta1" if kind == "Kustomization" else "v1alpha1"
    kustomization = {"apiVersion": f"kustomize.config.k8s.io/{version}", "kind": kind,
                     "resources": [f"{name}.yaml" for name in grouped]}
    return {f"{path}/kustomization.yaml": HEAD + as_yaml([kustomization]),
            **{f"{path}/{name}.yaml": HEAD + as_yaml(members) for name, members in grouped.items()}}


def main() -> None:
    wanted = files()
    for path, content in wanted.items():
        file = ROOT / "deploy" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    for file in [*(ROOT / "deploy").glob("base/*"), *(ROOT / "deploy").glob("components/*/*")]:
        if str(file.relative_to(ROOT / "deploy")) not in wanted:
            file.unlink()


if __name__ == "__main__":
    sys.exit(main())
