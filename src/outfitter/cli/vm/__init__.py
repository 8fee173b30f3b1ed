"""`outfit vm`: VMs by name. `commands` starts, stops and pauses them, `view` shows them and their devices, `wait` waits for
them."""
