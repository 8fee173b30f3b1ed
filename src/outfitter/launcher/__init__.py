"""An instance and its devices become a libvirt domain, and the domain runs. Imports `api` alone and never calls the API
server. Called by the node through `api.hypervisor` and by `outfit domxml`. To add a kind of device, begin at `hostdev.py`."""
