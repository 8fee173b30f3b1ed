"""Area render: an instance is given, the controllers run to rest, and the pod that they made for it is compared."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from outfitter import app
from outfitter.api import kinds, machine, settings
from outfitter.api.kinds import Object
from outfitter.api.quantity import to_int
from outfitter.controllers import nets, render
from outfitter.errors import Refused
from tests.cases.case import Case
from tests.cases.world import Api, Faults, NotDriven, contains, world

MISSING = object()
_WORD = re.compile(r"(?P<key>[^\[\]]*)(?P<items>(?:\[[^\]]+\])*)")


async def run(case: Case) -> list[str]:
    given = list(case.data["given"])
    targets = [obj for obj in given if obj["kind"] == kinds.INSTANCE.kind]
    pods: dict[str, Object | None] = {}
    faults = Faults()
    async with world() as place:
        try:
            async with place.product(controllers=False) as (product, api):
                await place.load(product, api, case.config, given)
            with faults:
                async with place.product() as (product, api):
                    before = {pod["metadata"]["name"] for pod in given if pod["kind"] == "Pod"}
                    await product.settle()
                    for target in reversed(targets):  # the case tells of the first
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
        apart = deltas(case.expect["delta"])
        wrong += [line for each in apart for line in _difference(each, names, pods)] if apart else ["delta: it says nothing"]
    return wrong and [*wrong, *place.notes]


async def _target(product: app.Embedded, instance: Object) -> tuple[Object | None, list[str]]:
    """The pod that the machine would move to, by the rules of the product, or why there is none; nobody moves machines yet."""
    pods = (await product.store.list(kinds.POD, instance["metadata"]["namespace"])).items
    source = next((pod for pod in pods if machine.owner(pod, kinds.INSTANCE.kind)), None)
    kubevirts = (await product.store.list(kinds.KUBEVIRT)).items
    now = settings.of(settings.chosen(kubevirts))
    known = {(each["metadata"]["namespace"], each["metadata"]["name"]): each
             for each in (await product.store.list(kinds.NETWORK_ATTACHMENT)).items}
    try:
        networks = nets.resources(instance, lambda namespace, name: known.get((namespace, name)), now.gates)
        return render.launcher_pod(instance, now, networks=networks, source=source), []
    except Refused as error:
        return None, [error.message]


async def _pod(api: Api, instance: Object, before: set[str]) -> Object | None:
    """The pod that the product made, if it did."""
    selector = f"{machine.CREATED_BY}={instance['metadata']['uid']}"
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
        if have != each["equals"]:
            yield f"{each['path']} is {'missing' if have is MISSING else json.dumps(have)}, not {json.dumps(each['equals'])}"
    for path in expect.get("absent") or ():
        if (have := find(pod, path)) is not MISSING and have not in (None, "", [], {}):
            yield f"{path} should be absent, it is {json.dumps(have)}"
    annotations = pod["metadata"].get("annotations") or {}
    for key, value in (expect.get("annotationJSON") or {}).items():
        if key not in annotations or json.loads(annotations[key]) != value:
            yield f"annotation {key} is {annotations.get(key)}, not {json.dumps(value)}"
    for key in expect.get("absentAnnotations") or ():
        if key in annotations:
            yield f"annotation {key} should be absent, it is {annotations[key]}"
    if "onlyContainerWithClaims" in expect:
        spec = pod["spec"]
        having = [each["name"] for each in [*spec["containers"], *(spec.get("initContainers") or ())]
                  if (each.get("resources") or {}).get("claims")]
        if having != [expect["onlyContainerWithClaims"]]:
            yield f"containers with claims: {having}, not {expect['onlyContainerWithClaims']} alone"


MEMORY = "spec.containers[compute].resources.requests.memory"
OF = ("of", "between", "vmis", "instances", "names")
EQUALS = ("equals", "quantity", "difference", "value", "is", "by")


def deltas(said: Any) -> list[Mapping[str, Any]]:
    """The format calls it "difference of a quantity between the pods of two VMIs" and no more. Read as {path, of: [name, name],
    equals: quantity} or a list of these; the names may be missing (then the first two machines are meant), so may the path
    (memory), and a bare quantity or {path: quantity} says the rest."""
    if isinstance(said, list):
        return [one for each in said for one in deltas(each)]
    if not isinstance(said, Mapping):
        return [{"equals": said}]
    if any(key in said for key in EQUALS):
        return [{"path": said.get("path", MEMORY), "of": next((said[key] for key in OF if key in said), said.get("from") and [
            said["from"], said.get("to")]), "equals": next(said[key] for key in EQUALS if key in said)}]
    return [{"path": path, "equals": quantity} for path, quantity in said.items()]


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
    elif wanted != have:
        yield f"{path} is {json.dumps(have)}, not {json.dumps(wanted)}"


def find(value: Any, path: str) -> Any:
    """The value at a path: dots, and `[x]` for the list item named x. A key may hold dots itself; the longest one wins."""
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
            inner = next((item for item in inner or () if item.get("name") == name), MISSING)
        if inner is not MISSING and (found := _find(inner, words[length:])) is not MISSING:
            return found
    return MISSING


def _split(path: str) -> list[str]:
    return re.findall(r"(?:[^.\[]|\[[^\]]*\])+", path)
