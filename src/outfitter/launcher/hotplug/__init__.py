"""What is plugged into a domain that runs: the guest's unused PCI ports, and the elements of GPUs and host devices of claims.
NICs are in `launcher.nics`.

    for part in device_elements.build(domain.xml, vmi, ref, env, files):
        await hypervisor.attach_device(domain.uid, part.element)"""
