"""The CustomResourceDefinitions in a real kube-apiserver: accepted as they are, nothing is pruned, and clients see what the
embedded server shows them."""

from __future__ import annotations

import functools
import json
import urllib.error
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from outfitter.api import kinds
from outfitter.api.kinds import Kind, Object
from outfitter.api.served import descriptions
from outfitter.apiserver import tables
from outfitter.install import crds
from tests.api.json_places import put
from tests.cases import case as cases
from tests.cases import plugin
from tests.controllers.numa_hosts import flavor, machine, scene
from tests.install import structural
from tests.install.sample_objects import SAMPLES, WRONG, places
from tests.install.test_crds import SCHEMAS
from tests.kubernetes import Cluster

pytestmark = pytest.mark.cluster
EXAMPLES = Path(__file__).parents[2] / "examples"
KINDS = (*crds.KUBEVIRT, *crds.OURS, kinds.NETWORK_ATTACHMENT)
NAMESPACE = "crds"


@pytest.fixture(scope="module")
def server(cluster: Cluster) -> Cluster:
    cluster.request("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    return cluster


def collection(kind: Kind, version: str = "") -> str:
    scope = f"namespaces/{NAMESPACE}/" if kind.namespaced else ""
    return f"/apis/{kind.group}/{version or kind.version}/{scope}{kind.plural}"


def placed(kind: Kind, obj: Object, name: str, version: str = "") -> Object:
    meta = {"name": name} | ({"namespace": NAMESPACE} if kind.namespaced else {})
    return {**obj, "apiVersion": kind.api_version_of(version or kind.version), "kind": kind.kind, "metadata": meta}


def tried(server: Cluster, kind: Kind, obj: Object, version: str = "") -> Object | str:
    """What the server would store, or why it would not."""
    try:
        answer: Object = json.loads(server.request("POST", f"{collection(kind, version)}?dryRun=All", obj))
    except urllib.error.HTTPError as error:
        if error.code in (400, 422):
            return error.read().decode()
        raise
    return answer


def content(obj: Object) -> Object:
    """Without the fields that are null: they are not set."""
    return {name: _content(part) for name, part in obj.items() if name != "metadata"}


def _content(value: Any) -> Any:
    if isinstance(value, list):
        return [_content(entry) for entry in value]
    return {name: _content(part) for name, part in value.items() if part is not None} if isinstance(value, dict) else value


def test_every_definition_is_established_and_structural(server: Cluster) -> None:
    stored = json.loads(server.request("GET", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"))["items"]
    found = {crd["metadata"]["name"]: crd for crd in stored}
    for kind in KINDS:
        crd = found[kind.resource]
        conditions = {condition["type"]: condition["status"] for condition in crd["status"]["conditions"]}
        assert conditions == {"Established": "True", "NamesAccepted": "True"}, "NonStructuralSchema is not there"
        assert crd["status"]["storedVersions"] == [kind.version]
        applied = crds.definition(kind)
        assert crd["metadata"]["annotations"] == applied["metadata"]["annotations"]
        assert crd["spec"]["versions"] == applied["spec"]["versions"], "a second apply changes nothing"


def written() -> Iterator[tuple[str, Object]]:
    for path in sorted(EXAMPLES.rglob("*.yaml")):
        for index, obj in enumerate(yaml.safe_load_all(path.read_text())):
            if isinstance(obj, dict) and (kinds.of_object(obj) or kinds.POD) in KINDS:
                yield f"{path.relative_to(EXAMPLES)}[{index}]", obj


def test_examples_are_kept_as_they_are_written(server: Cluster) -> None:
    examples = dict(written())
    assert len(examples) > 20
    for name, obj in examples.items():
        _kept(server, name, obj)


def _kept(server: Cluster, name: str, obj: Object) -> None:
    kind = kinds.of_object(obj)
    assert kind is not None
    version = obj["apiVersion"].rpartition("/")[2]
    sent = placed(kind, {part: value for part, value in obj.items() if part != "status"}, "it", version)
    answer = tried(server, kind, sent, version)
    assert isinstance(answer, dict), f"{name}: {answer}"
    assert content(answer) == content(sent), name


def test_objects_of_the_cases_are_kept_as_they_are_written(server: Cluster, request: pytest.FixtureRequest) -> None:
    count = 0
    for case in (*cases.read_all(plugin.OWN), *cases.read_all(*plugin.folders(request.config))):
        given = case.data.get("given")
        for obj in given if isinstance(given, list) else ():
            kind = kinds.of_object(obj) if isinstance(obj, dict) else None
            if kind not in KINDS:
                continue
            if structural.accepts(SCHEMAS[kind], obj):
                _kept(server, case.id, obj)
                count += 1
            else:
                assert case.expect.get("allowed") is False or "error" in case.expect, f"{case.id}: admission takes it"
    assert count > 50


async def test_what_the_product_writes_is_kept(server: Cluster) -> None:
    async with scene() as here:
        await flavor(here, "large", "gpu:1, nic:1", extraSpecs={"hw:cpu_policy": "dedicated"})
        await machine(here, "blue", "large")
        await here.create(kinds.VM, "amber", {"runStrategy": "Always", "template": {"spec": {
            "domain": {"devices": {"interfaces": [{"name": "n", "masquerade": {}}]}}, "networks": [{"name": "n", "pod": {}}]}}})
        await here.create(kinds.KUBEVIRT, "kubevirt", {})
        await here.running("blue")
        await here.running("amber")
        await here.delete(kinds.VMI, "blue")
        await here.gone("blue")
        objects = [(kind, obj) for kind in KINDS for obj in (await here.store.list(kind)).items]
    assert {kind for kind, _ in objects} >= {*crds.OURS, kinds.VM, kinds.VMI, kinds.KUBEVIRT}
    for kind, obj in objects:
        _kept(server, kind.kind, obj)
        if "status" in obj and kind.has_status:
            assert _status(server, kind, obj)["status"] == obj["status"]


def _status(server: Cluster, kind: Kind, obj: Object) -> Object:
    """The object after a write of its status."""
    sent = placed(kind, obj, "with-status")
    try:
        stored = json.loads(server.request("POST", collection(kind), sent))
    except urllib.error.HTTPError as error:
        if error.code != 409:
            raise
        stored = json.loads(server.request("GET", f"{collection(kind)}/with-status"))
    answer: Object = json.loads(server.request("PUT", f"{collection(kind)}/with-status/status", {
        **stored, "status": obj["status"]}))
    return answer


def test_no_unknown_field_is_lost(server: Cluster) -> None:
    for name, path in places():
        kind, obj = SAMPLES[name]
        if path[0] == "spec" and isinstance(_at(obj, path), dict):
            sent = placed(kind, put(obj, path, {**_at(obj, path), "ofALaterVersion": "text"}), "it")
            answer = tried(server, kind, sent)
            if structural.accepts(SCHEMAS[kind], sent):  # not so in a map whose values are objects
                assert isinstance(answer, dict), answer
                assert answer["spec"] == sent["spec"]


def _at(obj: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        obj = obj[key]
    return obj


def test_what_is_refused_is_what_the_tests_say_is_refused(server: Cluster) -> None:
    """`structural`, which `test_crds` compares with admission, decides as kube-apiserver does."""
    wrong = []
    for number, (name, path) in enumerate(places()):
        kind, obj = SAMPLES[name]
        for value in WRONG[number % 7::7] if path[0] == "spec" else ():
            sent = placed(kind, {"spec": put(obj, path, value)["spec"]}, "it")
            answer = tried(server, kind, sent)
            if isinstance(answer, dict) != structural.accepts(SCHEMAS[kind], sent):
                wrong.append((name, path, value, answer if isinstance(answer, str) else "accepted"))
    assert wrong == []


def test_kubectl_prints_the_columns_of_the_embedded_server(server: Cluster) -> None:
    for name in ("devices", "owner", "settings", "page", "past", "providers", "inventory", "flavor", "migration"):
        kind, obj = SAMPLES[name]
        shown = {column["name"]: column for column in crds.definition(kind)["spec"]["versions"][0]["additionalPrinterColumns"]}
        sent = placed(kind, obj, f"printed-{name}")
        stored = json.loads(server.request("POST", collection(kind), sent))
        if kind.has_status:
            stored = json.loads(server.request("PUT", f"{collection(kind)}/printed-{name}/status", {
                **stored, "status": obj["status"]}))
        printed = server.kubectl("get", kind.resource, f"printed-{name}", "-n", NAMESPACE, "-o", "wide")
        assert printed.returncode == 0, printed.stderr
        head, line = printed.stdout.rstrip("\n").split("\n")
        table = tables.table(kind, [stored], {}, now=datetime.now(UTC), include="None", version="v1")
        heads = [each["name"] for each in table["columnDefinitions"]]
        cells = dict(zip(heads, map(_text, table["rows"][0]["cells"]), strict=True))
        expected = {name: cell for name, cell in cells.items() if name == "Name" or name in shown}
        found = _columns(head, line)
        assert list(found) == [name.upper() for name in expected]
        for column, cell in expected.items():
            if column != "Age":  # which differs by the seconds that kubectl takes
                assert found[column.upper()] == cell, f"{kind.kind} {column}"


def _text(cell: Any) -> str:
    return "" if cell is None else str(cell)


def _columns(head: str, line: str) -> dict[str, str]:
    """The cells of a line below their heads, which three spaces separate."""
    starts = [0, *(place + 3 for place in range(len(head) - 3) if head[place:place + 3] == "   " and head[place + 3] != " ")]
    ends = [*starts[1:], len(line) + len(head)]
    return {head[start:end].strip(): line[start:end].strip() for start, end in zip(starts, ends, strict=True)}


def test_kubectl_explains_every_kind(server: Cluster) -> None:
    gpus = ("VirtualMachineInstance", "spec", "domain", "devices", "gpus")
    asked = {"vmi.spec.domain.devices.gpus.claimName": (*gpus, "claimName"),
             "vm.spec.resourceClaimTemplates": ("VirtualMachine", "spec", "resourceClaimTemplates"),
             "pages.spec.bookings.holder": ("LedgerPage", "spec", "bookings", "holder"),
             "flavors": ("Flavor",)}
    for word, path in asked.items():
        server.until(functools.partial(_explained, server, word))
        text = " ".join(server.kubectl("explain", word).stdout.split())
        assert " ".join(descriptions.describe(path).split()) in text


def _explained(server: Cluster, word: str) -> bool:
    return server.kubectl("explain", word).returncode == 0


def test_field_selectors(server: Cluster) -> None:
    kind, obj = SAMPLES["devices"]
    for name, node in (("one", "elm"), ("two", "oak")):
        stored = json.loads(server.request("POST", collection(kind), placed(kind, obj, name)))
        server.request("PUT", f"{collection(kind)}/{name}/status", {
            **stored, "status": {**obj["status"], "nodeName": node, "phase": "Scheduled"}})
    for version in kind.versions:
        selector = "status.nodeName%3Delm,status.phase%3DScheduled"
        found = json.loads(server.request("GET", f"{collection(kind, version)}?fieldSelector={selector}"))
        assert [item["metadata"]["name"] for item in found["items"]] == ["one"]
    for other in (kinds.MIGRATION, kinds.PAST_BOOKING):
        for path in other.selectable:
            server.request("GET", f"{collection(other)}?fieldSelector={path}%3Dnone")


def test_both_versions_of_kubevirt_are_one_object(server: Cluster) -> None:
    kind, obj = SAMPLES["owner"]
    sent = placed(kind, obj, "old", "v1alpha3")
    server.request("POST", collection(kind, "v1alpha3"), sent)
    for version in kind.versions:
        read = json.loads(server.request("GET", f"{collection(kind, version)}/old"))
        assert read["apiVersion"] == f"kubevirt.io/{version}"
        assert read["spec"] == sent["spec"]
