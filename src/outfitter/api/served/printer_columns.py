"""The columns of `kubectl get`, as data per kind. `apiserver.tables` prints objects with them; a column with a JSONPath is also
in the CustomResourceDefinition of its kind (`install.crds`), where a cluster prints it. JSONPath cannot count, compute or
compose: columns without one are served by the embedded server alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from outfitter.api import conditions, kinds
from outfitter.api.kinds import Kind, Object
from outfitter.api.kubevirt import device_status, network_info, vm
from outfitter.api.kubevirt.short_reason import short_reason

Cell = str | int | bool | None
Reader = Callable[[Object, datetime], Cell]
UNKNOWN, NONE = "<unknown>", "<none>"


@dataclass(frozen=True, slots=True)
class TableColumn:
    name: str
    read: Reader
    about: str = ""
    wide: bool = False  # shown with -o wide only
    type: str = "string"
    json_path: str = ""  # what a cluster prints; "": nothing, the column is missing there
    time: bool = False  # a time, shown as its age


def dig(obj: Any, path: str, default: Any = None) -> Any:
    """What stands at "status.phase"; the default where anything on the way is missing or of another shape."""
    for word in path.split("."):
        obj = obj.get(word) if isinstance(obj, Mapping) else None
    return default if obj is None else obj


def items(obj: Any, path: str) -> list[Mapping[str, Any]]:
    found = dig(obj, path, [])
    return [item for item in found if isinstance(item, Mapping)] if isinstance(found, list) else []


def text(path: str, default: str = "") -> Reader:
    def read(obj: Object, now: datetime) -> Cell:
        value = dig(obj, path, default)
        return value if isinstance(value, str | int) else default

    return read


def condition(type_: str, field: str = "status", default: str = "") -> Reader:
    def read(obj: Object, now: datetime) -> Cell:
        found = (each for each in items(obj, "status.conditions") if each.get("type") == type_)
        return str(next(found, {}).get(field, default))

    return read


def when(*paths: str) -> Reader:
    """How long ago, at the first of these paths that has a time."""

    def read(obj: Object, now: datetime) -> Cell:
        return next((since(dig(obj, path), now) for path in paths if dig(obj, path)), UNKNOWN)

    return read


def since(moment: Any, now: datetime) -> str:
    try:
        then = datetime.fromisoformat(moment)
        return duration((now - (then if then.tzinfo else then.replace(tzinfo=UTC))).total_seconds())
    except (TypeError, ValueError):
        return UNKNOWN


def duration(seconds: float) -> str:
    """As kubectl says it: two units at most, and one where it is long enough."""
    total = int(seconds)
    if total < -1:
        return "<invalid>"
    if total < 0:
        return "0s"
    minutes, hours, days = total // 60, total // 3600, total // 86400
    years = days // 365
    if total < 120:
        return f"{total}s"
    if minutes < 10:
        return _pair(minutes, "m", total % 60, "s")
    if minutes < 180:
        return f"{minutes}m"
    if hours < 8:
        return _pair(hours, "h", minutes % 60, "m")
    if hours < 48:
        return f"{hours}h"
    if days < 8:
        return _pair(days, "d", hours % 24, "h")
    if days < 730:
        return f"{days}d"
    return _pair(years, "y", days % 365, "d") if years < 8 else f"{years}y"


def _pair(large: int, unit: str, small: int, lesser: str) -> str:
    return f"{large}{unit}{small}{lesser}" if small else f"{large}{unit}"


def size(*paths: str) -> Reader:
    def read(obj: Object, now: datetime) -> Cell:
        return sum(len(found) for path in paths if isinstance(found := dig(obj, path), dict | list))

    return read


# -- what one kind needs

def pod_ready(obj: Object, now: datetime) -> Cell:
    ready = sum(1 for each in items(obj, "status.containerStatuses") if each.get("ready"))
    return f"{ready}/{len(items(obj, 'spec.containers'))}"


def pod_status(obj: Object, now: datetime) -> Cell:
    reason = dig(obj, "status.reason") or dig(obj, "status.phase", "Pending")
    for each in items(obj, "status.containerStatuses"):
        for state in ("waiting", "terminated"):
            reason = dig(each, f"state.{state}.reason") or reason
    return "Terminating" if dig(obj, "metadata.deletionTimestamp") else str(reason)


def pod_restarts(obj: Object, now: datetime) -> Cell:
    counts = [each.get("restartCount", 0) for each in items(obj, "status.containerStatuses")]
    return sum(count for count in counts if isinstance(count, int))


def pod_gates(obj: Object, now: datetime) -> Cell:
    gates = [each.get("conditionType") for each in items(obj, "spec.readinessGates")]
    passed = sum(condition(str(gate))(obj, now) == "True" for gate in gates)
    return f"{passed}/{len(gates)}" if gates else NONE


def node_status(obj: Object, now: datetime) -> Cell:
    """With the reason of a host that was refused at start, which a kubelet's node never has."""
    word = {"True": "Ready", "False": "NotReady"}.get(str(condition("Ready")(obj, now)), "Unknown")
    refused = any(each.get("type") == "Ready" and each.get("reason") == conditions.START_REFUSED
                  for each in items(obj, "status.conditions"))
    return ",".join([word, *([conditions.START_REFUSED] if refused else []),
                     *(["SchedulingDisabled"] if dig(obj, "spec.unschedulable") else [])])


