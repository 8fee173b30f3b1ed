"""Where a launcher pod has its files. Imports nothing: these are defaults of settings, which every command reads."""

from __future__ import annotations

VOLUME = "sockets"  # the emptyDir of a launcher pod
SOCKET = "launcher.sock"  # the file in it
# Sockets in the same volume, while its VM migrates. On the source the node agent listens on both, on the target the launcher
# does (libvirt) and QEMU. The path is the same on both, because libvirt passes it from one to the other.
CHANNELS = {"libvirt": "migration-libvirt.sock", "memory": "migration-memory.sock"}
FOLDER = f"/var/run/outfitter/{VOLUME}"  # where the launcher's container has the volume
STATE = "/var/run/outfitter/vm"  # the launcher's folder: config drive, libvirt's sockets and state
