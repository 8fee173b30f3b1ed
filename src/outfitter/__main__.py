"""`outfit`: the command line, with the commands put in that need the whole product."""

from __future__ import annotations

import gc
import sys
from typing import Any

INTERRUPTED = 130  # exit status after Ctrl-C


def main() -> None:
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
