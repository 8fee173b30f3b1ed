"""PCI aliases: names under which flavors ask for devices, in Nova's syntax with the traits of the design document.

An alias says what is asked for: ids, a resource class, traits that must be there (`T`), must not (`!T`) or of which one must
(`in:T,U`, in a `traits` key with a postfix of its own). docs/aliases.md is the user's page. The words of each are
checked where the configuration file is read; here is what they mean, and whether several fit together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from outfitter import errors
from outfitter.inventory import config, placement_names, strict_yaml

Policy = Literal["required", "legacy", "preferred", "socket"]
POLICIES: tuple[Policy, ...] = ("required", "legacy", "preferred", "socket")
DEFAULT_POLICY: Policy = "legacy"
FORBIDDEN, ANY_OF = "!", "in:"


@dataclass(frozen=True, slots=True)
class Traits:
    """What is asked of a provider besides its class."""

    required: frozenset[str] = frozenset()
    forbidden: frozenset[str] = frozenset()
    any_of: tuple[frozenset[str], ...] = ()  # of each of these sets one must be there

    def lacks(self, have: frozenset[str]) -> list[str]:
        """What is wrong with a device that has these traits; empty: it matches."""
        out = [f"lacks trait {name}" for name in sorted(self.required - have)]
        out += [f"has trait {name}, which is not wanted" for name in sorted(self.forbidden & have)]
        return out + [f"has none of the traits {', '.join(sorted(some))}" for some in self.any_of if not some & have]


@dataclass(frozen=True, slots=True)
class Spec:
    """What one entry asks for."""

    written: Mapping[str, str]  # without the name and the policy, as Nova shows it
    resource_class: str | None  # as Placement knows it; made from the ids when none is written; None without either
    traits: Traits
    vendor: str | None = None  # four hex digits in small letters; None for any, as for the product
    product: str | None = None
    device_type: str | None = None  # type-PCI, type-PF or type-VF; None: type-PCI and type-VF
    live_migratable: bool | None = None  # None: it does not matter


@dataclass(frozen=True, slots=True)
class Alias:
    name: str
    numa_policy: Policy
    specs: tuple[Spec, ...]  # a device must be what one of them asks for; more than one only without Placement


def parse(values: Sequence[Any], *, in_placement: bool) -> dict[str, Alias]:
    """Aliases by name, from mappings or texts of JSON. `in_placement` tells whether they are asked of Placement
    (`pci_in_placement`). Invalid has a cause for each mistake, with the name of the alias."""
    reader = strict_yaml.Reader("alias")
    entries = config.read_alias(reader, values, "alias")
    found = {} if reader.causes else _by_name(reader, entries, in_placement=in_placement)
    reader.finish(shown=len(reader.causes))
    return found


def check(reader: strict_yaml.Reader, settings: config.HostSettings) -> None:
    """Reports what is wrong with the aliases of a configuration file together with its other mistakes (`config.load`): an
    entry that is wrong by itself was reported when it was read, and is skipped."""
    valid = []
    for entry in settings.alias:
        alone = strict_yaml.Reader("alias")
        config.read_alias(alone, [dict(entry)], "alias")
        if not alone.causes:
            valid.append(entry)
    _by_name(reader, valid, in_placement=settings.pci_in_placement)


def _by_name(reader: strict_yaml.Reader, entries: Sequence[Mapping[str, str]], *, in_placement: bool) -> dict[str, Alias]:
    by_name: dict[str, list[Mapping[str, str]]] = {}
    for entry in entries:
        by_name.setdefault(entry["name"], []).append(entry)
    return {name: _alias(reader, name, same, in_placement=in_placement) for name, same in by_name.items()}


def _alias(reader: strict_yaml.Reader, name: str, entries: Sequence[Mapping[str, str]], *, in_placement: bool) -> Alias:
    place = f"alias {name!r}"
    if in_placement and len(entries) > 1:
        reader.wrong(place, f"have multiple specs ({len(entries)} entries bear this name) while pci_in_placement is on, and "
                            "Placement cannot be asked for one or the other; assign the same resource_class to the device_spec "
                            "entries of all these devices, and ask for that with one alias", "FieldValueDuplicate")
    for key, what in (("numa_policy", "NUMA policy"), ("device_type", "Device type")):
        values = list(dict.fromkeys(entry.get(key) or _default(key) for entry in entries))
        if len(values) > 1:
            reader.wrong(place, f"{what} mismatch: its entries say {' and '.join(values)} as {key}; write the same in all")
    specs = tuple(_spec(reader, place, entry) for entry in entries)
    for entry in entries:
        ids = all(entry.get(key) for key in ("vendor_id", "product_id"))
        if in_placement and not ids and not entry.get("resource_class", "").strip():
            reader.wrong(place, "does not have vendor_id and product_id fields set or resource_class field set; say which "
                                "devices are meant by one of these", "FieldValueRequired")
        if not in_placement and not ids:
            reader.wrong(place, "must have vendor_id and product_id: without pci_in_placement devices are known by their ids "
                                "alone; write both, or switch pci_in_placement on to ask by resource_class",
                         "FieldValueRequired")
    return Alias(name, cast(Policy, entries[0].get("numa_policy") or DEFAULT_POLICY), specs)


def _default(key: str) -> str:
    return DEFAULT_POLICY if key == "numa_policy" else "none"


def _spec(reader: strict_yaml.Reader, place: str, entry: Mapping[str, str]) -> Spec:
    vendor, product = entry.get("vendor_id"), entry.get("product_id")
    class_ = placement_names.generated_class(vendor, product) if vendor and product else None
    if entry.get("resource_class", "").strip():
        try:
            class_ = placement_names.normal_class(entry["resource_class"])
        except errors.Invalid as error:
            reader.wrong(f"{place}: resource_class", str(error))
    return Spec(
        written={key: text for key, text in entry.items() if key not in ("name", "numa_policy", "capability_type")},
        resource_class=class_, traits=_traits(reader, place, entry), vendor=vendor and vendor.lower(),
        product=product and product.lower(), device_type=entry.get("device_type"),
        live_migratable=strict_yaml.boolean(entry["live_migratable"]) if entry.get("live_migratable") else None,
    )


def _traits(reader: strict_yaml.Reader, place: str, entry: Mapping[str, str]) -> Traits:
    required: set[str] = set()
    forbidden: set[str] = set()
    any_of: list[frozenset[str]] = []
    for key, text in entry.items():
        if not key.startswith("traits"):
            continue

        def name_of(word: str, at: str = f"{place}: {key}") -> set[str]:
            try:
                return {placement_names.normal_trait(word)}
            except errors.Invalid as error:
                reader.wrong(at, str(error))
                return set()

        either = text.strip().startswith(ANY_OF)
        words = [word.strip() for word in text.strip().removeprefix(ANY_OF).split(",") if word.strip()]
        if either and not words:
            reader.wrong(f"{place}: {key}", f"{ANY_OF} stands before the traits of which one must be there, such as in:T1,T2")
        if either and any(word.startswith(FORBIDDEN) for word in words):
            reader.wrong(f"{place}: {key}", f"{text!r} has a trait that must not be there among those of which one must; write "
                                            f"it in a key of its own, such as \"{key}2\": \"!T\"")
        elif either:
            any_of.append(frozenset[str]().union(*map(name_of, words)))
        elif any(word.startswith(ANY_OF) for word in words):
            reader.wrong(f"{place}: {key}", f"{ANY_OF} stands before a whole list; write \"{key}2\": \"in:T1,T2\" in a key of "
                                            "its own")
        else:
            for word in words:
                (forbidden if word.startswith(FORBIDDEN) else required).update(name_of(word.removeprefix(FORBIDDEN)))
    if both := sorted(required & forbidden):
        reader.wrong(f"{place}: traits", f"{', '.join(both)} cannot be both there and not there; keep one of {both[0]} and "
                                         f"!{both[0]}")
    return Traits(frozenset(required), frozenset(forbidden), tuple(any_of))
