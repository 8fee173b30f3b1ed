"""Arguments --host of `outfit up`."""

from __future__ import annotations

from pathlib import Path

import pytest

from outfitter.errors import StartupRefused
from outfitter.roles.hosts import HostArgument, listed_hosts

URI = "qemu+unix:///system?socket=/run/a,b/libvirt-sock"


def test_a_host_has_a_name_a_uri_and_a_tree(tmp_path: Path) -> None:
    assert HostArgument.parse(f"host-a={URI}") == HostArgument("host-a", URI, Path("/"))
    assert HostArgument.parse(f"host-a={URI},root={tmp_path}") == HostArgument("host-a", URI, tmp_path)


BAD = {
    "no name": (f"={URI}", "it has no name"),
    "no URI": ("host-a", "it has no URI"),
    "not a name of a node": (f"Host_A={URI}", "--host Host_A"),
    "no URI of libvirt": ("host-a=libvirt", "libvirt is no URI of libvirt"),
    "no such option": (f"host-a={URI},rot=/", "rot is no option of a host, root is"),
    "no such tree": (f"host-a={URI},root=/nowhere/at/all", "there is no directory /nowhere/at/all"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments_are_refused(name: str) -> None:
    text, why = BAD[name]
    with pytest.raises(StartupRefused, match=why):
        HostArgument.parse(text)


def test_two_hosts_do_not_share_a_tree_a_name_or_a_libvirt(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first = HostArgument("a", "simulated", tmp_path / "a")
    for second, what in ((HostArgument("a", "simulated", tmp_path / "b"), "name"),
                         (HostArgument("b", "simulated", tmp_path / "a"), "tree")):
        with pytest.raises(StartupRefused, match=f"have the same {what}"):
            listed_hosts([first, second], tmp_path / "data")
    with pytest.raises(StartupRefused, match="have the same libvirt"):
        listed_hosts([HostArgument("a", URI, tmp_path / "a"), HostArgument("b", URI, tmp_path / "b")], tmp_path / "data")
    hosts = listed_hosts([first, HostArgument("b", "simulated", tmp_path / "b")], tmp_path / "data")
    assert [host.name for host in hosts] == ["a", "b"]
