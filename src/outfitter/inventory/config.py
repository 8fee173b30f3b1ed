"""The configuration file: which devices hosts offer, what is reported in Placement, scheduling policy, feature gates and limits
of the server. Parsed strictly, with all mistakes reported at once. docs/configuration.md documents it. Called by the app and
the CLI."""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any

from outfitter import errors
from outfitter.api import dra_feature_gates
from outfitter.inventory import cpulist, device_spec_parser, provisioning, server_limits, strict_yaml
from outfitter.inventory.device_spec import DeviceSpec
from outfitter.inventory.provisioning import Mediated, Virtual
from outfitter.inventory.server_limits import ServerLimits
from outfitter.inventory.strict_yaml import Reader, Section

# Allowed keys by section. Those of "host" are also allowed at the top level, for all hosts.
HOST_KEYS = ("device_spec", "alias", "report_in_placement", "report_to_placement", "pci_in_placement", "pci_prefilter",
             "report_networks", "audit_every", "history", "sriov", "mdev",
             "pod_bridge", "plug_in_place", "unplug_timeout", "cpu_dedicated_set", "topology_manager", "unhealthy_device")
KEYS: dict[str, tuple[str, ...]] = {"file": (*HOST_KEYS, "hosts", "scheduling", "features", "events", "server", "roles"),
                                    "host": HOST_KEYS, "history": ("keep",), "topology_manager": ("policy", "scope", "options"),
                                     "scheduling": ("policy",),
                                    "events": ("keep", "most"), "server": server_limits.KEYS,
                                    "features": tuple(dra_feature_gates.DEVICE_GATES)}
POLICIES = ("pack", "spread")
# Synonyms: the current name, and that of the design document.
SPELLINGS = {"report_in_placement": "report_to_placement", "pci_in_placement": "pci_prefilter"}

ALIAS_KEYS = ("name", "vendor_id", "product_id", "device_type", "numa_policy", "resource_class", "traits",
              "live_migratable", "capability_type")
ALIAS_CHOICES: dict[str, tuple[str, ...]] = {
    "device_type": ("type-PCI", "type-PF", "type-VF"),
    "numa_policy": ("required", "legacy", "preferred", "socket"),
    "capability_type": ("pci",),
}
MAX_ALIAS_NAME = 256

_DURATION = re.compile(r"([0-9]{1,10})(s|m|h|d)")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_LONGEST = timedelta(days=36_500)
_INTERFACE = re.compile(r"[^/\s]{1,15}")
_ALIAS_ID = re.compile(r"[0-9a-fA-F]{4}")


@dataclass(frozen=True, slots=True)
class TopologyManagerSettings:
    """The topology manager for devices of device plugins, by the kubelet's names; checked when the host starts."""

    policy: str = "none"
    scope: str = "container"
    options: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


class UnhealthyDevice(enum.StrEnum):
    """What happens to a device that is unhealthy, beside that no new claim or pod gets it."""

    NOTHING = "nothing"  # its holder keeps it, and has a condition and an event
    RESTART = "restart"  # its holder is evicted, unless its claim tolerates the taint
    QUARANTINE = "quarantine"  # it stays out of service when it is healthy again, until an operator restores it


@dataclass(frozen=True, slots=True)
class HostSettings:
    """The settings of one host."""

    device_spec: DeviceSpec | None = None  # None: not configured, then devices bound to vfio-pci are offered
    report_in_placement: bool = False
    pci_in_placement: bool = False  # aliases are scheduled by Placement
    report_networks: bool = False  # devices with a physical_network are reported in the provider tree too
    alias: tuple[Mapping[str, str], ...] = ()  # as written; each is checked on its own
    history_keep: timedelta = timedelta(days=90)
    audit_every: timedelta = timedelta(seconds=60)
    sriov: tuple[Virtual, ...] = ()  # VFs to create at start
    mdev: tuple[Mediated, ...] = ()  # mediated devices to create at start
    cpu_dedicated_set: frozenset[int] | None = None  # host CPUs for dedicated vCPUs; None: all
    pod_bridge: str = ""  # the bridge that VMs use as pod network; "": none
    topology_manager: TopologyManagerSettings = TopologyManagerSettings()
    unhealthy_device: UnhealthyDevice = UnhealthyDevice.NOTHING
    plug_in_place: bool = True  # NICs and devices of a running VM come and go where it runs; else it is migrated for NICs
    unplug_timeout: timedelta = timedelta(seconds=30)  # after which it is reported that a guest does not release a device


