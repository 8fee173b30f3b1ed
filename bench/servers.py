"""The embedded API server and, where its binaries are (KUBEBUILDER_ASSETS), a real kube-apiserver with etcd, side by side:
both are started here, loaded over HTTP one after the other, and stopped.

    python -m bench.servers [--json FILE]

Both sync every write to the disk before they answer."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench import store
from tests import kubernetes


@contextmanager
def outfit_up(folder: Path, *options: str) -> Iterator[tuple[Path, int]]:
    """An `outfit up` of its own: the kubeconfig and the process id."""
    process = subprocess.Popen(
        [sys.executable, "-m", "outfitter", "up", "--data", str(folder), "--port", "0", "--simulate", "1x1", *options],
        stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("Ctrl-C"):
                break
        else:
            raise SystemExit("outfit up did not start")
        yield folder / "kubeconfig", process.pid
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(30)


def resident(pid: int) -> float:
    """Megabytes that a process holds."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def main() -> None:
    sizes = store.arguments()
    results: dict[str, store.Figures] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="outfitter-bench-", dir=sizes.folder)))
        path, pid = stack.enter_context(outfit_up(folder / "embedded"))
        results["outfitter"] = asyncio.run(store.over_http(str(path), sizes))
        print(f"outfitter holds {resident(pid):.0f} MB", flush=True)
        if kubernetes.assets() is None:
            print(f"no kube-apiserver beside it: {kubernetes.MISSING}")
        else:
            cluster = stack.enter_context(kubernetes.Cluster(folder / "kubernetes", durable=True))
            results["kube-apiserver"] = asyncio.run(store.over_http(str(cluster.kubeconfig), sizes))
            both = resident(cluster.pid("kube-apiserver")) + resident(cluster.pid("etcd"))
            print(f"kube-apiserver and etcd hold {both:.0f} MB", flush=True)
    print(store.table(results, sizes))
    if sizes.json:
        sizes.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
