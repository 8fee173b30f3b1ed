"""Which hypervisor `outfit up` takes, and how it reports it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from outfitter import app, up
from outfitter.errors import StartupRefused
from outfitter.launcher import libvirt
from outfitter.launcher.libvirt import Libvirt
from outfitter.launcher.simulated import Simulated
from tests.e2e.process import typed


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if libvirt-python were installed; nothing is called before a VM is asked for."""
    monkeypatch.setitem(sys.modules, "libvirt", sys)


@pytest.fixture
def no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "libvirt", None)


@pytest.mark.usefixtures("library")
def test_libvirt_is_taken_where_it_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(libvirt, "SOCKETS", (str(tmp_path / "none"),))
    made, said = app.hypervisor(None, "oak", tmp_path)
    assert isinstance(made, Simulated)
    assert said == f"its VMs are simulated: libvirt does not run here (there is no {tmp_path}/none)"
    monkeypatch.setattr(Path, "is_socket", lambda path: path == tmp_path / "none")
    made, said = app.hypervisor(None, "oak", tmp_path)
    assert isinstance(made, Libvirt)
    assert (made.uri, said) == ("qemu:///system", "its VMs run in libvirt at qemu:///system")
    made, said = app.hypervisor("simulated", "oak", tmp_path)
    assert isinstance(made, Simulated)
    assert said == "its VMs are simulated: as set by --hypervisor"


@pytest.mark.usefixtures("library")
def test_host_without_devices_is_used_with_libvirt(tmp_path: Path) -> None:
    hosts, said = up.choose(None, tmp_path, hypervisor="test:///default")
    assert [isinstance(host.hypervisor, Libvirt) for host in hosts] == [True]
    assert said == "this host; its VMs run in libvirt at test:///default"


@pytest.mark.usefixtures("no_library")
def test_without_the_library_vms_are_simulated_or_start_is_refused(tmp_path: Path) -> None:
    made, said = app.hypervisor(None, "oak", tmp_path)
    assert isinstance(made, Simulated)
    assert "simulated: libvirt is used through the Python library libvirt-python, which is not installed here" in said
    with pytest.raises(StartupRefused, match=r"pip install 'outfitter\[libvirt\]'"):
        app.hypervisor("libvirt", "oak", tmp_path)


@pytest.mark.parametrize(("words", "says"), {
    "a word that is none": (["--hypervisor", "kvm"], "--hypervisor kvm: it is libvirt, simulated, or a URI of libvirt such as"),
    "simulated hosts": (["--simulate", "1x1", "--hypervisor", "libvirt"],
                        "--simulate and --hypervisor libvirt exclude each other: simulated hosts simulate their VMs"),
}.values())
def test_refusals(words: list[str], says: str, tmp_path: Path) -> None:
    done = typed("up", "--data", str(tmp_path / "data"), "--port", "0", *words)
    assert done.code == 1
    assert says in done.err
    assert not (tmp_path / "data").exists(), "nothing was begun"
