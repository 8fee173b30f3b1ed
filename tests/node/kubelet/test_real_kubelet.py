"""A real kubelet (make judges) with a runtime that runs nothing: it accepts our driver, has it prepare a pod's claim before the
container is created, gives the CDI ids to the runtime, and has the claim unprepared after the pod's end."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from outfitter.api import kinds
from outfitter.errors import NotFound
from outfitter.store.clock import SystemClock
from outfitter.store.kube import Kube
from tests import kubernetes
from tests.controllers.scenario import connections_closed
from tests.node.kubelet import driver_host, fake_runtime, kubelet_client
from tests.node.kubelet.driver_host import DRIVER, HOST, DriverHost
from tests.node.kubelet.fake_runtime import FakeRuntime
from tests.node.kubelet.kubelet_client import KubeletClient

pytestmark = pytest.mark.judges
NAMESPACE = "lab"
PATIENCE = 300.0
MISSING = "needs a kubelet in KUBEBUILDER_ASSETS; scripts/kube-assets --kubelet builds it"


@pytest.fixture(scope="module")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[kubernetes.Cluster]:
    found = kubernetes.assets()
    if found is None or not (found / "kubelet").is_file():
        pytest.skip(MISSING)
    if os.geteuid() or not all(map(shutil.which, ("setpriv", "unshare", "mount"))):
        pytest.skip("needs root, setpriv, unshare and mount: a kubelet runs in a mount namespace of its own")
    with kubernetes.Cluster(tmp_path_factory.mktemp("control-plane"), scheduler=True, controllers=True) as running:
        yield running


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

    def __init__(self, cluster: kubernetes.Cluster, folder: Path, runtime: Path) -> None:
        self._cluster, self.folder, self._log = cluster, folder, folder.parent / "kubelet.log"
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

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*INSULATED, self.folder.parent / "insulated", self._cluster.binaries / "kubelet",
                 f"--config={self.folder.parent / 'kubelet.json'}",
                 f"--kubeconfig={self._cluster.kubeconfig}", f"--root-dir={self.folder}", f"--cert-dir={self.folder / 'pki'}",
                 f"--hostname-override={HOST}", "--node-ip=127.0.0.1", "--v=3"],
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


class Judged:
    def __init__(self, node: DriverHost, kubelet: Kubelet, runtime: FakeRuntime) -> None:
        self.node, self.kubelet, self.runtime = node, kubelet, runtime

    async def until(self, what: str, look: object) -> None:
        assert callable(look)
        try:
            async with asyncio.timeout(PATIENCE):
                while not await look():
                    self.kubelet.check()
                    await asyncio.sleep(0.1)
        except TimeoutError:
            raise AssertionError(f"not {what}; the kubelet's log ends with:\n{self.kubelet.tail()}") from None

    async def states(self) -> set[str]:
        return {booking.state for booking in (await self.node.bookings()).values()}

    async def pod_phase(self, name: str) -> str:
        try:
            return str((await self.node.store.get(kinds.POD, name, NAMESPACE)).get("status", {}).get("phase"))
        except NotFound:
            return ""


@pytest.fixture
async def judged(control_plane: kubernetes.Cluster) -> AsyncIterator[Judged]:
    cri = fake_runtime.published_cri()
    if cri is None:
        pytest.skip("needs the published protobuf files; scripts/kubelet-protos fetches them")
    store = Kube(control_plane.access(), clock=SystemClock())
    with driver_host.short_folder() as folder:
        node = DriverHost(folder, KubeletClient(kubelet_client.our_definitions()), store=store)
        node.registry.mkdir(parents=True)
        runtime = FakeRuntime(folder / "cri.sock", cri)
        kubelet = Kubelet(control_plane, node.kubelet_folder, runtime.socket)
        await store.create(kinds.NAMESPACE, {"metadata": {"name": NAMESPACE}})
        await runtime.start()
        await node.start()
        kubelet.start()
        try:
            yield Judged(node, kubelet, runtime)
        finally:
            kubelet.stop()
            await node.stop()
            await runtime.stop()
            await store.close()
    await connections_closed()


async def test_a_real_kubelet_prepares_and_unprepares_through_our_driver(judged: Judged) -> None:
    node, store = judged.node, judged.node.store

    async def registered() -> bool:
        return bool(node.plugin.registration.registered)

    await judged.until("registered", registered)
    await store.create(kinds.DEVICE_CLASS, {"metadata": {"name": "vf"}, "spec": {"selectors": [
        {"cel": {"expression": f'device.driver == "{DRIVER}" && device.attributes["{DRIVER}"].kind == "VF"'}}]}})
    await store.create(kinds.RESOURCE_CLAIM, {"metadata": {"name": "gold", "namespace": NAMESPACE}, "spec": {"devices": {
        "requests": [{"name": "nic", "exactly": {"deviceClassName": "vf"}}]}}})
    await store.create(kinds.POD, {"metadata": {"name": "web", "namespace": NAMESPACE}, "spec": {
        "automountServiceAccountToken": False, "terminationGracePeriodSeconds": 1, "tolerations": [{"operator": "Exists"}],
        "containers": [{"name": "it", "image": "it", "resources": {"claims": [{"name": "nics", "request": "nic"}]}}],
        "resourceClaims": [{"name": "nics", "resourceClaimName": "gold"}]}})

    async def running() -> bool:
        return await judged.pod_phase("web") == "Running"

    await judged.until("Running", running)
    uid = (await store.get(kinds.RESOURCE_CLAIM, "gold", NAMESPACE))["metadata"]["uid"]
    [device] = [device for _, device in await node.bookings()]
    assert await judged.states() == {"prepared"}
    assert judged.runtime.cdi_devices() == {"it": [f"{DRIVER}/device={uid}-{device}"]}
    assert node.cdi_files() == [f"{DRIVER}-claim_{uid}.json"]

    await node.kill()  # the kubelet finds the new process by its socket
    await node.start()
    await judged.until("registered again", registered)
    await store.delete(kinds.POD, "web", NAMESPACE)

    async def unprepared() -> bool:
        return not node.cdi_files() and "prepared" not in await judged.states()

    await judged.until("unprepared", unprepared)
