"""The protocol between the node agent and the launcher of one VMI: messages, versions and limits. No I/O.

Newline-delimited JSON over a unix socket that the launcher listens on. Both sides begin with a `Hello`; then the agent sends
`Request`s, which the launcher answers in any order, and the launcher sends an `Answer` without an id whenever its domain
changed. Fields that a side does not know are ignored.

    -> {"hello":{"version":"1.0"}}                        <- {"hello":{"version":"1.1"}}
    -> {"id":1,"method":"pause","params":{"uid":"8d1f"}}  <- {"id":1}
    -> {"id":2,"method":"reset","params":{"uid":"8d1f"}}  <- {"id":2,"error":{"code":"outfitter...","message":"..."}}
                                                          <- {"changed":"8d1f"}

Called by `launcher.server` and `node.launchers`."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from outfitter.api.hypervisor import Domain, DomainNic, Ended, MigrationJob, MigrationLimits, MigrationTarget, Paused
from outfitter.api.kinds import Object
from outfitter.api.rejection import RejectionCode, carrying
from outfitter.errors import BadRequest, HypervisorAway, HypervisorError, OutfitterError, StartFailed

VERSION = (1, 2)  # the minor number is raised for what an older side may ignore, the major one for what it may not
SKEW = 1  # minor versions by which the sides may differ
MAX_MESSAGE = 8 << 20  # bytes of a line; a VMI is at most as large as etcd takes it, 1.5 MB


class LauncherHello(msgspec.Struct, frozen=True, omit_defaults=True):
    version: str


class LauncherRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """From the agent: `hello` once, then calls."""

    hello: LauncherHello | None = None
    id: int = 0
    method: str = ""
    params: msgspec.Raw = msgspec.Raw(b"{}")


class LauncherFault(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    code: str  # of errors.py
    message: str
    retry_after: float = 0.0
    rejection: str = ""  # a code of api.rejection


class LauncherAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """From the launcher: `hello`, the answer to a request, or the uid of a domain that changed."""

    hello: LauncherHello | None = None
    id: int = 0
    result: msgspec.Raw = msgspec.Raw(b"null")
    error: LauncherFault | None = None
    changed: str | None = None


class StartVmi(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """Of `start` and `expect`. The launcher adds its own environment and files."""

    vmi: Object
    network_info: str = ""  # `api.kubevirt.network_info`
    env: dict[str, str] = msgspec.field(default_factory=dict)  # what drivers publish of extended resources
    paused: bool = False  # start with paused vCPUs


class VmCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """Of the calls about the VM that runs."""

    uid: str
    grace: float = 0.0  # of `stop`


class PlugNic(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """Of `attach`: an interface of the VMI that its domain does not have yet."""

    vmi: Object
    name: str
    network_info: str  # `api.kubevirt.network_info`, with its entry


class NicCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """Of `detach` and `link`: an interface of the domain."""

    uid: str
    alias: str
    up: bool = True  # of `link`


class ExpectedVmi(msgspec.Struct, frozen=True, omit_defaults=True):
    """Answer to `expect`: the launcher is ready for a VMI that arrives by a migration."""

    drive: str = ""  # path of its config drive; "" for none
    driver: str = ""  # of its libvirt: "session" or "system"; "" for a simulated VM

    def to_target(self) -> MigrationTarget:
        return MigrationTarget("", self.drive, driver=self.driver)


class MigrateVmi(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """Of `migrate`: begin to copy the domain through the sockets in the launcher's folder."""

    uid: str
    target: ExpectedVmi
    bandwidth: int = 0
    auto_converge: bool = False
    devices: tuple[tuple[str, str], ...] = ()  # as of `MigrationTarget`

    @classmethod
    def of(cls, uid: str, target: MigrationTarget, limits: MigrationLimits) -> MigrateVmi:
        return cls(uid, ExpectedVmi(target.drive, target.driver), limits.bandwidth, limits.auto_converge,
                   target.devices)

    def limits(self) -> MigrationLimits:
        return MigrationLimits(self.bandwidth, self.auto_converge)


class MigrationJobState(msgspec.Struct, frozen=True, omit_defaults=True):
    total: int = 0
    remaining: int = 0
    processed: int = 0
    iteration: int = 0
    failed: str = ""

    @classmethod
    def of(cls, job: MigrationJob) -> MigrationJobState:
        return cls(job.total, job.remaining, job.processed, job.iteration, job.failed)

    def to_job(self) -> MigrationJob:
        return MigrationJob(self.total, self.remaining, self.processed, self.iteration, self.failed)


