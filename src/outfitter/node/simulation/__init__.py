"""The simulated kernel: a host tree in memory in which writing an attribute has the effects of Linux. Drivers release and take
functions, SR-IOV creates virtual functions, mediated devices appear. Used for simulated hosts through the same code as real
ones."""
