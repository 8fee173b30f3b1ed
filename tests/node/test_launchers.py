"""The node agent's side of the launchers' sockets: launchers that are dead, hang, lie, are too old, or send what is no message.
A launcher that a guest took over is one of these."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from outfitter.api.hypervisor import MigrationLimits
from outfitter.api.kinds import Object
from outfitter.api.launcher import launcher_protocol as protocol
from outfitter.api.launcher.launcher_protocol import StartVmi
from outfitter.errors import HypervisorAway, HypervisorError, OutfitterError
from outfitter.launcher.pod.container import Container
from outfitter.launcher.pod.migration_channels import MigrationChannels
from outfitter.launcher.pod.server import MAX_CONNECTIONS, LauncherServer
from outfitter.launcher.pod.vm_launcher import VmLauncher
from outfitter.launcher.simulated import Simulated
from outfitter.node.launchers import Launchers
from tests.launcher.pod.launcher_process import UID, PodFolder, vmi

OTHER = "4b20d080-1b54-4048-85b3-a6a62d165c01"
HELLO = {"hello": {"version": "1.1"}}


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="of-") as made:
        yield Path(made)


@pytest.fixture
def pod(folder: Path) -> PodFolder:
    return PodFolder(folder)


@pytest.fixture
async def agent(pod: PodFolder) -> AsyncIterator[Launchers]:
    async with assigned(pod, 60.0) as connected:
        yield connected


@pytest.fixture
async def impatient(pod: PodFolder) -> AsyncIterator[Launchers]:
    """For a launcher that does not answer."""
    async with assigned(pod, 1.0) as connected:
        yield connected


@asynccontextmanager
async def assigned(pod: PodFolder, patience: float) -> AsyncIterator[Launchers]:
    connected = Launchers(pod.kubelet, connect_patience=patience, call_patience=patience)
    connected.assign(UID, pod.uid)
    yield connected
    await connected.close()


@asynccontextmanager
async def served(pod: PodFolder, hypervisor: Simulated | None = None, *, patience: float = 60.0) -> AsyncIterator[VmLauncher]:
    launcher = VmLauncher(hypervisor or Simulated(), Container(pod.root), MigrationChannels(pod.sockets, "qemu:///session"))
    server = LauncherServer(launcher, pod.socket, hello_patience=patience)
    await server.start()
    try:
        yield launcher
    finally:
        await server.close()


Answers = Callable[[Object], list[Any]]


@asynccontextmanager
async def played(pod: PodFolder, answers: Answers, hello: Object | None = HELLO) -> AsyncIterator[None]:
    """A launcher that answers each request as it is told; bytes are sent as they are."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            request = json.loads(line)
            for answer in ([hello] if hello else []) if "hello" in request else answers(request):
                writer.write(answer if isinstance(answer, bytes) else json.dumps(answer).encode() + b"\n")
        writer.close()

    server = await asyncio.start_unix_server(connected, pod.socket)
    try:
        yield
    finally:
        server.close()


async def line(pod: PodFolder, *lines: bytes) -> list[Object]:
    """What the launcher answers to these lines before it closes."""
    reader, writer = await asyncio.open_unix_connection(pod.socket, limit=protocol.MAX_MESSAGE)
    for text in lines:
        writer.write(text + b"\n")
    answers = [json.loads(answer) for answer in [await reader.readline()] if answer]
    while answer := await reader.readline():
        answers.append(json.loads(answer))
    writer.close()
    return answers


# -- what a launcher does with a peer


async def test_the_socket_is_for_its_owner(pod: PodFolder) -> None:
    async with served(pod):
        assert pod.socket.stat().st_mode & 0o777 == 0o600


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")
async def test_another_user_may_not_connect(pod: PodFolder) -> None:
    async with served(pod):
        for path in (pod.container.parent, pod.container, pod.socket):
            path.chmod(0o777)
        with socket.socket(socket.AF_UNIX) as client:
            client.setblocking(False)
            os.seteuid(65534)  # the kernel keeps whose connection it is
            try:
                client.connect(str(pod.socket))
            finally:
                os.seteuid(0)
            assert await asyncio.get_running_loop().sock_recv(client, 1) == b""


