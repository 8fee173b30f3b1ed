"""PCI aliases as selectors: what an alias asks for, in the expressions that every allocator of claims understands.

A device that our driver publishes is selected exactly when `pci_allocator` would take it. Where a device has more
traits than there was room to publish (`traitsIncomplete`), a selector skips it rather than select a wrong one."""

from __future__ import annotations

import json
from collections.abc import Sequence

from outfitter.api.device import DRIVER
from outfitter.inventory import providers, slices
from outfitter.scheduling.nova.alias import Spec
from outfitter.scheduling.nova.pci_allocator import TYPES

MOST = 32  # selectors that Kubernetes takes for one request
ATTRIBUTES = f'device.attributes["{DRIVER}"]'
CLASS_SELECTOR = f'device.driver == "{DRIVER}"'


def expressions(specs: Sequence[Spec], *, in_placement: bool) -> list[str]:
    """All must be true of a device. Several specs are alternatives, and are asked for by their ids alone."""
    if len(specs) != 1:
        return [" || ".join(f"({_kind_of(spec)})" for spec in specs)]
    spec = specs[0]
    return [_kind_of(spec), *(_placed(spec) if in_placement else ())]


def _kind_of(spec: Spec) -> str:
    """Ids, type, and what is never given to an alias."""
    kinds = [kind.value for kind, type_ in TYPES.items()
             if type_ != "vdpa" and (type_ != "type-PF" if spec.device_type is None else type_ == spec.device_type)]
    parts = [f'{_text("kind")} in [{", ".join(map(json.dumps, kinds))}]']
    parts += [f"{_text(key)} == {json.dumps(value)}" for key, value in (("vendor", spec.vendor), ("product", spec.product))
              if value is not None]
    parts.append(f"!{ATTRIBUTES}.?remoteManaged.orValue(false)")
    if spec.live_migratable is not None:
        wanted = json.dumps(spec.live_migratable)
        parts.append(f"{ATTRIBUTES}.?liveMigratable.orValue({json.dumps(not spec.live_migratable)}) == {wanted}")
    return " && ".join(parts)


def _placed(spec: Spec) -> list[str]:
    """Class and traits of the provider on which the device is counted."""
    out = [f'"provider" in {ATTRIBUTES} && {_text("resourceClass")} == {json.dumps(spec.resource_class or "")}']
    out += [_any([name]) for name in sorted(spec.traits.required)]
    out += [f"!{ATTRIBUTES}.?traitsIncomplete.orValue(false) && !({_any([name])})" for name in sorted(spec.traits.forbidden)]
    return out + [_any(sorted(some)) for some in spec.traits.any_of]


def _any(names: Sequence[str]) -> str:
    """The provider has one of these traits."""
    wanted = [name for name in names if name != providers.MANAGED]  # which every provider of ours has, and slices do not say
    return " || ".join(f'"{key}" in {ATTRIBUTES} && ("," + {ATTRIBUTES}.{key} + ",").contains({json.dumps(f",{name},")})'
                       for name in wanted for key in _pieces()) if len(wanted) == len(names) else "true"


def _pieces() -> list[str]:
    return ["traits", *(f"traits{number}" for number in range(2, slices.MAX_PIECES + 1))]


def _text(key: str) -> str:
    return f'{ATTRIBUTES}.?{key}.orValue("")'
