"""What a person may have forgotten who waits for devices that no host has: said beside the reasons, when it is true. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from outfitter.api.kubevirt import pod_claims
from outfitter.scheduling.dra import extended_resources
from outfitter.scheduling.explain import grouping
from outfitter.scheduling.scheduler import Claims, Waiting
from outfitter.scheduling.snapshot import Facts

PLAIN = ("cpu", "memory", "pods", "ephemeral-storage")
_POD = re.compile(r"\bpod/([a-z0-9.-]+)")
VIRTUAL = ('"VF"', "'VF'")  # by which a selector asks for virtual functions


def unmapped(facts: Facts, pod: Mapping[str, Any]) -> Iterator[str]:
    """Resources that a pod asks for, no host offers and no class stands for."""
    class_of = extended_resources.mapped(facts.classes)
    offered = {name for node in facts.nodes for name in (node.get("status") or {}).get("allocatable") or {}}
    for name in sorted(_asked(pod)):
        if name not in offered and class_of(name) is None and "/" in name:
            yield (f"apply a DeviceClass with spec.extendedResourceName: {name}: no host offers {name} itself, and no class "
                   "stands for it")


def unmade(facts: Facts, pod: Mapping[str, Any], claims: Claims, waiting: Waiting) -> Iterator[str]:
    """Cards whose virtual functions nobody has switched on, for a pod that asks for some and lacks nothing else there."""
    lacking = {host for host, refusal in waiting.hosts if refusal.seek is not None}
    found = [f"{one['address']} of {inventory['metadata']['name']} can have {one['totalVfs']}"
             for inventory in facts.inventories if inventory["metadata"]["name"] in lacking
             for one in (inventory.get("spec") or {}).get("withheld") or () if one.get("totalVfs") and not one.get("numVfs")]
    if found and any(word in selector for selector in _selectors(facts, pod, claims) for word in VIRTUAL):
        yield f"switch virtual functions on (sriov in the configuration, or sriov_numvfs): {grouping.few(found)}, and has none"


def in_use(facts: Facts, namespace: str, reason: str) -> tuple[str, tuple[str, ...]]:
    """A reason that a claim is in use, with the machines in place of their pods, and what helps; any other reason as it is."""
    if " is in use by pod/" not in reason:
        return reason, ()
    users = dict.fromkeys(facts.called(namespace, name) for name in _POD.findall(reason))
    told = _POD.sub(lambda found: facts.called(namespace, found[1]), reason)
    return told, (f"it can start once {' and '.join(users)} end{'s' if len(users) == 1 else ''}; or give it a claim of its own "
                  "(resourceClaimTemplateName)",)


def _asked(pod: Mapping[str, Any]) -> set[str]:
    containers = (pod.get("spec") or {}).get("containers") or ()
    return {name for container in containers for name in extended_resources.asked(container)} - set(PLAIN)


def _selectors(facts: Facts, pod: Mapping[str, Any], claims: Claims) -> Iterator[str]:
    """The expressions of all classes and requests that a pod asks by."""
    class_of = extended_resources.mapped(facts.classes)
    classes = [class_of(name) for name in sorted(_asked(pod))]
    for claim in _claims(pod, claims):
        for request in ((claim.get("spec") or {}).get("devices") or {}).get("requests") or ():
            for each in (request.get("exactly"), *(request.get("firstAvailable") or ())):
                classes.append(facts.class_((each or {}).get("deviceClassName") or ""))
                yield from _expressions((each or {}).get("selectors"))
    for class_ in classes:
        yield from _expressions(((class_ or {}).get("spec") or {}).get("selectors"))


def _claims(pod: Mapping[str, Any], claims: Claims) -> Iterator[Mapping[str, Any]]:
    for _, name in pod_claims.claim_names(pod):
        found = claims(pod["metadata"]["namespace"], name) if name else None
        if found is not None:
            yield found


def _expressions(selectors: Any) -> Iterator[str]:
    for selector in selectors or ():
        yield str((selector.get("cel") or {}).get("expression") or "")
