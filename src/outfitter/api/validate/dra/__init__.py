"""Status of ResourceClaims, and ResourcePoolStatusRequests. `resources` and `slices` beside this folder have the other kinds of
resource.k8s.io."""
