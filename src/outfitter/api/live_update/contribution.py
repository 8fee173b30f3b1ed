"""What a kind of device contributes to the evaluation of a running VM. Values and a Protocol."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from outfitter.api import conditions
from outfitter.api.kinds import Object
from outfitter.api.rejection import Rejection

Need = Literal["none", "pending", "immediate"]  # of a migration: pending waits whether the node does it in place
NEEDS: tuple[Need, ...] = ("none", "pending", "immediate")
LIVE_UPDATE = "LiveUpdate"


@dataclass(frozen=True, slots=True)
class RunningVm:
    """A VM whose VMI exists."""

    wanted: Mapping[str, Any]  # the spec that a VMI created now would have
    vmi: Mapping[str, Any]
    pod: Mapping[str, Any] | None = None  # in which it runs
    rollout: str = LIVE_UPDATE  # vmRolloutStrategy
    started_with: frozenset[str] | None = None  # fields of the template that the VMI was created from; None: not recorded
    in_place: bool = True  # whether its host plugs claimed devices into running VMs

    @property
    def live(self) -> bool:
        """Whether changes may reach the VMI before a restart."""
        return self.rollout == LIVE_UPDATE

    @property
    def running(self) -> bool:
        return (self.vmi.get("status") or {}).get("phase") == "Running"

    @property
    def migratable(self) -> bool:
        return conditions.is_true(self.vmi, "LiveMigratable")

    def other_claim(self, claim: str | None) -> str | None:
        """Why a device of this claim cannot be plugged; None: it can. The claims of a VMI only grow: one that it has under the
        name of another would give the device of that."""
        have, wanted = (next((entry for entry in spec.get("resourceClaims") or () if entry.get("name") == claim), None)
                        for spec in (self.vmi["spec"], self.wanted))
        if have is None or wanted is None or have == wanted:
            return None
        source = next((f"{key} {value}" for key, value in have.items() if key != "name"), "another one")
        return f"claim {claim} of the running VM is {source} until it stops; give the new claim another name"


@dataclass(frozen=True, slots=True)
class Contribution:
    """Of one kind of device."""

    live: Mapping[str, Any] = field(default_factory=dict)  # field of the VMI's spec -> its new value
    migration: tuple[str, ...] = ()  # fields among those that take effect in place or by a migration
    restart: tuple[str, ...] = ()  # fields that wait for a restart
    claims: frozenset[str] = frozenset()  # resourceClaims that the VMI needs for what is copied
    later: frozenset[str] = frozenset()  # and for what is copied once the VM runs, or something else is unplugged
    template: Mapping[str, Any] = field(default_factory=dict)  # field of the VM's template -> its value without what is gone
    refused: Mapping[str, Rejection] = field(default_factory=dict)  # why fields of `restart` wait, where that is not obvious


@dataclass(frozen=True, slots=True)
class MigrationNeed:
    """Whether a running VMI needs a migration, and for what."""

    level: Need = "none"
    waiting: tuple[str, ...] = ()  # what waits, for messages: 'NIC "blue"'


class Contributor(Protocol):
    fields: tuple[str, ...]  # of a VMI's spec, that it owns: no other contributor reads them

    def compare(self, running: RunningVm) -> Contribution:
        """The VM's template against its VMI."""
        ...

    def migration(self, vmi: Object, pod: Mapping[str, Any]) -> MigrationNeed:
        """The VMI's spec against what it has, as its status and its pod report."""
        ...
