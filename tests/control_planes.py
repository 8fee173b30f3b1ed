"""Control planes for tests: one that the modules of a worker share, and others for modules that need flags, gates or a server
without an installation. Starting one costs about as much as a dozen tests, and one that idles costs CPU as well."""

from __future__ import annotations

import contextlib
import json
import urllib.error
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from outfitter.api import kinds
from outfitter.api.kinds import Kind
from outfitter.install import names
from tests import kubernetes

USED = (kinds.VM, kinds.VMI, kinds.MIGRATION, kinds.RESOURCE_CLAIM_TEMPLATE, kinds.POD, kinds.RESOURCE_CLAIM)  # by a test
KEPT = (kinds.NODE, kinds.RESOURCE_SLICE, kinds.DEVICE_CLASS, kinds.LEDGER_PAGE, kinds.PROVIDER_TREE, kinds.HOST_INVENTORY,
        kinds.PAST_BOOKING, kinds.FLAVOR, kinds.NETWORK_ATTACHMENT, kinds.EVENT)  # while the roles run
NOT_INSTALLED = urlencode({"labelSelector": f"{names.MANAGED_BY}!={names.MANAGER}"})  # a query: not of an installation


@contextlib.contextmanager
def started(folder: Path, **options: Any) -> Iterator[kubernetes.Cluster]:
    """A control plane, `options` as of `kubernetes.Cluster`; where there are no programs for it the test is skipped."""
    if kubernetes.assets() is None:
        pytest.skip(kubernetes.MISSING)
    with kubernetes.Cluster(folder, **options) as running:
        yield running


def clear(cluster: kubernetes.Cluster) -> None:
    """Remove what tests and roles have created, but not the installation. The roles have ended, so finalizers are removed."""
    for kind in (*USED, kinds.KUBEVIRT, *KEPT):
        _clear(cluster, kind)


def _clear(cluster: kubernetes.Cluster, kind: Kind) -> None:
    try:
        found = json.loads(cluster.request("GET", f"{kind.path()}?{NOT_INSTALLED}"))["items"]
    except urllib.error.HTTPError as error:
        if error.code != 404:
            raise
        return  # the definition is not installed
    places = sorted({obj["metadata"].get("namespace", "") for obj in found})
    for place in places:
        cluster.request("DELETE", f"{kind.path(place)}?gracePeriodSeconds=0&{NOT_INSTALLED}")
    for meta in [obj["metadata"] for obj in found if obj["metadata"].get("finalizers")]:
        with contextlib.suppress(urllib.error.HTTPError):  # it is gone, or another controller removed its finalizer
            cluster.request("PATCH", kind.path(meta.get("namespace", ""), meta["name"]), {"metadata": {"finalizers": None}})
