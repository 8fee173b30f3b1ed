"""`outfit plan`: where the VMs and pods of a file would be placed and which devices they would get, in order. Changes
nothing."""

from __future__ import annotations

import contextlib
import copy
import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import click

from outfitter.api import admission, kinds
from outfitter.api.device import ADDRESS_NAMES, MDEV_NAMES, DeviceId, product_name, text_attribute
from outfitter.api.kinds import Kind, Object
from outfitter.api.kubevirt import device_refs, kubevirt_config, pod_claims, vm_claim_templates
from outfitter.api.kubevirt import vm as vm_api
from outfitter.cli import local_admission, time_format
from outfitter.cli.client import Client, documents, located_errors
from outfitter.cli.device import text
from outfitter.cli.device.page_warnings import warn_malformed
from outfitter.cli.device.view import listed
from outfitter.cli.local_admission import NIL
from outfitter.cli.why import cluster_objects
from outfitter.controllers import flavor_claims, launcher_networks, launcher_pod, vm_claims
from outfitter.controllers import vm as vm_controller
from outfitter.controllers.bind_transaction import BindTransaction
from outfitter.controllers.embedded import pod_claims as pod_claims_controller
from outfitter.errors import BadRequest, Forbidden, Invalid, NotFound, NotReady, OutfitterError
from outfitter.scheduling.explain import pod as explain_pod
from outfitter.scheduling.explain.cluster_objects import ClusterObjects
from outfitter.scheduling.explain.explanation import Explanation
from outfitter.scheduling.nova import flavor_claim
from outfitter.scheduling.nova.flavor_claim import AliasSet
from outfitter.scheduling.placement import Placement, results
from outfitter.store.clock import rfc3339
from outfitter.store.id_generator import IdGenerator

PLANNED = {kinds.VM: "vm", kinds.VMI: "vmi", kinds.POD: "pod"}  # and their short names
BROUGHT = (kinds.RESOURCE_CLAIM, kinds.DEVICE_CLASS, kinds.RESOURCE_CLAIM_TEMPLATE, kinds.FLAVOR, kinds.NETWORK_ATTACHMENT)


async def plan(client: Client, files: Sequence[str], *, long: bool, how: str) -> None:
    """Exits with status 1 if any of them would wait."""
    read = _read(files)
    if not any(kind in PLANNED for kind, _, _ in read):
        raise BadRequest(f"{', '.join(files)}: there is no VirtualMachine, VirtualMachineInstance or Pod to plan for")
    time = str if how == "json" else time_format.local_clock()
    there = replace(await cluster_objects(client), time=time)
    warn_malformed(there.malformed)
    if there.unread:
        raise Forbidden(
            f"a plan needs to read {', '.join(there.unread)}, which you have no permission for; ask an administrator"
        )
    kubevirts, aliases = await listed(client, kinds.KUBEVIRT), there.aliases or AliasSet()
    rules, found = admission.AdmissionRules({kinds.FLAVOR: flavor_claim.checked(aliases)}), list[tuple[Kind, Object]]()
    for number, (kind, obj, where) in enumerate(read):
        with located_errors(obj, where):
            found.append((kind, local_admission.admitted(kind, _whole(client, kind, obj, number), rules, kubevirts)))
    brought = {kind: [obj for each, obj in found if each == kind] for kind in BROUGHT}  # treated as if they existed
    planner = _PodPlanner(replace(
        there, claims=_over(there.claims, brought[kinds.RESOURCE_CLAIM]),
        classes=_over(there.classes, brought[kinds.DEVICE_CLASS]),
        templates=_over(there.templates, brought[kinds.RESOURCE_CLAIM_TEMPLATE])),
        _over(await listed(client, kinds.FLAVOR), brought[kinds.FLAVOR]), aliases,
        _over(await listed(client, kinds.NETWORK_ATTACHMENT), brought[kinds.NETWORK_ATTACHMENT]),
        kubevirt_config.read_config(kubevirt_config.active_kubevirt(kubevirts)))
    wanted = [(kind, obj) for kind, obj in found if kind in PLANNED]
    wanted = [(kind, await _known(client, obj) if kind == kinds.VM else obj) for kind, obj in wanted]
    outcomes = [planner.next(kind, obj) for kind, obj in wanted]
    waiting = [one for one in outcomes if one.answer.state == "Waiting"]
    if how == "json":
        click.echo(json.dumps([one.to_object(long=long) for one in outcomes], indent=2))
    else:
        lines = [line for one in outcomes for line in one.text(long=long, time=time)]
        if len(outcomes) > 1:
            lines.append(f"{len(outcomes)} planned: {len(outcomes) - len(waiting)} fit, {len(waiting)} would wait")
        text.print_lines(lines)
    if waiting:
        raise SystemExit(1)


