"""`outfit launcher`: the process in a launcher pod, beside libvirt and QEMU. `process.py` runs it, `server.py` serves the node
agent, `vm_launcher.py` is the VM."""
