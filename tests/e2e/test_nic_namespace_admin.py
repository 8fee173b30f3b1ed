"""NICs of a running VM on a real control plane, changed by an admin of a namespace who has no right to create migrations: with
the installation's roles, the webhook, and the token of a service account that has Kubernetes' ClusterRole `admin` there. The
nodes' own plumbing is off; the test plays the dynamic-networks-controller, with the rights of the cluster's administrator."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from outfitter.api import kinds
from tests import control_planes
from tests.e2e import nic_changes
from tests.e2e.nic_changes import NEVER, SOON
from tests.e2e.process import until
from tests.e2e.tenant import TEAM, USER, Tenant

pytestmark = [pytest.mark.cluster, pytest.mark.time_limit(1800)]


class Admin:
    """What the user types about VM blue, and sees."""

    def __init__(self, tenant: Tenant) -> None:
        self.tenant = tenant

    def types(self, *words: str, stdin: str = "") -> str:
        done, text = self.tenant.user(*words, stdin=stdin)
        assert done, text
        return text

    def refused(self, *words: str, stdin: str = "") -> str:
        done, text = self.tenant.user(*words, stdin=stdin)
        assert not done, text
        return text

    def patch(self, patch: str) -> None:
        self.types("patch", "vm", "blue", "--type=json", "-p", patch)

    def vm(self) -> Any:
        return self.tenant.shown("vm", "blue")

    def status(self) -> Any:
        return self.tenant.shown("vmi", "blue").get("status") or {}

    def condition(self, name: str) -> Any:
        return next((each for each in self.status().get("conditions") or () if each["type"] == name), {})

    def sources(self, name: str) -> set[str]:
        found = [each.get("infoSource") for each in self.status().get("interfaces") or () if each.get("name") == name]
        return {word.strip() for text in found for word in str(text or "").split(",") if word.strip()}

    def migrations(self) -> list[Any]:
        return list(json.loads(self.types("get", "vmim", "-o", "json"))["items"])

    def grace(self, grace: str, speed: str = "64Gi") -> None:
        """Set by the administrator of the cluster."""
        done = self.tenant.plane.kubectl("apply", "-f", "-", stdin=nic_changes.settings(grace, speed))
        assert done.returncode == 0, done


@pytest.fixture(scope="module")
def admin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Admin]:
    folder = tmp_path_factory.mktemp("nics")
    (folder / "outfitter.yaml").write_text("plug_in_place: false\n")
    with control_planes.started(folder / "plane", scheduler=True, controllers=True, learn=(kinds.NETWORK_ATTACHMENT,)) as plane:
        tenant = Tenant(plane, folder / "roles", "--config", str(folder / "outfitter.yaml"), simulate="2x4")
        made = plane.kubectl("apply", "-n", TEAM, "-f", "-", stdin=nic_changes.NETWORKS)  # of the administrator, with Multus
        assert made.returncode == 0, made
        user = Admin(tenant)
        user.grace(NEVER)
        user.types("apply", "-f", "-", stdin=nic_changes.BLUE)
        tenant.reach("blue", "Running")
        yield user
        tenant.roles.stop()
        assert tenant.roles.forbidden() == []


def test_namespace_admin_may_not_create_migrations(admin: Admin) -> None:
    name = f"system:serviceaccount:{TEAM}:{USER}"
    text = admin.refused("create", "-f", "-", stdin=nic_changes.migration("mine"))
    assert f'User "{name}" cannot create resource "virtualmachineinstancemigrations"' in text
    text = admin.refused("delete", "vmim", "theirs")
    assert f'User "{name}" cannot delete resource "virtualmachineinstancemigrations"' in text
    pods = admin.tenant.items(kinds.POD, TEAM)
    assert len(pods) == 1


@pytest.mark.parametrize("what", nic_changes.BAD_CHANGES)
def test_bad_change_is_refused_by_its_field(what: str, admin: Admin) -> None:
    change, before = nic_changes.BAD_CHANGES[what], admin.vm()["spec"]
    text = admin.refused("patch", "vm", "blue", "--type=json", "-p", change.patch)
    assert change.field in text
    assert change.why in text
    assert admin.vm()["spec"] == before


def test_migration_to_the_own_host_or_a_second_one_is_refused(admin: Admin) -> None:
    """Of the administrator of the cluster."""
    def create(name: str, host: str = "") -> str:
        done = admin.tenant.plane.kubectl("create", "-n", TEAM, "-f", "-", stdin=nic_changes.migration(name, host))
        return done.stderr

    admin.grace(NEVER, speed="1Mi")
    source = admin.status()["nodeName"]
    text = create("first", source)
    assert "spec.addedNodeSelector[kubernetes.io/hostname]" in text
    assert f"runs on {source} already" in text
    until(lambda: create("first") == "", "a migration begins")
    text = create("second")
    assert "spec.vmiName" in text
    assert "in-flight migration detected: migration first of this VMI" in text
    admin.tenant.plane.kubectl("delete", "vmim", "-n", TEAM, "first")
    assert admin.migrations() == []
    assert admin.status()["nodeName"] == source
    admin.grace(NEVER)


def test_namespace_admin_plugs_and_unplugs_in_place_and_by_migration(admin: Admin) -> None:
    plane, source, uid = admin.tenant.plane, admin.status()["nodeName"], admin.tenant.shown("vmi", "blue")["metadata"]["uid"]
    admin.patch(nic_changes.plug("lan", "lan", bridge={}))

    def networks() -> list[Any]:
        [pod] = admin.tenant.items(kinds.POD, TEAM)
        return list(json.loads(pod["metadata"].get("annotations", {}).get("k8s.v1.cni.cncf.io/networks") or "[]"))

    [entry] = until(networks, "the pod is to have the network")
    [pod] = admin.tenant.items(kinds.POD, TEAM)
    reported = [{"name": "pod", "interface": "eth0", "default": True},
                {"name": f"{TEAM}/lan", "interface": entry["interface"], "mac": "02:00:00:00:00:09"}]
    done = plane.kubectl("annotate", "pod", "-n", TEAM, pod["metadata"]["name"], "--overwrite",
                         f"k8s.v1.cni.cncf.io/network-status={json.dumps(reported)}")
    assert done.returncode == 0, done
    until(lambda: admin.sources("lan") == {"domain", "multus-status"}, "blue has the NIC")
    until(lambda: not admin.condition("MigrationRequired"), "nothing waits")
    assert (admin.migrations(), admin.status()["nodeName"]) == ([], source)

    admin.grace(SOON)
    admin.patch(nic_changes.unplug(admin.vm(), "lan"))
    admin.patch(nic_changes.plug("fast", "fast", sriov={}))
    until(lambda: "domain" in admin.sources("fast"), "blue has the VF")
    until(lambda: not admin.sources("lan"), "and no other NIC any more")
    until(lambda: [card["name"] for card in admin.vm()["spec"]["template"]["spec"]["domain"]["devices"]["interfaces"]]
          == ["default", "fast"], "the template, neither")
    until(lambda: not admin.condition("MigrationRequired"), "nothing waits")
    jobs = until(lambda: [job for job in admin.migrations() if job["status"]["phase"] == "Succeeded"], "the admin sees why")
    assert admin.tenant.shown("vmi", "blue")["metadata"]["uid"] == uid
    assert jobs


def test_namespace_admin_cancels_a_plug_that_waits(admin: Admin) -> None:
    admin.grace(NEVER)
    admin.patch(nic_changes.plug("lan2", "lan", bridge={}))
    until(lambda: admin.condition("MigrationRequired").get("status") == "False", "a migration is pending")
    admin.patch(nic_changes.unplug(admin.vm(), "lan2"))
    until(lambda: not admin.condition("MigrationRequired"), "nothing waits")
    until(lambda: "lan2" not in json.dumps([admin.vm()["spec"], admin.tenant.shown("vmi", "blue")["spec"]]), "it is gone")
