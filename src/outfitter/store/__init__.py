"""Objects at revisions: the Protocol `base.Store` and its three backends `memory`, `sqlite` and `kube`; on top of them
informers, a work queue, leader election and event recording, as in client-go.

Knows no kind by name: kinds are passed as values and admission as `base.Rules`. Called by every package to its right. To add a
backend, start at `base.py` and run tests/store against it.

>>> import asyncio
>>> from outfitter.api import kinds
>>> from outfitter.store.memory import Memory
>>> async def example() -> None:
...     store = Memory()
...     created = await store.create(kinds.CONFIG_MAP, {"metadata": {"name": "a", "namespace": "default"}, "data": {"n": "1"}})
...     await store.patch(kinds.CONFIG_MAP, "a", {"data": {"n": "2"}}, "default")
...     async for event in store.watch(kinds.CONFIG_MAP, since=created["metadata"]["resourceVersion"]):
...         print(event.type, event.object["data"])
...         break
>>> asyncio.run(example())
MODIFIED {'n': '2'}
"""
