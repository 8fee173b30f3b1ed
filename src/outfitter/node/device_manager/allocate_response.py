"""A plugin's answer to Allocate as a value: from the message that it sent, or that a checkpoint contains."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from google.protobuf.message import DecodeError

from outfitter.node.device_manager.plugin_resource import ContainerAllocation
from outfitter.node.kubelet.proto import device_plugin_v1beta1_pb2 as pb


def decode(message: bytes, ids: Collection[str]) -> ContainerAllocation | None:
    """What a checkpoint contains; None: it cannot be read, and the plugin is asked again."""
    try:
        return allocation(pb.ContainerAllocateResponse.FromString(message), ids, message)
    except DecodeError:
        return None


def allocation(answer: Any, ids: Collection[str], message: bytes | None = None) -> ContainerAllocation:
    return ContainerAllocation(
        frozenset(ids), dict(answer.envs),
        tuple((each.container_path, each.host_path, each.permissions) for each in answer.devices),
        tuple((each.container_path, each.host_path, each.read_only) for each in answer.mounts),
        tuple(each.name for each in answer.cdi_devices), answer.SerializeToString() if message is None else message)