@dataclass(frozen=True, slots=True)
class SchedulingSettings:
    """Scheduling policy and feature gates, for all hosts."""

    policy: str = "pack"
    features: Mapping[str, bool] = field(default_factory=lambda: MappingProxyType({}))  # feature gates that are set


@dataclass(frozen=True, slots=True)
class EventSettings:
    """How long and how many events are kept in the store of `outfit up`."""

    keep: timedelta = timedelta(hours=1)  # after their last write
    most: int = 10_000


@dataclass(frozen=True, slots=True)
class Config:
    """The whole file."""

    default: HostSettings = HostSettings()  # of hosts without a section
    hosts: Mapping[str, HostSettings] = field(default_factory=lambda: MappingProxyType({}))

    scheduling: SchedulingSettings = SchedulingSettings()
    events: EventSettings = EventSettings()
    server: ServerLimits = server_limits.DEFAULT
    roles: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))  # as written; the roles of a cluster read it

    def for_host(self, host: str) -> HostSettings:
        return self.hosts.get(host, self.default)


DEFAULT = Config()
Check = Callable[[Reader, HostSettings], None]  # reports mistakes in the settings for all hosts


def load(path: Path, check: Check | None = None) -> Config:
    """Read a configuration file; Invalid names every field that is wrong. `check` reports further mistakes with them."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise errors.Invalid(f"the configuration file {path} cannot be read: {error}") from error
    return parse(text, str(path), check)


def parse(text: str, source: str = "the configuration file", check: Check | None = None) -> Config:
    """Read the text of a configuration file; Invalid names every field that is wrong."""
    reader = Reader(source)
    top = reader.section(reader.parse(text), "", KEYS["file"])
    default = _settings(top, HostSettings())
    hosts: dict[str, HostSettings] = {}
    given = top.fields.get("hosts")
    if given is not None and not isinstance(given, dict):
        top.wrong("hosts", "must be a mapping from the name of a host to its keys")
    for name, value in given.items() if isinstance(given, dict) else ():
        hosts[name] = _settings(reader.section(value, f"hosts.{name}", KEYS["host"]), default)
    scheduling, events = _scheduling(top), _events(top)
    server = server_limits.read(reader.section(top.fields.get("server"), "server", KEYS["server"]))
    roles = _roles(top)
    if check is not None:
        check(reader, default)
    reader.finish()
    return Config(default, MappingProxyType(hosts), scheduling, events, server, roles)


def _scheduling(top: Section) -> SchedulingSettings:
    section = top.reader.section(top.fields.get("scheduling"), "scheduling", KEYS["scheduling"])
    policy = section.text("policy", lambda text: None if text in POLICIES else f"{text!r} is none of {', '.join(POLICIES)}")
    features = top.reader.section(top.fields.get("features"), "features", KEYS["features"])
    switched = {gate: _switch(features, gate, default) for gate, (_, default) in dra_feature_gates.DEVICE_GATES.items()
                if gate in features.fields}
    return SchedulingSettings(policy or "pack", MappingProxyType(switched))


def _roles(top: Section) -> Mapping[str, str]:
    """The settings of the processes of a cluster; which there are is known there."""
    given = top.fields.get("roles")
    if given is not None and not isinstance(given, dict):
        top.wrong("roles", "must be a mapping from the names of settings to their values")
    found = given if isinstance(given, dict) else {}
    for key, value in found.items():
        if not isinstance(value, str):
            top.wrong(f"roles.{key}", "must be one value, not empty, a list or a mapping")
    return MappingProxyType({key: value for key, value in found.items() if isinstance(value, str)})


def _events(top: Section) -> EventSettings:
    section, default = top.reader.section(top.fields.get("events"), "events", KEYS["events"]), EventSettings()
    most = section.number("most", 100, 1_000_000)
    return EventSettings(_duration(section, "keep", default.keep, timedelta(seconds=1)), default.most if most is None else most)


def _settings(section: Section, default: HostSettings) -> HostSettings:
    """The settings of a section, with defaults for missing keys."""
    report = _switch(section, "report_in_placement", default.report_in_placement)
    history = section.reader.section(section.fields.get("history"), section.at("history"), KEYS["history"])
    return HostSettings(
        device_spec=_device_spec(section, default, report=report),
        report_in_placement=report,
        pci_in_placement=_switch(section, "pci_in_placement", default.pci_in_placement),
        report_networks=_switch(section, "report_networks", default.report_networks),
        alias=_alias(section, default),
        history_keep=_duration(history, "keep", default.history_keep, timedelta(0)),
        audit_every=_duration(section, "audit_every", default.audit_every, timedelta(seconds=1)),
        sriov=provisioning.read_sriov(section, default.sriov),
        mdev=provisioning.read_mdev(section, default.mdev),
        cpu_dedicated_set=_cpus(section, "cpu_dedicated_set", default.cpu_dedicated_set),
        plug_in_place=_switch(section, "plug_in_place", default.plug_in_place),
        unplug_timeout=_duration(section, "unplug_timeout", default.unplug_timeout, timedelta(seconds=1)),
        topology_manager=_topology_manager(section, default.topology_manager),
        unhealthy_device=UnhealthyDevice(section.text("unhealthy_device", _unhealthy) or default.unhealthy_device),
        pod_bridge=default.pod_bridge if (bridge := section.text("pod_bridge", _bridge)) is None else bridge,
    )


def _topology_manager(top: Section, default: TopologyManagerSettings) -> TopologyManagerSettings:
    if "topology_manager" not in top.fields:
        return default
    section = top.reader.section(top.fields["topology_manager"], top.at("topology_manager"), KEYS["topology_manager"])
    options = section.fields.get("options") or {}
    if not isinstance(options, dict) or not all(isinstance(value, str) for value in options.values()):
        section.wrong("options", "must be a mapping from the options of the kubelet's topology manager to their values")
        options = {}
    return TopologyManagerSettings(section.text("policy") or default.policy, section.text("scope") or default.scope,
                                   MappingProxyType({str(key): str(value) for key, value in options.items()}))


def _device_spec(section: Section, default: HostSettings, *, report: bool) -> DeviceSpec | None:
    if "device_spec" in section.fields:
        values = _list(section, "device_spec", "to offer nothing write []")
        return device_spec_parser.read_entries(section.reader, values, section.at("device_spec"), report=report)
    spec = default.device_spec
    one_time = [entry.index for entry in spec.entries if entry.one_time_use] if spec is not None else []
    if one_time and default.report_in_placement and not report:
        section.wrong("report_in_placement", f"must stay on here: device_spec[{one_time[0]}] has one_time_use, and a used "
                                             "device is recorded in Placement")
    return spec


def _alias(section: Section, default: HostSettings) -> tuple[Mapping[str, str], ...]:
    if "alias" not in section.fields:
        return default.alias
    return read_alias(section.reader, _list(section, "alias", "for none write []"), section.at("alias"))


def _cpus(section: Section, key: str, default: frozenset[int] | None) -> frozenset[int] | None:
    text = section.text(key)
    try:
        return default if text is None else frozenset(cpulist.without_excluded(text))
    except ValueError as error:
        section.wrong(key, f'{text!r} is not a list of CPUs such as 4-15 or 4-15,^8 (for none write ""): {error}')
        return default


def _unhealthy(text: str) -> str | None:
    return None if text in list(UnhealthyDevice) else f"{text!r} is none of {', '.join(UnhealthyDevice)}"


def _bridge(text: str) -> str | None:
    return None if _INTERFACE.fullmatch(text) else f"{text!r} is not a network interface name, for example br0"


def _list(section: Section, key: str, instead: str) -> list[Any]:
    """A list, or a JSON string with one."""
    value = section.fields[key]
    if isinstance(value, str):
        return [value]
    if isinstance(value, list):
        return value
    section.wrong(key, f"is empty; {instead}" if value is None else "must be a list: put \"- \" before each entry")
    return []


def _switch(section: Section, key: str, default: bool) -> bool:
    """A boolean, under either of its two names."""
    values: dict[str, bool] = {}
    for name in dict.fromkeys((key, SPELLINGS.get(key, key))):
        text = section.text(name)
        value = None if text is None else strict_yaml.boolean(text)
        if value is not None:
            values[name] = value
        elif text is not None and name not in values:
            section.wrong(name, f"{text!r} is neither true nor false")
    if len(set(values.values())) > 1:
        section.wrong(SPELLINGS[key], f"is another name of {key} and contradicts it; keep one of the two")
    return next(iter(values.values()), default)


def _duration(section: Section, key: str, default: timedelta, least: timedelta) -> timedelta:
    text = section.text(key)
    if text is None:
        return default
    match = _DURATION.fullmatch(text)
    seconds = int(match[1]) * _SECONDS[match[2]] if match else -1
    if not least.total_seconds() <= seconds <= _LONGEST.total_seconds():
        section.wrong(key, f"{text!r} is not a duration from {int(least.total_seconds())}s to {_LONGEST.days}d; write a whole "
                           "number and s, m, h or d, for example 90s or 30d")
        return default
    return timedelta(seconds=seconds)


def read_alias(reader: strict_yaml.Reader, values: Sequence[Any], path: str) -> tuple[Mapping[str, str], ...]:
    """Parse PCI aliases: mappings or JSON strings; mistakes are reported to the reader, with the name of the alias. Each alias
    is checked on its own; `scheduling.nova.alias` interprets them and checks that several with one name agree."""
    return tuple(_one_alias(reader, where, value) for where, value in device_spec_parser.mappings(
        reader, values, path, example={"name": "gpu", "resource_class": "PGPU"}))


def _one_alias(reader: strict_yaml.Reader, path: str, value: Mapping[str, Any]) -> Mapping[str, str]:
    before = len(reader.causes)
    reader.known(path, [key for key in value if not key.startswith("traits")], ALIAS_KEYS)
    alias: dict[str, str] = {}
    for key, text in value.items():
        if not isinstance(text, str):
            reader.wrong(f"{path}.{key}", f"must be a string, not {strict_yaml.shown(text)}")
            continue
        if message := _alias_mistake(key, text):
            reader.wrong(f"{path}.{key}", message)
        alias[key] = text.strip() if key == "name" else text
    if "name" not in value:
        reader.wrong(f"{path}.name", "is missing; a flavor asks for the alias by its name", "FieldValueRequired")
    if isinstance(name := value.get("name"), str):
        reader.causes[before:] = [replace(cause, message=f"of alias {name!r}: {cause.message}")
                                  for cause in reader.causes[before:]]
    if alias.get("live_migratable"):
        alias["live_migratable"] = "true" if strict_yaml.boolean(alias["live_migratable"]) else "false"
    return MappingProxyType(alias)


def _alias_mistake(key: str, text: str) -> str | None:
    if key == "name" and not 1 <= len(text.strip()) <= MAX_ALIAS_NAME:
        return f"must have 1 to {MAX_ALIAS_NAME} characters, not {len(text.strip())}"
    if key in ("vendor_id", "product_id") and not _ALIAS_ID.fullmatch(text):
        return f"{text!r} is not four hex digits (without 0x), for example 10de"
    if key in ALIAS_CHOICES and text not in ALIAS_CHOICES[key]:
        return f"{text!r} is none of {', '.join(ALIAS_CHOICES[key])}"
    if key == "live_migratable" and strict_yaml.boolean(text) is None:
        return f"{text!r} is neither true nor false"
    return None
