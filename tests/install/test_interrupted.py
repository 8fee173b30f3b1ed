"""`outfit install --apply` and `--remove` that end before or after any of their writes, as by `kill -9`: the same command
completes them, and what an interrupted one leaves stops no one else. The API server is played by a dict; a real one, and a
process that is killed, are in `test_install_cluster.py`."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Callable, Coroutine, Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from outfitter.api.kinds import Kind, Object
from outfitter.errors import CommandFailed, NotFound, TimedOut
from outfitter.install import apply, manifests, names, remove, resources
from outfitter.install.names import InstallOptions
from outfitter.store.clock import ManualClock
from outfitter.store.kube import Kube
from tests.store.kube.simulated_server import Impatient

Key = tuple[Kind, str, str]
Objects = dict[Key, Object]
BEFORE, AFTER = "before", "after"
CALLS_US = ("ValidatingWebhookConfiguration", "MutatingWebhookConfiguration", "APIService")
PLAIN, SIMULATION = InstallOptions(), InstallOptions(simulation=True)


class Killed(BaseException):
    """The process ends here."""


class PlayedServer:
    """What of an API server an installation uses."""

    access = SimpleNamespace(server="https://played", origin="a test")

    def __init__(self, objects: Mapping[Key, Object], *, ends_at: int | None = None, when: str = BEFORE) -> None:
        """`ends_at`: the write that ends the process, before or after it is done."""
        self.objects: Objects = dict(objects)
        self.writes = 0
        self._ends_at, self._when = ends_at, when

    def _write(self, change: Callable[[], None]) -> None:
        last = self.writes == self._ends_at
        self.writes += 1
        if last and self._when == BEFORE:
            raise Killed
        change()
        if last:
            raise Killed

    async def raw(self, method: str, path: str, *, body: bytes | None = None, **_: Any) -> tuple[int, Any, bytes]:
        if path == "/version":
            answer: Object = {"major": "1", "minor": "36"}
        else:
            answer = {**json.loads(body or b"{}"), "status": {"allowed": True}}
        return 200 if method == "GET" else 201, {}, json.dumps(answer).encode()

    async def list(self, kind: Kind, namespace: str = "", *, labels: str = "", fields: str = "", **_: Any) -> Any:
        label, value = labels.split("=") if labels else ("", "")
        named = fields.removeprefix("metadata.name=") if fields.startswith("metadata.name=") else ""
        found = [obj for (of, _, name), obj in self.objects.items() if of == kind and named in ("", name) and (
            not label or (obj["metadata"].get("labels") or {}).get(label) == value)]
        return SimpleNamespace(items=found, continue_="")

    async def get(self, kind: Kind, name: str, namespace: str = "") -> Object:
        try:
            return self.objects[kind, namespace, name]
        except KeyError:
            raise NotFound(name) from None

    async def apply(self, kind: Kind, obj: Object, *, field_manager: str, dry_run: bool = False) -> Object:
        key = resources.key_of(obj)
        had = self.objects.get(key, {"metadata": {"resourceVersion": "0"}})
        revision = had["metadata"]["resourceVersion"]
        after: Object = {**obj, "metadata": {**obj["metadata"], "resourceVersion": revision}}
        if kind == resources.CRD:
            after["status"] = {"conditions": [{"type": "Established", "status": "True"}], "storedVersions": [
                version["name"] for version in obj["spec"]["versions"] if version["storage"]]}
        if after != had:
            after["metadata"]["resourceVersion"] = str(int(revision) + 1)
            if not dry_run:
                self._write(lambda: self.objects.update({key: after}))
        return after

    async def delete(self, kind: Kind, name: str, namespace: str = "", **_: Any) -> None:
        await self.get(kind, name, namespace)
        self._write(lambda: self._deleted(kind, name, namespace))

    def _deleted(self, kind: Kind, name: str, namespace: str) -> None:
        del self.objects[kind, namespace, name]
        if kind.kind == "Namespace":  # with what is in it
            self.objects = {key: obj for key, obj in self.objects.items() if key[1] != name}


Command = Callable[[Kube], Coroutine[Any, Any, None]]


def installing(options: InstallOptions) -> Command:
    @functools.cache
    def wanted() -> list[Object]:
        return manifests.objects(options)

    def command(kube: Kube) -> Coroutine[Any, Any, None]:
        return apply.apply(kube, wanted(), options.namespace, lambda line: None, clock=ManualClock(), timeout=1)

    return command


def removing(kube: Kube) -> Coroutine[Any, Any, None]:
    return remove.remove(kube, lambda line: None, clock=ManualClock(), timeout=1, force=False)


def run(command: Command, server: PlayedServer) -> bool:
    """Whether it came to its end."""
    try:
        asyncio.run(command(cast(Kube, server)))
    except Killed:
        return False
    return True


@functools.cache
def installed(options: InstallOptions) -> Objects:
    server = PlayedServer({})
    assert run(installing(options), server)
    return server.objects


COMMANDS: dict[str, tuple[Command, InstallOptions | None, InstallOptions | None]] = {  # of what, and to what
    "install": (installing(PLAIN), None, PLAIN),
    "install what prunes": (installing(PLAIN), SIMULATION, PLAIN),
    "remove": (removing, SIMULATION, None),
}


@pytest.mark.parametrize("when", [BEFORE, AFTER])
@pytest.mark.parametrize("name", COMMANDS)
def test_an_end_at_any_write_is_completed_by_the_same_command(name: str, when: str) -> None:
    command, had, wanted = COMMANDS[name]
    begin, end = (installed(options) if options else {} for options in (had, wanted))
    whole = PlayedServer(begin)
    assert run(command, whole)
    assert whole.objects.keys() == end.keys()
    assert whole.writes > (3 if had and wanted else 40)
    for number in range(whole.writes):
        interrupted = PlayedServer(begin, ends_at=number, when=when)
        assert not run(command, interrupted)
        again = PlayedServer(interrupted.objects)
        assert run(command, again), number
        assert again.objects.keys() == end.keys(), number
        idle = PlayedServer(again.objects)
        assert run(command, idle)
        assert idle.writes == 0, number
        leaves_no_one_waiting(interrupted.objects)
        given_up = PlayedServer(interrupted.objects)
        assert run(removing, given_up)
        assert given_up.objects == {}, number


def leaves_no_one_waiting(objects: Objects) -> None:
    """The API server is told to call us only where all is there that answers."""
    if any(kind.kind in CALLS_US for kind, _, _ in objects):
        rest = {key for key in installed(PLAIN) if key[0].kind not in CALLS_US}
        assert rest - objects.keys() == set()


def test_what_is_marked_as_ours_is_what_is_removed() -> None:
    theirs = {resources.key_of(obj): obj for obj in [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "theirs", "namespace": "default", "labels": {
            names.MANAGED_BY: "helm"}}}]}
    server = PlayedServer({**installed(PLAIN), **theirs})
    assert run(removing, server)
    assert server.objects == theirs


class HeldServer(PlayedServer):
    """Something in the namespace has a finalizer."""

    def _deleted(self, kind: Kind, name: str, namespace: str) -> None:
        if kind.kind != "Namespace":
            return super()._deleted(kind, name, namespace)
        self.objects[kind, namespace, name]["status"] = {"conditions": [
            {"type": "NamespaceDeletionDiscoveryFailure", "status": "False", "message": "all is well"},
            {"type": "NamespaceFinalizersRemaining", "status": "True", "message": "example.com/held in 1 resource instances"}]}
        return None


def test_what_a_removal_waits_for_is_named() -> None:
    server = HeldServer({key: dict(obj) for key, obj in installed(PLAIN).items()})
    removal = remove.remove(cast(Kube, server), lambda line: None, clock=Impatient(), timeout=5, force=False)
    with pytest.raises(TimedOut, match=r"being deleted after 5 s: example\.com/held in 1 resource instances; the same"):
        asyncio.run(removal)


class ForgetfulServer(PlayedServer):
    """A definition whose objects cannot be listed at first: it is looked at again when it changes."""

    def _deleted(self, kind: Kind, name: str, namespace: str) -> None:
        if kind != resources.CRD:
            return super()._deleted(kind, name, namespace)
        self.objects[kind, namespace, name]["status"] = {"conditions": [
            {"type": "Terminating", "status": "True", "reason": "InstanceDeletionFailed", "message": "(re)initializing"}]}
        return None

    async def patch(self, kind: Kind, name: str, patch: Object, namespace: str = "") -> Object:
        assert patch["metadata"]["annotations"]
        return self.objects.pop((kind, namespace, name))


def test_a_definition_whose_deletion_failed_is_tried_again() -> None:
    server, clock = ForgetfulServer({key: dict(obj) for key, obj in installed(PLAIN).items()}), Impatient()
    asyncio.run(remove.remove(cast(Kube, server), lambda line: None, clock=clock, timeout=5, force=False))
    assert server.objects == {}


def test_definitions_that_are_being_deleted_are_not_taken_for_installed() -> None:
    server = PlayedServer(installed(PLAIN))
    key = next(key for key in server.objects if key[0] == resources.CRD)
    had = server.objects[key]
    server.objects[key] = {**had, "metadata": {**had["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}}
    with pytest.raises(CommandFailed, match=f"{key[2]}: being deleted, with the objects of its kind: outfit install --remove"):
        asyncio.run(installing(PLAIN)(cast(Kube, server)))
    assert server.writes == 0
