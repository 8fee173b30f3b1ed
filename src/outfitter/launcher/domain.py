"""The domain of an instance. Pure: an instance, what it got and where it will run in; XML out."""

from __future__ import annotations

from collections.abc import Mapping
from xml.etree import ElementTree as ET

from outfitter.api.hypervisor import Domain, Drive
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import vm
from outfitter.api.quantity import to_int
from outfitter.launcher import cloudinit, hostdev, machine_type, numa, sources
from outfitter.launcher.devices import Devices
from outfitter.launcher.domain_options import DEFAULT, DomainOptions
from outfitter.launcher.environment import Env
from outfitter.launcher.metadata import Files

NAMESPACE = "https://outfitter.dev/xmlns/domain/1.0"
ROOM = 255 - len("_VARS.qcow2.new")  # bytes of a domain's name: libvirt names files after it and adds this at most
OURS = f"{{{NAMESPACE}}}machine"  # the mark by which a domain is known again as one of ours: whose it is, which, and its drive
ET.register_namespace("outfitter", NAMESPACE)


def build(instance: Object, env: Env | None = None, files: Files | None = None, options: DomainOptions = DEFAULT) -> Domain:
    """`env` and `files` are what the launcher finds in its container besides the instance's status. StartFailed says which
    field cannot be had, or which sources contradict each other."""
    meta, spec = instance["metadata"], instance["spec"]
    domain = spec.get("domain") or {}
    look = sources.migration_target_devices if options.arriving else sources.devices_of
    found = look(instance, env or {}, files or {})
    kind, size, cpus = machine_type.machine_type_of(spec), to_int(vm.memory(instance)), vm.vcpus(instance)
    spread = numa.cells(instance, found, options.host_nodes, cpus=cpus, memory=size, page=machine_type.page(domain) or numa.MIB)
    path = f"{options.drives}/{meta['uid']}.iso" if cloudinit.needs_drive(spec) else ""
    devices = Devices(spec, kind, spread, options, sources.network_wires(files or {}), drive=path)
    parts = devices.elements(found)
    if domain.get("launchSecurity") is not None:
        devices.skip("spec.domain.launchSecurity is not supported: the host could read the machine's memory")
    told = cloudinit.metadata(instance, devices.tagged, files or {})
    drive = _drive(instance, path, told, files or {}, devices) if path else None

    name = _name(meta["namespace"], meta["name"], meta["uid"])
    root = ET.Element("domain", type=options.type)
    _text(root, "name", name)
    uuid = (domain.get("firmware") or {}).get("uuid") or meta["uid"]
    _text(root, "uuid", uuid)
    mark = {"instance": meta["uid"], "uuid": uuid, **({"drive": path} if path else {})}
    ET.SubElement(ET.SubElement(root, "metadata"), OURS, mark)
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
    ET.indent(root)
    return Domain(meta["uid"], name, ET.tostring(root, encoding="unicode") + "\n", hostdev.sources(root),
                  guest_metadata=told, drive=drive, left_out=tuple(devices.left_out))


def _name(namespace: str, name: str, uid: str) -> str:
    """Where it is too long for the name of a file, the instance's uid stands for the rest: it is still one machine's alone."""
    whole, end = f"{namespace}_{name}", f"_{uid}"
    if len(whole.encode()) <= ROOM:
        return whole
    return whole.encode()[:ROOM - len(end)].decode(errors="ignore") + end


def _drive(instance: Object, path: str, told: str, files: Files, devices: Devices) -> Drive | None:
    try:
        return cloudinit.drive(instance, path, told, files)
    except cloudinit.Missing as error:
        devices.skip(error.message)
        return None


def read(xml: str, uid: str = "") -> Domain:
    """A domain that was found running; `uid` by which it is known, else what it says of itself. ValueError: it is none."""
    try:
        root = ET.fromstring(xml)
    except ET.ParseError as error:
        raise ValueError(str(error)) from error
    mark, uuid = root.find(f"metadata/{OURS}"), root.findtext("uuid", "")
    instance = None if mark is None else owner_uid(mark.attrib, uuid)
    return Domain(uid or instance or uuid, root.findtext("name", ""), xml, hostdev.sources(root), foreign=instance is None)


def owner_uid(mark: Mapping[str, str], uuid: str) -> str | None:
    """The uid of the instance to which a domain with this mark and UUID belongs. None: it is somebody else's, also when it is a
    copy of one of ours, which has the mark too. Older marks do not tell."""
    return mark.get("instance") if _plain(mark.get("uuid", uuid)) == _plain(uuid) else None


def _plain(uuid: str) -> str:
    """As it may be compared: libvirt writes it in its own way."""
    return uuid.strip().replace("-", "").lower()


def _text(parent: ET.Element, tag: str, text: str, **attributes: str) -> None:
    ET.SubElement(parent, tag, attributes).text = text


def _add(parent: ET.Element, element: ET.Element | None) -> None:
    if element is not None:
        parent.append(element)
