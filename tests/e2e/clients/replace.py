"""Read-modify-replace with the official Python client, which runs this file with an interpreter of its own.

Reads {"kinds": [{group, version, kind, plural, namespaced, status}], "stamp": text} from standard input: the first object of
each kind is read, annotated and replaced, and so is its status where it has one. Prints {plural: what went wrong, or "ok"}."""

import json
import re
import sys

from kubernetes import client, config
from kubernetes.client.exceptions import ApiException

TRIES = 50  # a controller may write the same object at the same time


def words(name):
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


class Typed:
    """Objects as the models of the client, with times as datetime."""

    def __init__(self, kind):
        group = "".join(part.capitalize() for part in (kind["group"] or "core").removesuffix(".k8s.io").split("."))
        self._api = getattr(client, f"{group}{kind['version'].capitalize()}Api")()
        scope = "namespaced_" if kind["namespaced"] else ""
        self._name = scope + words(kind["kind"])
        self._all = f"list_{words(kind['kind'])}_for_all_namespaces" if kind["namespaced"] else f"list_{words(kind['kind'])}"

    def first(self):
        meta = getattr(self._api, self._all)().items[0].metadata
        return (meta.name, meta.namespace) if "namespaced" in self._name else (meta.name,)

    def read(self, key):
        return getattr(self._api, f"read_{self._name}")(*key)

    def replace(self, key, obj, status=False):
        return getattr(self._api, f"replace_{self._name}{'_status' if status else ''}")(*key, obj)

    def annotate(self, obj, stamp):
        obj.metadata.annotations = {**(obj.metadata.annotations or {}), "example.com/stamp": stamp}

    def stamp(self, obj):
        return (obj.metadata.annotations or {}).get("example.com/stamp")


class Custom:
    """Objects of other groups, as dictionaries."""

    def __init__(self, kind):
        self._api, self._kind = client.CustomObjectsApi(), kind
        self._scope = "namespaced" if kind["namespaced"] else "cluster"
        self._place = (kind["group"], kind["version"])

    def first(self):
        meta = self._api.list_cluster_custom_object(*self._place, self._kind["plural"])["items"][0]["metadata"]
        return (meta["namespace"], self._kind["plural"], meta["name"]) if self._kind["namespaced"] else (
            self._kind["plural"], meta["name"])

    def read(self, key):
        return getattr(self._api, f"get_{self._scope}_custom_object")(*self._place, *key)

    def replace(self, key, obj, status=False):
        name = f"replace_{self._scope}_custom_object{'_status' if status else ''}"
        return getattr(self._api, name)(*self._place, *key, obj)

    def annotate(self, obj, stamp):
        obj["metadata"].setdefault("annotations", {})["example.com/stamp"] = stamp

    def stamp(self, obj):
        return obj["metadata"].get("annotations", {}).get("example.com/stamp")


def attempt(kind, stamp):
    api = Typed(kind) if kind["builtin"] else Custom(kind)
    key = api.first()
    for _ in range(TRIES):
        try:
            obj = api.read(key)
            api.annotate(obj, stamp)
            replaced = api.replace(key, obj)
            if api.stamp(replaced) != stamp:
                return "the change was lost"
            if kind["status"]:
                api.replace(key, api.read(key), status=True)
        except ApiException as error:
            if error.status != 409:
                return f"{error.status}: {error.body}"
        else:
            return "ok"
    return "always a conflict"


def main():
    config.load_kube_config()
    asked = json.load(sys.stdin)
    json.dump({kind["plural"]: attempt(kind, asked["stamp"]) for kind in asked["kinds"]}, sys.stdout)


main()
