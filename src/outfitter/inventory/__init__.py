"""What a host has and what it offers. Reads a tree shaped like sysfs and yields devices and their ResourceSlices; never
binds, writes or caches.

Called by the node at start and whenever its hardware changes. Read it in this order: `tree` (where the files come from: a
real host, a captured folder, a simulated host), `scan` (devices), `offer` (which of them may be given away, and why the
others not), `slices` (how they are published). `simulate` reads the hosts file of `outfit up --simulate`, `cards` the PCI
functions in it; the hosts it describes are in `host`, and the tree they show in `sysfs`."""
