"""Our DRA driver as the kubelet knows one: it registers through the folder `plugins_registry`, and the kubelet calls it to
prepare and unprepare claims over a unix socket. Needs the extra `kubelet` (grpcio).

    plugin = KubeletPlugin(ClaimDriver(store, host, bookings, preparation, clock=clock, events=events),
                           Path("/var/lib/kubelet"), clock=clock, page=lambda: pages.get(host.name))
    await plugin.start()     # plugins/pci.outfitter.dev/dra.sock, plugins_registry/pci.outfitter.dev-reg.sock
    await plugin.stop()      # calls in progress are finished

`claim_driver` does the work and knows no gRPC; `services` translates messages, `health_service` streams the health of our
devices, `unix_server` serves them, `plugin` keeps the sockets in place. The messages are in `proto`."""
