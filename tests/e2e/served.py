"""The product with a port, in a process of its own that can be traced: `python served.py DATA SYNCHRONOUS`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from outfitter import app


async def main(data: Path, synchronous: str) -> None:
    async with app.embedded(data=data, synchronous=synchronous) as product:
        await product.serve(data, 0)
        await product.settle()  # nothing but requests writes from here on
        print("ready", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
