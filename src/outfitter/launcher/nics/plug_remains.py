"""What a plug left in QEMU that libvirt does not know of: the daemon was killed after QEMU had taken the tap, or the NIC, and
before it had recorded that. libvirt has no call to remove it, and refuses to plug a NIC of that alias again ("Duplicate ID"):
QEMU is asked through libvirt's pass-through of the monitor. That marks the domain as tainted (custom-monitor), therefore it is
used for nothing else. Blocking. Called by `libvirt_nics` and `connection`."""

from __future__ import annotations

import importlib
import json
import logging
import time
from typing import Any
from xml.etree import ElementTree as ET

from outfitter.launcher.nics import domain_nics

log = logging.getLogger(__name__)
BACKEND = "host"  # libvirt's name of a NIC's backend in QEMU is this and the alias
PERIPHERALS = "/machine/peripheral"  # devices that have a name, in QEMU's object tree
RELEASE, POLL = 5.0, 0.05  # seconds for the guest to release a NIC that libvirt does not know; between two looks
FORGET = 1.0  # seconds for libvirt to take note: it would take a late event as the end of the next NIC of that alias


def remove(lib: Any, dom: Any, alias: str) -> bool:
    """Remove what QEMU has of a NIC that libvirt does not know. Whether there was something, and it is gone."""
    try:
        known = _peripherals(dom)  # first: it waits until a plug that another client began has ended
        if domain_nics.find(ET.fromstring(dom.XMLDesc(0)), alias) is not None:
            return False
        if alias in known and not _release(dom, alias):
            log.warning("%s: QEMU has %s, which libvirt does not know, and the guest does not release it", dom.name(), alias)
            return False
        removed = "error" not in _ask(dom, "netdev_del", id=f"{BACKEND}{alias}")
    except lib.libvirtError as error:
        log.info("%s: what is left of %s cannot be looked for: %s", dom.name(), alias, error)
        return False
    if removed:
        log.warning("%s: removed what an interrupted plug of %s left in QEMU", dom.name(), alias)
    return removed


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
