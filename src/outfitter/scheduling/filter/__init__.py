"""Which nodes a pod may run on, devices aside, by the rules of kube-scheduler: node selectors and affinity, taints, resources.
Pure."""
