"""The configuration file: what hosts offer, and how much of it Placement is told. docs/configuration.md tells people what may
stand in it. Like every file that people write it is read strictly, and all mistakes are told at once."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any

from outfitter import errors
from outfitter.api import dra_feature_gates
from outfitter.inventory import cpulist, device_spec_parser, provisioning, strict_yaml
from outfitter.inventory.device_spec import DeviceSpec
from outfitter.inventory.provisioning import Mediated, Virtual
from outfitter.inventory.strict_yaml import Reader, Section

# Every key that may stand in the file, by where it stands. Those of "host" may also stand at the top, for all hosts.
HOST_KEYS = ("device_spec", "alias", "report_in_placement", "report_to_placement", "pci_in_placement", "pci_prefilter",
             "report_networks", "audit_every", "history", "sriov", "mdev",
             "pod_bridge", "cpu_dedicated_set")
KEYS: dict[str, tuple[str, ...]] = {"file": (*HOST_KEYS, "hosts", "scheduling", "features"), "host": HOST_KEYS,
                                    "history": ("keep",), "scheduling": ("policy",),
                                    "features": tuple(dra_feature_gates.DEVICE_GATES)}
POLICIES = ("pack", "spread")
# Keys that mean the same: the name of today, and that of the design document.
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
class HostSettings:
    """What is said for one host."""

    device_spec: DeviceSpec | None = None  # None: not written, then what is bound to vfio-pci is offered
    report_in_placement: bool = False
    pci_in_placement: bool = False  # aliases ask Placement for their devices
    report_networks: bool = False  # devices with a physical_network are in the provider tree too
    alias: tuple[Mapping[str, str], ...] = ()  # as written, checked one by one
    history_keep: timedelta = timedelta(days=90)
    audit_every: timedelta = timedelta(seconds=60)
    sriov: tuple[Virtual, ...] = ()  # virtual functions to switch on at the start
    mdev: tuple[Mediated, ...] = ()  # mediated devices to make at the start
    cpu_dedicated_set: frozenset[int] | None = None  # CPUs that guests may have for themselves; None: all
    pod_bridge: str = ""  # the bridge that stands for the pod network of machines; "": there is none


@dataclass(frozen=True, slots=True)
class SchedulingSettings:
    """How hosts and devices are chosen, for all hosts."""

    policy: str = "pack"
    features: Mapping[str, bool] = field(default_factory=lambda: MappingProxyType({}))  # gates that were switched


@dataclass(frozen=True, slots=True)
class Config:
    """The whole file."""

    default: HostSettings = HostSettings()  # of a host that is not named
    hosts: Mapping[str, HostSettings] = field(default_factory=lambda: MappingProxyType({}))

    scheduling: SchedulingSettings = SchedulingSettings()

    def for_host(self, host: str) -> HostSettings:
        return self.hosts.get(host, self.default)


DEFAULT = Config()


def load(path: Path) -> Config:
    """Read a configuration file; Invalid names every field that is wrong."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise errors.Invalid(f"the configuration file {path} cannot be read: {error}") from error
    return parse(text, str(path))


def parse(text: str, source: str = "the configuration file") -> Config:
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
    scheduling = _scheduling(top)
    reader.finish()
    return Config(default, MappingProxyType(hosts), scheduling)


def _scheduling(top: Section) -> SchedulingSettings:
    section = top.reader.section(top.fields.get("scheduling"), "scheduling", KEYS["scheduling"])
    policy = section.text("policy", lambda text: None if text in POLICIES else f"{text!r} is none of {', '.join(POLICIES)}")
    features = top.reader.section(top.fields.get("features"), "features", KEYS["features"])
    switched = {gate: _switch(features, gate, default) for gate, (_, default) in dra_feature_gates.DEVICE_GATES.items()
                if gate in features.fields}
    return SchedulingSettings(policy or "pack", MappingProxyType(switched))


def _settings(section: Section, default: HostSettings) -> HostSettings:
    """What a section says, and the default for all that it does not."""
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
        pod_bridge=default.pod_bridge if (bridge := section.text("pod_bridge", _bridge)) is None else bridge,
    )


