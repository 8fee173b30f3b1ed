"""What kube-apiserver and kube-controller-manager do in a cluster beside admission, for the embedded store: events expire, each
namespace has its `default` ServiceAccount and `kube-root-ca.crt`, objects without their owners and pods without their nodes go,
pods get claims from templates and release them, and taints evict. Only `app.Embedded` runs these."""
