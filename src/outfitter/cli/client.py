"""The connection of a command to the API server, and the parsing of arguments into kinds, names and manifests. Used by every
command that needs a server."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import json
import os
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import click
import yaml

from outfitter.api import kinds, yaml_scalars
from outfitter.api.kinds import Kind, Object
from outfitter.api.validate.readable import UnreadableObject
from outfitter.errors import BadRequest, CommandFailed, Invalid, OutfitterError, Unauthorized, Unavailable
from outfitter.store import kubeconfig as configs
from outfitter.store.clock import SystemClock
from outfitter.store.kube import Kube
from outfitter.store.readable_store import ReadableStore

T = TypeVar("T")
SUFFIXES = (".yaml", ".yml", ".json")


def default_data() -> Path:
    """The default data directory of `outfit up`."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "outfitter"


class Client:
    """A connection to the API server, opened at first use, so that wrong arguments are reported without a server."""

    def __init__(self, kubeconfig: str | None, namespace: str | None) -> None:
        self._kubeconfig, self._namespace = kubeconfig, namespace
        self.unreadable: dict[tuple[Kind, str], UnreadableObject] = {}  # what `readable` has left out

    @functools.cached_property
    def store(self) -> Kube:
        """Configured by --kubeconfig, else $KUBECONFIG, else the kubeconfig of `outfit up` in the default directory, else
        kubectl's."""
        own = default_data() / "kubeconfig"
        path = self._kubeconfig or (str(own) if not os.environ.get("KUBECONFIG") and own.exists() else None)
        clock = SystemClock()
        return Kube(configs.load(path, clock=clock), clock=clock, field_validation="Strict",
                    warn=lambda text: click.echo(f"warning: {text}", err=True))

    @functools.cached_property
    def readable(self) -> ReadableStore:
        """The same for commands that explain and compute: without objects that cannot be read, each of which is reported."""
        return ReadableStore(self.store, self._skipped)

    def _skipped(self, found: UnreadableObject) -> None:
        if (found.kind, found.key) not in self.unreadable:
            self.unreadable[found.kind, found.key] = found
            click.echo(f"warning: {found.error()}", err=True)

    @property
    def given_namespace(self) -> str | None:
        """That of -n; None: the command has none."""
        return self._namespace

    @property
    def namespace(self) -> str:
        return self._namespace or self.store.access.namespace or "default"

    def namespace_for(self, kind: Kind) -> str:
        """"" for a kind that has no namespace."""
        return self.namespace if kind.namespaced else ""

    async def close(self) -> None:
        if "store" in self.__dict__:
            await self.store.close()


def run(context: click.Context, work: Callable[[Client], Awaitable[T]]) -> T:
    gc.set_threshold(100_000, 50, 1000)  # a command runs for seconds and may read 100,000 objects, none of which is garbage

    async def inner() -> T:
        client = Client(context.obj["kubeconfig"], context.obj["namespace"])
        try:
            return await work(client)
        except Unavailable as error:
            if error.__cause__ is None:  # the server itself answered so
                raise
            raise Unavailable(f"{error} (the address is from {client.store.access.origin}; is that server running?)") from error
        finally:
            await client.close()

    return asyncio.run(inner())


def kind_named(word: str) -> Kind:
    kind = kinds.named(word)
    if kind is None:
        known = ", ".join(sorted(kind.plural for kind in kinds.ALL))
        raise BadRequest(f"there is no kind {word!r}; there are {known}")
    return kind


def kinds_named(word: str) -> list[Kind]:
    """The kinds of a category such as `all`, else the one kind."""
    return [kind for kind in kinds.ALL if word in kind.categories] or [kind_named(word)]


def targets(words: Sequence[str]) -> list[tuple[Kind, str | None]]:
    """Kinds and names from `vmi blue green`, `vmi/blue pod/x` or `nodes,resourceslices`. Name None: all objects of the kind."""
    if any("/" in word for word in words):
        return [_named(word) for word in words]
    if not words:
        return []
    if not all(words[1:]):
        raise click.UsageError("a NAME is empty: write KIND NAME... or KIND/NAME...")
    wanted = [kind for word in words[0].split(",") for kind in kinds_named(word)]
    return [(kind, name) for kind in wanted for name in words[1:] or (None,)]


