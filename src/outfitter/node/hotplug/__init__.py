"""GPUs and host devices of claims that are plugged into running VMIs. NICs are in `node.nic_hotplug`.

    planned = device_plan.plan(vmi, domain.host_devices)    # pure
    again = await devices.sync(host, pod, vmi, domain)       # one step further"""
