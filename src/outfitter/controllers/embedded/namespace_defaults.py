"""Gives each namespace what clients expect in it: the ServiceAccount `default` and the ConfigMap `kube-root-ca.crt` with the
certificate of the authority that signed the API server's. Both are created again when they are deleted; the certificate is also
restored when it was changed. In a cluster, serviceaccounts-controller and root-ca-certificate-publisher do this."""

from __future__ import annotations

import contextlib

from outfitter.api import kinds
from outfitter.api.kinds import Kind, Object
from outfitter.controllers.manager import ControllerContext
from outfitter.errors import AlreadyExists
from outfitter.store.workqueue import WorkQueue

SERVICE_ACCOUNT, ROOT_CA = "default", "kube-root-ca.crt"
DESCRIPTION = {"kubernetes.io/description": "Contains a CA bundle that can be used to verify the kube-apiserver when using "
                                            "internal endpoints such as the internal service IP or kubernetes.default.svc. No "
                                            "other usage is guaranteed across distributions of Kubernetes clusters."}
WATCHED = {kinds.SERVICE_ACCOUNT: SERVICE_ACCOUNT, kinds.CONFIG_MAP: ROOT_CA}


class NamespaceDefaults:
    """Keys are names of namespaces."""

    name = "namespace_defaults"

    def __init__(self, context: ControllerContext) -> None:
        self._context, self._root_ca = context, ""  # PEM; "" until the API server listens
        self.queue = WorkQueue(context.clock)
        self._namespaces = context.informer(kinds.NAMESPACE)
        self._namespaces.on_change(lambda old, new: self.queue.add(new["metadata"]["name"]) if new else None)
        for kind, name in WATCHED.items():
            context.informer(kind).on_change(lambda old, new, name=name: self._changed(name, old, new))  # type: ignore[misc]

    def publish(self, root_ca: str) -> None:
        """The certificate for every namespace, from now on."""
        self._root_ca = root_ca
        for namespace in self._namespaces.items():
            self.queue.add(namespace["metadata"]["name"])

    def _changed(self, name: str, old: Object | None, new: Object | None) -> None:
        meta = (new or old or {})["metadata"]
        if meta["name"] == name:
            self.queue.add(meta["namespace"])

    async def reconcile(self, key: str) -> float | None:
        namespace = self._namespaces.get(key)
        if namespace is None or namespace["metadata"].get("deletionTimestamp"):
            return None
        await self._create(kinds.SERVICE_ACCOUNT, {"metadata": {"name": SERVICE_ACCOUNT, "namespace": key}})
        if not self._root_ca:
            return None
        data = {"ca.crt": self._root_ca}
        await self._create(kinds.CONFIG_MAP, {"metadata": {"name": ROOT_CA, "namespace": key, "annotations": DESCRIPTION},
                                              "data": data})
        found = self._context.informer(kinds.CONFIG_MAP).get(f"{key}/{ROOT_CA}")
        if found is not None and found.get("data") != data:
            await self._context.store.patch(kinds.CONFIG_MAP, ROOT_CA, [{"op": "add", "path": "/data", "value": data}], key,
                                            how="json")
        return None

    async def _create(self, kind: Kind, obj: Object) -> None:
        meta = obj["metadata"]
        if self._context.informer(kind).get(f"{meta['namespace']}/{meta['name']}") is None:
            with contextlib.suppress(AlreadyExists):
                await self._context.store.create(kind, obj)
