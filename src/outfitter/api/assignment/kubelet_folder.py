"""The kubelet's folder, and what only a kubelet leaves in it: where there is none, an agent serves its sockets there."""

from __future__ import annotations

from pathlib import Path

KUBELET_DIR = Path("/var/lib/kubelet")
TRACES = ("config.yaml", "pki", "kubeadm-flags.env", "cpu_manager_state", "memory_manager_state")
