#!/usr/bin/env python3
"""The whole story on a simulated host, unattended: run by `make demo`. Every command that is shown is run as it is shown, and
its answer is checked; the exit status is 0 only when each step showed what it should. Leaves nothing behind."""

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
PATIENCE = 120.0  # seconds until something that should happen has failed; a loaded machine takes long
CHANGES = ("apply", "delete")  # commands that are given once; what the others show may be on its way
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

    def up(self) -> str:
        """Start the server and show what it says; returns when it is up."""
        words = ["outfit", "up", "--data", str(self.data), "--port", "0", "--simulate", "1x1"]
        show_command([*words, "&"])
        self.server = subprocess.Popen([OUTFIT, *words[1:]], cwd=ROOT, env=self.env, stdin=subprocess.DEVNULL,
                                       stdout=subprocess.PIPE, text=True, start_new_session=True)
        said = self._hear(self.server)
        print(said.partition("\n\n")[0])
        return said

    @staticmethod
    def _hear(server: subprocess.Popen[str]) -> str:
        assert server.stdout is not None
        said, deadline = "", time.monotonic() + PATIENCE
        with selectors.DefaultSelector() as selector:
            selector.register(server.stdout, selectors.EVENT_READ)
            while READY not in said:
                ready = selector.select(max(0.0, deadline - time.monotonic()))
                piece = os.read(server.stdout.fileno(), 65536).decode() if ready else ""
                if not piece:
                    raise Failed(f"outfit up did not come up: {said}")
                said += piece
        return said

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

    def _ask(self, words: Sequence[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run([OUTFIT, *words], cwd=ROOT, env=self.env, text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=PATIENCE, check=False)

    def run(self, command: str, *shows: str) -> str:
        """Run a command, show it with its answer, and insist on what the answer shows. What is on its way gets time."""
        words = shlex.split(command)
        deadline = time.monotonic() + PATIENCE
        while True:
            done = self._ask(words[1:])
            missing = [part for part in shows if part not in done.stdout]
            if not (missing or done.returncode) or words[1] in CHANGES or time.monotonic() > deadline:
                break
        show_command(words)
        print(done.stdout, end="", flush=True)
        if done.returncode or missing:
            raise Failed(f"{command} ended with {done.returncode}" + (f" and does not show {missing}" if missing else ""))
        return done.stdout


def story(demo: Demo) -> None:
    tell("Outfitter runs as one process. This one plays a host with a network card that has a single virtual function (VF).")
    demo.up()
    show_command(["export", f"KUBECONFIG={demo.env['KUBECONFIG']}"])

    tell("What the hosts have. Each host publishes its devices in a slice, and says what it knows of them.")
    demo.run("outfit get nodes", "node-0", "Ready")
    demo.run("outfit devices -o tree --all", "0000:3b:01.0", "free", "not offered")

    tell("A class says which devices are meant: any VF. A template is a claim for one of them, to be copied for each machine.")
    demo.run(f"outfit apply -f {EXAMPLE}/1-class.yaml", "virtual-function created", "one-vf created")

    tell("The machine blue asks for a VF through the template, and gets it.")
    demo.run(f"outfit apply -f {EXAMPLE}/2-blue.yaml", "blue created")
    demo.run("outfit get vmi", "Running")

    tell("Its status says which device that is, and the events how it came to it.")
    demo.run("outfit describe vmi blue", "deviceStatus:", "pciAddress: 0000:3b:01.0", "Started")

    tell("And this is the libvirt domain it runs as, with the device at its address.")
    demo.run("outfit domxml blue", '<address domain="0x0000" bus="0x3b" slot="0x01" function="0x0" />')

    tell("The machine green asks for the same, but there is no second VF. It waits, and anybody can ask why.")
    demo.run(f"outfit apply -f {EXAMPLE}/3-green.yaml", "green created")
    demo.run("outfit why vmi/green", "1 match, 0 free", "held by vmi/blue")
    demo.run("outfit devices", "pci-0000-3b-00-0-vf0", "held by vmi/blue")

    tell("Now the server is killed outright and started again. Machines outlive it: blue keeps its device, and green waits.")
    before = demo.run("outfit why vmi/blue", "vmi/blue runs on node-0", "0000:3b:01.0")
    assert demo.server is not None
    show_command(["kill", "-9", str(demo.server.pid)])
    demo.end(signal.SIGKILL)
    demo.up()
    if demo.run("outfit why vmi/blue", before) != before:
        raise Failed("blue has not what it had before the kill")
    demo.run("outfit why vmi/green", "held by vmi/blue")

    tell("blue is deleted. Its device is free, and green gets it.")
    demo.run("outfit delete vmi blue", "blue deleted")
    demo.run("outfit get vmi", "green", "Running")
    demo.run("outfit why vmi/green", "vmi/green runs on node-0", "0000:3b:01.0")
    demo.run("outfit history node-0/pci-0000-3b-00-0-vf0", "vmi/green", "vmi/blue", "released")

    tell("The end: everything is deleted, and the host has its device back.")
    demo.run(f"outfit delete -f {EXAMPLE}/3-green.yaml -f {EXAMPLE}/1-class.yaml", "green deleted", "one-vf deleted")
    demo.run("outfit get pods,resourceclaims", "No pods found", "No resourceclaims found")
    page = demo.run("outfit get ledgerpages", "node-0")
    if page.splitlines()[1].split()[1:3] != ["0", "0"]:
        raise Failed("the ledger's page of node-0 still has bookings")
    if left := list((demo.data / "domains").glob("*/*")):
        raise Failed(f"machines still run: {left}")
    if code := demo.end(signal.SIGINT):
        raise Failed(f"the server ended with {code}")


def main() -> int:
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="outfitter-demo-") as folder:
        demo = Demo(Path(folder))
        try:
            story(demo)
        except (Failed, subprocess.TimeoutExpired) as error:
            print(f"\nThe demo failed: {error}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            return 130
        finally:
            demo.end(signal.SIGKILL)
    tell(f"That was all, in {time.monotonic() - began:.0f} seconds. Your turn: make up")
    return 0


if __name__ == "__main__":
    sys.exit(main())