def _named(word: str) -> tuple[Kind, str | None]:
    kind, slash, name = word.partition("/")
    if not (kind and slash and name) or "/" in name:
        raise click.UsageError(f"{word!r} is not KIND/NAME as the other arguments are; write KIND NAME... or KIND/NAME...")
    return kind_named(kind), name


def documents(names: Iterable[str]) -> list[tuple[Kind, Object, str]]:
    """Every object in files, folders and standard input (`-`): its kind in the version as written, the object and its
    location."""
    out: list[tuple[Kind, Object, str]] = []
    for name in names:
        before = len(out)
        for source, text in _texts(name):
            try:
                parsed = list(yaml.load_all(yaml_scalars.Text(text, source), Loader=_ManifestLoader))
                json.dumps(parsed, allow_nan=False)  # rejects what JSON cannot carry
            except (yaml.YAMLError, ValueError, TypeError) as error:
                raise BadRequest(f"{source} is not YAML: {error}") from error
            for number, document in enumerate(parsed):
                if document is not None:
                    out += _objects(document, f"{source}, document {number + 1}" if len(parsed) > 1 else source)
        if len(out) == before:
            raise BadRequest(
                f"{name} contains no object"
                + (f": no file in it ends with {', '.join(SUFFIXES)}, or all are empty" if Path(name).is_dir() else "")
            )
    return out


@contextlib.contextmanager
def located_errors(obj: Object, where: str) -> Iterator[None]:
    """Prefixes an error about an object with its location in the file, and with its name where the message lacks it."""
    try:
        yield
    except OutfitterError as error:
        if not isinstance(error, Unauthorized | Unavailable):
            name = obj["metadata"].get("name") or obj["metadata"].get("generateName")
            about = "" if isinstance(error, Invalid) else f", {obj['kind']} {name}"  # that names the object itself
            error.message = f"{where}{about}: {error.message}"
            if isinstance(error, Invalid) and error.title:
                error.title = f"{where}: {error.title}"
            error.args = (error.message,)
        raise


@yaml_scalars.as_kubectl
class _ManifestLoader(yaml.SafeLoader):
    """Rejects duplicate keys and keys that are not plain text."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(None, None, "a key must be plain text", key.start_mark)
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"the key {key.value!r} is a duplicate", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def _texts(name: str) -> Iterator[tuple[str, str]]:
    path = Path(name)
    try:
        if name == "-":
            yield "standard input", sys.stdin.read()
            return
        files = sorted(part for part in path.iterdir() if part.suffix in SUFFIXES) if path.is_dir() else [path]
        for file in files:
            yield str(file), file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CommandFailed(f"{name} cannot be read: {error}") from error


def _objects(document: Any, where: str) -> Iterator[tuple[Kind, Object, str]]:
    if isinstance(document, dict) and document.get("kind") == "List":
        for number, item in enumerate(document.get("items") or ()):
            yield from _objects(item, f"{where}, items[{number}]")
        return
    if not isinstance(document, dict) or not document.get("apiVersion") or not document.get("kind"):
        raise BadRequest(f"{where}: an object starts with apiVersion and kind")
    kind = kinds.of_object(document)
    if kind is None:
        same = [kind for kind in kinds.ALL if kind.kind == document["kind"]]
        known = ", ".join(f"{kind.kind} ({kind.api_version})" for kind in same or kinds.ALL)
        raise BadRequest(f"{where}: there is no {document['kind']} in {document['apiVersion']}; "
                         f"there {'is' if same else 'are'} {known}")
    meta = document.get("metadata")
    if not isinstance(meta, dict) or not (meta.get("name") or meta.get("generateName")):
        raise BadRequest(f"{where}: metadata.name is missing")
    for key in ("name", "generateName", "namespace"):
        if not isinstance(meta.get(key, ""), str):
            raise BadRequest(f"{where}: metadata.{key} must be text; write {key}: \"{meta[key]}\"")
    yield replace(kind, version=document["apiVersion"].rpartition("/")[2], older=()), document, where
