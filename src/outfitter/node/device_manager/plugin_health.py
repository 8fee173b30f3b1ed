"""What the health of devices of device plugins means for the host's page: a device that is not healthy has a record among the
quarantined ones, with the origin "health", which is removed when it is healthy again. With the policy `quarantine` the record
has no origin, and an operator ends it. Pure; called by `pods.device_health`.

A plugin that is away for a short time changes nothing: it may be restarted."""

from __future__ import annotations

from collections.abc import Mapping

from outfitter.api.device import DeviceId
from outfitter.api.kinds import Object
from outfitter.api.ledger_page.page import OutOfServiceRecord, Page
from outfitter.inventory.config import UnhealthyDevice
from outfitter.ledger.out_of_service import HEALTH
from outfitter.node.device_manager.plugin_resource import CAPACITY_KEPT, PluginResource

REPORTED = "its device plugin reports it as unhealthy"
UNLISTED = "its device plugin no longer lists it"
GONE = "its device plugin is gone"
MOST = 500  # records of a host; devices that are in use come first. The device manager gives out none of the others either


def reports_unhealthy(resources: Mapping[str, PluginResource], device: DeviceId) -> bool:
    """Whether the plugin of a device reports it as unhealthy now."""
    resource = resources.get(device.driver)
    return resource is not None and resource.health(device.device) == "Unhealthy"


def with_health(
    page: Page, resources: Mapping[str, PluginResource], policy: UnhealthyDevice, *, monotonic: float, now: str
) -> Object:
    """The page with the health of all devices of plugins, as far as it is known."""
    held = {booking.device for booking in page.bookings if booking.device.driver in resources}
    recorded = {record.device for record in page.quarantined if record.origin == HEALTH and "/" in record.device.driver}
    listed = {DeviceId(name, page.host, device.id) for name, resource in resources.items() if resource.ready
              for device in resource.devices.values() if not device.healthy}
    problems = {device: _problem(resources.get(device.driver), device, device in held, monotonic)
                for device in held | recorded | listed}
    healthy = {device for device in recorded if problems[device] == ""}
    changed = Page(page.without_records("quarantined", healthy)) if healthy else page
    unhealthy = sorted((device for device, why in problems.items() if why), key=lambda device: (device not in held, device))
    records = [OutOfServiceRecord(device, problems[device] or "", f"device plugin {device.driver}", now,
                                  "" if policy is UnhealthyDevice.QUARANTINE and problems[device] == REPORTED else HEALTH)
               for device in unhealthy[:MOST]]
    return changed.with_records("quarantined", records) if records else changed.object


def _problem(resource: PluginResource | None, device: DeviceId, held: bool, monotonic: float) -> str | None:
    """Why a device counts as unhealthy; "": it does not; None: not known, what is recorded stays."""
    if resource is None:
        return None if held else ""
    if resource.ready:
        found = resource.devices.get(device.device)
        if found is None:
            return UNLISTED if held else ""
        return "" if found.healthy else REPORTED
    if resource.gone_since is None or monotonic - resource.gone_since < CAPACITY_KEPT:
        return None
    return GONE if held else ""
