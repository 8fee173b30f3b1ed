"""What the node asks of whatever runs machines. The launcher implements it; the app brings the two together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from outfitter.api.kinds import Object


@dataclass(frozen=True, slots=True)
class Domain:
    """A running machine."""

    uid: str  # of the instance it belongs to; of a foreign one its own
    name: str  # "namespace_name", as the hypervisor's own tools show it
    xml: str
    devices: tuple[str, ...] = ()  # what it has of the host: PCI addresses and UUIDs of mediated devices
    foreign: bool = False  # somebody else started it: we leave it alone, and its devices to it
    guest_metadata: str = field(default="", compare=False)  # meta_data.json for the config drive: what tagged devices are
    left_out: tuple[str, ...] = field(default=(), compare=False)  # what the spec has and a simulated machine does without


class Hypervisor(Protocol):
    """One host's. Every call may be made twice without harm."""

    async def domains(self) -> Mapping[str, Domain]:
        """What runs, by the instance's uid; also what was started before this process was."""
        ...

    async def start(self, domain: Domain) -> None: ...

    async def stop(self, uid: str) -> None: ...


class Builder(Protocol):
    """Makes the domain of an instance whose devices are known; `env` tells of those that were asked for by the name of a
    resource. Refused says what is missing or contradicts itself."""

    def __call__(self, instance: Object, env: Mapping[str, str]) -> Domain: ...
