"""The one table of what can be set for a role: a field of `Settings` is a flag (--lease-duration), a variable
(OUTFITTER_LEASE_DURATION) and a key of section `roles` of the configuration file (lease_duration). A flag wins over the
variable, the variable over the file, the file over the default. docs/roles.md shows the table; a test compares.

No name may begin with "webhook_": Kubernetes sets OUTFITTER_WEBHOOK_PORT and others for the Service outfitter-webhook."""
# ruff: noqa: RUF009  # the defaults are rows of the table, which dataclasses.field makes

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import outfitter
from outfitter.api.launcher import launcher_paths
from outfitter.errors import Cause, Invalid

PREFIX = "OUTFITTER_"
OTHER_VARIABLES = ("OUTFITTER_PCI_IDS",)  # read elsewhere
ALL = ("controller", "webhook", "node", "launcher")
CLIENTS = ("controller", "webhook", "node")  # have credentials of the API server
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)?")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_TRUE, _FALSE = ("true", "1", "yes", "on"), ("false", "0", "no", "off")
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class ValueType:
    """How the text of a setting is read. `read` raises ValueError with what would be right."""

    metavar: str
    read: Callable[[str], Any]
    switch: bool = False  # true or false: a flag without a value


@dataclass(frozen=True, slots=True)
class Setting:
    """A row of the table."""

    name: str
    type: ValueType
    meaning: str
    default: str  # as the docs and --help show it
    roles: tuple[str, ...]
    in_file: bool

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        return PREFIX + self.name.upper()


def _path(text: str) -> Path:
    return Path(text).expanduser()


def _duration(text: str) -> float:
    found = _DURATION.fullmatch(text)
    seconds = float(found[1]) * _SECONDS[found[2] or "s"] if found else 0.0
    if not 0 < seconds <= 86_400:
        raise ValueError("it must be a duration up to 24h, such as 15s")
    return seconds


def _switch(text: str) -> bool:
    if text.lower() not in (*_TRUE, *_FALSE):
        raise ValueError("it must be true or false")
    return text.lower() in _TRUE


def address(text: str) -> tuple[str, int]:
    """Host and port of HOST:PORT, [IPv6]:PORT or :PORT (all addresses)."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65_535 or (":" in host and not host.startswith("[")):
        raise ValueError("it must be HOST:PORT, as 127.0.0.1:8080; :8080 listens on all addresses")
    return host.strip("[]"), int(port)


def _name(text: str) -> str:
    if not _NAME.fullmatch(text) or len(text) > 253:
        raise ValueError("it must be a name as Kubernetes has them: lower case letters, digits, '-' and '.'")
    return text


def choice(*values: str) -> ValueType:
    def read(text: str) -> str:
        if text not in values:
            raise ValueError(f"it must be one of {', '.join(values)}")
        return text

    return ValueType("|".join(values), read)


FILE, FOLDER = ValueType("FILE", _path), ValueType("DIR", _path)
SECONDS = ValueType("SECONDS|15s", _duration)
SWITCH = ValueType("true|false", _switch, switch=True)
ADDRESS = ValueType("HOST:PORT", address)
NAME = ValueType("NAME", _name)


def text(metavar: str) -> ValueType:
    return ValueType(metavar, str)


def _shown(default: Any) -> str:
    return str(default).lower() if isinstance(default, bool) else str(default)


def _row(
    default: Any, type_: ValueType, meaning: str, roles: tuple[str, ...] = ALL, *, shown: str = "", in_file: bool = True
) -> Any:
    """`shown`: the default in words, where its value does not say it."""
    return field(default=default, metadata={"type": type_, "meaning": meaning, "roles": roles, "in_file": in_file,
                                            "shown": shown})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of one process. Of a role that has no such setting, the field has its default."""

    config: Path | None = _row(None, FILE, "the configuration file", shown="none", in_file=False)
    log_format: str = _row("text", choice("text", "json"), "lines of the log as text or as JSON objects")
    log_level: str = _row("info", choice("debug", "info", "warning", "error"), "the least important level that is logged")
    health_address: tuple[str, int] | None = _row(
        None, ADDRESS, "where `/healthz`, `/readyz` and `/metrics` are served; port 0 takes a free one", shown="not served")

    kubeconfig: Path | None = _row(
        None, FILE, "how to reach the API server", CLIENTS,
        shown="`$KUBECONFIG`, else `~/.kube/config`, else the pod's service account", in_file=False)
    companion: bool = _row(
        False, SWITCH, "KubeVirt controls the VMs of this cluster; we keep devices and the ledger, and change no VM and no pod",
        ("controller", "node"))
    namespace: str = _row("outfitter-system", NAME, "the namespace of Outfitter's own objects", CLIENTS)

    leader_elect: bool = _row(
        True, SWITCH, "wait for the Lease `outfitter-controller`; without, a second controller is refused", ("controller",))
    lease_duration: float = _row(
        15.0, SECONDS, "another replica takes a Lease that was not renewed for so long", ("controller",), shown="15s")
    renew_deadline: float = _row(
        10.0, SECONDS, "a leader that could not renew for so long stops its controllers", ("controller",), shown="10s")
    retry_period: float = _row(
        2.0, SECONDS, "time between two attempts to take or renew the Lease", ("controller",), shown="2s")

    address: tuple[str, int] = _row(
        ("127.0.0.1", 8443), ADDRESS, "where the API server calls the webhook; port 0 takes a free one", ("webhook",),
        shown="127.0.0.1:8443")

    node_name: str = _row("", NAME, "the Node of this host", ("node",), shown="the host name, short and in lower case")
    simulate: str = _row(
        "", text("FILE|NxM"), "simulate the hosts of a hosts file, or N hosts with M VFs each, instead of this host", ("node",),
        shown="this host")
    kubelet_dir: Path = _row(
        Path("/var/lib/kubelet"), FOLDER,
        "the kubelet's folder: sockets of the DRA driver, and in its pods' volumes those of launchers; with --simulate where "
        "device plugins and readers are served, below DIR/NODE", ("node",),
        shown="`/var/lib/kubelet`; with --simulate `kubelet` in the data folder, if there is one")
    device_plugin: bool = _row(
        False, SWITCH, "offer the devices of permittedHostDevices to the kubelet by a device plugin, not to claims", ("node",))
    data: Path | None = _row(
        None, FOLDER, "state of this node that must survive a restart", ("node",),
        shown="`/var/lib/outfitter`; with --simulate in memory")
    migration_address: tuple[str, int] = _row(
        ("", 8450), ADDRESS, "where the agents of other nodes connect while a VM migrates to this one; without a host, all "
        "addresses, and the one towards the API server is announced; port 0 takes a free one", ("node",), shown=":8450")

    launcher_image: str = _row(
        f"outfitter-launcher:{outfitter.__version__}", text("IMAGE"), "the image of launcher pods", ("controller",),
        shown="`outfitter-launcher` of this version")
    launcher_pull_policy: str = _row(
        "IfNotPresent", choice("Always", "IfNotPresent", "Never"), "when kubelets pull it", ("controller",))
    launcher_hypervisor: str = _row(
        "libvirt", choice("libvirt", "simulated"), "what runs VMs in launcher pods", ("controller",))
    launcher_kvm_resource: str = _row(
        "", text("NAME"), "the extended resource by which a device plugin gives `/dev/kvm` to launcher pods, as "
        "`devices.kubevirt.io/kvm`", ("controller",), shown="none: VMs are emulated")

    socket: Path = _row(
        Path(f"{launcher_paths.FOLDER}/{launcher_paths.SOCKET}"), FILE, "where the launcher listens for the node agent",
        ("launcher",))
    state: Path = _row(
        Path(launcher_paths.STATE), FOLDER, "files of the VM: config drive, libvirt's state", ("launcher",))
    hypervisor: str = _row(
        "libvirt", text("libvirt|simulated|URI"), "what runs the VM; libvirt is started in the pod, one at a URI is not",
        ("launcher",))
    root: Path = _row(Path("/"), FOLDER, "below which device metadata and Secrets are read", ("launcher",))
    termination_log: Path = _row(
        Path("/dev/termination-log"), FILE, "where Kubernetes reads why the launcher ended", ("launcher",))


