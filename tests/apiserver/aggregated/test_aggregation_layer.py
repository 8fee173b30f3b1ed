"""The aggregated API behind a real kube-apiserver: virtctl, users with RBAC, and callers who go around kube-apiserver.

It is `outfit webhook` as a process of its own, with the rights and APIServices of `outfit install`; kube-apiserver finds it
by a Service of type ExternalName (docs/testing.md)."""

from __future__ import annotations

import base64
import json
import os
import shutil
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from outfitter.api.device import DRIVER, DeviceId
from outfitter.api.kinds import Object
from outfitter.api.ledger_page.page import Booking, Holder, OutOfServiceRecord
from outfitter.store import pki
from outfitter.store.clock import SystemClock
from tests import control_planes, kubernetes
from tests.cli.test_device_view import ADDRESS, BOOKED, page, published, vf
from tests.cluster_roles import ClusterRoles
from tests.e2e.process import PATIENCE, typed, until

pytestmark = pytest.mark.cluster
TEAM, OTHER = "team", "other"
GROUP = "subresources.kubevirt.io"
SERVED = ((GROUP, "v1"), (GROUP, "v1alpha3"), ("status.outfitter.dev", "v1alpha1"))
NODE = "node-0"
CACHED = Path(__file__).parents[3] / "scripts" / "virtctl"


def virtctl() -> str:
    if found := shutil.which("virtctl"):
        return found
    folder = subprocess.run([CACHED, "--path"], text=True, capture_output=True, check=False).stdout.strip()
    if not folder:
        pytest.skip("there is no virtctl in PATH; scripts/virtctl builds one and prints its folder")
    return f"{folder}/virtctl"


class Aggregation:
    """`outfit webhook` as a process, on a control plane where `outfit install` has put its rights and APIServices."""

    def __init__(self, cluster: kubernetes.Cluster, folder: Path, *options: str) -> None:
        """`options`: further ones of the installation."""
        self.cluster, self.folder = cluster, folder
        [self.port] = kubernetes.free_ports(1)
        done = typed("install", "--apply", "--webhook-url", f"https://localhost:{self.port}", *options,
                     kubeconfig=cluster.kubeconfig)
        assert done.code == 0, done
        self.roles = ClusterRoles(cluster, folder)
        self.webhook = self.roles.start("webhook", "--address", f"127.0.0.1:{self.port}").ready()
        until(lambda: all(self.available(group, version) for group, version in SERVED), "all APIServices are available")
        self.apply(*({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}} for name in (TEAM, OTHER)))
        self.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "ann", "namespace": TEAM}},
                   {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
                    "metadata": {"name": "admin", "namespace": TEAM},
                    "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "outfitter:admin"},
                    "subjects": [{"kind": "ServiceAccount", "name": "ann", "namespace": TEAM}]})

    def available(self, group: str, version: str) -> bool:
        conditions = self.api_service(group, version).get("status", {}).get("conditions") or []
        return any(each["type"] == "Available" and each["status"] == "True" for each in conditions)

    def api_service(self, group: str, version: str) -> Any:
        return json.loads(self.cluster.request("GET", f"/apis/apiregistration.k8s.io/v1/apiservices/{version}.{group}"))

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
def layer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Aggregation]:
    folder = tmp_path_factory.mktemp("aggregated")
    with control_planes.started(folder / "cluster", learn=()) as cluster:
        running = Aggregation(cluster, folder / "roles")
        yield running
        running.roles.stop()


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
    bundle = base64.b64decode(layer.api_service(GROUP, "v1")["spec"]["caBundle"])
    context = ssl.create_default_context(cadata=bundle.decode())
    if certificate:
        context.load_cert_chain(certificate, certificate.with_suffix(".key"))
    request = urllib.request.Request(
        f"https://127.0.0.1:{layer.port}/apis/{GROUP}/v1/namespaces/{TEAM}/virtualmachines/forged/start", b"{}", method="PUT",
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
    shown = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", **published(vf(0), vf(1), vf(2), node=NODE)}
    first, second = (DeviceId(DRIVER, NODE, f"card-vf{number}") for number in range(2))
    layer.apply(shown, {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
                        "metadata": {"name": "secret-claim", "namespace": OTHER}, "spec": {"devices": {}}})
    uid = layer.get("resourceclaim", "secret-claim", OTHER)["metadata"]["uid"]
    holder = Holder("ResourceClaim", OTHER, "secret-claim", uid, "vmi/secret")
    layer.apply(page(Booking(first, holder, "nic", "booked", BOOKED, hardware=(ADDRESS.format(0),)), node=NODE,
                     reserved=[OutOfServiceRecord(second, "secret reason", "ann", BOOKED)]))
    done = typed("devices", "--node", NODE, kubeconfig=ann)
    assert done.code == 0, done
    assert done.out.split()[7:] == [
        NODE, NODE, DRIVER, "3", "1", "1", "1", "3", "devices:", "1", "free,", "1", "held,", "1", "unavailable"]
    assert "showing how many devices of each pool are free and held" in done.err
    [pool] = json.loads(typed("devices", "--node", NODE, "-o", "json", kubeconfig=ann).out)
    assert (pool["availableDevices"], pool["allocatedDevices"]) == (1, 1)
    assert "secret" not in done.out + done.err + json.dumps(pool)
    refused = typed("devices", "--state", "held", kubeconfig=ann)
    assert (refused.code, "without --state" in refused.err) == (1, True)
    listed = layer.cluster.kubectl("get", "poolstatuses")
    assert listed.stdout.split()[:3] == ["POOL", "DRIVER", "NODE"], listed
