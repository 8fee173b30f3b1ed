#!/usr/bin/env python3
"""Runs the example 01-one-vf on a simulated host, unattended: `make demo`. Every command is run as it is shown and its
output is checked; the exit status is 0 only when each step showed what it should. Leaves nothing behind."""

from __future__ import annotations

import os
import selectors
import shlex
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OUTFIT = Path(sys.executable).with_name("outfit")
EXAMPLE = "examples/01-one-vf"
PATIENCE = 120.0  # seconds after which an expected result counts as failed; a loaded host is slow
CHANGES = ("apply", "delete")  # commands that run once; the others are repeated until their output shows the result
READY = "Ctrl-C stops it."
BOLD, PLAIN = ("\033[1m", "\033[0m") if sys.stdout.isatty() and not os.environ.get("NO_COLOR") else ("", "")


class Failed(Exception):
    """A step did not show what it should."""


def tell(text: str) -> None:
    print("\n" + textwrap.fill(" ".join(text.split()), 100), flush=True)


def show_command(words: Sequence[str]) -> None:
    print(f"{BOLD}$ {' '.join(words)}{PLAIN}", flush=True)


class Demo:
    def __init__(self, folder: Path) -> None:
        self.data = folder / "data"
        self.env = {**os.environ, "KUBECONFIG": str(self.data / "kubeconfig"), "HOME": str(folder)}
        self.server: subprocess.Popen[str] | None = None

    def up(self) -> None:
        """Start the server and show its greeting; returns when it serves."""
        options = ("--simulate", "1x1")
        show_command(["outfit", "up", "--data", str(self.data), "--port", "0", *options, "&"])
        print(self.start(*options).partition("\n\n")[0])

    def start(self, *options: str) -> str:
        """Start the server; returns its greeting when it serves."""
        words = [OUTFIT, "up", "--data", str(self.data), "--port", "0", *options]
        self.server = subprocess.Popen(words, cwd=ROOT, env=self.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                       text=True, start_new_session=True)
        return self._greeting(self.server)

    @staticmethod
    def _greeting(server: subprocess.Popen[str]) -> str:
        assert server.stdout is not None
        output, deadline = "", time.monotonic() + PATIENCE
        with selectors.DefaultSelector() as selector:
            selector.register(server.stdout, selectors.EVENT_READ)
            while READY not in output:
                ready = selector.select(max(0.0, deadline - time.monotonic()))
                piece = os.read(server.stdout.fileno(), 65536).decode() if ready else ""
                if not piece:
                    raise Failed(f"outfit up did not come up: {output}")
                output += piece
        return output

    def end(self, number: signal.Signals) -> int:
        """End the server by a signal; its exit status."""
        if self.server is None:
            return 0
        self.server.send_signal(number)
        code = self.server.wait(PATIENCE)
        if self.server.stdout:
            self.server.stdout.close()
        self.server = None
        return code

    def ask(self, words: Sequence[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run([OUTFIT, *words], cwd=ROOT, env=self.env, text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=PATIENCE, check=False)

    def run(self, command: str, *shows: str) -> str:
        """Run a command, repeat it until its output contains `shows`, and print it; fails after PATIENCE."""
        words = shlex.split(command)
        deadline = time.monotonic() + PATIENCE
        while True:
            done = self.ask(words[1:])
            missing = [part for part in shows if part not in done.stdout]
            if not (missing or done.returncode) or words[1] in CHANGES or time.monotonic() > deadline:
                break
        show_command(words)
        print(done.stdout, end="", flush=True)
        if done.returncode or missing:
            raise Failed(f"{command} ended with {done.returncode}" + (f" and does not show {missing}" if missing else ""))
        return done.stdout


def scenario(demo: Demo) -> None:
    tell("Outfitter runs as one process. This one simulates a host whose network card has a single virtual function (VF).")
    demo.up()
    show_command(["export", f"KUBECONFIG={demo.env['KUBECONFIG']}"])

    tell("What the hosts have. Each host publishes its devices with their attributes in a ResourceSlice.")
    demo.run("outfit get nodes", "node-0", "Ready")
    demo.run("outfit devices -o tree --all", "0000:3b:01.0", "free", "not offered")

    tell("A DeviceClass selects devices: any VF. A ResourceClaimTemplate asks for one; each VMI gets a claim made from it.")
    demo.run(f"outfit apply -f {EXAMPLE}/1-class.yaml", "virtual-function created", "one-vf created")

    tell("The VMI blue asks for a VF through the template, and gets it.")
    demo.run(f"outfit apply -f {EXAMPLE}/2-blue.yaml", "blue created")
    demo.run("outfit get vmi", "Running")

    tell("Its status names the device, and its events show each step.")
    demo.run("outfit describe vmi blue", "deviceStatus:", "pciAddress: 0000:3b:01.0", "Started")

    tell("This is the libvirt domain it runs as, with the device at its PCI address.")
    demo.run("outfit domxml blue", '<address domain="0x0000" bus="0x3b" slot="0x01" function="0x0" />')

    tell("The VMI green asks for the same, but there is no second VF. It waits, and outfit why explains it.")
    demo.run(f"outfit apply -f {EXAMPLE}/3-green.yaml", "green created")
    demo.run("outfit why vmi/green", "1 match, 0 free", "held by vmi/blue")
    demo.run("outfit devices", "pci-0000-3b-00-0-vf0", "held by vmi/blue")

    tell("Now the server is killed with SIGKILL and started again. VMs outlive it: blue keeps its device, and green waits.")
    before = demo.run("outfit why vmi/blue", "vmi/blue runs on node-0", "0000:3b:01.0")
    assert demo.server is not None
    show_command(["kill", "-9", str(demo.server.pid)])
    demo.end(signal.SIGKILL)
    demo.up()
    if demo.run("outfit why vmi/blue", before) != before:
        raise Failed("blue has other devices than before the kill")
    demo.run("outfit why vmi/green", "held by vmi/blue")

    tell("blue is deleted. Its device is released, and green gets it.")
    demo.run("outfit delete vmi blue", "blue deleted")
    demo.run("outfit get vmi", "green", "Running")
    demo.run("outfit why vmi/green", "vmi/green runs on node-0", "0000:3b:01.0")
    demo.run("outfit history node-0/pci-0000-3b-00-0-vf0", "vmi/green", "vmi/blue", "released")

    tell("Clean-up: everything is deleted, and the host has its device back.")
    demo.run(f"outfit delete -f {EXAMPLE}/3-green.yaml -f {EXAMPLE}/1-class.yaml", "green deleted", "one-vf deleted")
    demo.run("outfit get pods,resourceclaims", "No pods found", "No resourceclaims found")
    page = demo.run("outfit get ledgerpages", "node-0")
    if page.splitlines()[1].split()[1:3] != ["0", "0"]:
        raise Failed("the ledger's page of node-0 still has bookings")
    if left := list((demo.data / "domains").glob("*/*")):
        raise Failed(f"VMs still run: {left}")
    if code := demo.end(signal.SIGINT):
        raise Failed(f"the server ended with {code}")


def main() -> int:
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="outfitter-demo-") as folder:
        demo = Demo(Path(folder))
        try:
            scenario(demo)
        except (Failed, subprocess.TimeoutExpired) as error:
            print(f"\nThe demo failed: {error}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            return 130
        finally:
            demo.end(signal.SIGKILL)
    tell(f"Done in {time.monotonic() - began:.0f} seconds. Your turn: make up")
    return 0


if __name__ == "__main__":
    sys.exit(main())
