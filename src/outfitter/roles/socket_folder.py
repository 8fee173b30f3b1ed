"""Below which folder the agent of hosts without a kubelet serves device plugins, DRA drivers and readers, in its place.

    --kubelet-dir DIR    there; of several hosts, and of simulated ones, below DIR/NODE
    --kubelet-dir none   nowhere
    not given            /var/lib/kubelet of a real host, if it can be written and no kubelet uses it; else `kubelet` in the
                         data folder. Not for very many hosts, and not where the name of a socket would be too long

The sockets of a kubelet that runs are never replaced. Called by `outfit up` and `outfit node --simulate`."""

from __future__ import annotations

import importlib.util
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from outfitter.api.assignment.kubelet_folder import KUBELET_DIR, TRACES
from outfitter.errors import StartupRefused
from outfitter.node.agent_host import AgentHost

NONE = Path("none")
MOST = 8  # hosts with sockets that were not asked for: each has four, and folders that are looked at every second
SOCKETS = ("device-plugins/kubelet.sock", "pod-resources/kubelet.sock", "pods-api/pods-api.sock", "pods-api/http.sock")
LONGEST = 107  # bytes of the path of a unix socket on Linux
ANSWERS_IN = 1.0  # seconds


@dataclass(frozen=True, slots=True)
class SocketFolder:
    hosts: Sequence[AgentHost]  # each with its folder
    text: str  # where the sockets are, or why there are none: for the user


def choose(hosts: Sequence[AgentHost], wanted: Path | None, data: Path | None, *, kubelet: Path = KUBELET_DIR) -> SocketFolder:
    """`wanted`: the argument --kubelet-dir. `kubelet`: the kubelet's own folder. StartupRefused: a kubelet serves the folder
    that was asked for."""
    if wanted == NONE or not hosts:
        return SocketFolder(hosts, "none")
    if wanted is not None:
        placed = with_folder(hosts, wanted.absolute())
        for host in placed:
            if (served := _served(host.kubelet_dir or wanted)) is not None:
                raise StartupRefused(f"another process serves {served}, for example a kubelet, and its sockets are not "
                                     "replaced: use another --kubelet-dir")
        return SocketFolder(placed, _text(placed))
    if why := _unavailable(hosts, data):
        return SocketFolder(hosts, f"none: {why}")
    alone = len(hosts) == 1 and not hosts[0].simulated
    if alone and (used := _unusable(kubelet)) is None:
        return _implicit(hosts, kubelet, "")
    assert data is not None
    return _implicit(hosts, data / "kubelet", f" ({used})" if alone else "")


def with_folder(hosts: Sequence[AgentHost], folder: Path) -> list[AgentHost]:
    """The hosts with what they serve in the kubelet's place: this host in the folder itself, others in one of their own."""
    alone = len(hosts) == 1 and not hosts[0].simulated
    return [replace(host, kubelet_dir=folder if alone else folder / host.name) for host in hosts]


def _implicit(hosts: Sequence[AgentHost], folder: Path, remark: str) -> SocketFolder:
    placed = [replace(host, drivers_expected=False) for host in with_folder(hosts, folder)]
    for host in placed:
        longest = max(((host.kubelet_dir or folder) / name for name in SOCKETS), key=lambda path: len(os.fsencode(path)))
        if len(os.fsencode(longest)) > LONGEST:
            return SocketFolder(hosts, f"none: {longest} is too long for a socket; --kubelet-dir DIR names another folder")
        if (served := _served(host.kubelet_dir or folder)) is not None:
            return SocketFolder(hosts, f"none: another process serves {served}")
    return SocketFolder(placed, _text(placed) + remark)


def _text(hosts: Sequence[AgentHost]) -> str:
    folder = hosts[0].kubelet_dir
    assert folder is not None
    return str(folder if len(hosts) == 1 else folder.parent / "NODE")


def _unavailable(hosts: Sequence[AgentHost], data: Path | None) -> str:
    if importlib.util.find_spec("grpc") is None:
        return "gRPC is not installed; pip install 'outfitter[kubelet]'"
    if len(hosts) > MOST:
        return f"there are more than {MOST} hosts; --kubelet-dir DIR serves them all the same"
    return "" if data is not None else "there is no data folder; --kubelet-dir DIR names one"


def _unusable(kubelet: Path) -> str | None:
    """Why the kubelet's own folder is not used; None: it can be."""
    if _served(kubelet) is not None or any((kubelet / name).exists() for name in TRACES):
        return f"a kubelet uses {kubelet}"
    there = next(each for each in (kubelet, *kubelet.parents) if each.exists())
    return None if os.access(there, os.W_OK | os.X_OK) else f"{kubelet} cannot be written"


def _served(folder: Path) -> Path | None:
    """A socket of the folder that another process serves now."""
    for name in SOCKETS:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(ANSWERS_IN)
            try:
                connection.connect(str(folder / name))
            except OSError:  # there is none, or its process is gone
                continue
        return folder / name
    return None
