"""Which devices, on which host: requests compiled once, then chosen by pure functions that also say why not. Writes nothing
and waits for nothing. Called by the schedule controller and by `outfit why`. Begin at `request.py`, then `pick.py`."""
