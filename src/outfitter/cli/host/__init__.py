"""`outfit scan`: what this host has, read from sysfs, as a tree or as JSON. `scan` is the command, `scan_tree` draws.

    outfit scan --sysfs captured-host -o tree
"""
