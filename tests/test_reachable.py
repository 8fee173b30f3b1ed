"""Code that only tests call is not product code: every function, class and method of src is named somewhere in src."""

from __future__ import annotations

import ast
import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

SRC = Path(__file__).parents[1] / "src"
# What is used by a step that is still to come, by a framework, or as a named seam for faults.
KEPT = {
    "app.cluster": "the product on a real API server",
    "apiserver.http_connection.HttpConnection.on_header": "called by the parser",
    "cel.__getattr__": "called by the interpreter",
    "launcher.simulated.Simulated.break_switchover": "a copy that fails in its last moment, in the simulated hypervisor",
    "ledger.book.move": "moves: the holder of a booking changes",
    "ledger.book.transfer": "moves: a holder's bookings on another host",
    "store.http.client_connection.ClientConnection.on_header": "called by the parser",
    "store.clock.ManualClock": "the clock of tests and simulations",
    "store.clock.ManualClock.advance": "the same",
}
TRANSPORT = {*dir(asyncio.Protocol), *dir(asyncio.BufferedProtocol)}  # methods that transports of asyncio call


def modules() -> dict[str, ast.Module]:
    found = {}
    for path in (SRC / "outfitter").rglob("*.py"):
        name = ".".join(path.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__")
        found[name] = ast.parse(path.read_text())
    return found


def used_names(trees: dict[str, ast.Module]) -> tuple[dict[str, set[str]], Counter[str], set[str]]:
    """By module the names that any module takes from it; how often each attribute is named; and all words of texts, by which
    commands name their functions."""
    used: dict[str, set[str]] = defaultdict(set)
    attributes: Counter[str] = Counter()
    words: set[str] = set()
    for name, tree in trees.items():
        imported: dict[str, str] = {}
        nodes = list(ast.walk(tree))
        for node in nodes:
            if isinstance(node, ast.ImportFrom) and node.module:
                for one in node.names:
                    if (whole := f"{node.module}.{one.name}") in trees:
                        imported[one.asname or one.name] = whole
                    else:
                        used[node.module].add(one.name)
        for node in nodes:
            if isinstance(node, ast.Attribute):
                attributes[node.attr] += 1
                if isinstance(node.value, ast.Name) and node.value.id in imported:
                    used[imported[node.value.id]].add(node.attr)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                used[name].add(node.id)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and " " not in node.value:
                words.update(node.value.replace("-", "_").split("."))
    return used, attributes, words


def unreached() -> Iterator[str]:
    trees = modules()
    used, attributes, words = used_names(trees)
    for module, tree in trees.items():
        place = module.removeprefix("outfitter.")
        for node in tree.body:
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                continue
            command = any("command" in ast.unparse(one) or "group" in ast.unparse(one) for one in node.decorator_list)
            by_name = place.startswith("cli.") and node.name in words  # the command line looks its functions up
            by_name |= place.startswith("roles.") and node.name == "run"  # named by the table of roles
            if node.name not in used[module] and not command and not by_name:
                yield f"{place}.{node.name}"
            for method in node.body if isinstance(node, ast.ClassDef) else ():
                if (isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef) and not method.name.startswith("__")
                        and method.name not in TRANSPORT and not attributes[method.name]):
                    yield f"{place}.{node.name}.{method.name}"


def test_everything_is_reached_from_the_product() -> None:
    found = set(unreached())
    assert sorted(found - KEPT.keys()) == []
    assert sorted(KEPT.keys() - found) == [], "these have callers by now"
