"""Where sockets are served in the kubelet's place, if nothing or something is asked for."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from outfitter import app
from outfitter.api.assignment.kubelet_folder import TRACES
from outfitter.errors import StartupRefused
from outfitter.inventory.simulation import hosts_file
from outfitter.node.agent_host import AgentHost
from outfitter.roles import socket_folder
from tests.controllers.scenario import hosts_text
from tests.node.kubelet.driver_host import short_folder


@pytest.fixture
def folder() -> Iterator[Path]:
    with short_folder() as made:
        yield made


def simulated(count: int = 1) -> list[AgentHost]:
    return app.simulated_hosts(hosts_file.parse(hosts_text("n", 1, count), "n").hosts)


def real() -> list[AgentHost]:
    return [replace(simulated()[0], simulated=False)]


def folders(found: socket_folder.SocketFolder) -> list[Path | None]:
    return [host.kubelet_dir for host in found.hosts]


def test_simulated_hosts_have_folders_in_the_data_folder(folder: Path) -> None:
    found = socket_folder.choose(simulated(2), None, folder, kubelet=folder / "lib")
    names = [host.name for host in found.hosts]
    assert folders(found) == [folder / "kubelet" / name for name in names]
    assert str(folder / "kubelet") in found.text
    assert not any(host.drivers_expected for host in found.hosts)


def test_a_real_host_uses_the_folder_of_the_kubelet_where_none_runs(folder: Path) -> None:
    kubelet = folder / "lib" / "kubelet"
    assert folders(socket_folder.choose(real(), None, folder, kubelet=kubelet)) == [kubelet]


@pytest.mark.parametrize("trace", TRACES)
def test_a_folder_that_a_kubelet_has_used_is_left_alone(folder: Path, trace: str) -> None:
    (folder / "lib").mkdir()
    (folder / "lib" / trace).touch()
    found = socket_folder.choose(real(), None, folder, kubelet=folder / "lib")
    assert folders(found) == [folder / "kubelet"]
    assert "a kubelet uses" in found.text


@pytest.mark.parametrize("name", socket_folder.SOCKETS)
def test_the_sockets_of_a_kubelet_that_runs_are_never_replaced(folder: Path, name: str) -> None:
    path = folder / "lib" / name
    path.parent.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as kubelet:
        kubelet.bind(str(path))
        kubelet.listen()
        assert folders(socket_folder.choose(real(), None, folder, kubelet=folder / "lib")) == [folder / "kubelet"]
        with pytest.raises(StartupRefused, match="another process serves"):
            socket_folder.choose(real(), folder / "lib", folder)
    # What a killed process left is no reason.
    assert folders(socket_folder.choose(real(), folder / "lib", folder)) == [folder / "lib"]


def test_the_folder_that_is_named_is_used(folder: Path) -> None:
    found = socket_folder.choose(simulated(), folder / "named", None)
    assert folders(found) == [folder / "named" / found.hosts[0].name]
    assert all(host.drivers_expected for host in found.hosts)


@pytest.mark.parametrize(("count", "wanted", "data", "text"), [
    pytest.param(1, Path("none"), True, "none", id="as asked for"),
    pytest.param(socket_folder.MOST + 1, None, True, "more than", id="very many hosts"),
    pytest.param(1, None, False, "no data folder", id="nothing is stored")])
def test_no_socket_is_served_and_the_reason_is_said(
    folder: Path, count: int, wanted: Path | None, data: bool, text: str
) -> None:
    found = socket_folder.choose(simulated(count), wanted, folder if data else None)
    assert folders(found) == [None] * count
    assert text in found.text


def test_a_data_folder_with_a_long_name_does_not_prevent_the_start(tmp_path: Path) -> None:
    found = socket_folder.choose(simulated(), None, tmp_path / ("x" * 100))
    assert (folders(found), "too long" in found.text) == ([None], True)
