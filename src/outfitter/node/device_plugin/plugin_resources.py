"""Which devices of a host are offered under which resource name, by permittedHostDevices of the KubeVirt object:

    selectors = read_selectors(kubevirt, companion=False)     # pciVendorSelector 10DE:20B5 -> example.com/gpu
    by_resource(selectors, host.devices)                      # {"example.com/gpu": ("pci-0000-65-00-0",)}

A device is of one resource: that of the first entry that selects it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from outfitter.api.kinds import Object
from outfitter.node.devices.passthrough_device import PassthroughDevice
from outfitter.scheduling.topology.device_choice import ChosenDevices, DevicesUnavailable, begin_choice, finish_choice
from outfitter.scheduling.topology.hints import DeviceRequest, ResourceDevices
from outfitter.scheduling.topology.merge import decide_affinity
from outfitter.scheduling.topology.settings import NumaNodes, TopologyPolicy, TopologyScope, TopologySettings


@dataclass(frozen=True, slots=True)
class DeviceSelector:
    """An entry of permittedHostDevices that this host serves."""

    resource: str
    pci_id: str = ""  # vendor and product: "10de:20b5"; empty for a mediated device
    mdev_type: str = ""  # "GRID_T4-1Q": the name of the type, blanks as "_", or its id

    def selects(self, device: PassthroughDevice) -> bool:
        if device.uuid is not None:
            return bool(self.mdev_type) and self.mdev_type in {_type_name(each) for each in device.mdev_types}
        return bool(self.pci_id) and self.pci_id == device.pci_id.lower()


def read_selectors(kubevirt: Object | None, *, companion: bool) -> tuple[DeviceSelector, ...]:
    """`companion`: KubeVirt's virt-handler serves entries by itself, except those with externalResourceProvider; without it,
    these are of plugins of others."""
    configuration = ((kubevirt or {}).get("spec") or {}).get("configuration") or {}
    permitted = configuration.get("permittedHostDevices") or {}
    return tuple(dict.fromkeys(_entries(permitted, external=companion)))


def _entries(permitted: Mapping[str, Any], *, external: bool) -> Iterator[DeviceSelector]:
    for entry in permitted.get("pciHostDevices") or ():
        if bool(entry.get("externalResourceProvider")) is external:
            yield DeviceSelector(str(entry.get("resourceName")), pci_id=str(entry.get("pciVendorSelector")).strip().lower())
    for entry in permitted.get("mediatedDevices") or ():
        if bool(entry.get("externalResourceProvider")) is external:
            yield DeviceSelector(str(entry.get("resourceName")), mdev_type=_type_name(str(entry.get("mdevNameSelector"))))


def by_resource(
    selectors: Sequence[DeviceSelector], devices: Mapping[str, PassthroughDevice]
) -> dict[str, tuple[str, ...]]:
    """Every resource that is served, also one without devices here, with the names of its devices."""
    out: dict[str, tuple[str, ...]] = {selector.resource: () for selector in selectors}
    for name, device in sorted(devices.items()):
        selector = next((each for each in selectors if each.selects(device)), None)
        if selector is not None:
            out[selector.resource] = (*out[selector.resource], name)
    return out


def preferred(numa: Mapping[str, int | None], available: Collection[str], must: Collection[str], size: int) -> tuple[str, ...]:
    """Of the devices that are available: `size` of them on as few NUMA nodes as possible, those that must be among them first.
    Empty: there are not so many."""
    nodes = {name: () if node is None else (node,) for name, node in numa.items()}
    ids = {node for each in nodes.values() for node in each} or {0}
    settings = TopologySettings(TopologyPolicy.BEST_EFFORT, TopologyScope.CONTAINER, NumaNodes.of(ids))
    known = {name: nodes.get(name, ()) for name in {*available, *must}}
    devices = ResourceDevices(known, frozenset(available) - frozenset(must))
    request = DeviceRequest(devices, size, assigned=frozenset(must))
    choice = begin_choice(request, decide_affinity(settings, {"": request}).mask)
    if isinstance(choice, DevicesUnavailable):
        return ()
    return choice.ids if isinstance(choice, ChosenDevices) else finish_choice(choice, ()).ids


def _type_name(text: str) -> str:
    return text.strip().replace(" ", "_")