async def _known(client: Client, vm: Object) -> Object:
    """The VM with the uid of the existing one, by which its claims are named."""
    meta = vm["metadata"]
    with contextlib.suppress(NotFound, Forbidden):
        live = await client.readable.get(kinds.VM, meta["name"], meta["namespace"])
        return {**vm, "metadata": {**meta, "uid": live["metadata"]["uid"]}}
    return vm


def _read(files: Sequence[str]) -> list[tuple[Kind, Object, str]]:
    """The objects of files with their locations, without a status that a server would drop."""
    out = []
    for kind, obj, where in documents(files):
        with located_errors(obj, where):
            own, stored = local_admission.as_stored(kind, obj)
        dropped = "status" if own.has_status and not own.status_at_create else ""
        out.append((own, {name: part for name, part in stored.items() if name != dropped}, where))
    return out


def _whole(client: Client, kind: Kind, obj: Object, number: int) -> Object:
    meta = {"uid": f"{NIL}-{number}", **obj["metadata"]}
    meta.setdefault("name", meta.get("generateName", "unnamed") + "x")
    if kind.namespaced:
        meta.setdefault("namespace", client.namespace)
    return {**obj, "metadata": meta}


def _over(there: Sequence[Object], brought: Sequence[Object]) -> list[Object]:
    """The existing objects, replaced by those of the files with the same name; uid and status of existing ones are kept."""
    by_name = {_name(obj): obj for obj in there}
    for obj in brought:
        live = by_name.get(_name(obj), {})
        meta = {**obj["metadata"], "uid": live["metadata"]["uid"]} if live else obj["metadata"]
        by_name[_name(obj)] = {**obj, "metadata": meta, **({"status": live["status"]} if live.get("status") else {})}
    return list(by_name.values())


def _name(obj: Mapping[str, Any]) -> tuple[str, str]:
    return obj["metadata"].get("namespace", ""), obj["metadata"]["name"]


@dataclass(frozen=True, slots=True)
class _PlanOutcome:
    answer: Explanation
    host: str = ""
    why: str = ""
    devices: tuple[Object, ...] = ()

    def text(self, *, long: bool, time: Callable[[str], str]) -> list[str]:
        out = self.answer.text(long=long, more="outfit plan --long", time=time)
        for one in self.devices:
            about = ", ".join(one[key] for key in ("address", "product") if one.get(key))
            asked = f"resource {one['resource']}" if "resource" in one else f"{one['claim']}/{one['request']}"
            out.append(f"  {asked}: {one['device']}" + (f" ({about})" if about else ""))
        return out

    def to_object(self, *, long: bool) -> Object:
        out = {**self.answer.to_object(long=long), "fits": self.answer.state != "Waiting"}
        return {**out, "host": self.host, "why": self.why, "devices": list(self.devices)} if self.host else out


