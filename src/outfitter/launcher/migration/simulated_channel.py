"""Live migration between simulated hypervisors that share no folder: a domain goes over a connection, one line of JSON for each
step. Used in launcher pods, where node agents pass the connection on to the target's node.

    -> {"uid":"8d1f..."}                  <- {"expected":true}
    -> {"paused":null,"commit":true}      <- {"arrived":true}

The connection is open for the whole copy, as QEMU's is: a copy whose connection broke has failed. As with libvirt, the source
runs on unless the target has answered that the domain arrived."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from outfitter.api.hypervisor import Domain, MigrationJob, MigrationLimits, MigrationTarget, Paused
from outfitter.errors import HypervisorError
from outfitter.launcher.migration import simulated_migration as migrations
from outfitter.launcher.simulated import Simulated

CHANNEL_SCHEME = "simulated+unix:"
ANSWER_PATIENCE = 20.0  # seconds
BROKE = "the connection to the target broke"


class ChannelMessage(msgspec.Struct, frozen=True, omit_defaults=True):
    uid: str = ""
    expected: bool = False
    paused: tuple[str, str] | None = None  # reason and message
    commit: bool = False
    arrived: bool = False


@dataclass(slots=True, eq=False)
class _OutgoingChannel:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def ask(self, message: ChannelMessage) -> ChannelMessage:
        """HypervisorError: no answer."""
        try:
            async with asyncio.timeout(ANSWER_PATIENCE):
                await _send(self.writer, message)
                answer = await _receive(self.reader)
        except (OSError, TimeoutError) as error:
            raise HypervisorError(f"{BROKE}: {error!r}") from error
        if answer is None:
            raise HypervisorError(BROKE)
        return answer


class ChannelSimulated(Simulated):
    """The simulated hypervisor of a launcher pod."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._channels: dict[str, _OutgoingChannel] = {}  # by the uid of the VMI that is copied

    async def migrate(self, uid: str, target: MigrationTarget, limits: MigrationLimits) -> None:
        domain = self._running(uid)
        if uid in self._outgoing and not self._outgoing[uid].failed:
            return
        if not target.address.startswith(CHANNEL_SCHEME):
            raise HypervisorError(f"a simulated VM in a pod cannot migrate to {target.address}")
        path = target.address.removeprefix(CHANNEL_SCHEME)
        try:
            async with asyncio.timeout(ANSWER_PATIENCE):
                channel = _OutgoingChannel(*await asyncio.open_unix_connection(path))
        except (OSError, TimeoutError) as error:
            raise HypervisorError(f"the target cannot be reached at {path}: {error}") from error
        try:
            if not (await channel.ask(ChannelMessage(uid))).expected:
                raise HypervisorError("the target does not expect it")
        except HypervisorError:
            channel.writer.close()
            raise
        self._close_channel(uid)
        self._channels[uid] = channel
        local = replace(target, address=f"{migrations.SCHEME}{path}")
        self._set_outgoing(domain, migrations.begin(domain, local, limits, self._monotonic()))

    async def migration(self, uid: str) -> MigrationJob | None:
        copy, channel = self._outgoing.get(uid), self._channels.get(uid)
        if copy is None or uid not in self._domains or copy.failed:
            return await super().migration(uid)
        job, done = migrations.look(copy, self.copy, self._monotonic())
        failed = job.failed
        if channel is None or channel.reader.at_eof():
            failed = failed or BROKE
        elif done and not failed:
            domain = self._domains[uid]
            paused = (domain.paused.reason, domain.paused.message) if domain.paused is not None else None
            try:
                answer = await channel.ask(ChannelMessage(uid, paused=paused, commit=True))
                failed = "" if answer.arrived else "the target does not expect it"
            except HypervisorError as error:
                failed = error.message
            if not failed:
                self._close_channel(uid)
                self._gone(domain)
                self._notify(uid)
                return None
        if failed:
            self._close_channel(uid)
            self._set_outgoing(self._domains[uid], replace(copy, failed=failed))
        return replace(job, failed=failed)

    async def abort_migration(self, uid: str) -> None:
        self._close_channel(uid)
        await super().abort_migration(uid)

    async def stop(self, uid: str, grace: float = 0.0) -> float | None:
        left = await super().stop(uid, grace)
        if left is None:
            self._close_channel(uid)
        return left

    async def close(self) -> None:
        for uid in list(self._channels):
            self._close_channel(uid)
        await super().close()

    def _close_channel(self, uid: str) -> None:
        if (channel := self._channels.pop(uid, None)) is not None:
            channel.writer.close()

    # -- target

    async def receive_over(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection of a source."""
        try:
            uid = ""
            while (message := await _receive(reader)) is not None:
                if message.commit:
                    here = message.uid == uid and self._arrives(uid, message.paused)
                    await _send(writer, ChannelMessage(uid, arrived=here))
                    return
                uid = message.uid
                await _send(writer, ChannelMessage(uid, expected=self.expects(uid)))
        except OSError:
            return  # the source knows that it runs on there
        finally:
            writer.close()

    def _arrives(self, uid: str, paused: tuple[str, str] | None) -> bool:
        domain: Domain | None = self._incoming.get(uid)
        if domain is None:
            return False
        if self._folder is not None and paused is not None:
            self._write(self._path(domain).with_suffix(".xml.paused"), "\n".join(paused))
        self.arrive(replace(domain, paused=Paused(*paused) if paused is not None else None))
        return True


async def _send(writer: asyncio.StreamWriter, message: ChannelMessage) -> None:
    writer.write(msgspec.json.encode(message) + b"\n")
    await writer.drain()


async def _receive(reader: asyncio.StreamReader) -> ChannelMessage | None:
    """None: the other side has closed, or sent something else."""
    with contextlib.suppress(ValueError, msgspec.DecodeError):
        line = await reader.readline()
        if line.endswith(b"\n"):
            return msgspec.json.decode(line, type=ChannelMessage)
    return None
