"""KubeVirt's kinds as values: devices and claims of a VM, its actions, network info, cloud-init volumes, feature gates and the
configuration in the KubeVirt object. Pure functions over wire objects; what may be written is checked in `api.validate`."""
