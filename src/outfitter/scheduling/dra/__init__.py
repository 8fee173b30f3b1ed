"""Kubernetes' structured allocator: ResourceSlices are read once (`slices`), claims are compiled once (`claim_request`), all
hosts are indexed (`device_index`), and devices are chosen for one host (`allocator`, `search`). Pure: reads no clock, writes
nothing."""
