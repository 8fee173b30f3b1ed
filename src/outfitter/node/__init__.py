"""This host: says what it has, prepares what was booked, runs the machines it was given, lets go of what is over. Decides
nothing about where things go. In embedded mode one process is the node of every simulated host. Begin at `agent.py`; what is
done to devices begins at `handover.py`, and everything that is written to a host goes through `root.py`."""
