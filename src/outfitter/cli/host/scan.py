"""`outfit scan`: the PCI functions and mediated devices of a host, as a tree or JSON. Uses no server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from outfitter.cli import params
from outfitter.errors import Invalid

if TYPE_CHECKING:
    from outfitter.inventory.host_tree import Tree
    from outfitter.inventory.mdev import Mdev, MdevType
    from outfitter.inventory.pci import HostDevice
    from outfitter.inventory.pci_ids import PciIds
    from outfitter.inventory.scan import Scan


@click.command("scan")
@click.option("--sysfs", "source", type=params.Named(click.Path(path_type=Path)), default=Path("/"), metavar="DIR|FILE",
              help="Root of a tree that contains sys/, or a file made with --save (default: this host).")
@click.option("-o", "--output", "how", type=click.Choice(["tree", "json"]), default="tree",
              help="How to show it (default: tree).")
@click.option("--save", type=params.Named(click.Path(path_type=Path)), metavar="FILE",
              help="Also save what was read to a file.")
@click.option("--no-serials", is_flag=True, help="Leave out serial numbers.")
def scan(source: Path, how: str, save: Path | None, no_serials: bool) -> None:
    """Show the PCI functions and mediated devices of a host."""
    # Imported late, so that --help is fast.
    from outfitter.cli import tree_printer  # noqa: PLC0415
    from outfitter.cli.host import scan_tree  # noqa: PLC0415
    from outfitter.inventory import capture, pci_ids  # noqa: PLC0415

    found, captured = capture.record(tree_at(source), serials=not no_serials)
    if save is not None:
        capture.save(captured, save)
    database = pci_ids.database()
    if how == "json":
        click.echo(json.dumps(as_json(found, database), indent=2))
    else:
        for line in scan_tree.lines(found, database, plain=tree_printer.is_ascii_only()):
            click.echo(line)
    if save is not None:
        click.echo(f"saved to {save}", err=True)


def tree_at(source: Path, option: str = "--sysfs") -> Tree:
    """The tree in a folder or file, which `option` names."""
    from outfitter.inventory import capture  # noqa: PLC0415
    from outfitter.inventory.host_tree import FolderTree  # noqa: PLC0415

    if source.is_file():
        return capture.load(source)
    if not source.is_dir():
        raise Invalid(f"{option} {source}: there is no such folder or file")
    if (source / "sys").is_dir():
        return FolderTree(source)
    if (source / "bus").is_dir():
        return FolderTree(source, at="/sys")
    raise Invalid(f"{option} {source}: contains no folder sys, and is not one; pass the root of a tree")


def as_json(found: Scan, names: PciIds) -> dict[str, Any]:
    """docs/scan.md lists the keys; every key is always present, null when the host does not report it."""
    return {
        "devices": [_device(device, names) for device in found.devices],
        "mdevs": [_mdev(mdev) for mdev in found.mdevs],
        "mdevParents": [
            {"name": parent.name, "mdevTypes": [_type(mdev_type) for mdev_type in parent.types]} for parent in found.parents
        ],
        "warnings": [{"path": warning.path, "message": warning.message} for warning in found.warnings],
    }


def _device(device: HostDevice, names: PciIds) -> dict[str, Any]:
    vendor, product = names.vendor_and_product(device.vendor, device.product)
    return {
        "name": device.name, "address": device.address, "kind": device.kind.value,
        "vendor": device.vendor, "vendorName": vendor, "product": device.product, "productName": product,
        "class": device.class_code, "className": names.class_name(device.class_code), "revision": device.revision,
        "driver": device.driver, "selfVfio": device.self_vfio, "numa": device.numa, "pcieRoot": device.pcie_root,
        "iommuGroup": device.iommu_group, "members": list(device.members),
        "parent": device.parent, "vfIndex": device.vf_index, "totalVfs": device.total_vfs, "numVfs": device.num_vfs,
        "serial": device.serial, "cardSerial": device.card_serial,
        "interfaces": list(device.interfaces), "speed": device.speed,
        "mdevTypes": [_type(mdev_type) for mdev_type in device.mdev_types],
    }


def _type(mdev_type: MdevType) -> dict[str, Any]:
    return {"id": mdev_type.id, "name": mdev_type.name, "description": mdev_type.description,
            "deviceApi": mdev_type.device_api or None, "available": mdev_type.available,
            "instances": list(mdev_type.instances)}


def _mdev(mdev: Mdev) -> dict[str, Any]:
    return {"name": mdev.name, "uuid": mdev.uuid, "type": mdev.type_id or None, "typeName": mdev.type_name or None,
            "deviceApi": mdev.device_api or None, "parent": mdev.parent, "numa": mdev.numa, "pcieRoot": mdev.pcie_root,
            "iommuGroup": mdev.iommu_group, "memory": mdev.memory}
