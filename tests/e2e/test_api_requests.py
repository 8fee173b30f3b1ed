"""What a VM costs the API server, from its audit log: controller and node agent as processes on a real control plane, VMs
without a device and VMs with a claim, from their creation until they are gone. Counts, not times."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from outfitter.api import kinds
from outfitter.api.kinds import Object
from outfitter.install import names
from outfitter.roles.controller import SELECTORS
from tests import audit_log, control_planes
from tests.audit_log import AuditedRequest
from tests.cluster_roles import ClusterRoles
from tests.e2e.process import until

pytestmark = [pytest.mark.cluster, pytest.mark.time_limit(1800)]
COUNT = 6
VMS = "/apis/kubevirt.io/v1/namespaces/default/virtualmachines"
VMIS = "/apis/kubevirt.io/v1/namespaces/default/virtualmachineinstances"
PAGES = "/apis/outfitter.dev/v1alpha1/ledgerpages"
MOST_EXTRA_PATCHES = 2  # of a VMI's status, for its devices
ALL_NODES = 2  # simulated: one process plays both, and reads what a kubelet would
MOST = {names.CONTROLLER: 26, names.SIMULATION: 20}  # requests per VM with a claim
OUR_KINDS = ("ledgerpages", "pastbookings", "hostinventories", "providertrees", "leases")


def vm(name: str, *, claim: bool) -> Object:
    devices: Object = {"hostDevices": [{"name": "nic0", "claimName": "network", "requestName": "nic"}]} if claim else {}
    claims = [{"name": "network", "resourceClaimTemplateName": "one"}] if claim else []
    return {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": {"name": name}, "spec": {
        "runStrategy": "Always", "template": {"spec": {
            "resourceClaims": claims, "domain": {"memory": {"guest": "64Mi"}, "devices": devices}}}}}


TEMPLATE = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"name": "one"}, "spec": {"spec": {
    "devices": {"requests": [{"name": "nic", "exactly": {"deviceClassName": "any"}}]}}}}
CLASS = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "any"}, "spec": {
    "selectors": [{"cel": {"expression": 'device.driver == "pci.outfitter.dev"'}}]}}


@dataclass(frozen=True)
class Lives:
    """The requests of some VMs, from their creation until they are gone."""

    names: list[str]
    requests: list[AuditedRequest]

    def status_patches(self, name: str) -> int:
        return sum(each.resource == "virtualmachineinstances/status" and each.verb == "patch" and each.name == name
                   and each.code == 200 for each in self.requests)

    def counted(self, account: str) -> Counter[str]:
        return Counter(f"{each.verb} {each.resource}" for each in self.requests
                       if each.account == account and each.verb != "watch" and each.resource != "leases")


class Measured:
    def __init__(self, roles: ClusterRoles) -> None:
        self._roles = roles

    def _requests(self) -> list[AuditedRequest]:
        return [each for each in audit_log.requests(self._roles.cluster.folder) if each.account in MOST]

    def _items(self, path: str) -> list[Object]:
        found: list[Object] = json.loads(self._roles.cluster.request("GET", path))["items"]
        return found

    def lives(self, prefix: str, *, claim: bool) -> Lives:
        before = len(self._requests())
        names_ = [f"{prefix}-{number}" for number in range(COUNT)]
        for name in names_:
            self._roles.create(VMS, vm(name, claim=claim))
        until(lambda: [(each.get("status") or {}).get("phase") for each in self._items(VMIS)] == ["Running"] * COUNT,
              f"all of {prefix} run\n{self._roles.logs()}")
        until(lambda: all((each.get("status") or {}).get("ready") for each in self._items(VMS)), "and are ready")
        for name in names_:
            self._roles.cluster.request("DELETE", f"{VMS}/{name}")
        until(lambda: not self._items(VMS) and not self._items(VMIS), "they are gone")
        until(lambda: not any(page["spec"].get("bookings") for page in self._items(PAGES)), "their devices are free")
        until(lambda: not self._items("/apis/resource.k8s.io/v1/resourceclaims"), "their claims are gone")
        return Lives(names_, self._requests()[before:])


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Lives, Lives, Path]]:
    folder = tmp_path_factory.mktemp("requests")
    with control_planes.started(folder / "cluster", scheduler=True, controllers=True, learn=(),
                                apiserver_flags=audit_log.flags(folder / "cluster")) as cluster:
        roles = ClusterRoles(cluster, folder / "roles")
        roles.install()
        try:
            roles.start("controller").ready().until_said("the controllers run")
            roles.start("node", "--simulate", f"{ALL_NODES}x{COUNT}").ready()
            for path, obj in (("/apis/resource.k8s.io/v1/deviceclasses", CLASS),
                              ("/apis/resource.k8s.io/v1/namespaces/default/resourceclaimtemplates", TEMPLATE)):
                roles.create(path, obj)
            found = Measured(roles)
            plain, claimed = found.lives("plain", claim=False), found.lives("claimed", claim=True)
            assert roles.forbidden() == []
            for lives in (plain, claimed):
                for account in MOST:
                    counts = lives.counted(account)
                    print(lives.names[0], account, sum(counts.values()) / COUNT, dict(counts.most_common()))
                print([lives.status_patches(name) for name in lives.names])
            yield plain, claimed, cluster.folder
        finally:
            roles.stop()
            print(roles.logs())


def test_devices_cost_two_status_patches_more_at_most(measured: tuple[Lives, Lives, Path]) -> None:
    plain, claimed, _ = measured
    least = min(plain.status_patches(name) for name in plain.names)
    assert least > 0
    assert all(claimed.status_patches(name) <= least + MOST_EXTRA_PATCHES for name in claimed.names)


@pytest.mark.parametrize("account", MOST)
def test_requests_per_vm(measured: tuple[Lives, Lives, Path], account: str) -> None:
    counts = measured[1].counted(account)
    assert sum(counts.values()) / COUNT <= MOST[account], counts


def test_objects_of_others_are_patched(measured: tuple[Lives, Lives, Path]) -> None:
    """Only our own kinds are replaced whole, and slices, which their driver owns."""
    updated = {each.resource for each in audit_log.requests(measured[2]) if each.account in MOST and each.verb == "update"}
    assert updated <= {*OUR_KINDS, "resourceslices"}
    assert "ledgerpages" in updated


def test_nothing_is_listed_for_a_vm(measured: tuple[Lives, Lives, Path]) -> None:
    """Lists of a kind would make VMs dearer the more there are."""
    lists = [each for lives in measured[:2] for each in lives.requests
             if each.verb == "list" and not each.selector and each.account in MOST]
    assert lists == []


def test_what_the_controller_watches(measured: tuple[Lives, Lives, Path]) -> None:
    """Of pods those of VMs. Each kind once: a watch that is begun again and again would be a fault."""
    watches = Counter(str(each) for each in audit_log.requests(measured[2])
                      if each.account == names.CONTROLLER and each.verb == "watch")
    assert watches.keys() == {f"watch pods {SELECTORS[kinds.POD].labels}", *(f"watch {kind.plural}" for kind in (
        kinds.VM, kinds.VMI, kinds.KUBEVIRT, kinds.FLAVOR, kinds.NODE, kinds.RESOURCE_CLAIM, kinds.RESOURCE_CLAIM_TEMPLATE,
        kinds.RESOURCE_SLICE, kinds.LEDGER_PAGE, kinds.HOST_INVENTORY, kinds.MIGRATION))}
    assert max(watches.values()) <= 2, watches
