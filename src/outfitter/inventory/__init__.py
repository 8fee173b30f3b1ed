"""The devices of a host: scans a sysfs tree, decides which devices are assignable, and describes them as ResourceSlices and as
a Placement provider tree. Reads only: never binds a driver, writes sysfs or keeps state (`node` does).

Called by the node agent at start and at each audit, and by the CLI. Reading order: `host_tree` (a real host, a captured file or
a simulated host), `scan` (PCI functions and mediated devices), `device_spec` and `assignable` (which of them VMs may get, and
why not the others), `slices` and `providers` (how they are published). `simulation` builds hosts from a hosts file.

>>> from outfitter.inventory import assignable, scan, slices
>>> from outfitter.inventory.simulation import hosts_file
>>> host = hosts_file.from_argument("1x2").hosts[0]  # one simulated host, a network card with two VFs
>>> devices = assignable.assignable(scan.scan(host.tree()).devices)
>>> [device["name"] for device in slices.describe(devices.offered)]
['pci-0000-3b-00-0-vf0', 'pci-0000-3b-00-0-vf1']
>>> devices.withheld[0].reason
'is used by the host through ice; bind it to vfio-pci, or list it in device_spec, to offer it'
"""
