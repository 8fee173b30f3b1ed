"""`outfit node pods`: the pods of this node with the devices of their containers, read where a kubelet, or outfitter in its
place, shows them to monitors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from outfitter.api.assignment.kubelet_folder import KUBELET_DIR
from outfitter.cli import params

if TYPE_CHECKING:
    from outfitter.node.readers.pod_devices import ReadablePod

HEAD = ("NAMESPACE", "POD", "CONTAINER", "DEVICE", "FROM", "NUMA", "CPUS")


@click.command("pods")
@click.option("--kubelet-dir", type=params.Named(click.Path(file_okay=False, path_type=Path)), metavar="DIR",
              default=KUBELET_DIR, show_default=True,
              help="The kubelet's folder, or the one that outfit up --kubelet-dir serves.")
@click.option("-o", "--output", "how", type=click.Choice(["text", "json"]), default="text",
              help="How to show it (default: text).")
def pods(kubelet_dir: Path, how: str) -> None:
    """Show the pods of this node with the devices of their containers."""
    from outfitter.cli.printers import columns  # noqa: PLC0415
    from outfitter.node.readers import pod_resources_client  # noqa: PLC0415  # gRPC is slow to import

    found = sorted(pod_resources_client.pods(kubelet_dir), key=lambda pod: (pod.namespace, pod.name))
    if how == "json":
        click.echo(json.dumps([_object(pod) for pod in found], indent=2))
        return
    rows = [row for pod in found for row in _rows(pod)]
    click.echo("\n".join(columns([list(HEAD), *rows])) if rows else "no pods")


def _rows(pod: ReadablePod) -> Iterator[list[str]]:
    from outfitter.inventory import cpulist  # noqa: PLC0415

    for container in pod.containers:
        cpus = cpulist.text(container.cpu_ids) if container.cpu_ids else "-"
        named = [(id_, resource, ",".join(map(str, nodes)) or "-") for resource, devices in container.devices.items()
                 for id_, nodes in devices.items()]
        named += [(f"{device.driver}/{device.pool}/{device.device}", f"claim {claim.name}", "-")
                  for claim in container.claims for device in claim.devices]
        for device, source, numa in named or [("-", "-", "-")]:
            yield [pod.namespace, pod.name, container.name, device, source, numa, cpus]


def _object(pod: ReadablePod) -> dict[str, Any]:
    return {"namespace": pod.namespace, "name": pod.name, "containers": [{
        "name": container.name, "cpus": list(container.cpu_ids),
        "devices": [{"resource": resource, "id": id_, "numaNodes": list(nodes)}
                    for resource, devices in container.devices.items() for id_, nodes in devices.items()],
        "claims": [{"name": claim.name, "devices": [{
            "driver": device.driver, "pool": device.pool, "device": device.device, "cdi": list(device.cdi_ids)}
            for device in claim.devices]} for claim in container.claims]} for container in pod.containers]}
