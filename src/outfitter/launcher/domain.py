"""Builds the libvirt domain XML of a VMI, and reads the domains that are found running. Pure: VMI, environment and files in,
XML out. Called by the app for the node agent, and by `outfit domxml`."""

from __future__ import annotations

from collections.abc import Mapping
from xml.etree import ElementTree as ET

from outfitter.api.hypervisor import Domain, Drive, MigrationTarget
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import vm
from outfitter.api.quantity import to_int
from outfitter.launcher import cloudinit, hostdev, machine_type, numa, sources
from outfitter.launcher.devices import Devices
from outfitter.launcher.domain_options import DEFAULT, DomainOptions
from outfitter.launcher.environment import Env
from outfitter.launcher.metadata import Files
from outfitter.launcher.nics import domain_nics

NAMESPACE = "https://outfitter.dev/xmlns/domain/1.0"
MAX_NAME = 255 - len("_VARS.qcow2.new")  # bytes of a domain's name: libvirt names files after it, with this suffix at most
OURS = f"{{{NAMESPACE}}}machine"  # our metadata element: uid of the VMI, UUID of the domain, path of the config drive
ET.register_namespace("outfitter", NAMESPACE)


def build(instance: Object, env: Env | None = None, files: Files | None = None, options: DomainOptions = DEFAULT) -> Domain:
    """The domain of a VMI. `env` and `files` are the environment and files of the launcher's container. StartFailed names the
    unsupported field, or the sources that contradict each other."""
    meta, spec = instance["metadata"], instance["spec"]
    domain = spec.get("domain") or {}
    resolve = sources.migration_target_devices if options.arriving else sources.devices_of
    resolved = resolve(instance, env or {}, files or {})
    kind, size, cpus = machine_type.machine_type_of(spec), to_int(vm.memory(instance)), vm.vcpus(instance)
    page = machine_type.page(domain) or numa.MIB
    spread = numa.cells(instance, resolved, options.host_nodes, cpus=cpus, memory=size, page=page)
    path = f"{options.drives}/{meta['uid']}.iso" if cloudinit.needs_drive(spec) else ""
    devices = Devices(spec, kind, spread, options, sources.network_wires(files or {}), drive=path)
    parts = devices.elements(resolved, sources.plugged_later(instance, arriving=options.arriving))
    if domain.get("launchSecurity") is not None:
        devices.skip("spec.domain.launchSecurity is not supported: the host could read the VM's memory")
    guest_metadata = cloudinit.metadata(instance, devices.tagged, files or {})
    drive = _drive(instance, path, guest_metadata, files or {}, devices) if path else None

    name = _name(meta["namespace"], meta["name"], meta["uid"])
    root = ET.Element("domain", type=options.type)
    _text(root, "name", name)
    uuid = (domain.get("firmware") or {}).get("uuid") or meta["uid"]
    _text(root, "uuid", uuid)
    owner = {"instance": meta["uid"], "uuid": uuid, **({"drive": path} if path else {})}
    ET.SubElement(ET.SubElement(root, "metadata"), OURS, owner)
    _text(root, "memory", str(size), unit="b")
    _add(root, machine_type.backing(domain))
    _text(root, "vcpu", str(cpus), placement="static")
    _add(root, numa.pinning(instance, cpus))
    _add(root, numa.tuning(instance, spread))
    root.append(machine_type.boot(domain, kind))
    root.append(machine_type.features(domain, kind))
    _add(root, machine_type.processor(instance, options, spread))
    root.append(machine_type.clock(domain))
    ET.SubElement(root, "devices").extend(parts)
    return Domain(meta["uid"], name, text(root), hostdev.sources(root),
                  nics=domain_nics.nics(root), host_devices=hostdev.claimed(root), guest_metadata=guest_metadata, drive=drive,
                  skipped=tuple(devices.skipped))


def _name(namespace: str, name: str, uid: str) -> str:
    """The domain's name, namespace_name; truncated and completed by the uid where it is too long for a file name."""
    whole, end = f"{namespace}_{name}", f"_{uid}"
    if len(whole.encode()) <= MAX_NAME:
        return whole
    return whole.encode()[:MAX_NAME - len(end)].decode(errors="ignore") + end


def _drive(instance: Object, path: str, guest_metadata: str, files: Files, devices: Devices) -> Drive | None:
    try:
        return cloudinit.drive(instance, path, guest_metadata, files)
    except cloudinit.Missing as error:
        devices.skip(error.message)
        return None


def text(root: ET.Element) -> str:
    ET.indent(root)
    return ET.tostring(root, encoding="unicode") + "\n"


def read(xml: str, uid: str = "") -> Domain:
    """A running domain from its XML; `uid` if known, otherwise from its metadata. ValueError for invalid XML."""
    try:
        root = ET.fromstring(xml)
    except ET.ParseError as error:
        raise ValueError(str(error)) from error
    owner, uuid = root.find(f"metadata/{OURS}"), root.findtext("uuid", "")
    instance = None if owner is None else owner_uid(owner.attrib, uuid)
    return Domain(uid or instance or uuid, root.findtext("name", ""), xml, hostdev.sources(root), foreign=instance is None,
                  nics=domain_nics.nics(root) if instance is not None else (),
                  host_devices=hostdev.claimed(root) if instance is not None else ())


def moved(xml: str, target: MigrationTarget) -> str:
    """The XML of a domain on the host that it migrates to: its config drive has another path there, its NICs may be on other
    bridges, and its host devices are others, at the same guest addresses. What the target does not name is left as it is."""
    root = ET.fromstring(xml)
    owner = root.find(f"metadata/{OURS}")
    had = owner.get("drive") if owner is not None else None
    if owner is not None and had and target.drive:
        owner.set("drive", target.drive)
        for source in root.iterfind("devices/disk/source"):
            if source.get("file") == had:
                source.set("file", target.drive)
    for alias, bridge in target.bridges.items():
        nic = domain_nics.find(root, alias)
        if nic is not None and nic.get("type") == "bridge":
            domain_nics.set_bridge(nic, bridge)
    hostdev.replace_sources(root, dict(target.devices))
    return ET.tostring(root, encoding="unicode")


def owner_uid(owner: Mapping[str, str], uuid: str) -> str | None:
    """The uid of the VMI of a domain with this metadata and UUID. None for a foreign domain, also for a copy of one of ours:
    its metadata has another UUID. Older metadata has no UUID."""
    return owner.get("instance") if _plain(owner.get("uuid", uuid)) == _plain(uuid) else None


def _plain(uuid: str) -> str:
    """A UUID in a form that can be compared."""
    return uuid.strip().replace("-", "").lower()


def _text(parent: ET.Element, tag: str, text: str, **attributes: str) -> None:
    ET.SubElement(parent, tag, attributes).text = text


def _add(parent: ET.Element, element: ET.Element | None) -> None:
    if element is not None:
        parent.append(element)
