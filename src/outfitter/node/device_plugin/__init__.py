"""Our own device plugin for the kubelet of a node (API v1beta1): PCI functions and mediated devices of this host under the
resource names of the KubeVirt object's permittedHostDevices. The other side, which serves plugins of others, is
`device_manager`.

    plugin_resources    which devices are of which resource (pure)
    pod_allocations     Allocate and release, on the same page as claims
    plugin_service      the gRPC service of one resource
    plugin_sockets      sockets, registration, and again when the kubelet was restarted"""
