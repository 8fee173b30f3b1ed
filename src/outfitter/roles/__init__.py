"""The processes of cluster mode, one module per role: `outfit controller`, `outfit node` and their neighbours.

`settings` is the one table of what can be set, `process` runs a role (logs, signals, health, metrics), `commands` makes the
click commands. A role is a coroutine function that gets its `RoleProcess` and runs until it is stopped:

    async def run(process: RoleProcess) -> None:
        async with process.connect() as store:
            ...
            process.ready()
            await process.stop.wait()

It is listed in `ROLES`; its module is imported only when it runs, so that every role starts fast."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Role:
    name: str  # as typed: `outfit NAME`
    module: str  # below outfitter.roles; its `run` is the role
    text: str  # one line of help
    ends: bool = False  # its work has an end of its own, whose result is the exit status; a signal only asks for it


ROLES = {role.name: role for role in (
    Role("controller", "controller", "Run the controllers of a cluster."),
    Role("node", "node", "Run the agent of a node of a cluster."),
    Role("webhook", "webhook", "Run the admission webhook of a cluster."),
    Role("launcher", "launcher", "Run one VM, in its launcher pod.", ends=True),
)}
