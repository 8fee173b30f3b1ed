"""A custom scheduler: gives a pod a GPU and a VF on the same PCIe root, by writing `assignedDevices` and removing its gate.

    python scheduler.py POD [--root PCIE_ROOT]

It reads what hosts publish and what is held with `outfit get -o json`, and writes with `outfit apply`. Which pod gets a device
is decided by the server: of two schedulers that choose the same device one pod waits, with the code that says so."""

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path

GATE = "example.com/same-root"
GPU, VF = "example.com/gpu", "example.com/vf"
ROOT, NVIDIA = "resource.kubernetes.io/pcieRoot", "10de"
OUTFIT = shutil.which("outfit") or str(Path(sys.executable).with_name("outfit"))


def outfit(*words, text=None):
    return subprocess.run([OUTFIT, *words], input=text, capture_output=True, text=True, check=True).stdout


def objects(kind):
    return json.loads(outfit("get", kind, "-A", "-o", "json"))["items"]


def value(device, name):
    attribute = device.get("attributes", {}).get(name, {})
    return next(iter(attribute.values()), None)


def pairs(slices, held):
    """(PCIe root, GPU, VF) for every root that has a free one of both; devices as HOST/DEVICE."""
    gpus, vfs = {}, {}
    for part in slices:
        for device in part["spec"].get("devices", ()):
            name = f"{part['spec']['pool']['name']}/{device['name']}"
            kind = vfs if value(device, "kind") == "VF" else gpus if value(device, "vendor") == NVIDIA else None
            if kind is not None and name not in held:
                kind.setdefault((part["spec"]["pool"]["name"], value(device, ROOT)), name)
    return [(root, gpus[host, root], vfs[host, root]) for host, root in sorted(gpus.keys() & vfs.keys(), key=str)]


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("pod")
    arguments.add_argument("--root", help="only devices on this PCIe root, free or not")
    asked = arguments.parse_args()
    held = {f"{result['pool']}/{result['device']}" for claim in objects("resourceclaims")
            for result in claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", ())}
    found = pairs(objects("resourceslices"), held if asked.root is None else ())
    found = [pair for pair in found if asked.root in (None, pair[0])]
    if not found:
        sys.exit("no PCIe root has a free GPU and a free VF")
    root, gpu, vf = found[0]
    pod = json.loads(outfit("get", "pod", asked.pod, "-o", "json"))
    pod["spec"]["schedulingGates"] = [gate for gate in pod["spec"].get("schedulingGates", ()) if gate["name"] != GATE]
    pod["spec"]["containers"][0]["assignedDevices"] = [
        {"resourceName": GPU, "deviceIDs": [gpu]}, {"resourceName": VF, "deviceIDs": [vf]}]
    outfit("apply", "-f", "-", text=json.dumps(pod))
    print(f"{asked.pod}: {gpu} and {vf} on {root}")


if __name__ == "__main__":
    main()
