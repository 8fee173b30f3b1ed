"""The part of `outfit config check` about aliases: which devices each one matches on a host, or why none. Whether a device is
free only a server knows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from outfitter.inventory.config import Config
    from outfitter.scheduling.nova.alias import Alias
    from outfitter.scheduling.nova.alias_coverage import AliasCoverage
    from outfitter.scheduling.nova.host_state import PciDevice

MAX_SHOWN = 5  # devices named in one line


def lines(covered: Sequence[AliasCoverage]) -> Iterator[str]:
    """For one host."""
    from outfitter.api import rejection_text  # noqa: PLC0415

    for each in covered:
        yield ""
        yield f"  alias {each.alias.name}: {_written(each.alias)}"
        if each.matching:
            count = f"{len(each.matching)} device{'' if len(each.matching) == 1 else 's'}"
            yield f"    matches {count}, free or not: {_addresses(each.matching)}"
        elif each.nearest is None or each.lacks is None:
            yield "    matches nothing: the host offers no PCI function"
        else:
            yield f"    matches nothing; the nearest is {each.nearest.address}, which {rejection_text.sentence(each.lacks)}"


def summary(covered: Mapping[str, Sequence[AliasCoverage]]) -> Iterator[str]:
    """For all hosts: the aliases that match nothing anywhere."""
    names = dict.fromkeys(each.alias.name for of_host in covered.values() for each in of_host)
    for name in names:
        if not any(each.matching for of_host in covered.values() for each in of_host if each.alias.name == name):
            where = "this host" if len(covered) == 1 else f"these {len(covered)} hosts"
            yield f"warning: alias {name} matches no device of {where}: a VM that asks for it waits"


def without_effect(settings: Config) -> Iterator[str]:
    """Keys of one host that count for all hosts only."""
    for host, own in settings.hosts.items():
        for key in ("alias", "pci_in_placement"):
            if getattr(own, key) != getattr(settings.default, key):
                yield f"warning: hosts.{host}.{key} has no effect: flavors use the one at the top of the file"


def _written(alias: Alias) -> str:
    return " or ".join(", ".join(f"{key} {text}" for key, text in spec.written.items()) for spec in alias.specs)


def _addresses(devices: Sequence[PciDevice]) -> str:
    more = len(devices) - MAX_SHOWN
    return ", ".join(device.address for device in devices[:MAX_SHOWN]) + (f" and {more} more" if more > 0 else "")