def node_roles(obj: Object, now: datetime) -> Cell:
    prefix = "node-role.kubernetes.io/"
    labels = dig(obj, "metadata.labels", {})
    return ",".join(sorted(key.removeprefix(prefix) for key in labels if key.startswith(prefix))) or NONE


def node_address(type_: str) -> Reader:
    def read(obj: Object, now: datetime) -> Cell:
        found = (each.get("address") for each in items(obj, "status.addresses") if each.get("type") == type_)
        return str(next(found, NONE))

    return read


def event_object(obj: Object, now: datetime) -> Cell:
    kind, name = dig(obj, "involvedObject.kind", ""), dig(obj, "involvedObject.name", "")
    return f"{str(kind).lower()}/{name}" if kind else str(name)


def claim_state(obj: Object, now: datetime) -> Cell:
    words = ["allocated"] if dig(obj, "status.allocation") else []
    words += ["reserved"] if items(obj, "status.reservedFor") else []
    words = ["deleted", *words] if dig(obj, "metadata.deletionTimestamp") else words
    return ",".join(words) or "pending"


def instance_ip(obj: Object, now: datetime) -> Cell:
    addresses = [each.get("ipAddress") for each in items(obj, "status.interfaces")]
    return str(next(filter(None, addresses), ""))


def instance_devices(obj: Object, now: datetime) -> Cell:
    """How many it has: an entry that only names its claim is one that it waits for, and those of one that has ended are of
    what it had."""
    if dig(obj, "status.phase") in vm.FINAL:
        return 0
    lists = (*device_status.STATUS_LISTS.values(), network_info.STATUSES)
    entries = [entry for name in lists for entry in items(obj, f"status.deviceStatus.{name}")]
    return sum(dig(entry, "deviceResourceClaimStatus") is None or bool(dig(entry, "deviceResourceClaimStatus.name"))
               for entry in entries)


def instance_waiting(obj: Object, now: datetime) -> Cell:
    return short_reason({"status": {"conditions": items(obj, "status.conditions")}})


def machine_strategy(obj: Object, now: datetime) -> Cell:
    return vm.run_strategy(obj) if isinstance(obj.get("spec"), Mapping) else ""


def bookings(state: str) -> Reader:
    def read(obj: Object, now: datetime) -> Cell:
        return sum(1 + (len(further) if isinstance(further := each.get("furtherDevices"), list) else 0)
                   for each in items(obj, "spec.bookings") if each.get("state") == state)

    return read


def _answered(obj: Object) -> str:
    """The condition by which a ResourcePoolStatusRequest is answered: "Complete", "Failed"; "" before."""
    return next((str(each["type"]) for each in items(obj, "status.conditions")
                 if each.get("type") in ("Complete", "Failed") and each.get("status") == "True"), "")


def pool_sum(field: str) -> Reader:
    def read(obj: Object, now: datetime) -> Cell:
        if not obj.get("status") or _answered(obj) == "Failed":
            return "-"
        return str(sum(count for pool in items(obj, "status.pools") if isinstance(count := pool.get(field), int)))

    return read


def pool_errors(obj: Object, now: datetime) -> Cell:
    if not obj.get("status") or _answered(obj) == "Failed":
        return "-"
    return str(sum("validationError" in pool for pool in items(obj, "status.pools")))


def pool_count(obj: Object, now: datetime) -> int:
    count = dig(obj, "status.poolCount", 0)
    return count if isinstance(count, int) else 0


def request_status(obj: Object, now: datetime) -> Cell:
    shown, matching = len(items(obj, "status.pools")), pool_count(obj, now)
    cut = f" ({shown}/{matching} pools)" if _answered(obj) == "Complete" and matching > shown else ""
    return f"{_answered(obj) or 'Pending'}{cut}"


def request_completed(obj: Object, now: datetime) -> Cell:
    return since(condition("Complete", "lastTransitionTime")(obj, now), now) if _answered(obj) == "Complete" else NONE


