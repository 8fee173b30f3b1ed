"""Pods of a host: who runs them (`pod_runtime.py`), the agent itself (`own_pods.py`) or a kubelet (`kubelet_pods.py`)."""
