"""An instance and its devices become a libvirt domain, and the domain runs. Imports `api` alone and never calls the API
server. Called by the node through `api.hypervisor` and by `outfit domxml`. `sources.py` says which devices a machine got,
`domain.py` puts the domain together; a kind of device has a file of its own, `hostdev.py` is the one to begin at."""
