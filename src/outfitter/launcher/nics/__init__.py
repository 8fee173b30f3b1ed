"""Network interfaces of domains that run: which a domain has, the element of one that is plugged, and libvirt's calls.

    element = nic_hotplug.element(domain.xml, vmi, "red", Wire("red", "bridge", mac, bridge="br0"))
    await hypervisor.attach_device(domain.uid, element)"""