@pytest.mark.parametrize(("lines", "code"), [
    pytest.param([b"{"], "outfitter.bad_request", id="no JSON"),
    pytest.param([b'{"id":1,"method":"state"}'], "outfitter.bad_request", id="no hello"),
    pytest.param([b'{"hello":{"version":"2.0"}}'], "outfitter.hypervisor.away", id="another major version"),
    pytest.param([b'{"hello":{"version":"1.4"}}'], "outfitter.hypervisor.away", id="two minor versions ahead"),
    pytest.param([b'{"hello":{"version":"one"}}'], "outfitter.hypervisor.away", id="no version"),
    pytest.param([b'{"hello":{"version":"1.1"}}', b"x" * (protocol.MAX_MESSAGE + 2)], "outfitter.bad_request", id="too long"),
    pytest.param([b'{"hello":{"version":"1.1"}}', b'{"id":"one"}'], "outfitter.bad_request", id="an id that is no number"),
])
async def test_a_peer_that_does_not_keep_to_the_protocol_is_told_and_disconnected(
    pod: PodFolder, lines: list[bytes], code: str
) -> None:
    async with served(pod):
        assert (await line(pod, *lines))[-1]["error"]["code"] == code


async def test_a_peer_that_says_nothing_is_disconnected(pod: PodFolder) -> None:
    async with served(pod, patience=0.2):
        assert await line(pod) == []


async def test_one_minor_version_of_skew_is_accepted_and_what_is_not_known_ignored(pod: PodFolder) -> None:
    async with served(pod):
        reader, writer = await asyncio.open_unix_connection(pod.socket)
        writer.write(b'{"hello":{"version":"1.3","mood":"good"}}\n{"id":7,"method":"state","params":{"more":1},"trace":"x"}\n'
                     b'{"id":8,"method":"teleport"}\n{"id":9,"method":"pause","params":{"uid":"x"}}\n')
        answers = [json.loads(await reader.readline()) for _ in range(4)]
        writer.close()
    assert answers[:2] == [{"hello": {"version": "1.2"}}, {"id": 7, "result": {}}]
    assert [(answer["id"], answer["error"]["code"]) for answer in answers[2:]] == [
        (8, "outfitter.bad_request"), (9, "outfitter.hypervisor.rejected")]


async def test_connections_are_limited(pod: PodFolder) -> None:
    async with served(pod):
        opened = []
        for _ in range(MAX_CONNECTIONS):
            reader, writer = await asyncio.open_unix_connection(pod.socket)
            writer.write(b'{"hello":{"version":"1.1"}}\n')
            assert await reader.readline()
            opened.append(writer)
        reader, writer = await asyncio.open_unix_connection(pod.socket)
        assert await reader.read() == b""
        for each in (*opened, writer):
            each.close()


# -- what the agent does with a launcher


async def test_what_is_no_launcher_runs_nothing(pod: PodFolder, agent: Launchers, folder: Path) -> None:
    assert await agent.domains() == {}
    pod.socket.write_text("")
    assert await agent.domains() == {}, "a file"
    pod.socket.unlink()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(pod.socket))
    assert await agent.domains() == {}, "a socket of a process that is gone"
    with pytest.raises(HypervisorAway) as error:
        await agent.start_vmi(StartVmi(vmi()))
    assert error.value.rejection.code == "LauncherAway"
    assert await agent.stop(UID) is None


async def test_a_link_to_another_socket_of_the_host_is_not_followed(pod: PodFolder, agent: Launchers, folder: Path) -> None:
    asked: list[object] = []
    server = await asyncio.start_unix_server(lambda *peer: asked.append(peer), folder / "docker.sock")
    pod.socket.symlink_to(folder / "docker.sock")
    assert await agent.domains() == {}
    assert not asked
    server.close()


async def test_a_launcher_speaks_for_its_own_vmi_alone(pod: PodFolder, agent: Launchers, folder: Path) -> None:
    """One that a guest took over cannot end or take over the VM of another pod."""
    other = PodFolder(folder)
    agent.assign(OTHER, other.uid)
    claims = {"domain": {"uid": OTHER, "name": "here_red", "devices": ["0000:3b:01.0"]}}
    async with played(pod, lambda request: [{"id": request["id"], "result": claims}]), served(other) as launcher:
        await launcher.start(StartVmi(vmi(OTHER)))
        found = await agent.domains()
        assert found[OTHER].devices == ()
        foreign = [(domain.foreign, domain.devices) for uid, domain in found.items() if uid != OTHER]
        assert foreign == [(True, ("0000:3b:01.0",))]
        await agent.pause(OTHER)
        assert (await agent.domains())[OTHER].paused is not None


