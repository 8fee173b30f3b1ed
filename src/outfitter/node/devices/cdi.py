"""CDI specs (Container Device Interface): what a container runtime adds to a container that uses a claim. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

VERSION = "0.6.0"
CONTROL = "vfio/vfio"  # the control node of VFIO, needed beside each group's


def kind(driver: str) -> str:
    return f"{driver}/device"


def file_name(driver: str, uid: str) -> str:
    return f"{driver}-claim_{uid}.json"


def is_ours(driver: str, name: str) -> bool:
    """Whether a file of the folder, which all drivers share, is a claim's of this driver."""
    return name.startswith(f"{driver}-claim_") and name.endswith(".json")


def names_no_device(text: str) -> bool:
    """Whether a spec has no device: earlier versions wrote such files for claims on devices of other drivers alone."""
    try:
        content = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return False
    return isinstance(content, dict) and content.get("devices") == []


def device_name(uid: str, device: str) -> str:
    return f"{uid}-{device}"


def spec(
    driver: str, uid: str, nodes: Mapping[str, Sequence[str]], *, env: Mapping[str, str], mounts: Mapping[str, str], dev: str
) -> str:
    """`nodes`: device -> its nodes below the folder `dev` of the host; `mounts`: path of the host -> path in the container."""

    def node(name: str) -> dict[str, str]:
        host = f"{dev}/{name}"
        return {"path": f"/dev/{name}", **({"hostPath": host} if host != f"/dev/{name}" else {}), "permissions": "rw"}

    return msgspec.json.format(msgspec.json.encode({
        "cdiVersion": VERSION,
        "kind": kind(driver),
        "devices": [{"name": device_name(uid, device), "containerEdits": {"deviceNodes": [node(name) for name in names]}}
                    for device, names in nodes.items()],
        "containerEdits": {
            "env": [f"{name}={value}" for name, value in env.items()],
            "deviceNodes": [node(CONTROL)],
            "mounts": [{"hostPath": host, "containerPath": inside, "options": ["ro", "bind"]}
                       for host, inside in mounts.items()],
        },
    }), indent=1).decode() + "\n"
