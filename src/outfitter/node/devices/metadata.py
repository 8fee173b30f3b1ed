"""How a launcher gets to know its devices without an API server: device metadata files (Kubernetes' device attributes downward
API, as KubeVirt 1.8.3 and later read them) and environment variables by claim and request. Pure."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from outfitter.api.device import PCI_BUS_ID
from outfitter.api.device_metadata import API_VERSIONS, KIND, SUFFIX
from outfitter.api.kinds import Object
from outfitter.api.launcher import launcher_environment as variables

POD_CLAIM = "resource.kubernetes.io/pod-claim-name"  # on a claim that was created from a template: its name in the pod


@dataclass(frozen=True, slots=True)
class PreparedDevice:
    """A device that was prepared for a request of a claim."""

    request: str  # "gpu", or "gpu/large" when the request names alternatives
    driver: str
    pool: str
    device: str
    address: str | None  # of a PCI function
    uuid: str | None  # of a mediated device
    numa: int | None = None
    pcie_root: str | None = None
    functions: tuple[str, ...] = ()  # all PCI functions that were prepared with it, itself included

    @property
    def asked(self) -> str:
        """The request as VMs name it: without the alternative that was chosen."""
        return self.request.partition("/")[0]

    def attributes(self) -> Object:
        texts = {PCI_BUS_ID: self.address, "resource.kubernetes.io/pcieRoot": self.pcie_root, "mdevUUID": self.uuid}
        out: dict[str, Any] = {name: {"string": text} for name, text in texts.items() if text}
        return out | ({"resource.kubernetes.io/numaNode": {"int": self.numa}} if self.numa is not None else {})


def folder(claim: Object) -> str:
    """The folder of a claim's files below the base."""
    meta = claim["metadata"]
    alias = (meta.get("annotations") or {}).get(POD_CLAIM)
    return f"resourceclaimtemplates/{alias}" if alias else f"resourceclaims/{meta['name']}"


def files(claim: Object, given: Sequence[PreparedDevice]) -> dict[str, str]:
    """Name below the base -> text: one file for each request and driver, with one JSON object for each version."""
    meta = claim["metadata"]
    alias = (meta.get("annotations") or {}).get(POD_CLAIM)
    named = {"podClaimName": alias} if alias else {}
    by_place: dict[tuple[str, str], list[PreparedDevice]] = defaultdict(list)
    for one in given:
        by_place[one.asked, one.driver].append(one)
    out = {}
    for (asked, driver), devices in by_place.items():
        content = {
            "kind": KIND,
            "metadata": {"name": meta["name"], "namespace": meta["namespace"], "uid": meta["uid"],
                         "generation": meta.get("generation", 1)},
            **named,
            "requests": [{"name": request, "devices": [
                {"driver": one.driver, "pool": one.pool, "name": one.device, "attributes": one.attributes()}
                for one in devices if one.request == request]} for request in dict.fromkeys(one.request for one in devices)],
        }
        out[f"{folder(claim)}/{asked}/{driver}{SUFFIX}"] = "".join(
            json.dumps({"apiVersion": version, **content}) + "\n" for version in API_VERSIONS)
    return out


def environment(claim_name: str, given: Sequence[PreparedDevice]) -> Mapping[str, str]:
    """PCI_RESOURCE_<claim>_<request>, and MDEV_PCI_RESOURCE_<claim>_<request> for mediated devices, each a list with commas."""
    return _variables((f"{claim_name}_{one.asked}", one, ()) for one in given)


def by_resource(mappings: Iterable[tuple[str, str]], given: Sequence[PreparedDevice]) -> Mapping[str, str]:
    """PCI_RESOURCE_<resource> and MDEV_PCI_RESOURCE_<resource>, as device plugins write them: `mappings` are resources with the
    requests of a claim that stand for them. All functions of a device are listed, as a plugin lists those of a group."""
    return _variables((resource, one, one.functions) for resource, request in mappings for one in given if one.asked == request)


def _variables(named: Iterable[tuple[str, PreparedDevice, Sequence[str]]]) -> dict[str, str]:
    out: dict[str, list[str]] = defaultdict(list)
    for name, one, functions in named:
        suffix = variables.variable_suffix(name)
        if one.uuid is not None:
            out[f"{variables.MDEV}_{suffix}"].append(one.uuid)
        elif one.address is not None:
            out[f"{variables.PCI}_{suffix}"] += functions or [one.address]
    return {name: ",".join(values) for name, values in out.items()}