def _device_spec(section: Section, default: HostSettings, *, report: bool) -> DeviceSpec | None:
    if "device_spec" in section.fields:
        values = _list(section, "device_spec", "to offer nothing write []")
        return device_spec_parser.read_entries(section.reader, values, section.at("device_spec"), report=report)
    spec = default.device_spec
    burned = [entry.index for entry in spec.entries if entry.one_time_use] if spec is not None else []
    if burned and default.report_in_placement and not report:
        section.wrong("report_in_placement", f"must stay on here: device_spec[{burned[0]}] says one_time_use, and a used "
                                             "device is remembered in Placement")
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
        section.wrong(key, f'{text!r} is no list of CPUs such as 4-15 or 4-15,^8 (for none write ""): {error}')
        return default


def _bridge(text: str) -> str | None:
    return None if _INTERFACE.fullmatch(text) else f"{text!r} is no name of a network interface, for example br0"


def _list(section: Section, key: str, instead: str) -> list[Any]:
    """A list, or a text with JSON of one."""
    value = section.fields[key]
    if isinstance(value, str):
        return [value]
    if isinstance(value, list):
        return value
    section.wrong(key, f"is empty; {instead}" if value is None else "must be a list: put \"- \" before each entry")
    return []


def _switch(section: Section, key: str, default: bool) -> bool:
    """A boolean, by either of its names."""
    found: dict[str, bool] = {}
    for name in dict.fromkeys((key, SPELLINGS.get(key, key))):
        text = section.text(name)
        value = None if text is None else strict_yaml.boolean(text)
        if value is not None:
            found[name] = value
        elif text is not None and name not in found:
            section.wrong(name, f"{text!r} is neither true nor false")
    if len(set(found.values())) > 1:
        section.wrong(SPELLINGS[key], f"is another name of {key} and says the opposite; keep one of the two")
    return next(iter(found.values()), default)


def _duration(section: Section, key: str, default: timedelta, least: timedelta) -> timedelta:
    text = section.text(key)
    if text is None:
        return default
    found = _DURATION.fullmatch(text)
    seconds = int(found[1]) * _SECONDS[found[2]] if found else -1
    if not least.total_seconds() <= seconds <= _LONGEST.total_seconds():
        section.wrong(key, f"{text!r} is no time from {int(least.total_seconds())}s to {_LONGEST.days}d; write a whole number "
                           "and s, m, h or d, for example 90s or 30d")
        return default
    return timedelta(seconds=seconds)


def read_alias(reader: strict_yaml.Reader, values: Sequence[Any], path: str) -> tuple[Mapping[str, str], ...]:
    """PCI aliases, from mappings or texts of JSON; each mistake is a cause of the reader, with the alias's name. Each alias
    is checked alone; what it means, and whether several fit together, is for those who schedule by it."""
    return tuple(_one_alias(reader, where, value) for where, value in device_spec_parser.mappings(
        reader, values, path, example={"name": "gpu", "resource_class": "PGPU"}))


def _one_alias(reader: strict_yaml.Reader, path: str, value: Mapping[str, Any]) -> Mapping[str, str]:
    before = len(reader.causes)
    reader.known(path, [key for key in value if not key.startswith("traits")], ALIAS_KEYS)
    found: dict[str, str] = {}
    for key, text in value.items():
        if not isinstance(text, str):
            reader.wrong(f"{path}.{key}", f"must be a string, not {strict_yaml.shown(text)}")
            continue
        if message := _alias_mistake(key, text):
            reader.wrong(f"{path}.{key}", message)
        found[key] = text.strip() if key == "name" else text
    if "name" not in value:
        reader.wrong(f"{path}.name", "is missing; a flavor asks for the alias by its name", "FieldValueRequired")
    if isinstance(name := value.get("name"), str):
        reader.causes[before:] = [replace(cause, message=f"of alias {name!r}: {cause.message}")
                                  for cause in reader.causes[before:]]
    if found.get("live_migratable"):
        found["live_migratable"] = "true" if strict_yaml.boolean(found["live_migratable"]) else "false"
    return MappingProxyType(found)


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
