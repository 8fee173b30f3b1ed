"""Reads libvirt's capabilities XML of a host. Pure; called by `connection`."""

from __future__ import annotations

from collections.abc import Collection
from xml.etree import ElementTree as ET

X86 = ("x86_64", "i686")
VIRTUALIZES = {"vmx", "svm"}  # features of Intel's and AMD's processors


def cpu(capabilities: str) -> str | None:
    """The host's CPU element, for libvirt's baselineCPU; None when libvirt does not know the model."""
    element = ET.fromstring(capabilities).find("host/cpu")
    return None if element is None or element.find("model") is None else ET.tostring(element, encoding="unicode")


def features(processor: str) -> list[str]:
    """The features of a CPU element with expanded features."""
    return [feature.get("name", "") for feature in ET.fromstring(processor).iter("feature")]


def kvm(capabilities: str, of_processor: Collection[str]) -> bool:
    """Whether KVM works for guests of the host's own architecture. libvirt offers the domain type kvm wherever /dev/kvm opens;
    some x86 kernels open it for a CPU without virtualization, and stock guests do not boot there."""
    root = ET.fromstring(capabilities)
    own = root.findtext("host/cpu/arch", "")
    offered = any(domain.get("type") == "kvm" for guest in root.iter("guest")
                  if (arch := guest.find("arch")) is not None and arch.get("name") == own for domain in arch.iter("domain"))
    return offered and (own not in X86 or not VIRTUALIZES.isdisjoint(of_processor))
