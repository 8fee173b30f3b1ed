"""What a plug left in QEMU that libvirt does not know of: the daemon was killed after QEMU had taken the tap, or the NIC, and
before it had recorded that. libvirt has no call to remove it, and refuses to plug a NIC of that alias again ("Duplicate ID"):
QEMU is asked through libvirt's pass-through of the monitor. That marks the domain as tainted (custom-monitor), therefore it is
used for nothing else.

Plugs are recorded in the domain's metadata while they last, which daemon and node agent can be killed in: their NICs may not be
wanted any more afterwards. Blocking. Called by `libvirt_nics` and `connection`."""

from __future__ import annotations

import importlib
import json
import logging
import time
from collections.abc import Iterable
from typing import Any, Literal
from xml.etree import ElementTree as ET

from outfitter.launcher.nics import domain_nics

log = logging.getLogger(__name__)
BACKEND = "host"  # libvirt's name of a NIC's backend in QEMU is this and the alias
PERIPHERALS = "/machine/peripheral"  # devices that have a name, in QEMU's object tree
RELEASE, POLL = 5.0, 0.05  # seconds for the guest to release a NIC that libvirt does not know; between two looks
FORGET = 1.0  # seconds for libvirt to take note: it would take a late event as the end of the next NIC of that alias
NAMESPACE, KEY = "https://outfitter.dev/xmlns/plugs/1.0", "plugs"  # of the metadata element with the plugs that last

Remains = Literal["none", "removed", "kept"]  # kept: the guest has not released it, or QEMU could not be asked


def begin(lib: Any, dom: Any, alias: str) -> None:
    """Record a plug, before it."""
    _write(lib, dom, {*begun(lib, dom), alias})


def end(lib: Any, dom: Any, alias: str) -> None:
    """Nothing is left of it that libvirt does not know."""
    _write(lib, dom, {*begun(lib, dom)} - {alias})


def begun(lib: Any, dom: Any) -> list[str]:
    """The aliases of plugs that have not ended, or were interrupted."""
    try:
        element = dom.metadata(lib.VIR_DOMAIN_METADATA_ELEMENT, NAMESPACE, lib.VIR_DOMAIN_AFFECT_LIVE)
    except lib.libvirtError as error:
        if error.get_error_code() == lib.VIR_ERR_NO_DOMAIN_METADATA:
            return []
        raise
    return [plug.get("alias", "") for plug in ET.fromstring(element)]


def _write(lib: Any, dom: Any, aliases: Iterable[str]) -> None:
    root = ET.Element("plugs")
    for alias in sorted(aliases):
        ET.SubElement(root, "plug", alias=alias)
    text = ET.tostring(root, encoding="unicode") if len(root) else None
    dom.setMetadata(lib.VIR_DOMAIN_METADATA_ELEMENT, text, KEY, NAMESPACE, lib.VIR_DOMAIN_AFFECT_LIVE)


def remove_all(lib: Any, dom: Any) -> bool:
    """Of plugs that were interrupted. Whether nothing is left."""
    for alias in begun(lib, dom):
        if remove(lib, dom, alias) != "kept":
            end(lib, dom, alias)
    return not begun(lib, dom)


def remove(lib: Any, dom: Any, alias: str) -> Remains:
    """Remove what QEMU has of a NIC that libvirt does not know."""
    try:
        known = _peripherals(dom)  # first: it waits until a plug that another client began has ended
        if domain_nics.find(ET.fromstring(dom.XMLDesc(0)), alias) is not None:
            return "none"
        if alias in known and not _release(dom, alias):
            log.warning("%s: QEMU has %s, which libvirt does not know, and the guest does not release it", dom.name(), alias)
            return "kept"
        removed = "error" not in _ask(dom, "netdev_del", id=f"{BACKEND}{alias}")
    except lib.libvirtError as error:
        log.info("%s: what is left of %s cannot be looked for: %s", dom.name(), alias, error)
        return "kept"
    if removed:
        log.warning("%s: removed what an interrupted plug of %s left in QEMU", dom.name(), alias)
    return "removed" if removed else "none"


def _release(dom: Any, alias: str) -> bool:
    end = time.monotonic() + RELEASE
    _ask(dom, "device_del", id=alias)
    while alias in _peripherals(dom):
        if time.monotonic() > end:
            return False
        time.sleep(POLL)
    time.sleep(FORGET)
    return True


def _peripherals(dom: Any) -> set[str]:
    listed = _ask(dom, "qom-list", path=PERIPHERALS).get("return") or ()
    return {str(entry.get("name")) for entry in listed}


def _ask(dom: Any, command: str, **arguments: str) -> dict[str, Any]:
    """The answer of QEMU: "return" or "error"."""
    monitor = importlib.import_module("libvirt_qemu")
    answer: dict[str, Any] = json.loads(monitor.qemuMonitorCommand(dom, json.dumps(
        {"execute": command, "arguments": arguments}), 0))
    return answer
