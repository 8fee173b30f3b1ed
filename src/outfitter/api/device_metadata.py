"""Device metadata files: the versions and the folders by which drivers write them and launchers find them. No I/O."""

from __future__ import annotations

# A file is a stream of JSON objects, one per version, newest first. Both have the same fields; a reader takes the first object
# whose version it knows. KubeVirt up to 1.9 knows v1alpha1 alone, Kubernetes 1.37 added v1beta1.
API_VERSIONS = ("metadata.resource.k8s.io/v1beta1", "metadata.resource.k8s.io/v1alpha1")
KIND = "DeviceMetadata"
BASE = "/var/run/kubernetes.io/dra-device-attributes"  # in the launcher's container
EARLIER_BASE = "/var/run/dra-device-attributes"  # KubeVirt 1.8.0 to 1.8.2
SUFFIX = "-metadata.json"
