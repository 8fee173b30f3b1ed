"""The certificates of one node agent for migrations: an authority that exists in this process alone, and a server and a client
certificate of it. The authority's certificate is what the other agent gets to know. TLS 1.3, and nothing is resumed."""

from __future__ import annotations

import contextlib
import os
import ssl
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING

from outfitter.errors import HypervisorError
from outfitter.store.clock import Clock

if TYPE_CHECKING:
    from outfitter.store.pki import Pair

NAME = "outfitter-node"
SKEW, LASTS = timedelta(days=1), timedelta(days=3650)  # a process that restarts has others


@dataclass(slots=True)
class ProxyCertificate:
    _clock: Clock
    _made: tuple[str, Pair, Pair] | None = field(init=False, default=None)

    @property
    def authority(self) -> str:
        """PEM, for the other agent."""
        return self._pairs()[0]

    def _pairs(self) -> tuple[str, Pair, Pair]:
        """Made when the first migration needs them."""
        if self._made is None:
            from outfitter.store import pki  # noqa: PLC0415  # slow to import, and most nodes need it rarely

            now = self._clock.now()
            begins, ends = now - SKEW, now + LASTS
            authority = pki.authority(NAME, valid_from=begins, valid_until=ends)
            server = pki.server(authority, NAME, hosts=[NAME], valid_from=begins, valid_until=ends)
            client = pki.client(authority, NAME, valid_from=begins, valid_until=ends)
            self._made = authority.cert.decode(), server, client
        return self._made

    def server_context(self, peer: str) -> ssl.SSLContext:
        """Accepts who has a certificate of the authority `peer`; "": nothing. HypervisorError: it is no certificate."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.num_tickets = 0
        return self._completed(context, self._pairs()[1], peer)

    def client_context(self, peer: str) -> ssl.SSLContext:
        """Connects to who has a certificate of the authority `peer`, and to no one else, by whatever name."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False  # the name is that of the migration; `peer` is the identity
        return self._completed(context, self._pairs()[2], peer)

    def _completed(self, context: ssl.SSLContext, own: Pair, peer: str) -> ssl.SSLContext:
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED
        with _in_memory(own.cert + own.key) as path:
            context.load_cert_chain(path)
        if peer:
            try:
                context.load_verify_locations(cadata=peer)
            except (ssl.SSLError, ValueError) as error:
                raise HypervisorError(f"the certificate of the other node's agent cannot be read: {error}") from error
        return context


@contextlib.contextmanager
def _in_memory(content: bytes) -> Iterator[str]:
    """A file for a library that wants one: the key is on no disk."""
    handle = os.memfd_create("outfitter-key")
    try:
        os.write(handle, content)
        yield f"/proc/self/fd/{handle}"
    finally:
        os.close(handle)


