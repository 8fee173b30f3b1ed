"""How a run collects its tests: files that take long come first, and the workers of one run share what collecting costs.

`make test` gives whole files to two workers (xdist's loadfile). The last file that is given out must be a short one, or a core
is idle at the end. Both workers collect all tests; the second begins at the other end, so each compiles the half of the modules
that the other then finds compiled.

Tests with libvirt are in two groups, one for each worker (`--dist loadgroup`): some use what a host has once."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

# Folders and files whose tests take longest, in this order; everything else takes less and comes after them.
SLOW = ("tests/install/test_install_cluster.py", "tests/node/kubelet/test_vm_path_cluster.py", "tests/e2e",
        "tests/controllers/test_stateful.py", "tests/cases", "tests/cli", "tests/node/test_kill",
        "tests/ledger/test_race.py", "tests/controllers", "tests/test_", "tests/launcher", "tests/node", "tests/scheduling",
        "tests/inventory")
# They make taps, of which two daemons may choose the same name at the same moment, or use the folder of config drives.
ON_THE_HOST = ("tests/e2e/", "tests/launcher/test_hypervisor_nics.py", "tests/launcher/test_libvirt_moved.py",
               "tests/launcher/test_libvirt_nics.py")


def pytest_configure(config: pytest.Config) -> None:
    worker = getattr(config, "workerinput", {}).get("workerid", "gw0")
    if int(worker.removeprefix("gw")) % 2 and config.args == config.getini("testpaths"):
        config.args = [str(entry) for folder in config.args for entry in reversed(_entries(config.rootpath / folder))]


def _entries(folder: Path) -> list[Path]:
    """What may contain tests, in the order of pytest."""
    return [path for path in sorted(folder.iterdir())
            if path.match("test_*.py") or (path.is_dir() and path.name[0] not in "_.")]


def rank(nodeid: str) -> int:
    return next((number for number, start in enumerate(SLOW) if nodeid.startswith(start)), len(SLOW))


@pytest.hookimpl(tryfirst=True)  # before fixtures with parameters are grouped: workers must end with the same order
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: (rank(item.nodeid), item.nodeid.partition("::")[0]))


class TwoGroups(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """The tests of `ON_THE_HOST` by one worker, and the others by the other one."""

    def _split_scope(self, nodeid: str) -> str:
        return "host" if nodeid.startswith(ON_THE_HOST) else "others"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> TwoGroups | None:
    return TwoGroups(config, log) if config.getvalue("dist") == "loadgroup" else None


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()  # modules and tests stay until the end: no collection of garbage looks at them again
    gc.set_threshold(5000)  # allocations until the next; Python's 700 costs a tenth of the time