def past_holder(obj: Object, now: datetime) -> Cell:
    """Who held it, in short: "vmi/blue", else "here/claim"."""
    words = filter(None, (dig(obj, "spec.holder.namespace"), dig(obj, "spec.holder.name")))
    return str(dig(obj, "spec.holder.purpose") or "/".join(map(str, words)))


def flavor_devices(obj: Object, now: datetime) -> Cell:
    """ "gpu:1, nic:2": keys have dots and colons, so they are no path."""
    return str(dig(obj, "spec.extraSpecs", {}).get("pci_passthrough:alias") or NONE)


def flavor_extra(obj: Object, now: datetime) -> Cell:
    specs = dig(obj, "spec.extraSpecs", {})
    return ",".join(f"{key}={specs[key]}" for key in sorted(specs) if key != "pci_passthrough:alias") or NONE


def field_column(name: str, path: str, default: str = "", *, wide: bool = False, type_: str = "string",
                 about: str = "") -> TableColumn:
    return TableColumn(name, text(path, default), about, wide, type_, f".{path}")


def condition_column(name: str, type_: str, *, wide: bool = False, about: str = "") -> TableColumn:
    return TableColumn(name, condition(type_), about, wide, json_path=f".status.conditions[?(@.type=='{type_}')].status")


def time_column(name: str, path: str, *, wide: bool = False, about: str = "") -> TableColumn:
    return TableColumn(name, when(path), about, wide, json_path=f".{path}", time=True)


NAME = TableColumn("Name", text("metadata.name"), "Name must be unique within a namespace.")
AGE = time_column("Age", "metadata.creationTimestamp", about="How long ago the object was created.")

