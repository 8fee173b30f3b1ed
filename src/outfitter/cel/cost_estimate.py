"""The maximum cost of an expression in Kubernetes' units, estimated at compile time. Called by `evaluator`.

The sum over the tree, with the largest possible size of lists and strings. Sizes are known from literals and from the limits of
a device (`_DEVICE`); an unknown size counts as infinite. Prices of functions are in `cost_table`."""

from __future__ import annotations

from dataclasses import dataclass

from outfitter.cel import cost_table, macro_expansion, types
from outfitter.cel.cost_table import MAX, UNKNOWN, Size, add, times

Path = tuple[str, ...]  # from device to a part of it: ("device", "attributes", "@values", "model")


@dataclass(frozen=True, slots=True)
class _Items:
    """The sizes of the items of a list or map."""

    kind: str  # list or map
    key: Size
    value: Size

    def union(self, other: _Items | None) -> _Items | None:
        return _Items(self.kind, self.key.union(other.key), self.value.union(other.value)) if other is not None else None


@dataclass(frozen=True, slots=True)
class _Limit:
    """The maximum size of a part of a device, and of its items."""

    longest: int
    key: _Limit | None = None
    item: _Limit | None = None
    fields: dict[str, _Limit] | None = None


_ATTRIBUTE = _Limit(64)  # characters of a string, or items of a list
_DOMAIN, _ID, _ENTRIES = _Limit(63), _Limit(32), 32
_INNER = _Limit(_ENTRIES, _ID, _ATTRIBUTE)
_DEVICE = _Limit(
    0,
    fields={
        "driver": _Limit(63),
        "allowMultipleAllocations": _Limit(1),
        "attributes": _Limit(_ENTRIES, _DOMAIN, _INNER),
        "capacity": _Limit(_ENTRIES, _DOMAIN, _Limit(_ENTRIES, _ID, _Limit(0))),
    },
)


@dataclass(frozen=True, slots=True)
class _Variable:
    path: Path
    size: Size | None
    items: _Items | None = None


def estimate(root: macro_expansion.Expr) -> int:
    """The maximum cost of the checked tree; at most 2**64 - 1."""
    return _Coster().cost(root)


