#!/usr/bin/env python3
"""Draws docs/images/terminal.svg: what `outfit devices` and `outfit why` print on two simulated hosts. `make pictures` runs it.

Every command in the picture is run as it is shown. Times of day and generated name suffixes are replaced by fixed ones, so the
same product draws the same picture. `--check` draws nothing and ends with 1 if the picture in the repository is out of date."""

from __future__ import annotations

import argparse
import difflib
import re
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from xml.sax.saxutils import escape

from demo import PATIENCE, ROOT, Demo, Failed

PICTURE = ROOT / "docs" / "images" / "terminal.svg"
HOSTS = ("--simulate", "examples/hosts/two-gpus.yaml", "--config", "examples/config/aliases.yaml")
VMIS = ("blue", "green", "red", "yellow")  # of examples/02-alias; yellow asks for one GPU more than there are
SHOWN = ("outfit devices -o tree", "outfit why yellow --long")
# The names in the picture do not depend on the pci.ids database of the host that draws it.
PCI_IDS = """\
10de  NVIDIA
\t2235  GA102GL [A40]
8086  Intel
\t1592  Ethernet Controller E810-C for QSFP
\t1889  Ethernet Adaptive Virtual Function
C 02  Network controller
\t00  Ethernet controller
C 03  Display controller
\t02  3D controller
"""

CHARACTER, LINE, MARGIN, TITLE = 7.8, 19, 18, 34  # pixels: width of a character, height of a line, border, title bar
FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
COLOURS = (  # the first pattern that matches at a position gives the class of its text
    (re.compile(r"^\$ .*"), "command"),
    (re.compile(r"held by .*? since 12:04"), "held"),
    (re.compile(r"(?<=  )free$"), "free"),
    (re.compile(r"^ *->.*"), "hint"),
)


def settled(text: str) -> str:
    """The output without what differs from run to run: the time of day and the generated suffixes of claims."""
    text = re.sub(r"\bsince \d\d:\d\d(:\d\d)?", "since 12:04", text)
    return re.sub(r"(-flavor-)[a-z0-9]{5}\b", r"\g<1>x7k2p", text)


def run(demo: Demo, command: str) -> str:
    done = demo.ask(shlex.split(command)[1:])
    if done.returncode:
        raise Failed(f"{command} ended with {done.returncode}: {done.stdout}")
    return done.stdout


def wait_for(demo: Demo, what: str, command: str, *shows: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not all(part in (shown := run(demo, command)) for part in shows):
        if time.monotonic() > deadline:
            raise Failed(f"{what} after {PATIENCE:.0f} s: {shown}")


def recorded() -> list[str]:
    """The lines of the picture: each command with its output."""
    with tempfile.TemporaryDirectory(prefix="outfitter-pictures-") as folder:
        demo = Demo(Path(folder))
        ids = Path(folder) / "pci.ids"
        ids.write_text(PCI_IDS)
        demo.env |= {"OUTFITTER_PCI_IDS": str(ids), "COLUMNS": "200"}
        try:
            demo.start(*HOSTS)
            run(demo, "outfit apply -f examples/02-alias/1-flavors.yaml -f examples/02-alias/2-blue.yaml")
            wait_for(demo, "blue does not run", "outfit get vmi", "blue", "Running")  # it gets its devices before the others
            run(demo, "outfit apply -f examples/02-alias/3-green.yaml")
            wait_for(demo, "green and red do not both run", "outfit vm list", "green", "red")
            wait_for(demo, "a GPU is still free", "outfit devices -o json", *(f'"vmi/{name}"' for name in VMIS[:3]))
            run(demo, "outfit apply -f examples/02-alias/4-yellow.yaml")
            wait_for(demo, "yellow does not wait for all three", "outfit why yellow", *(f"vmi/{name}" for name in VMIS[:3]))
            lines: list[str] = []
            for command in SHOWN:
                lines += [f"$ {command}", *settled(run(demo, command)).rstrip("\n").split("\n"), ""]
            return lines[:-1]
        finally:
            demo.end(signal.SIGKILL)


def coloured(line: str) -> Iterator[tuple[int, str, str]]:
    """The parts of a line: column, text, class."""
    at = 0
    while at < len(line):
        found = [(match.start(), -order, match.end(), name) for order, (pattern, name) in enumerate(COLOURS)
                 if (match := pattern.search(line, at)) and match.end() > match.start()]
        start, _, end, name = min(found, default=(len(line), 0, len(line), ""), key=lambda one: (one[0], -one[1]))
        if start > at:
            yield at, line[at:start], "plain"
        if name:
            yield start, line[start:end], name
        at = max(end, at + 1)


def drawn(lines: list[str]) -> str:
    """The picture. Each part has its place and width, so that columns stay columns in every font."""
    width = round(2 * MARGIN + CHARACTER * max(map(len, lines)))
    height = TITLE + 2 * MARGIN + LINE * len(lines) - 4
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
           f'role="img" aria-label="A terminal with the output of outfit devices and outfit why">',
           f"<style>text {{ font: 13px {FONT}; white-space: pre }} .plain {{ fill: #d0d7de }} .command {{ fill: #ffffff; "
           "font-weight: 600 } .held { fill: #f0b45b } .free { fill: #6fd08c } .hint { fill: #79c0ff }"
           "</style>",
           f'<rect width="{width}" height="{height}" rx="9" fill="#0d1117"/>',
           *(f'<circle cx="{20 + 20 * place}" cy="18" r="6" fill="{colour}"/>'
             for place, colour in enumerate(("#ff5f57", "#febc2e", "#28c840")))]
    for row, line in enumerate(lines):
        y = TITLE + MARGIN + LINE * row + 9
        for column, text, name in coloured(line):
            if not text.strip():
                continue
            lead = len(text) - len(text.lstrip())
            body = text.strip()
            x, length = MARGIN + CHARACTER * (column + lead), CHARACTER * len(body)
            out.append(f'<text class="{name}" x="{x:.1f}" y="{y}" textLength="{length:.1f}" lengthAdjust="spacingAndGlyphs" '
                       f'xml:space="preserve">{escape(body)}</text>')
    return "\n".join([*out, "</svg>", ""])


def main() -> int:
    parser = argparse.ArgumentParser(description="Draw the pictures of the README from the real output.")
    parser.add_argument("--check", action="store_true", help="draw nothing; end with 1 if a picture is out of date")
    options = parser.parse_args()
    try:
        picture = drawn(recorded())
    except Failed as error:
        print(f"The picture cannot be drawn: {error}", file=sys.stderr)
        return 1
    if not options.check:
        PICTURE.parent.mkdir(parents=True, exist_ok=True)
        PICTURE.write_text(picture)
        return 0
    old = PICTURE.read_text() if PICTURE.exists() else ""
    if old == picture:
        return 0
    print("docs/images/terminal.svg is out of date; run make pictures:", file=sys.stderr)
    print("\n".join(difflib.unified_diff(old.split("\n"), picture.split("\n"), "docs/images", "the product", lineterm="", n=0)),
          file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
