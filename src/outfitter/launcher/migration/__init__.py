"""Live migration between hypervisors: the calls of libvirt, and a simulation with bandwidth, convergence and failures.

>>> from outfitter.launcher.migration.simulated_copy import SimulatedCopy, copied
>>> copied(SimulatedCopy(bandwidth=100, downtime=0.0), 1000, 4.0).job.remaining
600
"""
