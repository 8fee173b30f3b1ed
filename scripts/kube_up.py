"""Runs a fresh etcd and kube-apiserver on 127.0.0.1, with our kinds unless --empty, until Ctrl-C; for trying things out.

    .venv/bin/python scripts/kube_up.py FOLDER [--scheduler] [--controllers] [--empty] [--durable]

FOLDER receives the state, the logs and admin.kubeconfig. Wants KUBEBUILDER_ASSETS (see scripts/kube-assets)."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests import kubernetes


def main() -> None:
    parser = argparse.ArgumentParser(description="Run a Kubernetes API server until Ctrl-C.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--scheduler", action="store_true", help="run kube-scheduler too")
    parser.add_argument("--controllers", action="store_true", help="run kube-controller-manager too")
    parser.add_argument("--empty", action="store_true", help="without our kinds, as before `outfit install --apply`")
    parser.add_argument("--durable", action="store_true", help="etcd waits for the disk at each write")
    wanted = parser.parse_args()
    if kubernetes.assets() is None:
        sys.exit(f"kube_up: {kubernetes.MISSING}")
    signals = {signal.SIGINT, signal.SIGTERM}
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    folder = wanted.folder.resolve()
    with kubernetes.Cluster(
        folder, scheduler=wanted.scheduler, controllers=wanted.controllers, durable=wanted.durable,
        learn=() if wanted.empty else kubernetes.OURS,
    ) as cluster:
        print(f"{cluster.server} is ready\nexport KUBECONFIG={cluster.kubeconfig}", flush=True)
        signal.pthread_sigmask(signal.SIG_BLOCK, signals)
        signal.sigwait(signals)


if __name__ == "__main__":
    main()
