"""The migration proxies of two node agents between the sockets of two pods: what they pass on, and whom they refuse."""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
import tempfile
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from outfitter.api.hypervisor import MigrationTarget
from outfitter.api.launcher import launcher_paths
from outfitter.errors import HypervisorError, NotReady
from outfitter.node import launchers
from outfitter.node.launchers import Launchers
from outfitter.node.migration_proxy.migration_proxy import MigrationProxy, own_address
from outfitter.node.migration_proxy.proxy_certificate import ProxyCertificate
from outfitter.node.migration_proxy.proxy_protocol import hello
from outfitter.store.clock import SystemClock

JOB, OTHER_JOB = "5e0c0f7e-7c1d-4a8b-9d7f-0b8c3c2f8a10", "0b8c3c2f-7c1d-4a8b-9d7f-5e0c0f7e8a10"
SOURCE_POD, TARGET_POD = "source-pod", "target-pod"
PATIENCE = 60.0  # seconds after which something that should have happened has failed


class Lab:
    """Two nodes with a pod each. The sockets of the target's pod answer with what they receive, in capital letters."""

    def __init__(self, folder: Path) -> None:
        self.folders = {}
        self.source, self.target = (Launchers(folder / node, migration_address=("127.0.0.1", 0)).proxy for node in "ab")
        for node, pod in (("a", SOURCE_POD), ("b", TARGET_POD)):
            self.folders[pod] = folder / node / "pods" / pod / launchers.VOLUMES / launcher_paths.VOLUME
            self.folders[pod].mkdir(parents=True)
        self.received: list[bytes] = []
        self._servers: list[asyncio.Server] = []
        self._writers: list[asyncio.StreamWriter] = []
        self._answers: list[asyncio.Future[None]] = []

    async def listen(self, channel: str) -> None:
        """What launcher or QEMU do on the target."""
        path = self.folders[TARGET_POD] / launcher_paths.CHANNELS[channel]
        self._servers.append(await asyncio.start_unix_server(self._answer, str(path)))

    def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._answers.append(asyncio.ensure_future(self._in_capitals(reader, writer)))

    async def _in_capitals(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while content := await reader.read(1 << 16):
                self.received.append(content)
                writer.write(content.upper())
                await writer.drain()
        writer.close()

    async def ready(self) -> MigrationTarget:
        """As both agents learn of each other from the record."""
        address = await self.target.open_target(JOB)
        self.target.expect(JOB, TARGET_POD, self.source.certificate)
        return MigrationTarget(address, certificate=self.target.certificate, migration=JOB)

    async def connect(self, channel: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """What libvirt or QEMU do on the source."""
        reader, writer = await asyncio.open_unix_connection(
            str(self.folders[SOURCE_POD] / launcher_paths.CHANNELS[channel]))
        self._writers.append(writer)
        return reader, writer

    async def close(self) -> None:
        await self.source.close()
        await self.target.close()
        for writer in self._writers:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
        for server in self._servers:
            server.close()
        await asyncio.gather(*self._answers)


@pytest.fixture
async def lab() -> AsyncIterator[Lab]:
    with tempfile.TemporaryDirectory(prefix="of-") as folder:
        made = Lab(Path(folder))
        yield made
        await made.close()


async def test_bytes_go_both_ways_over_each_channel(lab: Lab) -> None:
    for channel in launcher_paths.CHANNELS:
        await lab.listen(channel)
    await lab.source.open_source(SOURCE_POD, await lab.ready())
    for channel in launcher_paths.CHANNELS:
        reader, writer = await lab.connect(channel)
        writer.write(channel.encode() * 100_000)
        assert await reader.readexactly(len(channel) * 100_000) == channel.upper().encode() * 100_000
        writer.close()
    assert len(b"".join(lab.received)) == 100_000 * sum(map(len, launcher_paths.CHANNELS))


async def test_what_was_sent_before_the_end_is_delivered(lab: Lab) -> None:
    await lab.listen("memory")
    await lab.source.open_source(SOURCE_POD, await lab.ready())
    _, writer = await lab.connect("memory")
    writer.write(b"x" * 3_000_000)
    await writer.drain()
    writer.close()
    async with asyncio.timeout(PATIENCE):
        while len(b"".join(lab.received)) < 3_000_000:  # noqa: ASYNC110  # other tasks do it
            await asyncio.sleep(0.01)


async def test_a_target_that_ends_ends_the_connection_of_the_source(lab: Lab) -> None:
    await lab.listen("memory")
    await lab.source.open_source(SOURCE_POD, await lab.ready())
    reader, writer = await lab.connect("memory")
    writer.write(b"a")
    assert await reader.read(1) == b"A"
    await lab.target.close()  # as when its process ends
    with contextlib.suppress(ConnectionError):
        assert await reader.read() == b""
    with pytest.raises(NotReady, match="does not accept the connection"):
        await lab.source.open_source("other", replace(await _closed_target(lab), migration=JOB))


async def _closed_target(lab: Lab) -> MigrationTarget:
    """An address at which nothing listens."""
    address = await lab.target.open_target(OTHER_JOB)
    lab.target.close_target(OTHER_JOB, arrived=False)
    return MigrationTarget(address, certificate=lab.target.certificate, migration=OTHER_JOB)


async def test_a_cancelled_copy_is_broken_and_one_that_arrived_is_not(lab: Lab) -> None:
    await lab.listen("libvirt")
    target = await lab.ready()
    await lab.source.open_source(SOURCE_POD, target)
    reader, writer = await lab.connect("libvirt")
    writer.write(b"a")
    assert await reader.read(1) == b"A"
    lab.target.close_target(JOB, arrived=True)
    writer.write(b"b")
    assert await reader.read(1) == b"B"
    with pytest.raises(OSError):  # nothing new is accepted, and the port is closed
        await asyncio.open_connection("127.0.0.1", int(target.address.rpartition(":")[2]))
    await lab.source.close_source(SOURCE_POD)
    with contextlib.suppress(ConnectionError):
        assert await reader.read() == b""
    assert os.listdir(lab.folders[SOURCE_POD]) == []


async def test_a_failed_migration_breaks_its_connections(lab: Lab) -> None:
    await lab.listen("libvirt")
    await lab.source.open_source(SOURCE_POD, await lab.ready())
    reader, writer = await lab.connect("libvirt")
    writer.write(b"a")
    assert await reader.read(1) == b"A"
    lab.target.close_target(JOB, arrived=False)
    with contextlib.suppress(ConnectionError):
        assert await reader.read() == b""


# -- who is refused


async def _try(target: MigrationTarget, context: ssl.SSLContext, name: str, line: bytes = hello("memory")) -> bytes:
    """What a connection to the target's agent gets; empty or an error: nothing."""
    host, _, port = target.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), ssl=context, server_hostname=name)
    try:
        writer.write(line)
        return await reader.readline()
    finally:
        writer.transport.abort()


