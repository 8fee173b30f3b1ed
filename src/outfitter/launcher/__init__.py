"""Turns a VirtualMachineInstance and its devices into a libvirt domain, and runs the domain with libvirt or simulated.

Imports `api` alone and never calls the API server. Called by the node agent through the Protocol `api.hypervisor`, and by
`outfit domxml`. `sources.py` determines which devices a VMI has, `domain.py` builds the XML; each kind of device has its own
module, `hostdev.py` is the simplest.

>>> from outfitter.launcher import domain
>>> vmi = {"metadata": {"name": "blue", "namespace": "default", "uid": "5f1c6a3e-0000-4000-8000-000000000001"},
...        "spec": {"domain": {"resources": {"requests": {"memory": "1Gi"}}, "devices": {}}}}
>>> built = domain.build(vmi)
>>> built.name, built.devices
('default_blue', ())
>>> built.xml.splitlines()[0]
'<domain xmlns:outfitter="https://outfitter.dev/xmlns/domain/1.0" type="qemu">'
"""
