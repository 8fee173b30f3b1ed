from __future__ import annotations

import os
import subprocess
import sys

import pytest

# A process starts others while gRPC has calls in progress, as the agent does while a driver is called.
PROGRAM = """
import asyncio, os, sys, tempfile
from outfitter import __main__

sys.argv = ["outfit", "--help"]
try:
    __main__.main()
except SystemExit:
    pass
import grpc.aio

async def calls(path):
    server = grpc.aio.server()
    server.add_insecure_port(path)
    await server.start()
    async with grpc.aio.insecure_channel(path) as channel:
        async def call():
            try:
                await channel.unary_unary("/a.B/C")(b"")
            except grpc.aio.AioRpcError as error:
                return error.code()
        some = [asyncio.create_task(call()) for _ in range(5)]
        for _ in range(5):
            pid = os.fork()
            if not pid:
                os._exit(0)
            os.waitpid(pid, 0)
            await asyncio.sleep(0)
        assert set(await asyncio.gather(*some)) == {grpc.StatusCode.UNIMPLEMENTED}
    await server.stop(0)

with tempfile.TemporaryDirectory() as folder:
    asyncio.run(calls(f"unix:{folder}/s"))
"""


@pytest.mark.parametrize("level", [None, "ERROR"], ids=["ours", "of the user"])
def test_grpc_writes_no_lines_of_its_own(level: str | None) -> None:
    env = {name: value for name, value in os.environ.items() if name != "GRPC_VERBOSITY"}
    program = PROGRAM if level is None else f"{PROGRAM}\nassert os.environ['GRPC_VERBOSITY'] == {level!r}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False,
                          env=env | ({"GRPC_VERBOSITY": level} if level else {}))
    assert done.returncode == 0, done.stderr
    assert "fork_posix" not in done.stderr  # of gRPC; a child of a fork may end with another line of it
