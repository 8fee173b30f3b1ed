"""Simulated hosts: a hosts file, or its shorthand, becomes hosts with the files and links of a real sysfs, so that the scan and
everything after it run the same code as on hardware. Used by `outfit up --simulate`, `outfit scan` and tests.

>>> from outfitter.inventory.simulation import hosts_file
>>> host = hosts_file.from_argument("1x2").hosts[0]
>>> host.tree().read("/sys/bus/pci/devices/0000:3b:00.0/sriov_numvfs")
'2\\n'
"""
