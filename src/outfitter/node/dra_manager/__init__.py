"""The DRA manager of a host without a kubelet: what the kubelet does for DRA drivers of others. Needs the extra `kubelet`
(grpcio); nothing but `outfitter.roles` imports `driver_client`, which uses it.

    registry = DriverRegistry(host.driver, DriverClient, clock=clock)     # registers what PluginWatcher finds
    manager = DraManager(host, FolderFiles(Path("/var/lib/kubelet")), registry, clock=clock)
    manager.prepare(pod, claims)      # None once every driver has prepared them; a Rejection or InProgress until then
    manager.unprepare(pod_uid)        # when its containers have ended, and before its end is written

`claim_calls` decides which driver is called for which claims and what its answer means (pure), `dra_manager` keeps what is
prepared and makes the calls outside the host's lock, `driver_registry` has the drivers that have registered, `device_health`
what their streams report, `driver_controller` what follows from both in the API."""
