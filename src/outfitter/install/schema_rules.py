"""What the schemas of CRDs require beyond types, by path: values of enumerations, and lists that have a key. All of it is
taken from the rules of admission, which refuse the same: a test compares them. Paths begin with the kind; items of lists and
values of maps add nothing to them. Called by `schema`.

There is no CEL rule: the API server evaluates one also where nothing below it has changed, and refuses an object whose stored
fields have other types than the schema's; not even its finalizer could be removed."""

from __future__ import annotations

from collections.abc import Mapping

from outfitter.api.kubevirt import kubevirt_config
from outfitter.api.kubevirt.vmi_actions import START_PAUSED
from outfitter.api.validate import disks, guest, hardware, networks, node_placement, resources, vms
from outfitter.api.validate.node_placement import PREFERRED, REQUIRED

Values = Mapping[str, tuple[str, ...]]

_NODE_TERMS = (f"nodeAffinity.{REQUIRED}.nodeSelectorTerms", f"nodeAffinity.{PREFERRED}.preference")
_POD_TERMS = tuple(f"{part}.{term}" for part in ("podAffinity", "podAntiAffinity")
                   for term in (REQUIRED, f"{PREFERRED}.podAffinityTerm"))
_PLACEMENT: Values = {
    "tolerations.operator": ("", *node_placement.TOLERATES),
    "tolerations.effect": ("", *node_placement.EFFECTS),
    "topologySpreadConstraints.whenUnsatisfiable": node_placement.UNSATISFIABLE,
    "topologySpreadConstraints.nodeAffinityPolicy": node_placement.POLICIES,
    "topologySpreadConstraints.nodeTaintsPolicy": node_placement.POLICIES,
    "topologySpreadConstraints.labelSelector.matchExpressions.operator": node_placement.LABEL_OPERATORS,
    **{f"affinity.{term}.matchExpressions.operator": node_placement.OPERATORS for term in _NODE_TERMS},
    **{f"affinity.{term}.{selector}.matchExpressions.operator": node_placement.LABEL_OPERATORS
       for term in _POD_TERMS for selector in ("labelSelector", "namespaceSelector")},
}
_INSTANCE: Values = {
    **_PLACEMENT,
    "startStrategy": (START_PAUSED,),
    "evictionStrategy": ("", *guest.EVICTIONS),
    "architecture": ("", *hardware.ARCHITECTURES),
    "domain.ioThreadsPolicy": ("", *guest.THREADS),
    "domain.cpu.features.policy": ("", *hardware.POLICIES),
    "domain.devices.interfaces.state": networks.STATES,
    "domain.devices.interfaces.model": ("", *networks.MODELS),
    "domain.devices.interfaces.ports.protocol": ("", *guest.PROTOCOLS),
    "domain.devices.disks.disk.bus": ("", *disks.BUSES),
    "domain.devices.disks.cdrom.bus": ("", *disks.BUSES),
}
_REQUESTS = tuple(f"VirtualMachine.spec.resourceClaimTemplates.spec.spec.devices.requests.{kind}"
                  for kind in ("exactly", "firstAvailable"))
_SPECS = ("VirtualMachineInstance.spec", "VirtualMachine.spec.template.spec")
ENUMERATIONS: Values = {
    **{f"{spec}.{path}": values for spec in _SPECS for path, values in _INSTANCE.items()},
    **{f"{request}.allocationMode": resources.MODES for request in _REQUESTS},
    **{f"{request}.tolerations.operator": ("", *node_placement.TOLERATES) for request in _REQUESTS},
    **{f"{request}.tolerations.effect": ("", *node_placement.DEVICE_EFFECTS) for request in _REQUESTS},
    "VirtualMachine.spec.runStrategy": vms.STRATEGIES,
    "VirtualMachineInstance.status.phase": vms.PHASES,
    "KubeVirt.spec.configuration.vmRolloutStrategy": kubevirt_config.STRATEGIES,
    "KubeVirt.spec.workloadUpdateStrategy.workloadUpdateMethods": kubevirt_config.METHODS,
}
# Lists whose entries have a unique name, by which server-side apply merges them.
LIST_KEYS: Mapping[str, str] = {
    **{f"{spec}.{path}": "name" for spec in _SPECS for path in (
        "resourceClaims", "networks", "volumes", "domain.devices.gpus", "domain.devices.hostDevices",
        "domain.devices.interfaces", "domain.devices.disks")},
    "VirtualMachine.spec.resourceClaimTemplates": "name",
}
# Lists whose entries may have any type: as in admission, a malformed entry that is stored already must not keep a page from
# being written. The API server would check all entries of a list of which one has changed.
UNCHECKED = frozenset(f"LedgerPage.spec.{field}" for field in ("bookings", "reserved", "quarantined", "unclean"))
