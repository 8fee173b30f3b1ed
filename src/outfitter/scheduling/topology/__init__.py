"""Which devices a container gets on its node: NUMA hints of device sets, their merging by the topology manager's policy, and
the choice of device ids, as the kubelet does it. Pure functions, no clock, no I/O; called by the agent's device manager.
Devices are those of one resource of a device plugin; claims are allocated by `scheduling.dra`.

    settings = TopologySettings.parse("restricted", "container", {}, NumaNodes.of([0, 1]))
    gpus = ResourceDevices(numa={"g0": (0,), "g1": (0,), "g2": (1,)}, free=frozenset({"g1", "g2"}))
    affinity = decide_affinity(settings, {"a.io/gpu": DeviceRequest(gpus, count=1)})
    affinity.admitted                                        # False would be the rejection TopologyAffinityError
    choice = begin_choice(DeviceRequest(gpus, count=1), affinity.mask)
    if isinstance(choice, PreferenceNeeded):                 # the plugin may be asked: GetPreferredAllocation
        choice = finish_choice(choice, preferred=())         # () when it offers no preference
    choice.ids                                               # ("g1",)

NUMA nodes are bit masks: bit n is node n. With scope `pod` there is one decision for `filter.pod_requests.requests(pod)`, and
its mask holds for each container."""
