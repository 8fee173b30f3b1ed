"""Which devices, on which host: what is asked for is compiled once, then chosen by pure functions that also say why not. Writes
nothing and waits for nothing. Called by the schedule controller, `outfit why` and `outfit plan`. Begin at `place.py`: a pod and
its claims; then `index.py` (all hosts by counting) and `allocate.py` (one host exactly). PCI aliases begin at `alias.py`."""
