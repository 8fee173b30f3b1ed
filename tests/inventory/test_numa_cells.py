"""NUMA cells as sysfs reports them."""

from __future__ import annotations

import pytest

from outfitter.inventory import numa_cells
from outfitter.inventory.host_tree import Entry, MemoryTree
from outfitter.inventory.numa_cells import HostCell
from outfitter.inventory.simulation import hosts_file

NODE, CPU = "/sys/devices/system/node", "/sys/devices/system/cpu"


def tree(nodes: dict[int, str], sockets: dict[int, str]) -> MemoryTree:
    entries: dict[str, Entry] = {f"{NODE}/node{number}/cpulist": text for number, text in nodes.items()}
    entries |= {f"{CPU}/cpu{cpu}/topology/physical_package_id": text for cpu, text in sockets.items()}
    entries[f"{NODE}/online"] = "0-1\n"
    entries[f"{NODE}/power/x"] = ""
    return MemoryTree(entries)


CASES = {
    "two cells on two sockets": (tree({0: "0-1\n", 1: "2-3\n"}, {0: "0\n", 1: "0\n", 2: "1\n", 3: "1\n"}),
                                 (HostCell(0, "0-1", 0), HostCell(1, "2-3", 1))),
    "cells in the order of their numbers": (tree({10: "2\n", 9: "1\n"}, {1: "0\n", 2: "0\n"}),
                                            (HostCell(9, "1", 0), HostCell(10, "2", 0))),
    "a cell with memory alone": (tree({0: "0\n", 1: "\n"}, {0: "0\n"}), (HostCell(0, "0", 0), HostCell(1, "", None))),
    "a socket that the firmware does not tell": (tree({0: "0-1\n"}, {0: "-1\n", 1: "-1\n"}), (HostCell(0, "0-1", None),)),
    "a socket that one CPU does not tell": (tree({0: "0-1\n"}, {0: "0\n"}), (HostCell(0, "0-1", None),)),
    "a list that is none": (tree({0: "0-1\n", 1: "many\n"}, {}), ()),
    "no NUMA at all": (MemoryTree({}), ()),
}


def test_shared_cpus_are_not_dedicated_but_define_the_socket() -> None:
    host = tree({0: "0-3\n", 1: "4-7\n"}, {cpu: f"{cpu // 4}\n" for cpu in range(8)})
    assert numa_cells.scan(host, {2, 3}) == (HostCell(0, "2-3", 0), HostCell(1, "", 1))


@pytest.mark.parametrize("name", CASES)
def test_cells(name: str) -> None:
    made, wanted = CASES[name]
    found = numa_cells.scan(made)
    assert found == wanted
    assert tuple(numa_cells.read({"spec": {"cells": [each.to_object() for each in found]}})) == found


def test_a_hosts_file_has_them() -> None:
    (host,) = hosts_file.parse("""
hosts:
- name: a
  numa: [{id: 0, cpus: "0-3,8-11", memory: 1Gi, socket: 0}, {id: 1, cpus: 4-7, memory: 1Gi, socket: 0}]
""").hosts
    found = numa_cells.scan(host.tree())
    assert found == (HostCell(0, "0-3,8-11", 0), HostCell(1, "4-7", 0))
    assert [each.count for each in found] == [8, 4]


DISTANCES = {
    "two nodes": ({0: "10 21\n", 1: "21 10\n"}, ((10, 21), (21, 10))),
    "a node that does not report them": ({0: "10 21\n"}, None),
    "a row that is too short": ({0: "10 21\n", 1: "21\n"}, None),
    "what is no number": ({0: "10 far\n", 1: "21 10\n"}, None),
}


@pytest.mark.parametrize("name", DISTANCES)
def test_distances(name: str) -> None:
    rows, expected = DISTANCES[name]
    entries: dict[str, Entry] = {f"{NODE}/node{number}/cpulist": f"{number}\n" for number in (0, 1)}
    entries |= {f"{NODE}/node{number}/distance": text for number, text in rows.items()}
    assert numa_cells.distances(MemoryTree(entries)) == expected
