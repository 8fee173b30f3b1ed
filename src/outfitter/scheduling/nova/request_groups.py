"""A flavor's devices in Placement's words: one suffixed group of GET /allocation_candidates for each device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from outfitter.errors import Invalid
from outfitter.scheduling.nova.alias import ANY_OF, FORBIDDEN, Traits
from outfitter.scheduling.nova.extra_specs import AliasRequest, FlavorRequest, GroupPolicy

SOCKET_AFFINITY = "COMPUTE_SOCKET_PCI_NUMA_AFFINITY"  # of hosts that know which cells share a socket
LIMIT = 1000  # candidates that are asked for


@dataclass(frozen=True, slots=True)
class RequestGroup:
    """One device: it comes from one provider."""

    suffix: str
    request_id: str
    index: int
    resources: Mapping[str, int]
    traits: Traits


@dataclass(frozen=True, slots=True)
class Query:
    """What Placement is asked."""

    groups: tuple[RequestGroup, ...]
    group_policy: GroupPolicy | None = None  # None: not sent
    root_required: frozenset[str] = frozenset()
    resources: Mapping[str, int] = field(default_factory=dict)  # of the host itself
    limit: int = LIMIT

    def parameters(self) -> list[tuple[str, str]]:
        """As they stand in the address; a name may come more than once."""
        out: list[tuple[str, str]] = []
        if self.resources:
            out.append(("resources", _amounts(self.resources)))
        for group in self.groups:
            out.append((f"resources_{group.suffix}", _amounts(group.resources)))
            plain = [*sorted(group.traits.required), *(FORBIDDEN + name for name in sorted(group.traits.forbidden))]
            if plain:
                out.append((f"required_{group.suffix}", ",".join(plain)))
            out += [(f"required_{group.suffix}", ANY_OF + ",".join(sorted(some))) for some in group.traits.any_of]
        if self.group_policy is not None:
            out.append(("group_policy", self.group_policy))
        if self.root_required:
            out.append(("root_required", ",".join(sorted(self.root_required))))
        out.append(("limit", str(self.limit)))
        return out


def of(request: AliasRequest) -> list[RequestGroup]:
    """The groups of one request; none if Placement is not asked."""
    if not request.in_placement or not request.count:
        return []
    if len(request.specs) != 1 or request.specs[0].resource_class is None:
        raise Invalid(f"alias {request.alias} cannot be asked of Placement: it needs one entry with a resource_class, or with "
                      "vendor_id and product_id")
    spec = request.specs[0]
    return [RequestGroup(request.suffix(index), request.request_id, index, {spec.resource_class: 1}, spec.traits)
            for index in range(request.count) if spec.resource_class is not None]


def query(ask: FlavorRequest, *, own_groups: int = 0) -> Query:
    """All request groups of a VM. `own_groups`: suffixed groups that the flavor itself writes beside its devices;
    who writes two of them has to say the policy."""
    groups = tuple(group for request in ask.requests for group in of(request))
    policy = ask.group_policy
    if policy is None and len(groups) + own_groups >= 2 and own_groups <= 1:
        policy = "none"
    root = frozenset({SOCKET_AFFINITY}) if ask.affinity == "socket" else frozenset[str]()
    return Query(groups, policy, root, host_resources(ask))


def host_resources(ask: FlavorRequest) -> dict[str, int]:
    """The resources that a VM takes of the host itself."""
    guest = ask.guest
    own = {"PCPU" if guest.pinned else "VCPU": guest.vcpus, "MEMORY_MB": guest.memory_mb, "DISK_GB": guest.disk_gb}
    return {name: amount for name, amount in own.items() if amount}


def _amounts(resources: Mapping[str, int]) -> str:
    return ",".join(f"{name}:{amount}" for name, amount in resources.items())
