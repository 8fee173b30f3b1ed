"""Messages of the kubelet's gRPC APIs: `*.proto`, and the modules that `scripts/kubelet-protos` generates from them."""
