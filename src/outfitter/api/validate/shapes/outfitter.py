"""outfitter.dev kinds."""

from __future__ import annotations

from collections.abc import Mapping

from outfitter.api.validate.shapes.common import NUMBER, TEXTS, Shape, fields

DEVICE: Shape = {"driver!": str, "pool!": str, "device!": str}
HOLDER: Shape = {"kind!": str, "namespace": str, "name!": str, "uid!": str, "purpose": str}
AMOUNT: Shape = {"whole": bool, "adminAccess": bool, "shareID": str, "capacity": {"*": str}, "counters": {"*": {"*": str}},
                 "resources": {"*": int}, "cells": {"*": int}, "cpus": {"*": [int]}, "guestCells": [int]}
RECORDS = [{"device!": DEVICE, "reason": str, "by": str, "since": str, "origin": str}]
WITHHELD: Shape = fields(str, "name! reason! address class driver kind product vendor") | fields(
    int, "iommuGroup numVfs numaNode totalVfs")
SHAPES: Mapping[str, Shape] = {
    "LedgerPage": {"spec": {
        "host": str, "reserved": RECORDS, "quarantined": RECORDS, "unclean": RECORDS,
        "bookings": [{"device!": DEVICE, "furtherDevices": TEXTS, "request": str, "state!": str, "since!": str, "prepared": str,
                      "amount": AMOUNT, "holder!": HOLDER, "hardware": TEXTS, "node": str, "contested": str}]}},
    "PastBooking": {"spec!": {
        "host!": str, "device!": DEVICE, "holder!": HOLDER, "request": str, "amount": AMOUNT, "booked!": str, "prepared": str,
        "ended": str, "how": str}},
    "ProviderTree": {"spec!": {"providers": [{
        "name!": str, "uuid": str, "parent": str, "generation": int, "traits": TEXTS, "configured": TEXTS, "devices": TEXTS,
        "inventories": {"*": fields(int, "total! reserved min_unit max_unit step_size") | {"allocation_ratio": NUMBER}}}]}},
    "HostInventory": {"spec!": {
        "withheld": [WITHHELD], "left": [{"device!": str, "what!": str}], "warnings": TEXTS,
        "published": {"driver": str, "devices": TEXTS},
        "cells": [{"id!": int, "cpus!": str, "socket": int}], "iommu": bool, "agentVersion": str}},
    "Flavor": {"spec!": {"vcpus": int, "memory": str, "disk": str, "extraSpecs": {"*": str}}},
}
