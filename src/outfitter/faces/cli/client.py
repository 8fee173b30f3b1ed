"""How a command reaches the API server, and what a person typed becomes kinds, names and files."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import click
import yaml

from outfitter.api import kinds
from outfitter.api.kinds import Kind, Object
from outfitter.errors import BadRequest, Refused
from outfitter.store import kubeconfig as configs
from outfitter.store.clock import SystemClock
from outfitter.store.kube import Kube

T = TypeVar("T")
SUFFIXES = (".yaml", ".yml", ".json")


def default_data() -> Path:
    """Where `outfit up` keeps everything unless told otherwise."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "outfitter"


class Client:
    def __init__(self, store: Kube, namespace: str) -> None:
        self.store, self.namespace = store, namespace

    def place(self, kind: Kind) -> str:
        return self.namespace if kind.namespaced else ""


@contextlib.asynccontextmanager
async def connect(kubeconfig: str | None, namespace: str | None) -> AsyncIterator[Client]:
    """The file named, else $KUBECONFIG, else that of an `outfit up` in the usual place, else what kubectl would take."""
    own = default_data() / "kubeconfig"
    path = kubeconfig or (str(own) if not os.environ.get("KUBECONFIG") and own.exists() else None)
    clock = SystemClock()
    access = configs.load(path, clock=clock)
    store = Kube(access, clock=clock, field_validation="Strict")
    try:
        yield Client(store, namespace or access.namespace or "default")
    finally:
        await store.close()


def run(context: click.Context, work: Callable[[Client], Awaitable[T]]) -> T:
    async def inner() -> T:
        async with connect(context.obj["kubeconfig"], context.obj["namespace"]) as client:
            return await work(client)

    return asyncio.run(inner())


def kind_named(word: str) -> Kind:
    kind = kinds.named(word)
    if kind is None:
        known = ", ".join(sorted(kind.plural for kind in kinds.ALL))
        raise BadRequest(f"there is no kind {word!r}; there are {known}")
    return kind


def targets(words: Iterable[str]) -> Iterator[tuple[Kind, str | None]]:
    """`vmi blue green`, `vmi/blue pod/x`, `nodes,resourceslices`: kinds and names; None: all of that kind."""
    words = list(words)
    if words and "/" in words[0]:
        for word in words:
            kind, _, name = word.partition("/")
            yield kind_named(kind), name
        return
    for word in words[0].split(",") if words else ():
        if words[1:]:
            yield from ((kind_named(word), name) for name in words[1:])
        else:
            yield kind_named(word), None


def documents(names: Iterable[str]) -> Iterator[tuple[Kind, Object, str]]:
    """Every object in files, folders and standard input (`-`), with its kind as written and where it stands."""
    for name in names:
        for source, text in _texts(name):
            try:
                found = list(yaml.safe_load_all(text))
            except yaml.YAMLError as error:
                raise BadRequest(f"{source} is not YAML: {error}") from error
            for number, document in enumerate(found):
                if document is not None:
                    yield from _objects(document, f"{source}, document {number + 1}")


def _texts(name: str) -> Iterator[tuple[str, str]]:
    if name == "-":
        yield "standard input", sys.stdin.read()
        return
    path = Path(name)
    try:
        files = sorted(part for part in path.iterdir() if part.suffix in SUFFIXES) if path.is_dir() else [path]
        for file in files:
            yield str(file), file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Refused(f"{name} cannot be read: {error}") from error


def _objects(document: Any, where: str) -> Iterator[tuple[Kind, Object, str]]:
    if isinstance(document, dict) and document.get("kind") == "List":
        for item in document.get("items") or ():
            yield from _objects(item, where)
        return
    if not isinstance(document, dict) or not document.get("apiVersion") or not document.get("kind"):
        raise BadRequest(f"{where}: an object starts with apiVersion and kind")
    kind = kinds.of_object(document)
    if kind is None:
        known = ", ".join(f"{kind.kind} ({kind.api_version})" for kind in kinds.ALL)
        raise BadRequest(f"{where}: there is no {document['kind']} in {document['apiVersion']}; there are {known}")
    if not isinstance(document.get("metadata"), dict) or not (document["metadata"].get("name")
                                                              or document["metadata"].get("generateName")):
        raise BadRequest(f"{where}: metadata.name is missing")
    yield replace(kind, version=document["apiVersion"].rpartition("/")[2], older=()), document, where