class _PodPlanner:
    """Plans in order: devices that an earlier one would get are held when the next one is planned."""

    def __init__(self, there: ClusterObjects, flavors: Sequence[Object], aliases: AliasSet, attachments: Sequence[Object],
                 now: kubevirt_config.KubeVirtConfig) -> None:
        self._attachments, self._settings = {_name(obj): obj for obj in attachments}, now
        self._flavors, self._aliases = {obj["metadata"]["name"]: obj for obj in flavors}, aliases
        self._pages = list(there.pages)
        self._facts = replace(there, pages=self._pages)
        self._claims: dict[tuple[str, str], Object] = {}  # claims that this plan creates or allocates

    def next(self, kind: Kind, obj: Object) -> _PlanOutcome:
        say = functools.partial(Explanation, f"{PLANNED[kind]}/{obj['metadata']['name']}", obj["metadata"]["namespace"])
        if host := self._already(kind, obj):
            return _PlanOutcome(say("Running", f"is running already, on {host}"))
        made, later = dict[str, str](), ""
        try:
            if kind == kinds.VM:
                later = " once it is started" if vm_api.run_strategy(obj) in ("Halted", "Manual") else ""
                obj, made = self._started(obj)
            pod = copy.deepcopy(obj) if kind == kinds.POD else self._rendered(self._settled(obj, made))
        except (BadRequest, Invalid, NotReady) as error:
            return _PlanOutcome(say("Waiting", f"would wait: {error.message}", "instance"))
        pod["metadata"].setdefault("uid", f"{NIL}-{say.args[0]}")
        made |= self._make(pod)
        if (lacking := explain_pod.missing_claim(self._facts, pod, self._claim, say, verb="would wait")) is not None:
            return _PlanOutcome(lacking)
        if lost := self._lost_request(obj, pod):
            return _PlanOutcome(say("Waiting", f"would wait: {lost}", "instance"))
        verdict = self._facts.choose(pod, self._claim)
        if not isinstance(verdict, Placement):
            return _PlanOutcome(explain_pod.refused(self._facts, pod, self._claim, verdict, say, verb="would wait"))
        self._take(pod, say, verdict)
        by_name = {mapping["requestName"]: mapping["resourceName"] for mapping in verdict.mappings}
        devices = [self._device(made.get(name := claim["metadata"]["name"], f"claim {name}"), device, result,
                                resource=by_name.get(result["request"], "") if name == device_refs.EXTENDED else "")
                   for claim, given in verdict.claims for device, result in results(given)]
        answer = say("Fits", f"would go to {verdict.host}{later} ({verdict.why})")
        return _PlanOutcome(answer, verdict.host, verdict.why, tuple(devices))

    def _rendered(self, instance: Object) -> Object:
        """NotReady: a network is missing, or takes what is not permitted."""
        def attachment(namespace: str, name: str) -> Object | None:
            return self._attachments.get((namespace, name))

        launcher_networks.without_resource(instance, attachment, self._settings.gates)
        return launcher_pod.planned_pod(instance, self._settings, attachment)

    def _lost_request(self, obj: Object, pod: Object) -> str:
        """Names a device whose request its claim does not have: the VM would wait for ever. "" if there is none."""
        claims = dict(pod_claims.claim_names(pod))
        for path, entry, request in device_refs.request_refs(obj):
            claim = self._claim(pod["metadata"]["namespace"], claims.get(entry or "") or "")
            if claim is not None and (message := device_refs.unknown_request(claim["spec"], request)):
                return f"{path}: claim {entry} {message}"
        return ""

    def _already(self, kind: Kind, obj: Object) -> str:
        """The host on which it runs already; "" if it does not run."""
        there = self._facts.pods if kind == kinds.POD else self._facts.instances
        live = next((each for each in there if _name(each) == _name(obj)), {})
        status = live.get("status") or {}
        if not live or status.get("phase") in vm_api.FINAL or live["metadata"].get("deletionTimestamp"):
            return ""
        return str(status.get("nodeName") or (live.get("spec") or {}).get("nodeName") or "")

    def _started(self, vm: Object) -> tuple[Object, dict[str, str]]:
        """The VMI that a VM starts, and the VM's own claims: claim name -> template name."""
        if not ((vm.get("spec") or {}).get("template") or {}).get("spec"):
            raise BadRequest("it has no instance without spec.template.spec")
        namespace, out = vm["metadata"]["namespace"], {}
        for entry in vm_claim_templates.entries(vm):
            name, template = vm_claims.claim_name(vm, entry["name"]), entry.get("spec")
            out[name] = entry["name"]
            if self._claim(namespace, name) is not None:
                continue
            if (named := vm_claim_templates.template_name(entry)) is not None:
                template = (self._facts.template(namespace, named) or {}).get("spec")
                if template is None:
                    raise BadRequest(f"claim {entry['name']} cannot be created: there is no ResourceClaimTemplate {named}")
            self._bring(vm_claims.planned_claim(vm, entry, template or {}))
        made = vm_controller.instance_for(vm)
        return {**made, "metadata": {**made["metadata"], "uid": f"{NIL}-{namespace}-{vm['metadata']['name']}"}}, out

    def _settled(self, instance: Object, made: dict[str, str]) -> Object:
        """The VMI with its flavor looked up; the claim that the flavor becomes is in the plan and, by its name, in `made`."""
        name = vm_api.flavor_name(instance)
        if not name and not vm_api.dedicated(instance):
            return instance
        flavor = flavor_claims.flavor_of(instance, self._flavors.get)
        if flavor is None:
            raise BadRequest(f"flavor {name} does not exist; there are {', '.join(sorted(self._flavors)) or 'none'}")
        claim, record = flavor_claims.planned_flavor(instance, flavor, self._aliases)
        if claim is not None:
            self._bring(claim)
            made[claim["metadata"]["name"]] = f"claim {instance['metadata']['name']}-{device_refs.FLAVOR_CLAIM}"
        return {**instance, "status": {"flavor": record}}

    def _bring(self, claim: Object) -> None:
        """Adds a claim to the plan as if it existed."""
        meta = claim["metadata"]
        self._claims[meta["namespace"], meta["name"]] = {
            **claim, "metadata": {"uid": f"{NIL}-{meta['namespace']}-{meta['name']}", **meta}}

    def _claim(self, namespace: str, name: str) -> Object | None:
        return self._claims.get((namespace, name)) or self._facts.claim(namespace, name)

    def _make(self, pod: Object) -> dict[str, str]:
        """The claims that a pod has templates for are in the plan; the name of a claim -> of the pod's entry."""
        namespace, out = pod["metadata"]["namespace"], dict[str, str]()
        for entry in pod_claims_controller.missing_claims(pod):
            template = self._facts.template(namespace, entry["resourceClaimTemplateName"])
            if template is not None:
                claim = pod_claims_controller.planned_claim(pod, entry, template)
                self._bring(claim)
                out[claim["metadata"]["name"]] = entry["name"]
        have = (pod.get("status") or {}).get("resourceClaimStatuses") or ()
        pod["status"] = {**(pod.get("status") or {}), "resourceClaimStatuses": [
            *have, *({"name": entry, "resourceClaimName": name} for name, entry in out.items())]}
        return out

    def _take(self, pod: Object, say: functools.partial[Explanation], placed: Placement) -> None:
        """Books what a pod would get, as the scheduler would, so that the next one does not get it."""
        transaction = BindTransaction(self._facts.snapshot.devices, self._claim, rfc3339(time_format.now()), IdGenerator(),
                                      lambda _: f"{say.args[0]} of this plan")
        try:
            transaction.add(pod, placed)
        except OutfitterError as error:  # the page rejects what is not in what was published
            raise BadRequest(f"{say.args[0]} would be refused by the page of {placed.host}: {error.message}") from error
        self._claims |= {(claim["metadata"]["namespace"], claim["metadata"]["name"]): claim for claim in transaction.claims}
        changed = {page.host: page.object for page in transaction.booked}
        self._pages[:] = [*(page for page in self._pages if page["metadata"]["name"] not in changed), *changed.values()]
        self._facts.snapshot.usage.add({**pod, "spec": {**pod["spec"], "nodeName": placed.host}})

    def _device(self, claim: str, device: DeviceId, result: Mapping[str, Any], *, resource: str) -> Object:
        """`resource`: the extended resource that requests the device, where no claim does."""
        specs = [part["spec"] for part in self._facts.slices
                 if (part["spec"]["driver"], part["spec"]["pool"]["name"]) == (device.driver, device.pool)]
        raw: Mapping[str, Any] = next((each for spec in specs for each in spec.get("devices") or ()
                                       if each["name"] == device.device), {})
        out = {"resource": resource, "claim": claim, "request": result["request"], "device": device.device, "pool": device.pool,
               "driver": device.driver,
               "address": text_attribute(raw, device.driver, (*MDEV_NAMES, *ADDRESS_NAMES)),
               "product": product_name(raw, device.driver)}
        return {key: value for key, value in out.items() if value}