async def test_a_launcher_that_hangs_is_assumed_to_run_what_it_ran(pod: PodFolder, impatient: Launchers) -> None:
    hangs = False

    def answers(request: Object) -> list[Any]:
        state = {"domain": {"uid": UID, "name": "here_blue", "devices": ["0000:3b:01.0"]}}
        return [] if hangs else [{"id": request["id"], "result": state}, {"changed": UID}]

    async with played(pod, answers):
        assert (await impatient.domains())[UID].devices == ("0000:3b:01.0",)
        hangs = True
        assert (await impatient.domains())[UID].devices == ("0000:3b:01.0",)
        with pytest.raises(HypervisorAway):
            await impatient.pause(UID)


@pytest.mark.parametrize("job", [None, {"failed": "the connection broke"}])
async def test_a_domain_is_read_again_when_its_copy_has_ended(pod: PodFolder, agent: Launchers, job: Object | None) -> None:
    """It may be stopped, and the target run it. The event of that may come later than the answer."""
    stopped = False

    def answers(request: Object) -> list[Any]:
        state = {"domain": {"uid": UID, "name": "here_blue", "migrating": stopped}}
        return [{"id": request["id"], "result": job if request["method"] == "migration" else state}]

    async with played(pod, answers):
        assert not (await agent.domains())[UID].migrating
        stopped = True
        await agent.migration(UID)
        assert (await agent.domains())[UID].migrating


async def test_a_domain_that_a_failed_copy_left_stopped_is_resumed(pod: PodFolder, agent: Launchers) -> None:
    hypervisor, target = Simulated(), Simulated()
    async with served(pod, hypervisor):
        domain = await agent.start_vmi(StartVmi(vmi()))
        assert domain is not None
        await hypervisor.migrate(UID, await target.prepare_incoming((await hypervisor.domains())[UID]), MigrationLimits())
        hypervisor.break_switchover(UID, "the connection broke", arrived=False)
        job = await agent.migration(UID)
        assert job is not None
        assert job.failed == "the connection broke"
        assert (await agent.domains())[UID].migrating
        await agent.abort_migration(UID)
        assert not (await agent.domains())[UID].migrating
        assert await agent.migration(UID) is None


@pytest.mark.parametrize(("hello", "answer", "code"), [
    pytest.param(None, {}, "LauncherAway", id="no hello"),
    pytest.param({"hello": {"version": "3.0"}}, {}, "LauncherVersion", id="another version"),
    pytest.param(HELLO, b"?\n", "LauncherAway", id="no JSON"),
    pytest.param(HELLO, b"x" * (protocol.MAX_MESSAGE + 2), "LauncherAway", id="too long"),
    pytest.param(HELLO, b"", "LauncherAway", id="no answer"),
])
async def test_a_launcher_of_which_nothing_is_known_may_run_anything(
    pod: PodFolder, impatient: Launchers, hello: Object | None, answer: Any, code: str
) -> None:
    async with played(pod, lambda request: [answer], hello):
        with pytest.raises(HypervisorAway) as error:
            await impatient.domains()
        assert error.value.rejection.code == code


@pytest.mark.parametrize(("fault", "kind"), [
    pytest.param({"code": "outfitter.hypervisor.rejected", "message": "no"}, HypervisorError, id="known"),
    pytest.param({"code": "outfitter.of.tomorrow", "message": "no", "rejection": "Unheard"}, HypervisorError, id="not known"),
    pytest.param({"code": "outfitter.hypervisor.away", "message": "no", "retryAfter": 1e9}, HypervisorAway, id="away"),
])
async def test_errors_of_a_launcher_are_raised(
    pod: PodFolder, agent: Launchers, fault: Object, kind: type[OutfitterError]
) -> None:
    async with played(pod, lambda request: [{"id": request["id"], "error": fault}]):
        with pytest.raises(kind, match="no") as error:
            await agent.reset(UID)
        assert getattr(error.value, "retry_after", 0) <= 60


async def test_changes_are_reported_with_the_vmi(pod: PodFolder, agent: Launchers) -> None:
    changes: list[str] = []
    agent.on_change(changes.append)
    hypervisor = Simulated()
    async with served(pod, hypervisor):
        await agent.start_vmi(StartVmi(vmi()))
        changes.clear()
        await hypervisor.pause(UID)
        async with asyncio.timeout(300):
            while UID not in changes:  # noqa: ASYNC110  # it comes over the socket
                await asyncio.sleep(0)
        assert (await agent.domains())[UID].paused is not None
        changes.clear()
    async with asyncio.timeout(300):
        while UID not in changes:  # noqa: ASYNC110  # the connection is lost
            await asyncio.sleep(0)
    agent.forget(pod.uid)
    assert await agent.domains() == {}
