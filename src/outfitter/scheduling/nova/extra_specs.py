"""What a flavor asks for: the text of `pci_passthrough:alias` and what else of its extra specs decides about devices.

A flavor's mistake is its user's, so it is a BadRequest that names the extra spec and what would be right."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, cast

from outfitter.api.ledger_page import page
from outfitter.errors import BadRequest
from outfitter.inventory import strict_yaml
from outfitter.scheduling.nova.alias import POLICIES, Alias, Policy, Spec

ALIAS, POLICY, GROUPS = "pci_passthrough:alias", "hw:pci_numa_affinity_policy", "group_policy"
IMAGE_POLICY = "hw_pci_numa_affinity_policy"
MAX_DEVICES = page.MOST  # per VM: the most that a host's page can hold
CPU_POLICY = "hw:cpu_policy"
GroupPolicy = Literal["none", "isolate"]
_ENTRY = re.compile(r"([^:,]*[^:,\s])\s*:\s*(\d{1,9})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Guest:
    """CPUs, memory and NUMA cells of the guest, as far as devices depend on them."""

    vcpus: int = 1
    memory_mb: int = 512
    disk_gb: int = 1
    pinned: bool = False  # its CPUs are its own
    cells: int | None = None  # NUMA cells it has; None: no topology, and then no policy either
    spread: bool = False  # it may lie on more cells of the host, if so many are too small


@dataclass(frozen=True, slots=True)
class AliasRequest:
    """So many devices of one kind."""

    request_id: str
    alias: str  # by whose name it was asked
    count: int
    specs: tuple[Spec, ...]
    numa_policy: Policy
    in_placement: bool = True  # by class and traits of providers; else by ids alone

    def suffix(self, index: int) -> str:
        """The name of the group that asks for one of them, and of the booking that answers it."""
        return f"{self.request_id}-{index}"


@dataclass(frozen=True, slots=True)
class FlavorRequest:
    """Everything that one VM asks for."""

    requests: tuple[AliasRequest, ...]
    guest: Guest = Guest()
    group_policy: GroupPolicy | None = None  # as written; None: not
    affinity: Policy | None = None  # of flavor or image, which stands above that of the aliases

    @property
    def count(self) -> int:
        return sum(request.count for request in self.requests)


def read(
    extra_specs: Mapping[str, str], aliases: Mapping[str, Alias], *, new_id: Callable[[], str], in_placement: bool = True,
    image: Mapping[str, str] | None = None, vcpus: int = 1, memory_mb: int = 512, disk_gb: int = 1,
) -> FlavorRequest:
    """What a flavor with these extra specs, and an image with these properties, ask for. `new_id` names each request."""
    affinity = _affinity(extra_specs, image or {})
    requests = tuple(
        AliasRequest(new_id(), name, count, aliases[name].specs, affinity or aliases[name].numa_policy, in_placement)
        for name, count in entries(extra_specs.get(ALIAS, ""), aliases))
    return FlavorRequest(requests, _guest(extra_specs, vcpus, memory_mb, disk_gb), _group_policy(extra_specs), affinity)


def entries(text: str, aliases: Mapping[str, Alias]) -> list[tuple[str, int]]:
    """(alias, count) of each entry of a text such as "a1:2, a2:1". BadRequest."""
    if not text.strip():
        return []
    out = []
    for entry in text.split(","):
        found = _ENTRY.fullmatch(entry.strip())
        if found is None:
            raise BadRequest.of(ALIAS, f"{text!r} is no list of alias:count, such as gpu:1 or gpu:2, nic:1; wrong is "
                                       f"{entry.strip()!r}")
        name, count = found[1], int(found[2])
        if name not in aliases:
            known = f"defined are {', '.join(sorted(aliases))}" if aliases else "none is defined"
            raise BadRequest.of(ALIAS, f"PCI alias {name} is not defined; {known}")
        out.append((name, count))
    if sum(count for _, count in out) > MAX_DEVICES:
        raise BadRequest.of(ALIAS, f"{text!r} asks for more than {MAX_DEVICES} devices, which no host can have")
    return out


def _affinity(extra_specs: Mapping[str, str], image: Mapping[str, str]) -> Policy | None:
    policies = {key: source[key] for key, source in ((POLICY, extra_specs), (IMAGE_POLICY, image)) if source.get(key)}
    for key, value in policies.items():
        if value not in POLICIES:
            raise BadRequest.of(key, f"{value!r} is none of {', '.join(POLICIES)}")
    if len(set(policies.values())) > 1:
        raise BadRequest.of(POLICY, f"the flavor demands {policies[POLICY]} and the image {policies[IMAGE_POLICY]} "
                                    f"({IMAGE_POLICY}); make them agree, or leave one out")
    return cast(Policy | None, next(iter(policies.values()), None))


def _group_policy(extra_specs: Mapping[str, str]) -> GroupPolicy | None:
    value = extra_specs.get(GROUPS) or None
    if value not in (None, "none", "isolate"):
        raise BadRequest.of(GROUPS, f"{value!r} is neither none nor isolate")
    return cast(GroupPolicy | None, value)


def _guest(extra_specs: Mapping[str, str], vcpus: int, memory_mb: int, disk_gb: int) -> Guest:
    policy = extra_specs.get(CPU_POLICY) or "shared"
    if policy not in ("shared", "dedicated"):
        raise BadRequest.of(CPU_POLICY, f"{policy!r} is neither shared nor dedicated")
    text = extra_specs.get("hw:numa_nodes") or ""
    if text and not (re.fullmatch("[0-9]{1,3}", text) and 1 <= int(text) <= vcpus):
        raise BadRequest.of("hw:numa_nodes", f"{text!r} is no number from 1 to {vcpus}, which is how many CPUs there are")
    cells = int(text) if text else 1 if policy == "dedicated" or _huge(extra_specs) else None
    return Guest(vcpus, memory_mb, disk_gb, policy == "dedicated", cells)


def _huge(extra_specs: Mapping[str, str]) -> bool:
    """Pages of an explicit size come from a NUMA cell."""
    size = extra_specs.get("hw:mem_page_size") or ""
    return bool(size) and strict_yaml.boolean(size) is not False and size != "any"
