"""The aggregated API behind a real kube-apiserver: virtctl, users with RBAC, and callers who go around kube-apiserver.

kube-apiserver finds it by a Service of type ExternalName (docs/testing.md)."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
import ssl
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from outfitter.api.device import DRIVER, DeviceId
from outfitter.api.kinds import Object
from outfitter.api.page import Booking, Holder, OutOfServiceRecord
from outfitter.apiserver.aggregated.app import AggregatedApi, warn_user
from outfitter.apiserver.server import Server
from outfitter.store import kubeconfig, pki
from outfitter.store.clock import SystemClock
from outfitter.store.kube import Kube
from tests import kubernetes
from tests.cli.test_device_view import BOOKED, page, published, vf
from tests.e2e.process import PATIENCE, typed, until

pytestmark = pytest.mark.cluster
SYSTEM, TEAM, OTHER = "aggregated-system", "aggregated-team", "aggregated-other"
GROUP = "subresources.kubevirt.io"
SERVED = ((GROUP, "v1"), (GROUP, "v1alpha3"), ("status.outfitter.dev", "v1alpha1"))
NODE = "aggregated-node"
SERVICE = "outfitter-webhook"
CACHED = Path(__file__).parents[3] / "scripts" / "virtctl"


def virtctl() -> str:
    if found := shutil.which("virtctl"):
        return found
    folder = subprocess.run([CACHED, "--path"], text=True, capture_output=True, check=False).stdout.strip()
    if not folder:
        pytest.skip("there is no virtctl in PATH; scripts/virtctl builds one and prints its folder")
    return f"{folder}/virtctl"


def role(kind: str, name: str, rules: list[Object], **meta: str) -> Object:
    return {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": {"name": name, **meta}, "rules": rules}


def binding(kind: str, name: str, to: tuple[str, str], account: str, place: str, **meta: str) -> Object:
    return {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": {"name": name, **meta},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": to[0], "name": to[1]},
            "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": place}]}


VM_RULES: list[Object] = [
    {"apiGroups": ["kubevirt.io"], "resources": ["virtualmachines", "virtualmachineinstances"], "verbs": ["get", "patch"]},
    {"apiGroups": ["kubevirt.io"], "resources": ["virtualmachines/status", "virtualmachineinstances/status"],
     "verbs": ["patch"]},
    {"apiGroups": ["authorization.k8s.io"], "resources": ["subjectaccessreviews"], "verbs": ["create"]},
    {"apiGroups": ["resource.k8s.io", "outfitter.dev"], "resources": ["resourceslices", "ledgerpages"], "verbs": ["list"]},
]
USER_RULES: list[Object] = [
    {"apiGroups": [GROUP], "resources": ["virtualmachines/start"], "verbs": ["update"]},
    {"apiGroups": ["kubevirt.io"], "resources": ["virtualmachines", "virtualmachineinstances"], "verbs": ["get", "list"]},
]
RULES: list[Object] = [
    *({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}} for name in (SYSTEM, TEAM, OTHER)),
    {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": SERVICE, "namespace": SYSTEM}},
    {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "ann", "namespace": TEAM}},
    role("ClusterRole", SERVICE, VM_RULES),
    binding("ClusterRoleBinding", SERVICE, ("ClusterRole", SERVICE), SERVICE, SYSTEM),
    binding("RoleBinding", SERVICE, ("Role", "extension-apiserver-authentication-reader"), SERVICE, SYSTEM,
            namespace="kube-system"),
    role("ClusterRole", "aggregated-user", [
        {"apiGroups": ["status.outfitter.dev"], "resources": ["poolstatuses"], "verbs": ["list"]}]),
    binding("ClusterRoleBinding", "aggregated-user", ("ClusterRole", "aggregated-user"), "ann", TEAM),
    role("Role", "admin", USER_RULES, namespace=TEAM),
    binding("RoleBinding", "admin", ("Role", "admin"), "ann", TEAM, namespace=TEAM),
]


class Aggregation:
    """The aggregated API with its service account, in an event loop of its own, and its users."""

    def __init__(self, cluster: kubernetes.Cluster, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        self.apply(*RULES)
        clock = SystemClock()
        begin, end = clock.now() - timedelta(hours=1), clock.now() + timedelta(days=1)
        self.ca = pki.authority("aggregated-tests", valid_from=begin, valid_until=end)
        pki.server(self.ca, SERVICE, hosts=[f"{SERVICE}.{SYSTEM}.svc", "127.0.0.1"], valid_from=begin,
                   valid_until=end).save(folder, "serving")
        self.server: Server
        self._began, self._failed = threading.Event(), list[BaseException]()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, args=(clock,), name="aggregated-api")
        self._thread.start()
        assert self._began.wait(PATIENCE), "it serves"
        assert not self._failed, self._failed

    def _run(self, clock: SystemClock) -> None:
        try:
            self._loop.run_until_complete(self._serve(clock))
        except BaseException as error:
            self._failed.append(error)
        finally:
            self._began.set()
            self._loop.close()

    async def _serve(self, clock: SystemClock) -> None:
        self._stop = asyncio.Event()
        access = kubeconfig.load(self.token_config(SERVICE, SYSTEM), clock=clock)
        store = Kube(access, clock=clock, warn=warn_user)
        api, known = AggregatedApi(store, clock=clock), asyncio.Event()
        authority = self.folder / "front-proxy-ca.crt"

        def trust(pem: str) -> None:
            authority.write_text(pem)
            known.set()

        api.front_proxy.on_client_ca(trust)
        running = asyncio.create_task(api.run())
        await known.wait()
        self.server = Server(api, certfile=self.folder / "serving.crt", keyfile=self.folder / "serving.key", ca=authority)
        await self.server.start()
        self._began.set()
        await self._stop.wait()
        await self.server.stop()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await store.close()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(PATIENCE)
        assert not self._failed, self._failed

    def register(self) -> None:
        """As docs/testing.md says: the name of this host, and the port in the APIService."""
        self.apply({"apiVersion": "v1", "kind": "Service", "metadata": {"name": SERVICE, "namespace": SYSTEM},
                    "spec": {"type": "ExternalName", "externalName": "localhost"}})
        for group, version in SERVED:
            self.apply({"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
                        "metadata": {"name": f"{version}.{group}"},
                        "spec": {"group": group, "version": version, "groupPriorityMinimum": 1000, "versionPriority": 15,
                                 "caBundle": base64.b64encode(self.ca.cert).decode(),
                                 "service": {"name": SERVICE, "namespace": SYSTEM, "port": self.server.port}}})
        until(lambda: all(self.available(group, version) for group, version in SERVED), "all APIServices are available")

    def available(self, group: str, version: str) -> bool:
        found = json.loads(self.cluster.request("GET", f"/apis/apiregistration.k8s.io/v1/apiservices/{version}.{group}"))
        conditions = (found.get("status") or {}).get("conditions") or []
        return any(each["type"] == "Available" and each["status"] == "True" for each in conditions)

    def apply(self, *objects: Object) -> None:
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
        done = self.cluster.kubectl("apply", "-f", "-", stdin=text)
        assert done.returncode == 0, done

    def token_config(self, account: str, place: str) -> Path:
        """A kubeconfig with a token of a service account."""
        token = self.cluster.kubectl("create", "token", account, "-n", place)
        assert token.returncode == 0, token
        path = self.folder / f"{account}.kubeconfig"
        authority = (self.cluster.folder / "pki" / "ca.crt").read_bytes()
        config = pki.kubeconfig(self.cluster.server, ca=authority, token=token.stdout.strip())
        pki.save_private(path, json.dumps(config).encode())
        return path

    def virtctl(self, *words: str, config: Path | None = None, fails: bool = False) -> str:
        env = {"PATH": os.environ["PATH"], "HOME": str(self.folder), "KUBECONFIG": str(config or self.cluster.kubeconfig)}
        done = subprocess.run([virtctl(), *words], env=env, text=True, capture_output=True, timeout=PATIENCE, check=False)
        assert (done.returncode != 0) is fails, done
        return done.stdout + done.stderr

    def get(self, kind: str, name: str, place: str = TEAM) -> Any:
        done = self.cluster.kubectl("get", kind, name, "-n", place, "-o", "json")
        assert done.returncode == 0, done
        return json.loads(done.stdout)

    def vm(self, name: str, strategy: str, *, phase: str = "", place: str = TEAM) -> None:
        template: Object = {"spec": {"domain": {"devices": {}}}}
        meta: Object = {"name": name, "namespace": place}
        self.apply({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": meta,
                    "spec": {"runStrategy": strategy, "template": template}})
        if phase:
            owner = {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": name, "controller": True,
                     "uid": self.get("vm", name, place)["metadata"]["uid"]}
            self.apply({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
                        "metadata": {**meta, "ownerReferences": [owner]}, "spec": template["spec"]})
            self.set_status(name, {"phase": phase}, place)

    def set_status(self, name: str, status: Object, place: str = TEAM) -> None:
        done = self.cluster.kubectl("patch", "vmi", name, "-n", place, "--subresource=status", "--type=merge", "-p",
                                    json.dumps({"status": status}))
        assert done.returncode == 0, done

    def requests(self, kind: str, name: str) -> list[str]:
        found = (self.get(kind, name).get("status") or {}).get("stateChangeRequests") or []
        return [" ".join([each["action"], *(each.get("data") or {})]) for each in found]


@pytest.fixture(scope="module")
def layer(cluster: kubernetes.Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Aggregation]:
    running = Aggregation(cluster, tmp_path_factory.mktemp("aggregated"))
    try:
        running.register()
        yield running
    finally:
        cluster.kubectl("delete", "apiservice", *(f"{version}.{group}" for group, version in SERVED))
        running.stop()
        cluster.kubectl("delete", "clusterrole,clusterrolebinding", SERVICE, "aggregated-user")
        cluster.kubectl("delete", "resourceslices,ledgerpages", "-l", "test=aggregated")
        cluster.kubectl("delete", "rolebinding", SERVICE, "-n", "kube-system")
        cluster.kubectl("delete", "vm,vmi", "--all", "-n", TEAM)
        cluster.kubectl("delete", "vm", "--all", "-n", OTHER)
        cluster.kubectl("delete", "namespace", SYSTEM, TEAM, OTHER, "--wait=false")


def test_virtctl_starts_and_stops_vms(layer: Aggregation) -> None:
    layer.vm("off", "Halted")
    assert "Server Version" in layer.virtctl("version")
    layer.virtctl("start", "off", "-n", TEAM, "--paused", "--dry-run")
    assert (layer.get("vm", "off")["spec"]["runStrategy"], layer.requests("vm", "off")) == ("Halted", [])
    assert "VM off was scheduled to start" in layer.virtctl("start", "off", "-n", TEAM, "--paused")
    assert (layer.get("vm", "off")["spec"]["runStrategy"], layer.requests("vm", "off")) == ("Always", ["Start paused"])
    layer.vm("runs", "Always", phase="Running")
    assert "VM is already running" in layer.virtctl("start", "runs", "-n", TEAM, fails=True)
    layer.virtctl("restart", "runs", "-n", TEAM)
    assert layer.requests("vm", "runs") == ["Stop", "Start"]
    layer.virtctl("stop", "runs", "-n", TEAM, "--force", "--grace-period=5")
    assert layer.get("vm", "runs")["spec"]["runStrategy"] == "Halted"
    assert layer.get("vmi", "runs")["spec"]["terminationGracePeriodSeconds"] == 5
    assert 'virtualmachine.kubevirt.io "none" not found' in layer.virtctl("start", "none", "-n", TEAM, fails=True)


def test_virtctl_pauses_and_resets_vmis(layer: Aggregation) -> None:
    layer.vm("blue", "Always", phase="Running")
    layer.virtctl("pause", "vm", "blue", "-n", TEAM)
    assert layer.requests("vmi", "blue") == ["Pause"]
    assert "VMI is already paused" in layer.virtctl("pause", "vmi", "blue", "-n", TEAM, fails=True)
    layer.virtctl("unpause", "vmi", "blue", "-n", TEAM)
    layer.virtctl("soft-reboot", "blue", "-n", TEAM)
    layer.virtctl("reset", "blue", "-n", TEAM)
    assert layer.requests("vmi", "blue") == ["Unpause", "SoftReboot", "Reset"]
    assert "it takes an agent in the guest" in layer.virtctl("userlist", "blue", "-n", TEAM, fails=True)
    assert "outfitter does not open a console" in layer.virtctl("console", "blue", "-n", TEAM, fails=True)


def test_kubectl_finds_the_group(layer: Aggregation) -> None:
    assert {"subresources.kubevirt.io/v1", "subresources.kubevirt.io/v1alpha3"} <= set(
        layer.cluster.kubectl("api-versions").stdout.split())
    path = f"/apis/{GROUP}/v1alpha3"
    assert json.loads(layer.cluster.request("GET", path))["groupVersion"] == f"{GROUP}/v1alpha3"


def test_a_user_may_act_in_the_own_namespace_only(layer: Aggregation) -> None:
    ann = layer.token_config("ann", TEAM)
    layer.vm("hers", "Manual")
    layer.vm("theirs", "Manual", place=OTHER)
    layer.virtctl("start", "hers", "-n", TEAM, config=ann)
    assert layer.requests("vm", "hers") == ["Start"]
    says = layer.virtctl("start", "theirs", "-n", OTHER, config=ann, fails=True)
    assert f'User "system:serviceaccount:{TEAM}:ann" cannot update resource "virtualmachines/start" in API group' in says
    assert "status" not in layer.get("vm", "theirs", OTHER)


def ask(layer: Aggregation, certificate: Path | None, user: str) -> tuple[int, Object]:
    """A request that goes around kube-apiserver."""
    context = ssl.create_default_context(cadata=layer.ca.cert.decode())
    if certificate:
        context.load_cert_chain(certificate, certificate.with_suffix(".key"))
    request = urllib.request.Request(
        f"{layer.server.url}/apis/{GROUP}/v1/namespaces/{TEAM}/virtualmachines/forged/start", b"{}", method="PUT",
        headers={"X-Remote-User": user, "X-Remote-Group": "system:authenticated", "Content-Type": "application/json"})
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)).open(
                request, timeout=PATIENCE) as answer:
            return answer.status, {}
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def test_callers_who_go_around_kube_apiserver(layer: Aggregation) -> None:
    """Forged headers are not believed; where the front proxy's certificate is right, RBAC decides once more."""
    layer.vm("forged", "Manual")
    keys, now = layer.cluster.folder / "pki", SystemClock().now()
    users = pki.Pair((keys / "ca.crt").read_bytes(), (keys / "ca.key").read_bytes())
    admin, _ = pki.client(users, "admin", groups=["system:masters"], valid_from=now - timedelta(hours=1),
                          valid_until=now + timedelta(hours=1)).save(layer.folder, "admin")
    front_proxy = keys / f"{kubernetes.FRONT_PROXY}.crt"
    for certificate, says in ((None, "is asked through kube-apiserver"), (admin, 'the client certificate is of "admin"')):
        status, body = ask(layer, certificate, "system:admin")
        assert (status, body["reason"], says in body["message"]) == (401, "Unauthorized", True)
    status, body = ask(layer, front_proxy, f"system:serviceaccount:{TEAM}:other")
    assert (status, body["reason"]) == (403, "Forbidden")
    assert layer.requests("vm", "forged") == []
    assert ask(layer, front_proxy, f"system:serviceaccount:{TEAM}:ann") == (202, {})
    assert layer.requests("vm", "forged") == ["Start"]


