"""A kubelet for launcher pods with claims, and the host it is on. The kubelet has our DRA driver prepare a pod's claims before
its container starts and unprepare them after its end, over the driver's sockets (`kubelet_client`); what the CDI files say is
added to the container. The host is a mount namespace in which /sys has the devices of a hosts file, so that `outfit node`
runs as it is; it needs root. Needs no pytest."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import grpc.aio

from outfitter.api import kinds
from outfitter.api.kinds import Object
from outfitter.inventory.simulation import hosts_file
from outfitter.store.base import Store
from tests.inventory import host_trees
from tests.node.fake_kubelet import ContainerEdits, FakeKubelet
from tests.node.kubelet.driver_host import DRIVER
from tests.node.kubelet.kubelet_client import KubeletClient

VFS = ("0000:3b:01.0", "0000:3b:01.1")
HOST = """
hosts:
- name: worker
  numa: [{id: 0, cpus: 0-7, memory: 64Gi}]
  pci:
  - {address: 0000:3b:00.0, vendor: 8086, product: 1592, class: 020000, driver: ice, numa: 0,
     vfs: {count: 2, product: 1889, driver: vfio-pci}}
"""


class HostFolders:
    """Folders of a host below one folder, in place of the real ones for a process that `enter` starts."""

    def __init__(self, folder: Path, hosts: str = HOST) -> None:
        self.folder = folder
        host_trees.materialise(hosts_file.parse(hosts).hosts[0].tree(), folder)
        self.run = folder / "run"
        self.run.mkdir()

    @property
    def enter(self) -> list[str]:
        mounts = " && ".join(f"mount --bind {self.folder / name} /{name}" for name in ("sys", "run"))
        return ["unshare", "--mount", "--propagation", "private", "sh", "-c", f'{mounts} && exec "$@"', "host"]

    def place(self, path: str) -> Path:
        """Of a path below /run on the host."""
        return self.run / Path(path.replace("/var/run/", "/run/", 1)).relative_to("/run")

    def cdi_files(self) -> dict[str, Object]:
        return {path.name: json.loads(path.read_text()) for path in sorted((self.run / "cdi").glob("*.json"))}


class ClaimKubelet(FakeKubelet):
    def __init__(self, store: Store, node: str, folder: Path, host: HostFolders, client: KubeletClient) -> None:
        super().__init__(store, node, folder)
        self._host, self._client = host, client
        self._socket = folder / "kubelet" / "plugins_registry" / f"{DRIVER}-reg.sock"
        self._socket.parent.mkdir(parents=True)
        self.calls: list[tuple[str, str]] = []  # ("prepare" or "unprepare", claim), those that succeeded
        self.refused: list[str] = []  # what the driver answered, and that it did not

    async def prepare(self, pod: Object) -> ContainerEdits | None:
        claims = await self._claims(pod)
        uid = pod["metadata"]["uid"]
        if any(uid not in [user["uid"] for user in claim["status"].get("reservedFor") or ()] for claim in claims):
            return None  # as the kubelet, which checks it again
        try:
            info = await self._client.register(self._socket)
            answers = await self._client.prepare(info, *map(_named, claims))
        except (grpc.aio.AioRpcError, OSError) as error:
            self.refused.append(str(error))
            return None
        if errors := [answer.error for answer in answers.values() if answer.error]:
            self.refused += errors
            return None
        self.calls += [("prepare", claim["metadata"]["name"]) for claim in claims]
        ids = {name for answer in answers.values() for device in answer.devices for name in device.cdi_device_ids}
        return self._edits(ids)

    async def unprepare(self, pod: Object) -> bool:
        claims = await self._claims(pod)
        try:
            info = await self._client.register(self._socket)
            answers = await self._client.unprepare(info, *map(_named, claims))
        except (grpc.aio.AioRpcError, OSError) as error:
            self.refused.append(str(error))
            return False
        if errors := [answer.error for answer in answers.values() if answer.error]:
            self.refused += errors
            return False
        self.calls += [("unprepare", claim["metadata"]["name"]) for claim in claims]
        return True

    async def _claims(self, pod: Object) -> list[Object]:
        made = {entry["name"]: entry["resourceClaimName"] for entry in pod["status"].get("resourceClaimStatuses") or ()}
        names = [entry.get("resourceClaimName") or made[entry["name"]] for entry in pod["spec"].get("resourceClaims") or ()]
        return [await self._store.get(kinds.RESOURCE_CLAIM, name, pod["metadata"]["namespace"]) for name in names]

    def _edits(self, ids: set[str]) -> ContainerEdits:
        """As a container runtime reads them from the CDI files."""
        env: dict[str, str] = {}
        mounts: dict[str, Path] = {}
        for spec in self._host.cdi_files().values():
            if ids & {f"{spec['kind']}={device['name']}" for device in spec["devices"]}:
                env.update(text.split("=", 1) for text in spec["containerEdits"]["env"])
                mounts.update(self._mounts(spec["containerEdits"]["mounts"]))
        return ContainerEdits(env, mounts)

    def _mounts(self, entries: list[Object]) -> Iterator[tuple[str, Path]]:
        for entry in entries:
            yield entry["containerPath"], self._host.place(entry["hostPath"])


def _named(claim: Object) -> dict[str, str]:
    return {key: claim["metadata"][key] for key in ("namespace", "name", "uid")}
