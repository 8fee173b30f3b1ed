"""The device manager of a host without a kubelet: what the kubelet does for device plugins and DRA drivers of others. Needs the
extra `kubelet` (grpcio); nothing but `outfitter.roles` imports the modules that use gRPC.

    manager = DeviceManager("node-1", Path("/var/lib/kubelet"), PluginClient, clock=clock, changed=wake)
    await manager.start()       # device-plugins/kubelet.sock; plugins register, and send their devices
    manager.resources["example.com/gpu"].devices["gpu-0"].healthy
    manager.amounts()           # capacity and allocatable of the Node

`plugin_resource` has the values, `device_admission` decides which devices a pod gets (no I/O), `device_manager` keeps what
plugins report, `plugin_client`, `registration` and `plugin_watcher` speak gRPC. Which devices a pod has is in the API
(`api.assignment.assigned_devices`); the files of the kubelet's folder are a copy."""
