"""An HTTP server for tests that play an API server: many clients may connect at once, and it stops without a delay."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class FakeServer(ThreadingHTTPServer):
    request_queue_size = 128  # a connection that finds the queue full is tried again after a second
    daemon_threads = True


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[int]:
    """The port."""
    keep_alive = type("KeepAlive", (handler,), {"protocol_version": "HTTP/1.1", "disable_nagle_algorithm": True})
    with FakeServer(("127.0.0.1", 0), keep_alive) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()