TABLE: tuple[Setting, ...] = tuple(
    Setting(one.name, one.metadata["type"], one.metadata["meaning"], one.metadata["shown"] or _shown(one.default),
            one.metadata["roles"], one.metadata["in_file"])
    for one in dataclasses.fields(Settings))


def of_role(role: str) -> list[Setting]:
    return [setting for setting in TABLE if role in setting.roles]


@dataclass(slots=True)
class _Resolution:
    """Values and mistakes while settings are put together."""

    values: dict[str, Any] = field(default_factory=dict)
    causes: list[Cause] = field(default_factory=list)

    def read(self, setting: Setting, place: str, given: str) -> None:
        try:
            if not given:
                raise ValueError(f"it is empty; write {setting.type.metavar}, or leave it out")
            self.values[setting.name] = setting.type.read(given)
        except ValueError as error:
            self.causes.append(Cause(place, f"{given!r} is no valid value: {error}"))

    def finish(self) -> None:
        if self.causes:
            title = "the settings are invalid" if len(self.causes) > 1 else ""
            raise Invalid("; ".join(f"{cause.field}: {cause.message}" for cause in self.causes), self.causes, title=title)


def resolve(
    role: str, flags: Mapping[str, str], environment: Mapping[str, str], section: Mapping[str, str] | None = None,
    source: str = "",
) -> Settings:
    """The settings of a role. `flags` are those that were given; `section` is that of the configuration file `source`.
    Invalid names each setting that is wrong, by the way in which it was set."""
    found = _Resolution()
    known = {setting.name: setting for setting in TABLE if setting.in_file}
    for key in section or {}:
        if key not in known:
            names = ", ".join(sorted(known))
            found.causes.append(Cause(f"{source}: roles.{key}", f"there is no such setting; there are {names}"))
    for setting in of_role(role):
        if setting.name in flags:
            found.read(setting, setting.flag, flags[setting.name])
        elif environment.get(setting.variable):
            found.read(setting, setting.variable, environment[setting.variable])
        elif section and setting.in_file and setting.name in section:
            found.read(setting, f"{source}: roles.{setting.name}", section[setting.name])
    found.finish()
    return Settings(**found.values)


def check_together(settings: Settings) -> None:
    """Invalid: settings that are valid by themselves contradict each other."""
    if not settings.retry_period < settings.renew_deadline < settings.lease_duration:
        raise Invalid(f"retry_period ({settings.retry_period:g}s) must be below renew_deadline ({settings.renew_deadline:g}s), "
                      f"and that below lease_duration ({settings.lease_duration:g}s)")


def unknown_variables(environment: Mapping[str, str]) -> list[str]:
    """Variables that look like settings and are none: a misspelt one would be ignored silently."""
    known = {setting.variable for setting in TABLE} | set(OTHER_VARIABLES)
    return sorted(name for name in environment
                  if name.startswith(PREFIX) and name not in known and not name.startswith(f"{PREFIX}WEBHOOK_"))
