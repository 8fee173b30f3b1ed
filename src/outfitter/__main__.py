"""`outfit`: the command line, with the commands put in that need the whole product."""

from __future__ import annotations

import gc
import os
import sys
from typing import Any

INTERRUPTED = 130  # exit status after Ctrl-C
# gRPC's C library writes lines of its own to standard error, past our logging, as when a process is started or a peer is gone.
# What fails is an exception, which its caller logs. Read when gRPC is imported; a value that the user sets is kept.
GRPC_LOG_LEVEL = ("GRPC_VERBOSITY", "NONE")


def main() -> None:
    os.environ.setdefault(*GRPC_LOG_LEVEL)
    try:
        from outfitter.cli import main as cli  # noqa: PLC0415  # the start of every command is on this path
        from outfitter.roles import commands  # noqa: PLC0415

        cli.main(up=_up, roles=commands.commands())
    except KeyboardInterrupt:  # before there was a command to end, or after
        sys.exit(INTERRUPTED)


def _up(**options: Any) -> None:
    gc.disable()  # importing leaves no garbage, and what is imported stays: the server's collections need not look at it
    from outfitter import up  # noqa: PLC0415  # a server costs half a second to import; `outfit get` must not pay it

    gc.freeze()
    gc.enable()
    up.run(**options)


if __name__ == "__main__":
    main()
