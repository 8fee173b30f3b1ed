"""Names of resource classes and traits as Placement has them: normalises what a user writes, rejects what Placement would."""

from __future__ import annotations

import functools
import re

from outfitter import errors

MAX_NAME = 255  # characters of a class or trait
CUSTOM = "CUSTOM_"
# Classes of network devices that the design document calls standard; os-resource-classes has only the first.
NETWORK_CLASSES = frozenset({"SRIOV_NET_VF", "PCI_NETDEV", "VDPA_NETDEV"})

_LEGAL = re.compile(r"CUSTOM_[0-9A-Z_]+")


def normal_class(text: str) -> str:
    """A resource class as in Placement: "pgpu" -> PGPU, "pci_netdev" -> PCI_NETDEV, "far gpu" -> CUSTOM_FAR_GPU. Invalid if
    it is no valid name."""
    upper = text.strip().upper()
    return upper if upper in _standard_classes() else _custom(text.strip(), upper, "resource class")


def normal_trait(text: str) -> str:
    """A trait as in Placement: "HW_GPU_API_VULKAN" is kept, "fast link" -> CUSTOM_FAST_LINK. Invalid if it is no valid name. A
    standard trait must be written exactly, as in Nova."""
    name = text.strip()
    return name if name in _standard_traits() else _custom(name, name.upper(), "trait")


def generated_class(vendor: str, product: str) -> str:
    """The default resource class of a device: CUSTOM_PCI_10DE_2235."""
    return f"CUSTOM_PCI_{vendor}_{product}".upper()


def _custom(text: str, upper: str, noun: str) -> str:
    if not upper:
        raise errors.Invalid(f"the {noun} is empty; write for example {CUSTOM}GPU")
    name = upper if upper.startswith(CUSTOM) else CUSTOM + re.sub("[^0-9A-Z]+", "_", upper)
    if len(name) > MAX_NAME:
        raise errors.Invalid(f"the {noun} {text[:40]!r}... is {len(name)} characters long as {name[:20]}...; at most "
                             f"{MAX_NAME} are allowed")
    if not _LEGAL.fullmatch(name):
        right = CUSTOM + (re.sub("[^0-9A-Z_]+", "_", upper.removeprefix(CUSTOM)) or "GPU")
        raise errors.Invalid(f"the {noun} {text!r} may have only letters, digits and _ after {CUSTOM}, and at least one; "
                             f"write for example {right}")
    return name


@functools.cache
def _standard_classes() -> frozenset[str]:
    import os_resource_classes  # noqa: PLC0415  needed with a device_spec only

    return frozenset(os_resource_classes.STANDARDS) | NETWORK_CLASSES


@functools.cache
def _standard_traits() -> frozenset[str]:
    import os_traits  # noqa: PLC0415  importing it takes 50 ms

    return frozenset(os_traits.get_traits())
