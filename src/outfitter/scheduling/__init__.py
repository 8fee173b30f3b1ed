"""Which devices, on which host: requests are compiled once, then devices are chosen by pure functions that also report why not.
Writes nothing and waits for nothing. Called by the scheduler controller, `outfit why` and `outfit plan`. Start at
`scheduler.py`: a pod and its claims, answered by values of `placement.py`; then `dra/device_index.py` (all hosts by counting)
and `dra/allocator.py` (one host exactly). PCI aliases start at `nova/alias.py`."""
