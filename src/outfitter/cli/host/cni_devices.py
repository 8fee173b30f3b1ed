"""`outfit cni-devices`: the devices of one pod for a CNI plugin's ADD, as JSON on stdin and stdout. A CNI plugin passes on what
the container runtime gave it: its configuration on stdin, the pod in CNI_ARGS. Only resources that the configuration names are
answered.

    CNI_ARGS    K8S_POD_NAMESPACE=blue;K8S_POD_NAME=p
    stdin       {"cniVersion": "1.0.0", "name": "fast", "type": "...", "resources": ["example.com/nic"]}
    stdout      {"namespace": "blue", "name": "p", "devices": {"example.com/nic": ["e0"]}}

An error is CNI's: {"cniVersion", "code", "msg"} on stdout and exit status 1."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from outfitter.api.assignment.kubelet_folder import KUBELET_DIR
from outfitter.errors import NotFound, OutfitterError

VERSION = "1.0.0"
# Codes of the CNI specification, and from 100 on a plugin's own.
INVALID_ENVIRONMENT, INVALID_CONFIG, TRY_LATER, POD_NOT_FOUND = 4, 7, 11, 100


@dataclass(frozen=True, slots=True)
class CniRequest:
    namespace: str
    name: str
    resources: frozenset[str]
    kubelet_dir: Path


class _CniError(Exception):
    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


@click.command("cni-devices")
def cni_devices() -> None:
    """Print the devices of a pod for its CNI plugin, as JSON."""
    config: Any = {}
    try:
        config = _config(sys.stdin.read())
        request = read_request(config, os.environ)
        answer = {"namespace": request.namespace, "name": request.name, "devices": _devices(request)}
    except _CniError as error:
        version = config.get("cniVersion") if isinstance(config, dict) else None
        click.echo(json.dumps({"cniVersion": version or VERSION, "code": error.code, "msg": str(error)}))
        sys.exit(1)
    click.echo(json.dumps(answer))


def _config(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _CniError(INVALID_CONFIG, f"the configuration on stdin is not JSON: {error}") from None


def read_request(config: Any, environment: Mapping[str, str]) -> CniRequest:
    """The pod is named by CNI_ARGS, or else by `namespace` and `podName` of the configuration: that may be what a user of a
    namespace wrote into a NetworkAttachmentDefinition, and names no other pod than the one that is set up."""
    if not isinstance(config, dict):
        raise _CniError(INVALID_CONFIG, "the configuration on stdin is not a JSON object")
    resources = config.get("resources")
    if not isinstance(resources, list) or not resources or not all(isinstance(name, str) for name in resources):
        raise _CniError(INVALID_CONFIG, "resources: must be a list of the resource names that the plugin knows")
    arguments = dict(part.partition("=")[::2] for part in environment.get("CNI_ARGS", "").split(";"))
    namespace = _pod(config, "namespace", arguments.get("K8S_POD_NAMESPACE"))
    name = _pod(config, "podName", arguments.get("K8S_POD_NAME"))
    if not namespace or not name:
        raise _CniError(INVALID_ENVIRONMENT, "CNI_ARGS must have K8S_POD_NAMESPACE and K8S_POD_NAME, or the configuration "
                                             "namespace and podName")
    folder = config.get("kubeletDir", str(KUBELET_DIR))
    if not isinstance(folder, str) or not folder:
        raise _CniError(INVALID_CONFIG, "kubeletDir: must be the path of the kubelet's folder")
    return CniRequest(namespace, name, frozenset(resources), Path(folder))


def _pod(config: Mapping[str, Any], key: str, of_runtime: str | None) -> str | None:
    value = config.get(key) or of_runtime
    if not isinstance(value, str | None) or (of_runtime and value != of_runtime):
        raise _CniError(INVALID_CONFIG, f"{key}: must be that of the pod which is set up" + (
            f", {of_runtime} (CNI_ARGS)" if of_runtime else ", a text"))
    return value


def _devices(request: CniRequest) -> dict[str, list[str]]:
    """Of all containers of the pod."""
    from outfitter.node.readers import pod_resources_client  # noqa: PLC0415  # gRPC is slow to import

    try:
        pod = pod_resources_client.pod(request.kubelet_dir, request.namespace, request.name)
    except NotFound as error:
        raise _CniError(POD_NOT_FOUND, error.message) from error
    except OutfitterError as error:
        raise _CniError(TRY_LATER, error.message) from error
    out: dict[str, list[str]] = {}
    for container in pod.containers:
        for resource, devices in container.devices.items():
            if resource in request.resources:
                out.setdefault(resource, []).extend(devices)
    return {resource: list(dict.fromkeys(ids)) for resource, ids in sorted(out.items())}
