"""The devices of a claim on this host: `prepare` takes them from the host's drivers and gives them to the VM, `unprepare` gives
them back. PCI functions go through `vfio`, VFs and mediated devices are created by `sriov` and `mdev`, `checkpoint` records
every step before it is taken. May run twice without harm; called by `node.claim_preparation` and, at start, by the agent."""
