"""Area render: an instance is given, the controllers run to rest, and the pod that they made for it is compared."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from outfitter import app
from outfitter.api import kinds
from outfitter.api.kinds import Object
from outfitter.api.kubevirt import kubevirt_config, vm
from outfitter.api.quantity import to_int
from outfitter.controllers import launcher_networks, launcher_pod
from outfitter.errors import Invalid, NotReady
from tests.cases.case import Case
from tests.cases.case_product import Api, Faults, NotDriven, case_scenario, contains

MISSING = object()
_WORD = re.compile(r"(?P<key>[^\[\]]*)(?P<items>(?:\[[^\]]+\])*)")


async def run(case: Case) -> list[str]:
    given = list(case.data["given"])
    targets = [obj for obj in given if obj["kind"] == kinds.VMI.kind]
    pods: dict[str, Object | None] = {}
    faults = Faults()
    async with case_scenario() as place:
        try:
            async with place.product(controllers=False) as (product, api):
                await place.load(product, api, case.config, given)
            with faults:
                async with place.product() as (product, api):
                    before = {pod["metadata"]["name"] for pod in given if pod["kind"] == "Pod"}
                    await place.start_vms(api, case.config, given)
                    await product.settle()
                    targets = targets or await _made(api, given)
                    for target in reversed(targets):  # the case reports the first
                        instance = await api.read(target)
                        said = await _messages(api, instance)
                        pod = pods[target["metadata"]["name"]] = await _pod(api, instance, before)
                    if case.config.get("renderFor") == "migration-target":
                        pod, refused = await _target(product, instance)
                        said += refused
        except NotDriven as error:
            return [str(error), *place.notes]
    wrong = [*compare(case.expect, pod, said), *faults.said]
    if "delta" in case.expect:
        names = [target["metadata"]["name"] for target in targets]
        apart = deltas(case.expect["delta"], names)
        wrong += [line for each in apart for line in _difference(each, names, pods)] if apart else ["delta: it says nothing"]
    return wrong and [*wrong, *place.notes]


async def _made(api: Api, given: list[Object]) -> list[Object]:
    """The instances of VMs that the case gives without instances."""
    homes = {obj["metadata"].get("namespace", "default") for obj in given if obj["kind"] == kinds.VM.kind}
    found = [each for home in sorted(homes) for each in await api.list(kinds.VMI, home)]
    if not found:
        raise NotDriven("the case gives no machine that runs")
    return [{**each, "apiVersion": kinds.VMI.api_version, "kind": kinds.VMI.kind} for each in found]


async def _target(product: app.Embedded, instance: Object) -> tuple[Object | None, list[str]]:
    """The pod that the VM would move to, by the rules of the product, or why there is none; VMs are not migrated yet."""
    pods = (await product.store.list(kinds.POD, instance["metadata"]["namespace"])).items
    source = next((pod for pod in pods if vm.owner(pod, kinds.VMI.kind)), None)
    kubevirts = (await product.store.list(kinds.KUBEVIRT)).items
    now = kubevirt_config.read_config(kubevirt_config.active_kubevirt(kubevirts))
    known = {(each["metadata"]["namespace"], each["metadata"]["name"]): each
             for each in (await product.store.list(kinds.NETWORK_ATTACHMENT)).items}
    try:
        networks = launcher_networks.resources(instance, lambda namespace, name: known.get((namespace, name)), now.gates)
        return launcher_pod.launcher_pod(instance, now, networks=networks, source=source), []
    except NotReady as error:
        return None, [error.message]


async def _pod(api: Api, instance: Object, before: set[str]) -> Object | None:
    """The pod that the product made, if it did."""
    selector = f"{vm.CREATED_BY}={instance['metadata']['uid']}"
    pods = await api.list(kinds.POD, instance["metadata"]["namespace"], selector)
    return next((pod for pod in pods if pod["metadata"]["name"] not in before), None)


async def _messages(api: Api, instance: Object) -> list[str]:
    """All that the product says about an instance, in its conditions and events."""
    events = await api.list(kinds.EVENT, instance["metadata"]["namespace"])
    return [*(str(each.get("message", "")) for each in (instance.get("status") or {}).get("conditions") or ()),
            *(str(event.get("message", "")) for event in events
              if event["involvedObject"].get("name") == instance["metadata"]["name"])]


def compare(expect: Mapping[str, Any], pod: Object | None, said: list[str]) -> list[str]:
    if "error" in expect:
        if pod is not None:
            return [f"an error was expected, but there is pod {pod['metadata']['name']}"]
        wanted = (expect["error"] or {}).get("messageContains", "")
        return [] if any(contains(text, wanted) for text in said) else [f"nobody mentions {wanted!r}: {said}"]
    if pod is None:
        return [] if expect.get("orError") else [f"there is no pod; the product says: {said}"]
    return list(_differences(expect, pod))


def _differences(expect: Mapping[str, Any], pod: Object) -> Iterator[str]:
    yield from _contained(expect.get("pod") or {}, pod, "pod")
    for each in expect.get("exact") or ():
        have = find(pod, each["path"])
        if not _same(each["equals"], None if have is MISSING else have):
            yield f"{each['path']} is {'missing' if have is MISSING else json.dumps(have)}, not {json.dumps(each['equals'])}"
    for path in expect.get("absent") or ():
        if (have := find(pod, path)) is not MISSING and have not in (None, "", [], {}):
            yield f"{path} should be absent, it is {json.dumps(have)}"
    annotations = pod["metadata"].get("annotations") or {}
    for key, value in (expect.get("annotationJSON") or {}).items():
        if key not in annotations or not _same(value, _parsed(annotations[key])):
            yield f"annotation {key} is {annotations.get(key)}, not {json.dumps(value)}"
    for key in expect.get("absentAnnotations") or ():
        if key in annotations:
            yield f"annotation {key} should be absent, it is {annotations[key]}"
    if "onlyContainerWithClaims" in expect:
        spec = pod["spec"]
        having = [each["name"] for each in [*spec["containers"], *(spec.get("initContainers") or ())]
                  if (each.get("resources") or {}).get("claims")]
        wanted = expect["onlyContainerWithClaims"]
        if having != (wanted if isinstance(wanted, list) else [wanted]):
            yield f"containers with claims: {having}, not {wanted} alone"


MEMORY = "spec.containers[compute].resources.requests.memory"


def deltas(said: Any, names: Collection[str]) -> list[Mapping[str, Any]]:
    """The format calls it "difference of a quantity between the pods of two VMIs" and no more. Read as a path, two names of
    VMs and a quantity, distinguished by what they are and not by their keys, or as a list of these; the names may be missing
    (then the first two VMs are meant), so may the path (memory), and a bare quantity or {path: quantity} says the rest."""
    if isinstance(said, list):
        return [one for each in said for one in deltas(each, names)]
    if not isinstance(said, Mapping):
        return [{"equals": said}]
    values = [one for value in said.values() for one in (value if isinstance(value, list) else [value])]
    of = [value for value in values if value in names]
    paths = [value for value in values if isinstance(value, str) and value.startswith(("spec.", "metadata."))]
    rest = [value for value in values if value not in of and value not in paths and _amount(value)]
    if len(rest) == 1 and not any(str(key).startswith("spec.") for key in said):
        return [{"path": paths[0] if paths else MEMORY, "of": of, "equals": rest[0]}]
    return [{"path": path, "equals": quantity} for path, quantity in said.items()]


def _amount(value: Any) -> bool:
    try:
        return to_int(str(value)) is not None
    except Invalid:
        return False


def _difference(delta: Mapping[str, Any], names: list[str], pods: Mapping[str, Object | None]) -> Iterator[str]:
    path, wanted = str(delta.get("path", MEMORY)), to_int(str(delta["equals"]))
    of = [name for name in delta.get("of") or names[:2] if name]
    if len(of) != 2 or any(pods.get(name) is None for name in of):
        yield f"delta: it takes the pods of two machines; {of} have {[name for name in of if pods.get(name)]}"
        return
    have = [find(pods[name], path) for name in of]
    if MISSING in have:
        yield f"delta: {path} is missing in the pod of {of[have.index(MISSING)]}"
    elif abs(to_int(str(have[1])) - to_int(str(have[0]))) != abs(wanted):
        yield f"delta: {path} is {have[0]} for {of[0]} and {have[1]} for {of[1]}, not {delta['equals']} apart"


def _contained(wanted: Any, have: Any, path: str) -> Iterator[str]:
    """Maps are subsets; list items are matched by name, else any item that holds them."""
    if isinstance(wanted, Mapping) and isinstance(have, Mapping):
        for key, value in wanted.items():
            if key in have:
                yield from _contained(value, have[key], f"{path}.{key}")
            else:
                yield f"{path}.{key} is missing"
    elif isinstance(wanted, list) and isinstance(have, list):
        for item in wanted:
            named = isinstance(item, Mapping) and "name" in item
            found = [each for each in have if not named or (isinstance(each, Mapping) and each.get("name") == item["name"])]
            if not any(not list(_contained(item, each, path)) for each in found):
                yield from _contained(item, found[0], f"{path}[{item['name']}]") if named and found else [
                    f"{path} holds no {json.dumps(item)}"]
    elif not _same(wanted, have):
        yield f"{path} is {json.dumps(have)}, not {json.dumps(wanted)}"


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:  # an annotation that is plain text
        return text


def _same(wanted: Any, have: Any) -> bool:
    """Amounts may be written as text or as numbers; what is empty may be skipped."""
    if isinstance(wanted, Mapping) and isinstance(have, Mapping):
        return all(_same(wanted.get(key), have.get(key)) for key in {**wanted, **have})
    if isinstance(wanted, list) and isinstance(have, list):
        return len(wanted) == len(have) and all(map(_same, wanted, have))
    if {type(wanted), type(have)} == {int, str}:
        return str(wanted) == str(have)
    return bool(wanted == have) or (have is None and wanted in ([], {}))


def find(value: Any, path: str) -> Any:
    """The value at a path: dots, and `[x]` for the list item named x, or the key of a map. A key may hold dots itself; the
    longest one wins."""
    words = _split(path)
    return _find(value, words)


def _find(value: Any, words: list[str]) -> Any:
    if not words:
        return value
    for length in range(len(words), 0, -1):
        whole = _WORD.fullmatch(".".join(words[:length]))
        if whole is None or not isinstance(value, Mapping) or whole["key"] not in value:
            continue
        inner = value[whole["key"]]
        for name in re.findall(r"\[([^\]]+)\]", whole["items"]):
            inner = _item(inner, name)
        if inner is not MISSING and (found := _find(inner, words[length:])) is not MISSING:
            return found
    return MISSING


def _item(inner: Any, name: str) -> Any:
    if isinstance(inner, Mapping):
        return inner.get(name, MISSING)
    items = inner if isinstance(inner, list) else []
    named = next((item for item in items if isinstance(item, Mapping) and item.get("name") == name), MISSING)
    return items[int(name)] if named is MISSING and name.isdecimal() and int(name) < len(items) else named


def _split(path: str) -> list[str]:
    return re.findall(r"(?:[^.\[]|\[[^\]]*\])+", path)