def _without_certificate() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _stranger(lab: Lab) -> ssl.SSLContext:
    """A certificate of another authority with the same name."""
    return ProxyCertificate(SystemClock()).client_context(lab.target.certificate)


def _older_tls(lab: Lab) -> ssl.SSLContext:
    context = lab.source._certificate.client_context(lab.target.certificate)
    context.minimum_version, context.maximum_version = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_2
    return context


@pytest.mark.parametrize("who", ["no certificate", "a certificate of another authority", "another migration", "no migration",
                                 "an older TLS", "not TLS"])
async def test_strangers_reach_no_socket_of_the_pod(lab: Lab, who: str) -> None:
    await lab.listen("memory")
    target = await lab.ready()
    right = lab.source._certificate.client_context(target.certificate)
    contexts = {"no certificate": _without_certificate(), "a certificate of another authority": _stranger(lab),
                "an older TLS": _older_tls(lab)}
    names = {"another migration": OTHER_JOB, "no migration": "localhost"}
    if who == "not TLS":
        reader, writer = await asyncio.open_connection("127.0.0.1", int(target.address.rpartition(":")[2]))
        writer.write(hello("memory"))
        with contextlib.suppress(ConnectionError):
            assert await reader.readline() != b"ok\n"
        writer.close()
    else:
        with contextlib.suppress(ssl.SSLError, ConnectionError):
            assert await _try(target, contexts.get(who, right), names.get(who, JOB)) == b""
    assert await _try(target, right, JOB) == b"ok\n"  # the right one is still served
    assert lab.received == []


@pytest.mark.parametrize("line", [b"GET / HTTP/1.1\r\n", hello("../launcher.sock"), b"x" * (2 << 20), b"\n"],
                         ids=["HTTP", "another socket", "no end", "empty"])
async def test_a_line_that_is_no_greeting_ends_the_connection(lab: Lab, line: bytes) -> None:
    target = await lab.ready()
    right = lab.source._certificate.client_context(target.certificate)
    with contextlib.suppress(ssl.SSLError, ConnectionError):
        assert await _try(target, right, JOB, line) == b""


async def test_a_target_of_another_key_is_not_believed(lab: Lab) -> None:
    target = await lab.ready()
    imposter = replace(target, certificate=ProxyCertificate(SystemClock()).authority)
    with pytest.raises(NotReady, match="CERTIFICATE_VERIFY_FAILED"):
        await lab.source.open_source(SOURCE_POD, imposter)
    assert not lab.source.copies(SOURCE_POD)
    with pytest.raises(HypervisorError, match="cannot be read"):
        await lab.source.open_source(SOURCE_POD, replace(target, certificate="no certificate"))


async def test_a_source_waits_until_the_target_knows_it(lab: Lab) -> None:
    address = await lab.target.open_target(JOB)
    target = MigrationTarget(address, certificate=lab.target.certificate, migration=JOB)
    with pytest.raises(NotReady):
        await lab.source.open_source(SOURCE_POD, target)
    lab.target.expect(JOB, TARGET_POD, lab.source.certificate)
    await lab.source.open_source(SOURCE_POD, target)
    assert lab.source.copies(SOURCE_POD)


async def test_nothing_in_the_pods_folder_is_followed(lab: Lab, tmp_path: Path) -> None:
    """A launcher that was taken over cannot have an agent connect to another socket of its host, or replace a file there."""
    secret = tmp_path / "host.sock"

    def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"secret")
        writer.close()

    server = await asyncio.start_unix_server(answer, str(secret))
    (lab.folders[TARGET_POD] / launcher_paths.CHANNELS["memory"]).symlink_to(secret)
    kept = tmp_path / "kept"
    kept.write_text("kept")
    (lab.folders[SOURCE_POD] / launcher_paths.CHANNELS["memory"]).symlink_to(kept)
    await lab.source.open_source(SOURCE_POD, await lab.ready())
    reader, _ = await lab.connect("memory")
    with contextlib.suppress(ConnectionError):
        assert await reader.read() == b""
    assert kept.read_text() == "kept"
    server.close()


async def test_a_port_that_is_used_is_named(lab: Lab) -> None:
    port = int((await lab.target.open_target(JOB)).rpartition(":")[2])
    second = MigrationProxy(("127.0.0.1", port), lab.target._listener._dial, Path, clock=SystemClock())
    with pytest.raises(HypervisorError, match="--migration-address"):
        await second.open_target(OTHER_JOB)


def test_own_address_is_that_of_the_way() -> None:
    assert own_address("127.0.0.1") == "127.0.0.1"
    assert own_address("localhost") in ("127.0.0.1", "::1")
