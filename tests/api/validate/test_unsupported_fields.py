"""Every known field of a VM is read by the code, or its writer gets a warning that it is not supported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import outfitter
from outfitter.api.kubevirt import known_kubevirt_fields
from outfitter.api.validate import node_placement, unsupported_fields

PACKAGE = Path(outfitter.__file__).parent
# Who acts on VMs. Of the rest of api those that read for them.
READERS = [
    *(PACKAGE / "launcher").glob("*.py"),
    *(PACKAGE / "controllers").glob("*.py"),
    *(PACKAGE / "node").glob("*.py"),
    *(
        PACKAGE / "api" / "kubevirt" / f"{name}.py"
        for name in ("cloudinit", "guest_address", "device_refs", "vmi_actions", "network_info",
                     "vm_claim_templates")
    ),
]
TEXT = "\n".join(path.read_text() for path in READERS)
# Each kind of volume is looked for by its name, and the launcher reports the others; the rest is refused at admission.
ELSEWHERE = ("volumes", "domain.gpus", "domain.hostDevices", "domain.interfaces", "resourceClaims.source")


def leaves(tree: Any, at: str = "") -> list[str]:
    if not tree or at in node_placement.SHAPE:  # those go into the pod as they are
        return [at]
    return [leaf for name, inner in tree.items() for leaf in leaves(inner, f"{at}.{name}" if at else name)]


def read(path: str) -> bool:
    return f'"{path.rpartition(".")[2]}"' in TEXT


@pytest.mark.parametrize(("tree", "table"), [(known_kubevirt_fields.INSTANCE, unsupported_fields.VMI), (
    {name: inner for name, inner in known_kubevirt_fields.MACHINE.items() if name != "template"}, unsupported_fields.VM)],
    ids=["instance", "machine"])
def test_field_is_used_or_warned_about(tree: Any, table: dict[str, str]) -> None:
    known = [leaf for leaf in leaves(tree) if not leaf.startswith(ELSEWHERE)]
    assert [leaf for leaf in known if not read(leaf) and not any(f"{path}.".startswith(f"{leaf}.") for path in table)] == []


def test_warned_fields_are_known() -> None:
    for path in unsupported_fields.VMI:
        tree: Any = known_kubevirt_fields.INSTANCE
        for name in path.split("."):
            if not tree:
                break  # anything may stand below
            assert name in tree, path
            tree = tree[name]


def test_warned_fields_are_documented() -> None:
    manual = (Path(__file__).parents[3] / "docs" / "vms.md").read_text()
    assert [path for path in (*unsupported_fields.VMI, *unsupported_fields.VM) if f"`{path}`" not in manual] == []
