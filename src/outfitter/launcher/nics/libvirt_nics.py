"""Plugs and unplugs network interfaces of a running libvirt domain, and changes their link and bridge. Blocking. Called by
`connection`, which translates libvirt's errors."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from xml.etree import ElementTree as ET

from outfitter.errors import HypervisorError
from outfitter.launcher.nics import domain_nics, plug_remains

log = logging.getLogger(__name__)
# Seconds before QEMU is asked again, when it refuses a NIC: it releases the name of one that was unplugged a moment after
# libvirt reports that it is gone.
SETTLING = (0.1, 0.4, 1.0)


def attach(lib: Any, dom: Any, element: str) -> None:
    """One that has the alias of the element is left as it is."""
    alias = domain_nics.alias_of(ET.fromstring(element))
    if _find(dom, alias) is not None:
        return
    plug_remains.begin(lib, dom, alias)
    left: plug_remains.Remains = "none"
    try:
        for wait in SETTLING:
            try:
                dom.attachDeviceFlags(element, lib.VIR_DOMAIN_AFFECT_LIVE)
                return
            except lib.libvirtError as error:
                if (left := plug_remains.remove(lib, dom, alias)) == "removed":
                    continue
                if error.get_error_code() != lib.VIR_ERR_INTERNAL_ERROR:
                    raise
                time.sleep(wait)
        dom.attachDeviceFlags(element, lib.VIR_DOMAIN_AFFECT_LIVE)
        left = "none"
    finally:
        if left != "kept":
            with suppress(lib.libvirtError):  # the daemon is gone: what it may have left is removed when it is back
                plug_remains.end(lib, dom, alias)


def detach(lib: Any, dom: Any, alias: str) -> bool:
    """Ask the guest to release it, also when it was asked before. Whether it is gone."""
    if _find(dom, alias) is None:
        return True
    try:
        dom.detachDeviceAlias(alias, lib.VIR_DOMAIN_AFFECT_LIVE)
    except lib.libvirtError as error:
        if _find(dom, alias) is not None:
            if error.get_error_code() != lib.VIR_ERR_INTERNAL_ERROR:
                raise
            log.info("%s: %s was asked for before: %s", dom.name(), alias, error)  # QEMU rejects a second request for a while
    if _find(dom, alias) is not None:
        return False
    _record(lib, dom)
    return True


def _record(lib: Any, dom: Any) -> None:
    """Have libvirt write down the state of a domain. It does not if a NIC is gone when it is asked for: a daemon that is killed
    later would look for the NIC at its next start, not find it, and end the VM. Our domains have no title."""
    dom.setMetadata(lib.VIR_DOMAIN_METADATA_TITLE, None, None, None, lib.VIR_DOMAIN_AFFECT_LIVE)


def set_link(lib: Any, dom: Any, alias: str, *, up: bool) -> None:
    _update(lib, dom, alias, lambda element: domain_nics.set_link(element, up=up))


def set_bridge(lib: Any, dom: Any, alias: str, bridge: str) -> None:
    _update(lib, dom, alias, lambda element: domain_nics.set_bridge(element, bridge))


def _update(lib: Any, dom: Any, alias: str, change: Callable[[ET.Element], bool]) -> None:
    element = _find(dom, alias)
    if element is None:
        raise HypervisorError(f"{dom.name()} has no network interface {alias}")
    try:
        changed = change(element)
    except ValueError as error:
        raise HypervisorError(f"{alias} of {dom.name()} cannot be changed: {error}") from error
    if changed:
        dom.updateDeviceFlags(ET.tostring(element, encoding="unicode"), lib.VIR_DOMAIN_AFFECT_LIVE)


def _find(dom: Any, alias: str) -> ET.Element | None:
    return domain_nics.find(ET.fromstring(dom.XMLDesc(0)), alias)
