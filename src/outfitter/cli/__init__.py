"""The command `outfit`. Talks to any API server through a kubeconfig, the embedded one or a cluster's; holds no rules.
Start reading at `main.py`, which lists every command. Example: `outfit why vm/blue` runs `why.why(client, ["vm/blue"])`."""