COLUMNS: Mapping[Kind, Sequence[TableColumn]] = {
    kinds.POD: (
        NAME,
        TableColumn("Ready", pod_ready, "Containers that are ready, of all."),
        TableColumn("Status", pod_status),
        TableColumn("Restarts", pod_restarts),
        AGE,
        TableColumn("IP", text("status.podIP", NONE), wide=True),
        TableColumn("Node", text("spec.nodeName", NONE), wide=True),
        TableColumn("Nominated Node", text("status.nominatedNodeName", NONE), wide=True),
        TableColumn("Readiness Gates", pod_gates, "Readiness gates that are passed, of all.", wide=True),
    ),
    kinds.NODE: (
        NAME,
        TableColumn("Status", node_status),
        TableColumn("Roles", node_roles),
        AGE,
        TableColumn("Version", text("status.nodeInfo.kubeletVersion")),
        TableColumn("Internal-IP", node_address("InternalIP"), wide=True),
        TableColumn("External-IP", node_address("ExternalIP"), wide=True),
        TableColumn("OS-Image", text("status.nodeInfo.osImage", UNKNOWN), wide=True),
        TableColumn("Kernel-Version", text("status.nodeInfo.kernelVersion", UNKNOWN), wide=True),
        TableColumn("Container-Runtime", text("status.nodeInfo.containerRuntimeVersion", UNKNOWN), wide=True),
    ),
    kinds.NAMESPACE: (NAME, TableColumn("Status", text("status.phase")), AGE),
    kinds.EVENT: (
        TableColumn("Last Seen", when("series.lastObservedTime", "lastTimestamp", "eventTime", "firstTimestamp")),
        TableColumn("Type", text("type")),
        TableColumn("Reason", text("reason")),
        TableColumn("Object", event_object),
        TableColumn("Source", text("source.component"), wide=True),
        TableColumn("Message", text("message")),
        TableColumn("First Seen", when("firstTimestamp", "eventTime"), wide=True),
        TableColumn("Count", text("count", "1"), wide=True),
        TableColumn("Name", text("metadata.name"), wide=True),
    ),
    kinds.CONFIG_MAP: (NAME, TableColumn("Data", size("data", "binaryData")), AGE),
    kinds.SECRET: (NAME, TableColumn("Type", text("type")), TableColumn("Data", size("data")), AGE),
    kinds.LEASE: (NAME, TableColumn("Holder", text("spec.holderIdentity")), AGE),
    kinds.RESOURCE_CLAIM: (NAME, TableColumn("State", claim_state, "pending, or what of allocated and reserved it is."), AGE),
    kinds.RESOURCE_SLICE: (
        NAME,
        TableColumn("Node", text("spec.nodeName", NONE)),
        TableColumn("Driver", text("spec.driver")),
        TableColumn("Pool", text("spec.pool.name")),
        AGE,
        TableColumn("Devices", size("spec.devices"), "Devices that it lists.", wide=True, type="integer"),
    ),
    kinds.DEVICE_TAINT_RULE: (
        NAME,
        TableColumn("Taint", text("spec.taint.key")),
        TableColumn("Effect", text("spec.taint.effect")),
        TableColumn("Driver", text("spec.deviceSelector.driver", NONE)),
        TableColumn("Pool", text("spec.deviceSelector.pool", NONE)),
        TableColumn("Device", text("spec.deviceSelector.device", NONE)),
        AGE,
    ),
    kinds.VMI: (
        NAME,
        AGE,
        field_column("Phase", "status.phase"),
        TableColumn("IP", instance_ip, json_path=".status.interfaces[*].ipAddress"),
        field_column("NodeName", "status.nodeName"),
        condition_column("Ready", "Ready"),
        condition_column("Live-Migratable", "LiveMigratable", wide=True),
        condition_column("Paused", "Paused", wide=True),
        TableColumn("Devices", instance_devices, "Devices that it has; none once it has ended.", type="integer"),
        TableColumn("Waiting", instance_waiting, "Why it does not run yet: a code and a few words."),
    ),
    kinds.POOL_STATUS_REQUEST: (
        NAME,
        TableColumn("Driver", text("spec.driver"), "The driver to query pools for."),
        *(TableColumn(word, pool_sum(f"{word.lower()}Devices"), f"Number of {word.lower()} devices across all pools.")
          for word in ("Total", "Available", "Allocated", "Unavailable")),
        TableColumn("Errors", pool_errors, "Number of pools with validation errors."),
        TableColumn("Pools", pool_count, "Total number of matching pools.", type="integer"),
        TableColumn("Status", request_status, "Processing status."),
        TableColumn("Completed", request_completed, "Time since the observation completed."),
    ),
    kinds.VM: (
        NAME,
        AGE,
        field_column("Status", "status.printableStatus"),
        condition_column("Ready", "Ready"),
        TableColumn("Run-Strategy", machine_strategy, "Whether it is meant to run.", wide=True,
                    json_path=".status.runStrategy"),
    ),
    kinds.MIGRATION: (NAME, field_column("Phase", "status.phase"), field_column("VMI", "spec.vmiName"), AGE),
    kinds.KUBEVIRT: (
        NAME,
        AGE,
        field_column("Phase", "status.phase"),
        condition_column(
            "Disabled-Gates-In-Use", conditions.GATES_IN_USE, wide=True, about="VMs run that would not be admitted now."),
    ),
    kinds.LEDGER_PAGE: (
        NAME,
        TableColumn("Booked", bookings("booked"), "Devices booked.", type="integer"),
        TableColumn("Prepared", bookings("prepared"), "Devices prepared.", type="integer"),
        AGE,
        TableColumn("Reserved", size("spec.reserved"), "Devices kept back.", wide=True, type="integer"),
        TableColumn("Quarantined", size("spec.quarantined"), "Devices taken out of service.", wide=True, type="integer"),
        TableColumn(
            "Unclean", size("spec.unclean"), "Devices to be cleaned before they are allocated again.", wide=True, type="integer"
        ),
    ),
    kinds.PROVIDER_TREE: (
        NAME,
        TableColumn("Providers", size("spec.providers"), "Providers of this host.", type="integer"),
        AGE,
    ),
    kinds.HOST_INVENTORY: (
        NAME,
        TableColumn("Withheld", size("spec.withheld"), "Devices that are not offered.", type="integer"),
        TableColumn("Left", size("spec.left"), "Devices that only stay until they are free.", type="integer"),
        TableColumn("Warnings", size("spec.warnings"), "What is odd on the host.", type="integer"),
        AGE,
    ),
    kinds.FLAVOR: (
        NAME,
        field_column("VCPUs", "spec.vcpus", type_="integer"),
        field_column("Memory", "spec.memory"),
        field_column("Disk", "spec.disk", NONE),
        TableColumn("Devices", flavor_devices, "Aliases and how many of each.",
                    json_path=".spec.extraSpecs.pci_passthrough:alias"),
        AGE,
        TableColumn("Extra-Specs", flavor_extra, "What else it says.", wide=True),
    ),
    kinds.PAST_BOOKING: (
        NAME,
        field_column("Host", "spec.host"),
        field_column("Device", "spec.device.device"),
        TableColumn("Holder", past_holder, json_path=".spec.holder['purpose','name']"),
        time_column("Booked", "spec.booked", about="How long ago it was booked."),
        TableColumn("Ended", when("spec.ended", "metadata.creationTimestamp"), "How long ago it ended.",
                    json_path=".spec.ended", time=True),
        field_column("How", "spec.how", about="How it ended."),
        field_column("Request", "spec.request", wide=True),
        time_column("Prepared", "spec.prepared", wide=True, about="How long ago the host handed it over."),
    ),
}
PLAIN = (NAME, AGE)  # for a kind that has no columns of its own
