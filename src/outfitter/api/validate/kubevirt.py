"""The KubeVirt object: invalid values, and warnings about feature gates without effect."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from outfitter.api.kubevirt import feature_gates, kubevirt_config
from outfitter.api.validate import node_placement
from outfitter.errors import Cause

OPTIONAL = "selectors"  # of usb: a device plugin may provide the resource
NOT_NEGATIVE = ("parallelMigrationsPerCluster", "parallelOutboundMigrationsPerNode", "completionTimeoutPerGiB",
                "progressTimeout")  # of migrations
_VENDOR = re.compile(r"[0-9a-fA-F]{4}:[0-9a-fA-F]{4}")
_SECONDS = re.compile(r"[0-9]{1,9}")
_DURATION = re.compile(r"0|([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+")


def check(obj: Mapping[str, Any]) -> Iterator[Cause]:
    spec = obj.get("spec") or {}
    given = spec.get("configuration") or {}
    strategy = given.get("vmRolloutStrategy")
    if strategy is not None and strategy not in kubevirt_config.STRATEGIES:
        yield node_placement.unsupported("spec.configuration.vmRolloutStrategy", strategy, kubevirt_config.STRATEGIES)
    update = spec.get("workloadUpdateStrategy") or {}
    for index, method in enumerate(update.get("workloadUpdateMethods") or ()):
        if method not in kubevirt_config.METHODS:
            yield node_placement.unsupported(
                f"spec.workloadUpdateStrategy.workloadUpdateMethods[{index}]", method, kubevirt_config.METHODS
            )
    if (update.get("batchEvictionSize") or 0) < 0:
        yield Cause("spec.workloadUpdateStrategy.batchEvictionSize",
                    f"Invalid value: {update['batchEvictionSize']}: must be zero or more")
    every = update.get("batchEvictionInterval")
    if every is not None and not _DURATION.fullmatch(every):
        yield Cause(
            "spec.workloadUpdateStrategy.batchEvictionInterval", f'Invalid value: "{every}": must be a duration such as 1m30s'
        )
    migrations = given.get("migrations") or {}
    for name in NOT_NEGATIVE:
        if (migrations.get(name) or 0) < 0:
            yield Cause(f"spec.configuration.migrations.{name}", f"Invalid value: {migrations[name]}: must be zero or more")
    for annotation, usual in kubevirt_config.SECONDS.items():
        seconds = (obj["metadata"].get("annotations") or {}).get(annotation)
        if seconds is not None and not _SECONDS.fullmatch(str(seconds)):
            yield Cause(f"metadata.annotations[{annotation}]",
                        f'Invalid value: "{seconds}": must be a number of seconds, such as {usual}')
    permitted = given.get("permittedHostDevices") or {}
    for list_, selector in kubevirt_config.PERMITTED.items():
        for index, entry in enumerate(permitted.get(list_) or ()):
            here = f"spec.configuration.permittedHostDevices.{list_}[{index}]"
            for field in ("resourceName", selector):
                if not entry.get(field) and field != OPTIONAL:
                    yield Cause(f"{here}.{field}", "Required value", "FieldValueRequired")
    for index, entry in enumerate(permitted.get("pciHostDevices") or ()):
        words = entry.get("pciVendorSelector")
        if words and not _VENDOR.fullmatch(words):
            yield Cause(f"spec.configuration.permittedHostDevices.pciHostDevices[{index}].pciVendorSelector",
                        f'Invalid value: "{words}": must be vendor:product in hexadecimal, such as 10de:1eb8')


def config_warnings(obj: Mapping[str, Any]) -> Iterator[str]:
    """Warnings about valid feature gates without effect."""
    developer = ((obj.get("spec") or {}).get("configuration") or {}).get("developerConfiguration") or {}
    on, off = developer.get("featureGates") or (), developer.get("disabledFeatureGates") or ()
    at = "spec.configuration.developerConfiguration"
    for field, names in (("featureGates", on), ("disabledFeatureGates", off)):
        if unknown := feature_gates.unknown(names):
            known = ", ".join([*feature_gates.KNOWN, *feature_gates.STAND_FOR, *feature_gates.OF_PODS, *feature_gates.OF_VMS])
            yield f"{at}.{field}: {', '.join(unknown)} has no effect here; known gates: {known}"
    if both := [name for name in off if name in on]:
        yield f"{at}.disabledFeatureGates: {', '.join(both)} is also in featureGates, and stays on"
