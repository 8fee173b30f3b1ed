"""Simulated hosts: a hosts file, or its shorthand, becomes hosts whose tree has the files and links of a real sysfs, so that
the scan and everything after it run the same code as on hardware. Used by `outfit up --simulate` and by `outfit scan`."""
