"""Converts nova.conf into our configuration file. Reads the part of oslo.config's syntax that is needed: sections, comments,
multi-line values, and options that are given several times. Called by `outfit config import-nova`.

As in oslo.config, a multi-valued option (device_spec, alias) collects its values: those of earlier files first, and within a
file those under deprecated names first. For an option with one value the last file that has it decides."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outfitter import errors
from outfitter.errors import Cause
from outfitter.inventory import config, cpulist, device_spec_parser, placement_names, strict_yaml

# Our key -> (section, option) of Nova, the oldest name first.
MANY = {
    "device_spec": (("DEFAULT", "pci_passthrough_whitelist"), ("pci", "passthrough_whitelist"), ("pci", "device_spec")),
    "alias": (("DEFAULT", "pci_alias"), ("pci", "alias")),
}
ONE = {
    "report_in_placement": (("pci", "report_to_placement"), ("pci", "report_in_placement")),
    "pci_in_placement": (("scheduler", "pci_prefilter"), ("filter_scheduler", "pci_in_placement")),
}
CPUS = "cpu_dedicated_set"
_READ = {name for names in (*MANY.values(), *ONE.values(), (("compute", CPUS),)) for name in names}
_REFERENCE = re.compile(r"\$(\{)?([a-zA-Z_][a-zA-Z0-9_]*)")


@dataclass(frozen=True, slots=True)
class Option:
    """One assignment and its location."""

    section: str  # in lower case, except DEFAULT
    key: str
    value: str  # all its lines
    source: str
    line: int  # the first of them

    @property
    def where(self) -> str:
        return f"{self.source}:{self.line}"

    @property
    def name(self) -> str:
        return f"[{self.section}]{self.key}"


@dataclass(frozen=True, slots=True)
class Imported:
    """The configuration file, and warnings for the user."""

    text: str
    warnings: tuple[str, ...]


def load(paths: Sequence[Path]) -> Imported:
    """Convert the configuration files of one service, in their order; Invalid names every wrong line."""
    options: list[list[Option]] = []
    for path in paths:
        try:
            options.append(read(path.read_text(encoding="utf-8"), str(path)))
        except (OSError, UnicodeDecodeError) as error:
            raise errors.Invalid(f"{path} cannot be read: {error}") from error
    return convert(options)


def read(text: str, source: str) -> list[Option]:
    """All assignments of a file, in order; Invalid at the first malformed line."""
    options: list[Option] = []
    section = ""
    open_value = False  # whether the next line may continue the last value
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            open_value = False
        elif line[0] in " \t":
            if not open_value:
                raise errors.Invalid(f"{source}:{number}: is indented but continues no value: {line.strip()!r}")
            last = options[-1]
            options[-1] = Option(last.section, last.key, f"{last.value}\n{line.strip()}", source, last.line)
        elif line[0] in "#;":
            open_value = False
        elif line[0] == "[":
            section = _section(line.rstrip(), f"{source}:{number}")
            open_value = False
        else:
            options.append(_assignment(line, section, source, number))
            open_value = True
    return options


def _section(line: str, where: str) -> str:
    name = line[1:-1]
    if not line.endswith("]") or not name:
        raise errors.Invalid(f"{where}: {line!r} is not a section; write for example [pci]")
    return name if name == "DEFAULT" else name.lower()


def _assignment(line: str, section: str, source: str, number: int) -> Option:
    parts = re.match(r"([^=:]*)[=:](.*)", line)
    if parts is None or not parts[1].strip():
        raise errors.Invalid(f"{source}:{number}: {line.strip()!r} is not an assignment; write for example device_spec = "
                             "{\"vendor_id\": \"10de\"}")
    if not section:
        raise errors.Invalid(f"{source}:{number}: {parts[1].strip()} is before the first section, for example [pci]")
    value = parts[2].strip()
    if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
        value = value[1:-1]
    return Option(section, parts[1].strip(), value, source, number)


def convert(files: Sequence[Sequence[Option]]) -> Imported:
    """The configuration file from the assignments of each file; Invalid names every wrong line."""
    work = _Import(files)
    text = work.text()
    if work.causes:
        lines = "\n".join(f"  {cause.field}: {cause.message}" for cause in work.causes)
        raise errors.Invalid(f"this cannot be imported:\n{lines}", work.causes)
    return Imported(text, tuple(work.warnings))


class _Import:
    """One conversion; collects mistakes and warnings."""

    def __init__(self, files: Sequence[Sequence[Option]]) -> None:
        self.files = files
        self.causes: list[Cause] = []
        self.warnings: list[str] = []

    def text(self) -> str:
        """The text of the configuration file; valid only when `causes` is empty."""
        sources = dict.fromkeys(option.source for options in self.files for option in options)
        lines = [f"# From {', '.join(sources) or 'nothing'}."]
        switches = {key: self.switch(key, names) for key, names in ONE.items()}
        report = bool(switches["report_in_placement"] and switches["report_in_placement"][0])
        for key, found in switches.items():
            if found is not None:
                lines += ["", f"# {found[1].where} {found[1].name}", f"{key}: {'true' if found[0] else 'false'}"]
        if (option := next(reversed([*self.many([("compute", CPUS)])]), None)) is not None:
            lines += ["", f"# {option.where} {option.name}", f"{CPUS}: {_quoted(self.cpus(option))}"]
        for key, names in MANY.items():
            options = [self.expanded(option) for option in self.many(names)]
            if options:
                lines += ["", f"{key}:"]
            for option in options:
                entries = list(self.entries(key, option, report=report))
                for place, entry in enumerate(entries, 1):
                    which = f", {place} of {len(entries)}" if len(entries) > 1 else ""
                    lines += [f"# {option.where} {option.name}{which}", f"- {_flow(entry)}"]
            if options and lines[-1] == f"{key}:":
                lines[-1] += " []"
        self.unread()
        return "\n".join(lines) + "\n"

    def many(self, names: Sequence[tuple[str, str]]) -> Iterator[Option]:
        for options in self.files:
            for name in names:
                yield from (option for option in options if (option.section, option.key) == name)

    def switch(self, key: str, names: Sequence[tuple[str, str]]) -> tuple[bool, Option] | None:
        """The value of an option, and the option that set it; None when it is not set."""
        for options in reversed(self.files):
            for name in reversed(names):
                found = [option for option in options if (option.section, option.key) == name]
                if found:
                    value = strict_yaml.boolean(found[-1].value)
                    if value is None:
                        self.wrong(found[-1], "", f"{found[-1].value!r} is neither true nor false")
                    return bool(value), found[-1]
        return None

    def cpus(self, option: Option) -> str:
        try:
            return cpulist.text(cpulist.without_excluded(option.value))
        except ValueError as error:
            self.wrong(option, "", f"{option.value!r} is not a list of CPUs: {error}")
            return ""

    def wrong(self, option: Option, field: str, message: str) -> None:
        self.causes.append(Cause(f"{option.where}: {option.name}{field}", message))

    def warn(self, option: Option, message: str) -> None:
        self.warnings.append(f"{option.where}: {option.name}: {message}")

    def expanded(self, option: Option) -> Option:
        """The option with $$ unescaped. References to other options are not supported."""
        text = option.value.replace("\\$", "$$")
        for reference in _REFERENCE.finditer(text.replace("$$", "")):
            self.wrong(option, "", f"refers to the option {reference[2]}; write its value instead of {reference[0]}"
                                   f"{'}' if reference[1] else ''}")
        return Option(option.section, option.key, text.replace("$$", "$"), option.source, option.line)

    def entries(self, key: str, option: Option, *, report: bool) -> Iterator[dict[str, Any]]:
        """The mappings of one value, as they are written to the configuration file. Mistakes are reported with their line."""
        reader = strict_yaml.Reader(option.where)
        values = [dict(value) for _, value in device_spec_parser.mappings(reader, [option.value], key, example=_EXAMPLES[key])]
        for value in values:
            self.mend_traits(option, value, forbid=key == "alias")
            self.check_class(option, value)
        if key == "device_spec":
            for value in values:
                self.mend(option, value, report=report)
            device_spec_parser.read_entries(reader, values, key, report=report)
        else:
            config.read_alias(reader, values, key)
        for cause in reader.causes:
            rest = cause.field.removeprefix(key)
            self.wrong(option, rest.removeprefix("[0]") if len(values) < 2 else rest, cause.message)
        yield from values

    def mend(self, option: Option, value: dict[str, Any], *, report: bool) -> None:
        """Drop keys that Nova ignores and our parser rejects; warn about keys with another meaning here."""
        if value.get("physical_network") and value.pop("resource_class", None):
            self.warn(option, "resource_class is dropped: Nova ignores it together with physical_network")
        if value.get("devname") and report:
            self.warn(option, f"devname {value['devname']!r} cannot be reported in Placement: no host starts with it while "
                              "report_in_placement is on; use address")

    def check_class(self, option: Option, value: dict[str, Any]) -> None:
        """Warn about a class that is standard here and not in Nova."""
        name = str(value.get("resource_class") or "").strip().upper()
        if name in placement_names.NETWORK_CLASSES - {"SRIOV_NET_VF"}:
            self.warn(option, f"resource_class {name} is the standard class here; Nova reads it as {_nova_name(name)}")

    def mend_traits(self, option: Option, value: dict[str, Any], *, forbid: bool) -> None:
        """Warn about traits with another meaning here. `forbid`: in an alias, "!" forbids a trait."""
        for key, traits in value.items():
            for name in traits.split(",") if key.startswith("traits") and isinstance(traits, str) else ():
                if not name.strip():
                    self.warn(option, f"the empty trait in {traits!r} is dropped; Nova reads it as {_nova_name(name)}")
                elif forbid and name.strip().startswith("!"):
                    self.warn(option, f"{name.strip()!r} forbids a trait here; Nova requires {_nova_name(name)} instead")
                elif name != name.strip():
                    self.warn(option, f"the blanks around the trait {name!r} are ignored; Nova reads it as {_nova_name(name)}")

    def unread(self) -> None:
        """Warn about options that look like ours and are not read: unknown ones of [pci], and known ones in another section."""
        known = [key for section, key in _READ if section == "pci"]
        homes = {section for section, _ in _READ}
        for option in (option for options in self.files for option in options):
            if option.section not in homes or (option.section, option.key) in _READ:
                continue
            if belongs := sorted(f"[{section}]{key}" for section, key in _READ if key == option.key):
                self.warn(option, f"is not imported: Nova does not read it in this section; write {' or '.join(belongs)}")
            elif option.section == "pci":
                self.warn(option, f"is not imported; known are {', '.join(sorted(known))}")


_EXAMPLES = {"device_spec": {"vendor_id": "10de", "product_id": "2235"}, "alias": {"name": "gpu", "resource_class": "PGPU"}}


def _nova_name(name: str) -> str:
    upper = name.upper()
    return upper if upper.startswith(placement_names.CUSTOM) else placement_names.CUSTOM + re.sub("[^0-9A-Z]+", "_", upper)


def _flow(value: Any) -> str:
    """A value as YAML flow style on one line. JSON strings are valid YAML, and quoted scalars stay strings."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(key)}: {_flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_flow(item) for item in value) + "]"
    return _quoted(value)


def _quoted(value: Any) -> str:
    """As JSON, with non-printable characters escaped as in YAML."""
    text = json.dumps(value, ensure_ascii=False)
    return "".join(sign if sign.isprintable() else f"\\u{ord(sign):04x}" if ord(sign) < 0x10000 else f"\\U{ord(sign):08x}"
                   for sign in text)


def _key(key: str) -> str:
    return key if re.fullmatch("[a-z][a-z0-9_]*", key) else _quoted(key)
