"""Which holder has which device: the only writer of LedgerPages, one page a host. Books, prepares, moves and releases devices,
takes them out of service, reconciles pages with the running domains, and keeps the history of ended bookings.

Never chooses a device (`scheduling` does) and never touches a host (`node` does). Called by the controllers, the node agent,
the embedded API server and the CLI. Start at `book.py`; docs/decisions/0001 and 0007 explain the order of the writes and every
crash between two of them.

>>> import asyncio
>>> from outfitter.api.device import DeviceId
>>> from outfitter.api.ledger_page.page import Booking, Holder
>>> from outfitter.ledger import book
>>> from outfitter.store.memory import Memory
>>> async def example() -> None:
...     store, gpu = Memory(), DeviceId("gpu.example.com", "node-1", "gpu-0")
...     claim = Holder("ResourceClaim", "default", "train", "uid-1")
...     await book.book(store, "node-1", [Booking(gpu, claim, "gpu", "booked", since="")])
...     await book.set_state(store, "node-1", "uid-1", "prepared")
...     print([f"{booking.device.short} {booking.state}" for booking in (await book.read(store, "node-1")).bookings])
...     await book.release(store, "node-1", "uid-1")
...     print((await book.read(store, "node-1")).bookings)
>>> asyncio.run(example())
['node-1/gpu-0 prepared']
()
"""
