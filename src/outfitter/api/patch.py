"""JSON patch, JSON merge patch and strategic merge patch, and the difference that `apply` sends. Pure: arguments are not
changed."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from outfitter.api.kinds import Object
from outfitter.errors import BadRequest, Cause, Invalid, TooLarge, shortened

MAX_OPERATIONS = 10_000  # in one JSON patch, as kube-apiserver
MAX_COPIED = 3 << 20  # bytes that the copy operations of a JSON patch may add, as kube-apiserver
MAX_SHIFTED = 20_000_000  # list items that move up or down by one when others are inserted or removed: some ms
MAX_DIGITS = 9  # of a list index; no list is that long


def same(one: Any, other: Any) -> bool:
    """Equal as JSON, where 1 and true differ. Python's == is tried first: it is fast, and what differs there differs in
    JSON."""
    return bool(one == other) and _alike(one, other)


def _alike(one: Any, other: Any) -> bool:
    """Of two values that are equal for Python: whether they have booleans in the same places."""
    if isinstance(one, dict):
        return all(_alike(value, other[key]) for key, value in one.items())
    if isinstance(one, list):
        return all(map(_alike, one, other))
    return isinstance(one, bool) == isinstance(other, bool)


def merge(target: Any, patch: Any) -> Any:
    """JSON merge patch (RFC 7396): null removes, objects merge, everything else replaces."""
    if not isinstance(patch, dict):
        return _copied(patch)
    out = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            out.pop(key, None)
        else:
            out[key] = merge(out.get(key), value)
    return out


def _copied(value: Any) -> Any:
    """`deepcopy` for JSON values, ten times as fast."""
    if isinstance(value, dict):
        return {key: _copied(inner) for key, inner in value.items()}
    return [_copied(inner) for inner in value] if isinstance(value, list) else value


class _Work:
    """What the operations of a JSON patch may still cost."""

    copied = MAX_COPIED
    shifted = MAX_SHIFTED

    def copy(self, value: Any) -> None:
        self.copied -= len(msgspec.json.encode(value))
        if self.copied < 0:
            raise TooLarge(f"Unable to complete the copy: the copy operations of a JSON patch may add {MAX_COPIED} bytes")

    def shift(self, items: int) -> None:
        self.shifted -= items
        if self.shifted < 0:
            raise TooLarge("Unable to complete the patch: its operations move too many list items; replace the list instead")


def json(target: Object, operations: Any) -> Object:
    """JSON patch (RFC 6902), all operations or none. TooLarge when it would take too long."""
    if not isinstance(operations, list):
        raise BadRequest('a JSON patch is a list of operations such as {"op": "replace", "path": "/spec/x", "value": 1}')
    if len(operations) > MAX_OPERATIONS:
        raise TooLarge(f"The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {len(operations)}")
    out: Any = _copied(target)
    work = _Work()
    for number, operation in enumerate(operations):
        if not isinstance(operation, dict) or not isinstance(operation.get("path"), str):
            raise BadRequest(f"JSON patch: operation {number} needs \"op\" and \"path\"")
        try:
            out = _apply(out, operation, work)
        except RecursionError as error:
            raise BadRequest(f"JSON patch: operation {number} nests too deeply") from error
        except (KeyError, IndexError, ValueError, TypeError) as error:
            message = f"operation {number} ({operation.get('op')} {shortened(operation['path'])}) does not fit: {_words(error)}"
            raise Invalid(f"the server rejected our request due to an error in our request: {message}",
                          [Cause(f"[{number}].path", message)]) from error
    if not isinstance(out, dict):
        raise BadRequest("JSON patch: the result is not an object")
    return out


def _words(error: Exception) -> str:
    return shortened(f"there is no {error}" if isinstance(error, KeyError) else str(error))


def _pointer(path: str) -> list[str]:
    if path == "":
        return []
    if not path.startswith("/"):
        raise ValueError("a path starts with /")
    return [word.replace("~1", "/").replace("~0", "~") for word in path[1:].split("/")]


def _walk(doc: Any, words: Sequence[str]) -> Any:
    for word in words:
        doc = doc[_index(doc, word)] if isinstance(doc, list) else _member(doc, word)
    return doc


def _member(doc: Any, word: str) -> Any:
    if not isinstance(doc, dict) or word not in doc:
        raise KeyError(word)
    return doc[word]


def _index(doc: list[Any], word: str, *, end: bool = False) -> int:
    if word == "-" and end:
        return len(doc)
    if not (word.isascii() and word.isdigit()) or (word.startswith("0") and word != "0"):
        raise ValueError(f"{word!r} is not a list index")
    place = int(word[:MAX_DIGITS])
    if place > len(doc) or (place == len(doc) and not end):
        raise IndexError(f"the list has {len(doc)} items, none at {place}")
    return place


def _apply(doc: Any, operation: Mapping[str, Any], work: _Work) -> Any:
    op, words = operation.get("op"), _pointer(operation["path"])
    if op in ("add", "replace", "test") and "value" not in operation:
        raise ValueError(f'"{op}" needs a value')
    if op == "test":
        if not same(_walk(doc, words), operation["value"]):
            raise ValueError("the value differs")
        return doc
    if op in ("copy", "move"):
        if not isinstance(operation.get("from"), str):
            raise ValueError(f'"{op}" needs "from", the path to take the value from')
        source = _pointer(operation["from"])
        value = _walk(doc, source)
        if op == "move":
            doc = _remove(doc, source, work)
        else:
            work.copy(value)
            value = _copied(value)
        return _add(doc, words, value, work)
    if op == "remove":
        return _remove(doc, words, work)
    if op in ("add", "replace"):
        if op == "replace":
            _walk(doc, words)
            doc = _remove(doc, words, work) if words else doc
        return _add(doc, words, _copied(operation["value"]), work)
    raise ValueError(f"unknown op {op!r}; there are add, remove, replace, move, copy and test")


def _remove(doc: Any, words: Sequence[str], work: _Work) -> Any:
    if not words:
        raise ValueError("the whole object cannot be removed")
    parent = _walk(doc, words[:-1])
    if isinstance(parent, list):
        place = _index(parent, words[-1])
        work.shift(len(parent) - place)
        del parent[place]
    else:
        _member(parent, words[-1])
        del parent[words[-1]]
    return doc


def _add(doc: Any, words: Sequence[str], value: Any, work: _Work) -> Any:
    if not words:
        return value
    parent = _walk(doc, words[:-1])
    if isinstance(parent, list):
        place = _index(parent, words[-1], end=True)
        work.shift(len(parent) - place)
        parent.insert(place, value)
    elif isinstance(parent, dict):
        parent[words[-1]] = value
    else:
        raise TypeError("its parent is neither an object nor a list")
    return doc


# The merge key of lists in a strategic merge patch; a list that is not here is replaced whole. Looked up by the last two
# words of the path, since the same types occur in many places.
MERGE_KEYS: Mapping[str, str | None] = {
    "metadata.ownerReferences": "uid",
    "metadata.finalizers": None,
    "metadata.managedFields": "",
    "spec.containers": "name",
    "spec.initContainers": "name",
    "spec.ephemeralContainers": "name",
    "spec.volumes": "name",
    "spec.imagePullSecrets": "name",
    "spec.hostAliases": "ip",
    "spec.resourceClaims": "name",
    "spec.schedulingGates": "name",
    "spec.topologySpreadConstraints": "topologyKey",
    "containers.env": "name",
    "containers.ports": "containerPort",
    "containers.volumeMounts": "mountPath",
    "containers.volumeDevices": "devicePath",
    "initContainers.env": "name",
    "initContainers.ports": "containerPort",
    "initContainers.volumeMounts": "mountPath",
    "initContainers.volumeDevices": "devicePath",
    "spec.podCIDRs": None,
    "spec.taints": "",
    "status.conditions": "type",
    "status.addresses": "type",
    "status.podIPs": "ip",
    "status.hostIPs": "ip",
    "status.resourceClaimStatuses": "name",
    "status.reservedFor": "uid",
    "secrets": "name",
}


def strategic(target: Any, patch: Any, path: tuple[str, ...] = ()) -> Any:
    """Strategic merge patch, as `kubectl apply`, `edit` and `label` send it for built-in kinds: lists with a merge key
    (`MERGE_KEYS`) merge item by item, `$patch`, `$retainKeys`, `$setElementOrder/x` and `$deleteFromPrimitiveList/x` are
    supported."""
    if not isinstance(patch, dict):
        return _copied(patch)
    directive = patch.get("$patch")
    if directive == "replace":
        kept = {key: value for key, value in patch.items() if key != "$patch" and value is not None}
        return {key: strategic(None, value, (*path, key)) for key, value in kept.items()}
    if directive == "delete":
        return {}
    if directive not in (None, "merge"):
        raise BadRequest(f"strategic merge patch at {'.'.join(path) or 'the top'}: unknown $patch {directive!r}; "
                         "there are replace, merge and delete")
    out = dict(target) if isinstance(target, dict) else {}
    if isinstance(keep := patch.get("$retainKeys"), list):
        kept_keys = {key for key in keep if isinstance(key, str)}
        out = {key: value for key, value in out.items() if key in kept_keys}
    for key, value in patch.items():
        if key.startswith("$deleteFromPrimitiveList/") and isinstance(value, list):
            name, gone = key.partition("/")[2], {_plain(item) for item in value}
            live_items = out.get(name)
            out[name] = [item for item in (live_items if isinstance(live_items, list) else ()) if _plain(item) not in gone]
    orders = {key.partition("/")[2]: value for key, value in patch.items() if key.startswith("$setElementOrder/")}
    for key, value in patch.items():
        if key.startswith("$"):
            continue
        if value is None:
            out.pop(key, None)
        elif isinstance(value, list):
            out[key] = _merge_list(out.get(key), value, (*path, key))
            if _merge_key((*path, key)) != "":
                orders.setdefault(key, [item for item in value if not isinstance(item, dict) or "$patch" not in item])
        else:
            out[key] = strategic(out.get(key), value, (*path, key))
    for key, order in orders.items():
        if isinstance(out.get(key), list) and isinstance(order, list):
            live = target.get(key) if isinstance(target, dict) else None
            out[key] = _in_order(out[key], order, live if isinstance(live, list) else [], _merge_key((*path, key)))
    return out


def _merge_key(path: tuple[str, ...]) -> str | None:
    """The merge key of a list; "": the list is replaced whole, None: a set of plain values."""
    return MERGE_KEYS.get(".".join(path[-2:]), MERGE_KEYS.get(path[-1], ""))


def _merge_list(have: Any, patch: list[Any], path: tuple[str, ...]) -> list[Any]:
    key = _merge_key(path)
    if any(isinstance(item, dict) and item.get("$patch") == "replace" for item in patch):
        return [_copied(item) for item in patch if not isinstance(item, dict) or "$patch" not in item]
    if key == "":
        return [_copied(item) for item in patch]
    out = list(have) if isinstance(have, list) else []
    if key is None:
        known = {_plain(item) for item in out}
        return out + [item for item in patch if _plain(item) not in known]
    places: dict[Any, int] = {}  # of items by their merge key, the first of each
    for place, old in enumerate(out):
        if isinstance(old, dict):
            places.setdefault(_plain(old.get(key)), place)
    deleted: set[int] = set()
    for item in patch:
        if not isinstance(item, dict) or key not in item:
            raise BadRequest(f"strategic merge patch at {'.'.join(path)}: every item needs its merge key {key!r}")
        name = _plain(item[key])
        found = places.get(name)
        if item.get("$patch") == "delete":
            if found is not None:
                deleted.add(found)
                del places[name]
        elif found is None:
            places[name] = len(out)
            out.append(strategic({}, item, path))
        else:
            out[found] = strategic(out[found], item, path)
    return [item for place, item in enumerate(out) if place not in deleted]


def _plain(value: Any) -> Any:
    """A value as a key of a dictionary, where true and 1 differ as they do in JSON."""
    if isinstance(value, dict | list):
        return msgspec.json.encode(value)
    return (value,) if isinstance(value, bool) else value


def _in_order(items: list[Any], order: list[Any], live: list[Any], key: str | None) -> list[Any]:
    """Items named in the order come in that order. The others keep theirs, each before the first named one that it stood
    before in the live list, else at the end."""

    def name(item: Any) -> Any:
        return _plain(item.get(key) if isinstance(item, dict) and key else item)

    wanted, was = _places(map(name, order)), _places(map(name, live))
    others = collections.deque(item for item in items if name(item) not in wanted)
    out: list[Any] = []
    for item in sorted((item for item in items if name(item) in wanted), key=lambda item: wanted[name(item)]):
        place = was.get(name(item), -1)
        while others and was.get(name(others[0]), len(live)) < place:
            out.append(others.popleft())
        out.append(item)
    return out + list(others)


def _places(names: Iterable[Any]) -> dict[Any, int]:
    """Where each name stands first."""
    out: dict[Any, int] = {}
    for place, name in enumerate(names):
        out.setdefault(name, place)
    return out


def difference(last: Any, new: Any, live: Any) -> Any:
    """The merge patch that takes a live object to what a file says now: what the file no longer has goes, what others
    added stays. `last` is what the file said when it was applied before."""
    patch: dict[str, Any] = {}
    for key in last:
        if key not in new and key in live:
            patch[key] = None
    for key, value in new.items():
        if key not in live:
            patch[key] = value
        elif isinstance(value, dict) and isinstance(live[key], dict):
            before = last.get(key)
            if inner := difference(before if isinstance(before, dict) else {}, value, live[key]):
                patch[key] = inner
        elif not same(value, live[key]):
            patch[key] = value
    return patch
