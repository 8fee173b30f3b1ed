"""Where a launcher pod has its files. Imports nothing: these are defaults of settings, which every command reads."""

from __future__ import annotations

VOLUME = "sockets"  # the emptyDir of a launcher pod
SOCKET = "launcher.sock"  # the file in it
FOLDER = f"/var/run/outfitter/{VOLUME}"  # where the launcher's container has the volume
STATE = "/var/run/outfitter/vm"  # the launcher's folder: config drive, libvirt's sockets and state
