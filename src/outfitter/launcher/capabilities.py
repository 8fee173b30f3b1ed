"""What libvirt's description of a host says. Pure: XML in."""

from __future__ import annotations

from collections.abc import Collection
from xml.etree import ElementTree as ET

X86 = ("x86_64", "i686")
VIRTUALIZES = {"vmx", "svm"}  # features of Intel's and AMD's processors


def cpu(capabilities: str) -> str | None:
    """The host's processor, as libvirt takes it back in questions about it; None where it does not know the processor."""
    found = ET.fromstring(capabilities).find("host/cpu")
    return None if found is None or found.find("model") is None else ET.tostring(found, encoding="unicode")


def features(processor: str) -> list[str]:
    """The features of a processor whose model was written out."""
    return [each.get("name", "") for each in ET.fromstring(processor).iter("feature")]


def kvm(capabilities: str, of_processor: Collection[str]) -> bool:
    """Whether machines of the host's own architecture run on its processors. libvirt offers the domain type kvm wherever
    /dev/kvm opens; on x86 there are kernels that open it for a processor without virtualization, and stock guests do not boot
    on those."""
    root = ET.fromstring(capabilities)
    own = root.findtext("host/cpu/arch", "")
    offered = any(each.get("type") == "kvm" for guest in root.iter("guest")
                  if (arch := guest.find("arch")) is not None and arch.get("name") == own for each in arch.iter("domain"))
    return offered and (own not in X86 or not VIRTUALIZES.isdisjoint(of_processor))
