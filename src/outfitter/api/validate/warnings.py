"""Admission warnings about a VM or VMI that is valid and cannot start yet: references to objects that do not exist, and
unsupported fields. Not errors, since the objects may be created later, and the VM waits for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from outfitter.api import kinds
from outfitter.api.kinds import Kind, Object
from outfitter.api.kubevirt import cloudinit, device_refs, network_info, reattached_devices, vm_claim_templates
from outfitter.api.kubevirt.kubevirt_config import KubeVirtConfig
from outfitter.api.validate import unsupported_fields

Look = Callable[[Kind, str, str], Object | None]  # kind, namespace, name
SOURCES = (("resourceClaimName", kinds.RESOURCE_CLAIM), ("resourceClaimTemplateName", kinds.RESOURCE_CLAIM_TEMPLATE))


ClaimSources = Mapping[str, tuple[str, Object]]  # claim name -> its source for messages, and its spec


@dataclass(frozen=True, slots=True)
class SpecContext:
    """The path of a VMI spec, its namespace, and the objects that it may refer to."""

    root: str
    namespace: str
    settings: KubeVirtConfig
    look: Look


def vmi_warnings(obj: Mapping[str, Any], settings: KubeVirtConfig, look: Look) -> Iterator[str]:
    yield from _reattached(obj["metadata"], "metadata", obj["spec"])
    yield from _spec(obj["spec"], SpecContext("spec", obj["metadata"].get("namespace", ""), settings, look), {})


def vm_warnings(obj: Mapping[str, Any], settings: KubeVirtConfig, look: Look) -> Iterator[str]:
    spec = obj["spec"]
    if spec.get("running") is None and spec.get("runStrategy") is None:
        yield "spec.runStrategy: not set, so the VM stays stopped; Always starts it"
    yield from unsupported_fields.unsupported_warnings(spec, "spec", unsupported_fields.VM)
    place = SpecContext("spec.template.spec", obj["metadata"].get("namespace", ""), settings, look)
    own: dict[str, tuple[str, Object]] = {}
    listed = {entry["name"] for entry in spec["template"]["spec"].get("resourceClaims") or ()}
    for index, entry in enumerate(vm_claim_templates.entries(obj)):
        here = f"spec.resourceClaimTemplates[{index}]"
        if vm_claim_templates.template_name(entry) is None:
            own[entry["name"]] = f"{here}.spec.spec", (entry.get("spec") or {}).get("spec") or {}
            yield from _classes(own[entry["name"]][1], f"{here}.spec.spec", look)
        elif entry["name"] not in listed:  # else it is reported there
            yield from _sources(entry, here, place, own)
    yield from _reattached(spec["template"].get("metadata") or {}, "spec.template.metadata", spec["template"]["spec"])
    yield from _spec(spec["template"]["spec"], place, own)


def _reattached(meta: Mapping[str, Any], root: str, spec: Mapping[str, Any]) -> Iterator[str]:
    """Devices that the annotation names and the VM does not have; one may be plugged later."""
    text = reattached_devices.declared(meta)
    for name in reattached_devices.unknown(text, spec) if text is not None else ():
        yield f'{root}.annotations[{reattached_devices.DECLARED}]: no GPU or host device by claim is called "{name}"; only ' \
              "such devices are reattached"


def _spec(spec: Mapping[str, Any], place: SpecContext, own: ClaimSources) -> Iterator[str]:
    known = dict(own)
    for index, entry in enumerate(spec.get("resourceClaims") or ()):
        yield from _sources(entry, f"{place.root}.resourceClaims[{index}]", place, known)
    yield from _requests(spec, place.root, known)
    yield from _not_permitted(spec, place.root, place.settings)
    yield from _networks(spec, place)
    yield from _plugins(spec, place)
    yield from _tags(spec, place.root)
    yield from _secrets(spec, place)
    yield from unsupported_fields.unsupported_warnings(spec, place.root, unsupported_fields.VMI)


def _sources(entry: Mapping[str, Any], here: str, place: SpecContext, known: dict[str, tuple[str, Object]]) -> Iterator[str]:
    """Warnings about the claim or template that an entry names; its spec is added to `known`."""
    for source, kind in SOURCES:
        name = entry.get(source)
        source_object = place.look(kind, place.namespace, name) if name else None
        if name and source_object is None:
            yield f'{here}.{source}: there is no {kind.kind} "{name}" in namespace "{place.namespace}" yet; the VM ' \
                  "waits for it"
        elif source_object is not None:
            claim = source_object.get("spec") or {}
            claim = claim.get("spec") or {} if kind == kinds.RESOURCE_CLAIM_TEMPLATE else claim
            known[entry["name"]] = (f'{kind.kind} "{name}"', claim)
            yield from _classes(claim, f'{kind.kind} "{name}"', place.look)


def _networks(spec: Mapping[str, Any], place: SpecContext) -> Iterator[str]:
    """NetworkAttachmentDefinitions that do not exist, or name no resource for an SR-IOV interface."""
    interfaces = {
        interface.get("name"): interface for interface in (spec["domain"].get("devices") or {}).get("interfaces") or ()
    }
    for index, network in enumerate(spec.get("networks") or ()):
        interface = interfaces.get(network.get("name")) or {}
        if not network.get("multus") or interface.get("state") == "absent":
            continue
        here = f"{place.root}.networks[{index}].multus.networkName"
        namespace, name = network_info.attachment({"metadata": {"namespace": place.namespace}}, network)
        definition = place.look(kinds.NETWORK_ATTACHMENT, namespace, name)
        if definition is None:
            yield f'{here}: there is no NetworkAttachmentDefinition "{name}" in namespace "{namespace}" yet; the VM ' \
                  "waits for it"
        elif interface.get("sriov") is not None and not network_info.resource_of(definition):
            yield f"{here}: {network_info.no_resource(definition, network['name'])}"


def _plugins(spec: Mapping[str, Any], place: SpecContext) -> Iterator[str]:
    """Network binding plugins that are not configured."""
    for index, interface in enumerate((spec["domain"].get("devices") or {}).get("interfaces") or ()):
        plugin = interface.get("binding")
        if plugin is not None and plugin.get("name") not in place.settings.plugins:
            yield f'{place.root}.domain.devices.interfaces[{index}].binding.name: there is no network binding plugin ' \
                  f'"{plugin.get("name", "")}" in spec.configuration.network.binding of the KubeVirt object'


def _classes(claim: Mapping[str, Any], where: str, look: Look) -> Iterator[str]:
    for request in _claim_requests(claim):
        for alternative in (request.get("exactly"), *(request.get("firstAvailable") or ())):
            name = (alternative or {}).get("deviceClassName")
            if name and look(kinds.DEVICE_CLASS, "", name) is None:
                yield f'{where}: request "{request.get("name")}" needs DeviceClass "{name}", which does not exist yet'


def _claim_requests(claim: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return list((claim.get("devices") or {}).get("requests") or ())


def _requests(spec: Mapping[str, Any], root: str, known: ClaimSources) -> Iterator[str]:
    for path, claim, request in device_refs.request_refs({"spec": spec}, root):
        if claim is None or claim not in known:
            continue
        where, claim_spec = known[claim]
        if message := device_refs.unknown_request(claim_spec, request):
            yield f"{path}: {where} {message}"


def _not_permitted(spec: Mapping[str, Any], root: str, settings: KubeVirtConfig) -> Iterator[str]:
    if settings.permitted is None:
        return
    for ref in device_refs.device_refs({"spec": spec}):
        if ref.device_name is not None and ref.device_name not in settings.permitted:
            here = f"{root}.domain.devices.{ref.list}[{ref.index}].deviceName"
            yield f"{here}: {ref.device_name} is not in permittedHostDevices of the KubeVirt object; the VM does not " \
                  "start until it is"


def _tags(spec: Mapping[str, Any], root: str) -> Iterator[str]:
    """Duplicate device tags, by which the guest finds its devices."""
    given = (spec.get("domain") or {}).get("devices") or {}
    seen: dict[str, str] = {}
    for list_ in (*device_refs.LISTS, "interfaces"):
        for index, entry in enumerate(given.get(list_) or ()):
            here, tag = f"{list_}[{index}]", entry.get("tag")
            if tag and tag in seen:
                yield (f'{root}.domain.devices.{here}.tag: {seen[tag]} has the tag "{tag}" too: '
                       "the guest cannot distinguish them")
            if tag:
                seen.setdefault(tag, here)


def _secrets(spec: Mapping[str, Any], place: SpecContext) -> Iterator[str]:
    for reference in cloudinit.secrets(spec):
        if place.look(kinds.SECRET, place.namespace, reference.secret) is None:
            yield f'{place.root}{reference.path.removeprefix("spec")}: there is no Secret "{reference.secret}" in namespace ' \
                  f'"{place.namespace}" yet; the VM waits for it'
