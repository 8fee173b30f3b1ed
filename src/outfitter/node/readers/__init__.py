"""What monitors, CNI plugins and schedulers on a node read: which pods are here, and which devices their containers have.
Served in the kubelet's place, for hosts without one.

    pods = NodePods("node-1", sources, clock)      # fed by the agent: pods.admit(pod) when all devices of a pod are prepared
    pods.readable()                                # values: pods, containers, devices with NUMA nodes, claims, CPUs
    ReaderSockets(pods, Path("/var/lib/kubelet"), clock=clock)   # pod-resources v1 and pods v1alpha1, over gRPC

`pod_devices` has the values (no I/O), `node_pods` decides which pods are shown, `pod_resources` and `pods_api` are the gRPC
services, `pods_page` is `/pods` over HTTP. A pod is shown from the moment its devices are assigned and prepared, before it
starts, until it has ended."""
