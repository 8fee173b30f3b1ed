"""`outfit launcher`: the VM of a launcher pod. Has no credentials of the API server: the node agent drives it over a socket."""

from __future__ import annotations

from outfitter.launcher.pod import process as launcher_process
from outfitter.launcher.pod.process import LauncherOptions
from outfitter.roles.process import RoleProcess


async def run(process: RoleProcess) -> int:
    settings = process.settings
    options = LauncherOptions(settings.socket, settings.state, settings.hypervisor, settings.root, settings.termination_log)
    return await launcher_process.run(options, process.stop, process.ready)
