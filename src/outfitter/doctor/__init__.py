"""`outfit doctor`: what is wrong with a host or a cluster, and the command that mends it.

Checks are pure: a state in, findings out. `host_state` and `cluster_state` collect the states, without writing anything:

    state = host_state.collect(FolderTree(Path("/")), Path("/"))
    findings = host_checks.check(state)

Called by `cli/doctor.py`."""