def test_a_user_who_may_not_see_holders_gets_counts(layer: Aggregation) -> None:
    ann = layer.token_config("ann", TEAM)
    labels = {"labels": {"test": "aggregated"}}
    shown = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", **published(vf(0), vf(1), vf(2), node=NODE)}
    first, second = (DeviceId(DRIVER, NODE, f"card-vf{number}") for number in range(2))
    holder = Holder("ResourceClaim", OTHER, "secret-claim", "u-1", "vmi/secret")
    held = page(Booking(first, holder, "nic", "prepared", BOOKED), node=NODE,
                reserved=[OutOfServiceRecord(second, "secret reason", "ann", BOOKED)])
    for obj in (shown, held):
        obj["metadata"] |= labels
        layer.apply(obj)
    done = typed("devices", "--node", NODE, kubeconfig=ann)
    assert (done.code, done.out.split()[7:]) == (0, [
        NODE, NODE, DRIVER, "3", "1", "1", "1", "3", "devices:", "1", "free,", "1", "held,", "1", "unavailable"])
    assert "showing how many devices of each pool are free and held" in done.err
    [pool] = json.loads(typed("devices", "--node", NODE, "-o", "json", kubeconfig=ann).out)
    assert (pool["availableDevices"], pool["allocatedDevices"]) == (1, 1)
    assert "secret" not in done.out + done.err + json.dumps(pool)
    refused = typed("devices", "--state", "held", kubeconfig=ann)
    assert (refused.code, "without --state" in refused.err) == (1, True)
    listed = layer.cluster.kubectl("get", "poolstatuses")
    assert listed.stdout.split()[:3] == ["POOL", "DRIVER", "NODE"], listed