class PausedState(msgspec.Struct, frozen=True):
    reason: str
    message: str


class NicState(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    alias: str
    name: str
    type: str = ""
    mac: str = ""
    link_up: bool = True
    tap: str = ""
    address: str = ""
    vlan: int | None = None

    @classmethod
    def of(cls, nic: DomainNic) -> NicState:
        return cls(nic.alias, nic.name, nic.type, nic.mac, nic.link_up, nic.tap, nic.address, nic.vlan)

    def to_nic(self) -> DomainNic:
        return DomainNic(self.alias, self.name, self.type, self.mac, self.link_up, "", self.tap, self.address, self.vlan)


class DomainState(msgspec.Struct, frozen=True, omit_defaults=True):
    uid: str
    name: str
    devices: tuple[str, ...] = ()
    paused: PausedState | None = None
    nics: tuple[NicState, ...] = ()
    migrating: bool = False

    @classmethod
    def of(cls, domain: Domain) -> DomainState:
        paused = PausedState(domain.paused.reason, domain.paused.message) if domain.paused is not None else None
        return cls(domain.uid, domain.name, domain.devices, paused, tuple(map(NicState.of, domain.nics)), domain.migrating)

    def to_domain(self) -> Domain:
        paused = Paused(self.paused.reason, self.paused.message) if self.paused is not None else None
        return Domain(self.uid, self.name, "", self.devices, paused=paused, nics=tuple(nic.to_nic() for nic in self.nics),
                      migrating=self.migrating)


class EndedState(msgspec.Struct, frozen=True):
    uid: str
    name: str
    failed: bool
    reason: str

    def to_ended(self) -> Ended:
        return Ended(self.name, self.failed, self.reason)


class LauncherState(msgspec.Struct, frozen=True, omit_defaults=True):
    """Of `state` and `start`: the domain while it runs, how it ended afterwards, neither before."""

    domain: DomainState | None = None
    ended: EndedState | None = None


class AbilitiesState(msgspec.Struct, frozen=True):
    kvm: bool
    simulated: bool
    drives: str


M = TypeVar("M")


def encode(message: LauncherRequest | LauncherAnswer) -> bytes:
    return msgspec.json.encode(message) + b"\n"


def raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))


def decode(text: bytes | msgspec.Raw, type_: type[M]) -> M:
    """BadRequest: it is not such a message."""
    try:
        return msgspec.json.decode(text, type=type_)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"this is not a {type_.__name__} of the launcher protocol: {error}") from error


def version_text(version: tuple[int, int] = VERSION) -> str:
    return f"{version[0]}.{version[1]}"


def check_version(theirs: str, mine: tuple[int, int] = VERSION) -> None:
    """HypervisorAway: the sides do not understand each other."""
    major, _, minor = theirs.partition(".")
    known = len(theirs) < 20 and theirs.isascii() and major.isdigit() and minor.isdigit()
    if known and int(major) == mine[0] and abs(int(minor) - mine[1]) <= SKEW:
        return
    raise carrying(HypervisorAway(
        f"launcher protocol {theirs[:20]!r} is not understood: this side has {version_text(mine)}, and one minor version of "
        "difference is supported. Upgrade node agents and launchers by one minor version at a time; a VM gets the current "
        "launcher when it is stopped and started", retry_after=30.0), RejectionCode.LAUNCHER_VERSION)


def fault_of(error: OutfitterError) -> LauncherFault:
    code = error.rejection.code if error.rejection is not None else ""
    return LauncherFault(error.code, error.message, getattr(error, "retry_after", 0.0), str(code))


def error_of(fault: LauncherFault) -> OutfitterError:
    """The error that the launcher raised. One that is not known here was raised by a newer launcher, which rejects the call."""
    known = {kind.code: kind for kind in (HypervisorError, StartFailed, BadRequest)}
    error: OutfitterError = known.get(fault.code, HypervisorError)(fault.message)
    if fault.code == HypervisorAway.code:
        error = HypervisorAway(fault.message, retry_after=min(60.0, max(0.1, fault.retry_after)))
    if fault.rejection in RejectionCode.__members__.values():
        carrying(error, RejectionCode(fault.rejection))
    return error
