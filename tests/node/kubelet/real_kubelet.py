"""A real kubelet (make judges) as a process with all it writes below one folder: `scripts/kube-assets --kubelet` builds it. It
needs a container runtime (`fake_runtime.FakeRuntime`, `process_runtime.ProcessRuntime`). Needs no pytest."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

from tests import kubernetes

MISSING = "needs a kubelet in KUBEBUILDER_ASSETS; scripts/kube-assets --kubelet builds it"
NO_NAMESPACE = "needs root, setpriv, unshare and mount: processes run in mount namespaces of their own"


def why_not() -> str:
    """Why no kubelet can be started here; "" when one can."""
    found = kubernetes.assets()
    if found is None or not (found / "kubelet").is_file():
        return MISSING
    return NO_NAMESPACE if no_namespace() else ""


def no_namespace() -> bool:
    """Whether no process can get a mount namespace of its own here."""
    return bool(os.geteuid()) or not all(map(shutil.which, ("setpriv", "unshare", "mount")))


# The kubelet mounts its own folder, writes to fixed places below /var and sets sysctls: it gets a mount namespace of its own,
# where a folder, the first argument, stands for /var/lib, /var/log and these sysctls.
INSULATED = ("setpriv", "--pdeathsig", "KILL", "--", "unshare", "--mount", "--propagation", "private", "sh", "-ec", """
mkdir -p "$0/lib" "$0/log"
mount --bind "$0/lib" /var/lib
mount --bind "$0/log" /var/log
for name in vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops kernel/keys/root_maxkeys \\
    kernel/keys/root_maxbytes; do
  mkdir -p "$0/sys/${name%/*}"
  cat "/proc/sys/$name" >"$0/sys/$name"
  mount --bind "$0/sys/$name" "/proc/sys/$name"
done
exec "$@"
""")


class Kubelet:
    """The process, with all it writes below one folder."""

    def __init__(self, cluster: kubernetes.Cluster, node: str, folder: Path, runtime: Path) -> None:
        self._cluster, self._node, self.folder, self._log = cluster, node, folder, folder.parent / "kubelet.log"
        [port, health] = kubernetes.free_ports(2)
        config = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration", "address": "127.0.0.1", "port": port,
            "healthzPort": health, "healthzBindAddress": "127.0.0.1", "containerRuntimeEndpoint": f"unix://{runtime}",
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"}, "cgroupDriver": "cgroupfs", "cgroupsPerQOS": False,
            "enforceNodeAllocatable": [], "failSwapOn": False, "failCgroupV1": False, "makeIPTablesUtilChains": False,
            "registerNode": True, "volumePluginDir": str(folder / "volume-plugins"),
            "localStorageCapacityIsolation": False, "evictionHard": {"memory.available": "0%"}, "syncFrequency": "1s",
            "podLogsDir": str(folder.parent / "logs"), "resolvConf": "",
            "featureGates": {"KubeletInUserNamespace": True},  # there may be no /dev/kmsg
        }
        (folder.parent / "kubelet.json").write_text(json.dumps(config))

    @property
    def plugin_folder(self) -> Path:
        """Where it really is that the kubelet takes for /var/lib/kubelet: device plugins are served there, not below its root
        folder."""
        return self.folder.parent / "insulated" / "lib" / "kubelet"

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*INSULATED, self.folder.parent / "insulated", self._cluster.binaries / "kubelet",
                 f"--config={self.folder.parent / 'kubelet.json'}",
                 f"--kubeconfig={self._cluster.kubeconfig}", f"--root-dir={self.folder}", f"--cert-dir={self.folder / 'pki'}",
                 f"--hostname-override={self._node}", "--node-ip=127.0.0.1", "--v=3"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                env={"PATH": os.environ.get("PATH", ""), "HOME": str(self.folder)})

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def check(self) -> None:
        """Its own words, if it has ended."""
        if self._process.poll() is not None:
            lines = self._log.read_text(errors="replace").splitlines()
            errors = [line for line in lines if line.startswith(("E", "F"))] or lines
            raise AssertionError(f"the kubelet ended with {self._process.returncode}:\n" + "\n".join(errors[-15:]))

    def tail(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-60:])
