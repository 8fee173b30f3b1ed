"""Every field of every object that a busy product writes is in the OpenAPI documents, so that `kubectl explain` knows it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from outfitter.api import kinds
from outfitter.api.kinds import Object
from outfitter.api.served import served_types
from outfitter.apiserver.openapi import OpenApi
from tests.controllers.numa_hosts import flavor, machine, scene


def _unexplained(value: Any, schema: Object, path: str) -> Iterator[str]:
    """The fields of a value that a schema does not have. An object without known fields may have any."""
    if isinstance(value, list):
        for item in value:
            yield from _unexplained(item, schema.get("items", {}), f"{path}[]")
    elif isinstance(value, dict) and ("properties" in schema or "additionalProperties" in schema):
        for name, inner in value.items():
            found = (schema.get("properties") or {}).get(name) or schema.get("additionalProperties")
            yield from _unexplained(inner, found, f"{path}.{name}") if found else [f"{path}.{name}"]
    elif isinstance(value, dict) and schema.get("type") != "object":
        yield path


def _schemas() -> dict[str, Object]:
    """The schema of each kind in the version that it is stored in."""
    served = OpenApi(kinds.ALL)
    out = {}
    for kind in kinds.ALL:
        document = served.document(f"apis/{kind.group}/{kind.version}" if kind.group else f"api/{kind.version}")
        assert document is not None
        schemas = document["components"]["schemas"].values()
        out[kind.kind] = next(each for each in schemas if each["x-kubernetes-group-version-kind"][0]["kind"] == kind.kind)
    return out


async def test_every_field_that_the_product_writes_is_explained() -> None:
    async with scene() as here:
        await flavor(here, "large", "gpu:1, nic:1", extraSpecs={"hw:cpu_policy": "dedicated"})
        await machine(here, "blue", "large")
        await machine(here, "green", "large")
        await here.create(kinds.VM, "amber", {"runStrategy": "Always", "template": {"spec": {
            "domain": {"devices": {"interfaces": [{"name": "n", "masquerade": {}}]}}, "networks": [{"name": "n", "pod": {}}]}}})
        await here.create(kinds.KUBEVIRT, "kubevirt", {})
        await here.running("blue")
        await here.running("amber")
        await here.delete(kinds.VMI, "blue")
        await here.gone("blue")
        schemas = _schemas()
        objects = [(kind.kind, obj) for kind in kinds.ALL for obj in (await here.store.list(kind)).items]
    written = {kind for kind, _ in objects}
    assert written >= {"Node", "Pod", "Event", "ResourceClaim", "ResourceSlice", "VirtualMachine", "VirtualMachineInstance",
                       "KubeVirt", "LedgerPage", "PastBooking", "ProviderTree", "HostInventory"}
    assert {field for kind, obj in objects for field in _unexplained(obj, schemas[kind], kind)} == set()


def test_what_admission_checks_has_precedence_and_gets_the_fields_that_are_known() -> None:
    checked = {"a!": str, "b": dict, "c": [{"d!": int}], "f": {"g!": str}}
    served = {"a": int, "b": {"e": bool}, "c": [{"e": bool}], "h": [{"i": str}]}
    assert served_types.merged(checked, served) == {
        "a": str, "b": {"e": bool}, "c": [{"d": int, "e": bool}], "f": {"g": str}, "h": [{"i": str}]}