class _Coster:
    def __init__(self) -> None:
        self.paths: dict[macro_expansion.Expr, Path] = {}
        self.sizes: dict[macro_expansion.Expr, Size] = {}
        self.items: dict[macro_expansion.Expr, _Items] = {}
        self.scope: dict[str, _Variable] = {}

    def cost(self, node: macro_expansion.Expr) -> int:
        match node:
            case macro_expansion.Const():
                return 0
            case macro_expansion.Name():
                variable = self.scope.get(node.name)
                self.paths[node] = variable.path if variable else (node.name,)
                return 1
            case macro_expansion.ExpandedSelect():
                return self.select(node)
            case macro_expansion.ExpandedCall():
                return self.call(node)
            case macro_expansion.MakeList():
                return self.make_list(node)
            case macro_expansion.MakeMap():
                return self.make_map(node)
            case macro_expansion.Fold():
                return self.bind(node) if node.bind else self.fold(node)

    def select(self, node: macro_expansion.ExpandedSelect) -> int:
        if node.qualified:
            return 1
        spent = self.cost(node.operand)
        if node.test:
            return spent
        self.paths[node] = (*self.path(node.operand), node.name)
        return spent + (node.operand.type.kind in ("map", "struct"))

    def make_list(self, node: macro_expansion.MakeList) -> int:
        spent, sizes = cost_table.LIST, list[Size]()
        for item in node.items:
            spent = add(spent, self.cost(item))
            sizes.append(self.size(item))
        self.items[node] = _Items("list", Size(1, 1), _union(sizes))
        return spent

    def make_map(self, node: macro_expansion.MakeMap) -> int:
        spent, keys, items = cost_table.MAP, list[Size](), list[Size]()
        for key, value, _ in node.entries:
            spent = add(spent, self.cost(key), self.cost(value))
            keys.append(self.size(key))
            items.append(self.size(value))
        self.items[node] = _Items("map", _union(keys), _union(items))
        return spent

    # -- calls

    def call(self, node: macro_expansion.ExpandedCall) -> int:
        if node.function == "dyn":
            spent = add(1, self.cost(node.args[0]))
            self.keep(node, self.known(node.args[0]), self.held(node.args[0]))
            return spent
        costs = [self.cost(arg) for arg in node.args]
        spent, dearest, result = 0, 0, None
        if node.target is not None:
            spent = self.cost(node.target)
        target = self.argument(node.target) if node.target is not None else None
        args = [self.argument(arg) for arg in node.args]
        for overload in node.overloads:
            price, size = self.price(node, overload, target, args, costs)
            dearest = max(dearest, price)
            if size is not None:
                result = size if result is None else result.union(size)
            if overload in ("index_list", "index_map"):
                held = self.held(node.args[0])
                result = held.value if held else None
                self.paths[node] = (*self.path(node.args[0]), "@items" if overload == "index_list" else "@values")
            if result is None:
                result = self.known(node)
        self.keep(node, result, None)
        return add(spent, dearest)

    def price(
        self,
        node: macro_expansion.ExpandedCall,
        overload: str,
        target: cost_table.Argument | None,
        args: list[cost_table.Argument],
        costs: list[int],
    ) -> tuple[int, Size | None]:
        """The price of the call including its arguments, and the size of its result."""
        paid = add(*costs)
        if found := cost_table.price(node.function, overload, target, args):
            return add(found.cost, paid), found.size
        match overload:
            case "logical_or" | "logical_and":
                return paid, None
            case "conditional":
                self.keep(node, None, _both(self.held(node.args[1]), self.held(node.args[2])))
                return add(costs[0], max(costs[1:])), self.size(node.args[1]).union(self.size(node.args[2]))
            case "add_list" | "add_string" | "add_bytes":
                size = self.size(node.args[0]) + self.size(node.args[1])
                self.keep(node, None, _both(self.held(node.args[0]), self.held(node.args[1])))
                return add(1 if overload == "add_list" else cost_table.text(size.most), paid), size
            case "equals" | "not_equals":
                shortest = min(self.size(arg).most for arg in node.args)
                return add(cost_table.text(shortest), paid), None
        if overload in cost_table.ORDERED_TEXT:
            return add(cost_table.text(min(self.size(arg).most for arg in node.args)), paid), None
        return add(1, paid), None

    def argument(self, node: macro_expansion.Expr) -> cost_table.Argument:
        size = self.known(node)
        item = None
        if node.type.of:  # treated as a list, whatever it is
            place = self.path(node)
            item = cost_table.Argument(node.type.of[0], _limit((*place, "@items")) or UNKNOWN if place else UNKNOWN)
        literal = node.value if isinstance(node, macro_expansion.Const) and type(node.value) is int else None
        return cost_table.Argument(node.type, size or UNKNOWN, item, literal, known=size is not None)

    # -- loops

    def bind(self, node: macro_expansion.Fold) -> int:
        spent = add(self.cost(node.range), self.cost(node.init))
        outer = self.scope
        self.scope = {**outer, node.accumulator: self.variable(node.init)}
        spent = add(spent, self.cost(node.result))
        self.keep(node, self.known(node.result), self.held(node.result))
        self.scope = outer
        return spent

    def fold(self, node: macro_expansion.Fold) -> int:
        spent = add(self.cost(node.range), self.cost(node.init))
        outer = self.scope
        within = {**outer, node.accumulator: self.variable(node.init)}
        held, path = self.held(node.range), self.path(node.range)
        is_list = (held.kind if held else node.range.type.kind) == "list"
        key, value = (held.key, held.value) if held else (None, None)
        if node.second is None:
            walked = _Variable((*path, "@items"), value) if is_list else _Variable((*path, "@keys"), key)
            self.scope = {**within, node.first: walked}
        else:
            self.scope = {
                **within,
                node.first: _Variable((*path, "@indices" if is_list else "@keys"), key),
                node.second: _Variable((*path, "@items" if is_list else "@values"), value),
            }
        turn = add(self.cost(node.condition), self.cost(node.step))
        self.scope = within
        spent = add(spent, self.cost(node.result))
        self.scope = outer
        length = self.size(node.range)
        if isinstance(node.init, macro_expansion.Const):
            self.keep(node, self.known(node.init), None)
        elif isinstance(node.init, macro_expansion.MakeList | macro_expansion.MakeMap):
            self.keep(node, length, self.held(node.step))
        return add(spent, times(length.most, turn))

    def variable(self, init: macro_expansion.Expr) -> _Variable:
        return _Variable(self.path(init), self.known(init), self.held(init))

    # -- known sizes of a node

    def keep(self, node: macro_expansion.Expr, size: Size | None, items: _Items | None) -> None:
        if size is not None:
            self.sizes[node] = size
        if items is not None:
            self.items[node] = items

    def path(self, node: macro_expansion.Expr) -> Path:
        if isinstance(node, macro_expansion.Name) and node.name in self.scope:
            return self.scope[node.name].path
        return self.paths.get(node, ())

    def held(self, node: macro_expansion.Expr) -> _Items | None:
        if node in self.items:
            return self.items[node]
        variable = self.scope.get(node.name) if isinstance(node, macro_expansion.Name) else None
        return variable.items if variable else None

    def size(self, node: macro_expansion.Expr) -> Size:
        return self.known(node) or UNKNOWN

    def known(self, node: macro_expansion.Expr) -> Size | None:
        if node in self.sizes:
            return self.sizes[node]
        if (written := _written(node)) is not None:
            return Size(written, written)
        if limit := _limit(self.path(node)):
            self.sizes[node] = limit
            return limit
        if types.unwrapped(node.type).kind in types.SCALARS:
            return Size(1, 1)
        variable = self.scope.get(node.name) if isinstance(node, macro_expansion.Name) else None
        return variable.size if variable else None


def _written(node: macro_expansion.Expr) -> int | None:
    """The size of a literal; None for other nodes."""
    match node:
        case macro_expansion.Const():
            return len(node.value) if isinstance(node.value, str | bytes) else 1
        case macro_expansion.MakeList():
            return len(node.items)
        case macro_expansion.MakeMap():
            return len(node.entries)
    return None


def _limit(path: Path) -> Size | None:
    """The size limits of that part of a device."""
    if not path or path[0] != "device":
        return None
    at: _Limit | None = _DEVICE
    for step in path[1:]:
        assert at is not None
        if step in ("@items", "@values"):
            at = at.item
        elif step == "@keys":
            at = at.key
        elif at.fields is not None and step in at.fields:
            at = at.fields[step]
        else:
            at = _ATTRIBUTE if at.item is _ATTRIBUTE else None
        if at is None:
            return None
    return Size(0, at.longest) if at is not None else None


def _union(sizes: list[Size]) -> Size:
    """The range of all these sizes; zero for none."""
    return Size(min(size.least for size in sizes), max(size.most for size in sizes)) if sizes else Size(0, 0)


def _both(one: _Items | None, other: _Items | None) -> _Items | None:
    return one.union(other) if one is not None else None


__all__ = ["MAX", "estimate"]
