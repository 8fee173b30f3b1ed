"""What kube-apiserver and kube-controller-manager do in a cluster beside admission, for the embedded store: events expire, each
namespace has its `default` ServiceAccount and `kube-root-ca.crt`. Only `app.Embedded` runs these."""
