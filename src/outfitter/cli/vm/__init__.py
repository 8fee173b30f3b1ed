"""`outfit vm`: VMs by name. `commands` starts, stops and pauses them, `view` shows them and their devices, `wait` waits for
them, `nic_group` and `nics` change and show their NICs."""
