"""`outfit domxml`: the libvirt domain of a VMI, from the server or from files. Builds it with `launcher.domain`, as the
launcher does; starts nothing."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import click
import yaml

from outfitter.api import admission, kinds, yaml_scalars
from outfitter.api.hypervisor import Domain
from outfitter.api.kinds import Kind, Object
from outfitter.api.kubevirt import cloudinit, device_refs, device_status, network_info, pod_claims, vm_actions
from outfitter.api.kubevirt import vm as vm_api
from outfitter.api.launcher import launcher_environment
from outfitter.cli import local_admission
from outfitter.cli.client import Client, documents, located_errors
from outfitter.cli.local_admission import NIL
from outfitter.cli.why import explained_kind
from outfitter.controllers import vm as starting
from outfitter.errors import BadRequest, CommandFailed, Forbidden, NotFound
from outfitter.launcher import domain, metadata, sources
from outfitter.launcher import iso_image as drives
from outfitter.launcher.domain_options import DomainOptions
from outfitter.node.pods import secrets

ROOTED = (*metadata.BASES, cloudinit.SECRETS)  # directories of a launcher's container


async def print_from_server(client: Client, word: str, **options: Any) -> None:
    kind_word, slash, name = word.rpartition("/")
    if (slash and explained_kind(kind_word) not in (kinds.VMI, kinds.VM)) or not name:
        raise click.UsageError(f"{word!r} is not a VM or VMI; write its name, or vmi/NAME")
    try:
        instance = await client.readable.get(kinds.VMI, name, client.namespace)
    except NotFound:
        await _reject_stopped_vm(client, name)
        raise
    variables, files = await _launcher_sources(client, instance)
    _print_domain(instance, launcher_env=variables, launcher_files=files, secret_files=await _secret_files(client, instance),
                  **options)


async def _reject_stopped_vm(client: Client, name: str) -> None:
    """CommandFailed: there is a VM of that name, which has no VMI."""
    try:
        vm = await client.readable.get(kinds.VM, name, client.namespace)
    except (NotFound, Forbidden):
        return
    if vm_actions.will_start(vm, None):
        raise CommandFailed(f"{name} has not started yet, so it has no domain; what it waits for: outfit why vm/{name}")
    raise CommandFailed(f"{name} is not running, so it has no domain; start it with: outfit vm start {name}")


async def _launcher_sources(client: Client, instance: Object) -> tuple[dict[str, str], dict[str, str]]:
    """The environment variables of its launcher that name devices of extended resources, and the launcher's network-info
    file."""
    meta, slices = instance["metadata"], None
    out: dict[str, str] = {}
    files: dict[str, str] = {}
    for pod in (await client.readable.list(kinds.POD, meta["namespace"], labels=f"{vm_api.CREATED_BY}={meta['uid']}")).items:
        if claim_name := dict(pod_claims.claim_names(pod)).get(device_refs.EXTENDED):
            slices = slices or (await client.readable.list(kinds.RESOURCE_SLICE)).items
            claim = await client.readable.get(kinds.RESOURCE_CLAIM, claim_name, meta["namespace"])
            out |= network_info.without_interface_functions(
                launcher_environment.resource_variables(pod, claim, slices), pod, network_info.wires_of_pod(pod).values()
            )
        if text := (pod["metadata"].get("annotations") or {}).get(network_info.INFO):
            files[network_info.FILE] = text
    return out, files


async def _secret_files(client: Client, instance: Object) -> Mapping[str, str]:
    """The launcher's files from Secrets; empty where a Secret is missing or the user may not read it."""
    try:
        files = await secrets.files(client.readable, instance)
    except Forbidden:
        return {}
    return {} if isinstance(files, str) else files


def print_from_file(file: str, namespace: str, **options: Any) -> None:
    instances = [_instance(kind, obj, where, namespace) for kind, obj, where in documents([file])
             if kind.resource in (kinds.VMI.resource, kinds.VM.resource)]
    if not instances:
        raise BadRequest(f"{file} has no VirtualMachineInstance, nor a VirtualMachine")
    if len(instances) > 1 and options.get("drive") is not None:
        raise BadRequest(f"{file} has {len(instances)} VMs, and --drive writes the image of one")
    for instance in instances:
        _print_domain(instance, **options)


def _instance(kind: Kind, obj: Object, where: str, namespace: str) -> Object:
    """The VMI as a server without a KubeVirt object would store it; of a VM the VMI that it starts. Errors as from that
    server."""
    with located_errors(obj, where):
        own, stored = local_admission.as_stored(kind, obj)
        meta = {"namespace": namespace, "uid": NIL, "name": "unnamed", **stored["metadata"]}
        admitted = local_admission.admitted(own, {**stored, "metadata": meta}, admission.AdmissionRules())
    if own != kinds.VM:
        return admitted
    instance = starting.instance_for(admitted)
    return {**instance, "metadata": {**instance["metadata"], "uid": NIL}}


