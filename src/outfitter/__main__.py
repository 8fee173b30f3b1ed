"""`outfit`: the command line, with the one command put in that needs the whole product."""

from __future__ import annotations

from typing import Any


def main() -> None:
    from outfitter.faces.cli import main as cli  # noqa: PLC0415  # the start of every command is on this path

    cli.main(up=_up)


def _up(**options: Any) -> None:
    from outfitter import up  # noqa: PLC0415  # a server costs half a second to import; `outfit get` must not pay it

    up.run(**options)


if __name__ == "__main__":
    main()
