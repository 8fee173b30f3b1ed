"""VMs of every kind, drawn at random: with devices by claim and of plugins, interfaces, disks, nodes and addresses of the
user's own. Many of them contradict themselves somewhere and are refused."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from outfitter.api.kubevirt import network_info
from outfitter.api.kubevirt.network_info import Wire
from outfitter.launcher.domain_options import DomainOptions
from tests.launcher.domain_cases import NAMED, PASSED, Situation, device, file, got, instance, plugged, told, wanted

NAMES = st.text("abcXYZ019.-_é ", min_size=1, max_size=8)
UUIDS = st.uuids().map(str)
ADDRESSES = st.builds("{:04x}:{:02x}:{:02x}.{}".format, st.integers(0, 0xFFFF), st.integers(0, 255), st.integers(0, 31),
                      st.integers(0, 7))
RARELY = st.integers(0, 7).map(lambda number: number == 7)  # what is refused more often than not
PLACES = st.builds("0000:{:02x}:{:02x}.0".format, st.integers(0, 40), st.sampled_from([0, 0, 0, 3]))
GUEST = RARELY.flatmap(lambda asked: PLACES if asked else st.none())
MACS = st.sampled_from([None, "02:00:00:00:00:0e"])
VLANS = st.sampled_from([None, 1, 4094])
FLAG = st.sampled_from([None, True, False])
DISPLAY = st.none() | st.fixed_dictionaries({}, optional={"enabled": FLAG, "ramFB": st.fixed_dictionaries({}, optional={
    "enabled": FLAG})})


@st.composite
def devices(draw: st.DrawFn, list_: str) -> tuple[list[Any], list[Any], dict[str, str]]:
    entries: list[Any] = []
    statuses: list[Any] = []
    env: dict[str, str] = {}
    for name in draw(st.lists(NAMES, max_size=4, unique=True)):
        mediated = draw(st.booleans())
        more: dict[str, Any] = {"tag": draw(st.sampled_from([None, "tagged"])), "pciAddress": draw(GUEST)}
        if list_ == "gpus":
            # A whole card with a display needs a newer schema than some systems have.
            more["virtualGPUOptions"] = {"display": draw(DISPLAY)} if mediated else None
        if draw(st.booleans()):
            resource = f"acme.test/{len(env)}-{list_}"
            entries.append(plugged(name, resource, **more))
            prefix = "MDEV_PCI_RESOURCE" if mediated else "PCI_RESOURCE"
            env[f"{prefix}_{resource.upper().replace('/', '_').replace('.', '_')}"] = draw(UUIDS if mediated else ADDRESSES)
            continue
        entries.append(wanted(name, **more))
        for _ in range(draw(st.integers(1, 3))):
            node = draw(st.sampled_from([None, 0, 1, 9]))
            where: dict[str, Any] = {"mdevUUID": draw(UUIDS)} if mediated else {"pciAddress": draw(ADDRESSES)}
            if not mediated and draw(st.booleans()):
                where["members"] = [where["pciAddress"], *draw(st.lists(ADDRESSES, max_size=9, unique=True))]
            statuses.append(got(name, numaNode=node, **where))
    return entries, statuses, env


@st.composite
def machines(draw: st.DrawFn) -> Situation:
    gpus, gpu_statuses, env = draw(devices("gpus"))
    others, other_statuses, more_env = draw(devices("hostDevices"))
    interfaces: list[dict[str, Any]] = [{
        "name": name, draw(st.sampled_from(["bridge", "masquerade", "slirp", "sriov", "sriov"])): {}, "pciAddress": draw(GUEST),
        "macAddress": draw(st.sampled_from([None, "02-00-00-00-00-01", "02:00:00:00:AA:01"])),
        "model": draw(st.sampled_from([None, "virtio", "e1000e"])),
        "state": draw(st.sampled_from([None, "up", "down", "absent"])),
        "bootOrder": 1 if draw(RARELY) else draw(st.sampled_from([None, 2 + number])),
        "tag": draw(st.sampled_from([None, "net"])),
    } for number, name in enumerate(draw(st.lists(NAMES, max_size=3, unique=True)))]
    networks, files = [], {}
    functions: dict[str, str] = {}  # of interfaces by claim
    for number, interface in enumerate(interfaces):
        if "sriov" in interface and draw(st.booleans()):
            networks.append({"name": interface["name"], "resourceClaim": {"claimName": "claim", "requestName": f"r{number}"}})
            first = functions[interface["name"]] = draw(ADDRESSES)
            more = draw(st.none() | st.lists(ADDRESSES, min_size=1, max_size=8, unique=True))
            files[file(f"r{number}")] = told(f"r{number}", device(f"d{number}", address=first, **(
                {"members": ",".join([first, *more])} if more else {})))
            continue
        networks.append({"name": interface["name"], **draw(st.sampled_from([{"pod": {}}, {"multus": {"networkName": "n"}}]))})
        env[f"KUBEVIRT_RESOURCE_NAME_{interface['name']}"] = f"vf/{number}"
        env[f"PCIDEVICE_VF_{number}"] = draw(ADDRESSES)
    wired = [Wire(each["name"], draw(st.sampled_from(["function", "device"])), draw(MACS),
                  functions.get(each["name"]) or draw(ADDRESSES), vlan=draw(VLANS)) if "sriov" in each else
             Wire(each["name"], draw(st.sampled_from(["user", "bridge", "none"])), draw(MACS), bridge="br0", why="it is so")
             for each in interfaces]
    if draw(st.booleans()):
        files[network_info.FILE] = network_info.write(wired)
    disks = [{"name": name, draw(st.sampled_from(["disk", "cdrom"])): {"bus": draw(st.sampled_from([
        "virtio", "sata", "scsi", "usb"])), "readonly": draw(FLAG), "pciAddress": draw(GUEST)},
        "serial": draw(st.sampled_from([None, "S1"])), "cache": draw(st.sampled_from([None, "none", "writethrough"]))}
        for name in draw(st.lists(NAMES, max_size=3, unique=True))]
    spec = {"networks": networks, **NAMED,
            "volumes": [{"name": each["name"], **draw(st.sampled_from([{"hostDisk": {"path": "/x/y"}}, {"containerDisk": {}}, {
                "cloudInitNoCloud": {}}]))} for each in disks],
            "architecture": "s390x" if draw(RARELY) else draw(st.sampled_from([None, "amd64", "arm64"]))}
    return Situation(instance(
        {"gpus": gpus, "hostDevices": others, "interfaces": interfaces, "disks": disks,
         "rng": draw(st.sampled_from([None, {}])),
         "autoattachGraphicsDevice": draw(FLAG), "autoattachSerialConsole": draw(FLAG),
         "inputs": draw(st.sampled_from([None, [{"type": "tablet", "name": "pen"}]]))},
        {"gpuStatuses": gpu_statuses, "hostDeviceStatuses": other_statuses},
        cpu={**draw(st.sampled_from([{}, PASSED])), "cores": draw(st.integers(0, 5)), "sockets": draw(st.integers(0, 2)),
             "model": draw(st.sampled_from([None, "host-model", "host-passthrough", "Nehalem"]))},
        memory={"guest": draw(st.sampled_from(["64Mi", "1Gi", "3000M"])), "hugepages": draw(st.sampled_from([
            None, {"pageSize": "2Mi"}]))},
        machine={"type": "pc" if draw(RARELY) else draw(st.sampled_from([None, "q35", "pc-q35-9.0"]))},
        firmware={"bootloader": draw(st.sampled_from([None, {"bios": {}}, {"efi": {}}, {"efi": {"secureBoot": False}}]))},
        spec=spec), {**env, **more_env}, files, DomainOptions(
            type=draw(st.sampled_from(["qemu", "kvm"])), host_nodes=draw(st.sampled_from([(), (0, 1)])),
            drives=draw(st.sampled_from(["/run/x", "/run/a b"]))))
