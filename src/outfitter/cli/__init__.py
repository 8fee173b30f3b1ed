"""The command `outfit`. Speaks to any API server through a kubeconfig, the embedded one or a cluster's; holds no rules.
Begin at `main.py`, where every command stands in one table."""
