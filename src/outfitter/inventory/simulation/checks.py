"""Checks of names, addresses and quantities in a hosts file: each returns what is wrong with a string, or None."""

from __future__ import annotations

import re
from collections.abc import Callable

from outfitter.inventory import cpulist, pci
from outfitter.inventory.simulation.host import DEFAULT_PUBLISHER

MAX_CPUS = 65_536

_DNS_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = re.compile(rf"{_DNS_LABEL}(\.{_DNS_LABEL})*")
_QUANTITY = re.compile(r"([1-9][0-9]{0,14})(|Ki|Mi|Gi|Ti|Pi|k|M|G|T|P)")
_UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15,
          "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40, "Pi": 1 << 50}
LABEL_PART = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")  # the key of a label after its domain, or its value
_INTERFACE = re.compile(r"[^\s/:{}]{1,15}")
_DRIVER = re.compile(r"[A-Za-z0-9][-A-Za-z0-9_]{0,62}")
_MDEV_TYPE = re.compile(r"[A-Za-z0-9][-A-Za-z0-9_.]{0,62}")
_MAC = re.compile(r"([0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}")
_PLAIN = re.compile(r"[\x20-\x7e]{1,64}")
_SERIAL = re.compile(r"[\x21-\x7e]{1,56}")  # published with the index of a repeated host, in at most 64 characters

Check = Callable[[str], str | None]


def matching(pattern: re.Pattern[str], what: str, example: str) -> Check:
    return lambda text: None if pattern.fullmatch(text) else f"{text!r} is {what}; write for example {example}"


interface = matching(_INTERFACE, "not an interface name (at most 15 characters, no blank and no /)", "ens1f0")
driver = matching(_DRIVER, "not a driver name", "vfio-pci, or none for a function without one")
pcie_root = matching(pci.ROOT, "not a PCIe root", "pci0000:3a")
address = matching(pci.ADDRESS, "not a full PCI address in lower case", "0000:3b:00.0")
memory = matching(_QUANTITY, "not an amount of memory", "64Gi")
plain = matching(_PLAIN, "not a string of 1 to 64 printable ASCII characters", "A1-0042")
mac = matching(_MAC, "not a MAC address", "52:54:00:12:34:56")
mdev_type = matching(_MDEV_TYPE, "not a type name", "nvidia-232")
serial = matching(_SERIAL, "not a serial number of 1 to 56 printable ASCII characters without blanks", "A1-0042")


def line(text: str) -> str | None:
    return None if text.isprintable() else "must be one line of text"


def one_of(words: tuple[str, ...]) -> Check:
    return lambda text: None if text in words else f"{text!r} is none of {', '.join(words)}"


def is_subdomain(text: str) -> bool:
    return len(text) <= 253 and _SUBDOMAIN.fullmatch(text) is not None


def host_name(text: str) -> str | None:
    if is_subdomain(text):
        return None
    return (f"{text!r} is not a host name: at most 253 lower-case letters, digits, '-' and '.', the first and last a letter or "
            f"digit; write for example node-a")


def publisher(text: str) -> str | None:
    if len(text) <= 63 and is_subdomain(text):
        return None
    return f"{text!r} is not a driver name: a DNS name of at most 63 characters, for example {DEFAULT_PUBLISHER}"


def cpus(text: str) -> str | None:
    try:
        numbers = cpulist.numbers(text)
    except ValueError as error:
        return f"{text!r} is not a list of cpus such as 0-15 or 0-7,16-23: {error}"
    return None if len(numbers) <= MAX_CPUS and numbers[-1] < MAX_CPUS else f"{text!r} names cpus beyond {MAX_CPUS - 1}"


def in_bytes(text: str) -> int:
    """A checked quantity in bytes."""
    match = _QUANTITY.fullmatch(text)
    return int(match[1]) * _UNITS[match[2]] if match else 0
