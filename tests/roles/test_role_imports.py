"""What a role must not import before it works: each starts in well under a second because it loads its own part of the product
and no other. No test measures time; this one fails when a list below grows back."""

from __future__ import annotations

import subprocess
import sys

import pytest

OTHERS = ("outfitter.up", "outfitter.app", "outfitter.install", "outfitter.doctor", "libvirt", "lxml", "aiohttp")  # no role
SERVED = ("uvicorn", "outfitter.apiserver")  # a web server: also for --health-address, when it is set
# Of scheduling the agent uses the topology manager's functions and how requests of pods are counted, for device plugins.
SCHEDULER = tuple(f"outfitter.scheduling.{name}" for name in (
    "scheduler", "snapshot", "score", "plugins", "config", "nova", "explain", "dra.allocator", "dra.device_index", "dra.search",
    "dra.slices", "filter.node_fit"))
NOT_IMPORTED = {
    "controller": (*OTHERS, *SERVED, "grpc", "cryptography", "outfitter.cel.evaluator", "outfitter.node", "outfitter.launcher",
                   "outfitter.webhook", "outfitter.controllers.embedded"),
    "webhook": (*OTHERS, "grpc", "outfitter.cel.evaluator", "outfitter.node", "outfitter.launcher", "outfitter.controllers"),
    "node": (*OTHERS, *SERVED, *SCHEDULER, "grpc", "cryptography", "outfitter.cel.evaluator", "outfitter.webhook"),
    "launcher": (*OTHERS, *SERVED, "grpc", "cryptography", "outfitter.cel.evaluator", "outfitter.node",
                 "outfitter.scheduling", "outfitter.controllers", "outfitter.ledger", "outfitter.webhook",
                 "outfitter.store.kube"),
}
EVERY_COMMAND = ("asyncio", "aiohttp", "yaml", "msgspec", "outfitter.api.kinds", "outfitter.cel", "outfitter.store")
BEGIN = "import sys; from outfitter.cli import main; from outfitter.roles import commands; commands.commands(); "
PRINT = "print(*sys.modules)"


def imported(program: str) -> set[str]:
    done = subprocess.run([sys.executable, "-c", program + PRINT], capture_output=True, text=True, check=True, timeout=300)
    return set(done.stdout.split())


def loaded(modules: set[str], names: tuple[str, ...]) -> set[str]:
    return {module for module in modules for name in names if module == name or module.startswith(f"{name}.")}


@pytest.mark.parametrize("role", NOT_IMPORTED)
def test_a_role_imports_its_own_part(role: str) -> None:
    modules = imported(f"{BEGIN}from outfitter.roles import process, {role}; ")
    assert f"outfitter.roles.{role}" in modules
    assert loaded(modules, NOT_IMPORTED[role]) == set()


def test_the_list_of_commands_imports_no_role() -> None:
    assert loaded(imported(BEGIN), EVERY_COMMAND) == set()