def _print_domain(instance: Object, *, devices: Sequence[str], env: Sequence[str], type_: Literal["qemu", "kvm"],
         guest_metadata: bool, arriving: bool = False, drive: str | None = None,
         launcher_env: Mapping[str, str] | None = None, launcher_files: Mapping[str, str] | None = None,
         secret_files: Mapping[str, str] | None = None) -> None:
    """`launcher_*` and `secret_files`: environment and files of the launcher's container; None for a VMI from a file."""
    files = dict(launcher_files or {})
    for name in devices:
        path = Path(name)
        if path.is_dir():
            files |= _folder(path)
        else:
            status = instance.get("status") or {}
            own = {"migrationState": {**(status.get("migrationState") or {}), "targetDeviceStatus": _status(name)}
                   } if arriving else {"deviceStatus": _status(name)}
            instance = {**instance, "status": {**status, **own}}
    variables = {**(launcher_env or {}), **{key: value for name in env for key, value in _variables(name).items()}}
    lacking = device_status.missing_devices(instance) if not arriving else []
    if lacking and not devices and not variables:
        name = instance["metadata"]["name"]
        todo = (f"outfit why vmi/{name} shows what it waits for" if launcher_env is not None else
                "pass its devices with --devices or --env, or name a VMI of the server instead of a file")
        raise CommandFailed(f"vmi/{name} has no domain yet: status.deviceStatus does not name {', '.join(lacking)}; {todo}")
    built = domain.build(instance, variables, {**files, **(secret_files or {})}, DomainOptions(type=type_, arriving=arriving))
    for message in built.skipped:
        click.echo(f"skipped: {message}", err=True)
    if drive is not None:
        _write_drive(built, drive)
        return
    click.echo(built.guest_metadata if guest_metadata else built.xml, nl=False)


def _write_drive(built: Domain, file: str) -> None:
    if built.drive is None:
        why = built.skipped[-1] if built.skipped else "it has neither a cloud-init volume nor a tagged device"
        raise CommandFailed(f"{built.name} has no config drive: {why}")
    try:
        with open(file, "wb", opener=functools.partial(os.open, mode=drives.FILE_MODE)) as out:  # Secrets may be in it
            out.write(drives.image(built.drive))
    except OSError as error:
        raise BadRequest(f"{file} cannot be written: {error}") from error


def _text(name: str) -> str:
    try:
        return Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadRequest(f"{name} cannot be read: {error}") from error


def _mapping(name: str, text: str) -> Mapping[str, Any]:
    try:
        found = yaml_scalars.load(yaml_scalars.Text(text, name))
    except yaml.YAMLError as error:
        raise BadRequest(f"{name} is not YAML: {error}") from error
    if not isinstance(found, Mapping):
        raise BadRequest(f"{name}: an object is expected")
    return found


def _status(name: str) -> Mapping[str, Any]:
    """The deviceStatus in a file, which holds it alone, below deviceStatus, or in a whole VMI."""
    found = _mapping(name, _text(name))
    if "kind" in found or "status" in found:
        status = found.get("status")
        found = {"deviceStatus": status.get("deviceStatus") if isinstance(status, Mapping) else None}
    if "deviceStatus" in found:
        inner = found["deviceStatus"]
        if not isinstance(inner, Mapping):
            raise BadRequest(f"{name} has no status.deviceStatus, which lists the devices of the VMI")
        found = inner
    lists = (*device_status.STATUS_LISTS.values(), network_info.STATUSES)
    for key, entries in found.items():
        if key not in lists:
            raise BadRequest(f"{name}: {key}: a deviceStatus has lists of entries, {' and '.join(lists)}")
        if not isinstance(entries, list) or not all(isinstance(entry, Mapping) for entry in entries):
            raise BadRequest(f"{name}: {key}: a deviceStatus has lists of entries, and each entry is an object, as in "
                             "[{name: nic0, deviceResourceClaimStatus: {...}}]")
    return found


def _folder(folder: Path) -> dict[str, str]:
    """Files by their path in the launcher: below a base path of device metadata, unless the folder is laid out as a root."""
    out = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        place = f"/{path.relative_to(folder).as_posix()}"
        rooted = place == sources.NETWORK_INFO or any(place.startswith(f"{base}/") for base in ROOTED)
        out[place if rooted else metadata.BASES[0] + place] = _text(str(path))
    if not out:
        raise BadRequest(f"{folder} contains no files")
    return out


def _variables(name: str) -> dict[str, str]:
    out = {}
    for number, line in enumerate(_text(name).splitlines(), start=1):
        text = line.strip().removeprefix("export ")
        if not text or text.startswith("#"):
            continue
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise BadRequest(f"{name}, line {number}: {line!r} is not of the form NAME=VALUE")
        out[key.strip()] = value.strip().strip("\"'")
    return out
