"""Devices in Nova's words: PCI aliases (`alias`), a flavor's extra specs (`extra_specs`), the claim that a flavor becomes
(`flavor_claim`), and the choice of host, NUMA cells and devices by alias (`pci_allocator`). Pure: writes nothing."""
