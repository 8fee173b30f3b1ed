"""What is served, as clients ask for it: group by group, and all at once (aggregated)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

import outfitter
from outfitter.api.kinds import Kind, Object
from outfitter.apiserver import negotiate, paths
from outfitter.apiserver.request import Response, response

MAJOR, MINOR = "1", "36"
KUBEVIRT = "v1.8.0"  # whose API is served; virtctl of another minor version prints that the versions differ
OBJECT_VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
AGGREGATED = ("v2", "v2beta1")  # versions of apidiscovery.k8s.io


def version() -> Object:
    return {"major": MAJOR, "minor": MINOR, "gitVersion": f"v{MAJOR}.{MINOR}.0+outfitter{outfitter.__version__}",
            "gitCommit": "", "gitTreeState": "clean", "buildDate": "1970-01-01T00:00:00Z", "goVersion": "", "compiler": "",
            "platform": ""}


def kubevirt_version() -> Object:
    """As KubeVirt's tools ask for it, about the server that they talk to."""
    return {"gitVersion": f"{KUBEVIRT}+outfitter{outfitter.__version__}", "gitCommit": "", "gitTreeState": "clean",
            "buildDate": "1970-01-01T00:00:00Z", "goVersion": "", "compiler": "", "platform": ""}


class Discovery:
    """`actions`: what can be asked of which kinds, in a group that has nothing else. `verbs`: those of all kinds."""

    def __init__(
        self, kinds: Iterable[Kind], actions: Mapping[Kind, Sequence[str]] | None = None, verbs: Sequence[str] = OBJECT_VERBS
    ) -> None:
        self._kinds, self._verbs = tuple(kinds), verbs
        self._actions = actions or {}

    def groups(self) -> list[str]:
        """The named groups (the core group has no name), in order."""
        return sorted({kind.group for kind in self._kinds} - {""} | ({paths.ACTIONS_GROUP} if self._actions else set()))

    def versions(self, group: str) -> list[str]:
        """The versions of a group, the preferred one first."""
        kinds = self._actions if group == paths.ACTIONS_GROUP else [kind for kind in self._kinds if kind.group == group]
        return sorted({version for kind in kinds for version in kind.versions}, key=_rank)

    def core(self) -> Object:
        return {"kind": "APIVersions", "versions": self.versions(""), "serverAddressByClientCIDRs": []}

    def group_list(self) -> Object:
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [self._group(group) for group in self.groups()]}

    def group(self, group: str) -> Object:
        return {"kind": "APIGroup", "apiVersion": "v1", **self._group(group)}

    def _group(self, group: str) -> Object:
        versions = [{"groupVersion": f"{group}/{version}", "version": version} for version in self.versions(group)]
        return {"name": group, "versions": versions, "preferredVersion": versions[0]}

    def resources(self, group: str, version: str) -> Object:
        resources: list[Object] = []
        if group == paths.ACTIONS_GROUP:
            resources = [{"name": f"{kind.plural}/{name}", "singularName": "", "namespaced": kind.namespaced, "kind": kind.kind,
                          "group": kind.group, "version": kind.version, "verbs": _verbs(name)}
                         for kind, known in self._actions.items() for name in known]
        for kind in self._in(group, version):
            entry: Object = {"name": kind.plural, "singularName": kind.singular, "namespaced": kind.namespaced,
                             "kind": kind.kind, "verbs": list(self._verbs)}
            resources.append(entry | _words(kind))
            resources += [
                {"name": f"{kind.plural}/{name}", "singularName": "", "namespaced": kind.namespaced,
                 "kind": paths.OWN_KINDS.get(name, kind.kind), "verbs": _verbs(name)}
                for name in paths.subresources(kind)
            ]
        group_version = f"{group}/{version}" if group else version
        return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": resources}

    def aggregated(self, groups: Sequence[str], version: str) -> Object:
        """All groups in one answer; the core group is asked for on /api, the named ones on /apis."""
        items = []
        for group in groups:
            versions = [
                {"version": each, "freshness": "Current", "resources": [_acting(kind, known) for kind, known in
                 self._actions.items()] if group == paths.ACTIONS_GROUP else [
                    _resource(kind, each, self._verbs) for kind in self._in(group, each)]}
                for each in self.versions(group)
            ]
            items.append({"metadata": {"name": group} if group else {}, "versions": versions})
        return {"kind": "APIGroupDiscoveryList", "apiVersion": f"apidiscovery.k8s.io/{version}", "metadata": {}, "items": items}

    def root(self, root: str, accept: str) -> Response:
        """/api and /apis, aggregated for a client that asks for it first."""
        for clause in accept.split(","):
            media, parameters = negotiate.clause_of(clause)
            if parameters.get("as") == "APIGroupDiscoveryList" and parameters.get("v") in AGGREGATED:
                version = parameters["v"]
                whole = response(self.aggregated(self.groups() if root == "apis" else [""], version))
                content_type = f"{negotiate.JSON};g=apidiscovery.k8s.io;v={version};as=APIGroupDiscoveryList"
                return Response(whole.data, content_type=content_type, headers=[(b"vary", b"Accept")])
            if media in (negotiate.JSON, "*/*") and "as" not in parameters:
                break
        return response(self.group_list() if root == "apis" else self.core())

    def _in(self, group: str, version: str) -> list[Kind]:
        found = [kind for kind in self._kinds if kind.group == group and version in kind.versions]
        return sorted(found, key=lambda kind: kind.plural)


def _rank(version: str) -> tuple[int, int, int]:
    """Stable before beta before alpha, newer before older."""
    found = re.fullmatch(r"v(\d+)(?:(alpha|beta)(\d+))?", version)
    if not found:
        return (3, 0, 0)
    stage = {None: 0, "beta": 1, "alpha": 2}[found[2]]
    return (stage, -int(found[1]), -int(found[3] or 0))


def _words(kind: Kind) -> Object:
    words = {"shortNames": list(kind.short), "categories": list(kind.categories)}
    return {key: value for key, value in words.items() if value}


def _verbs(subresource: str) -> list[str]:
    return sorted(set(paths.SUBRESOURCES[subresource].values()))


def _resource(kind: Kind, version: str, verbs: Sequence[str]) -> Object:
    what = {"group": kind.group, "version": version, "kind": kind.kind}
    entry: Object = {"resource": kind.plural, "responseKind": what, "scope": "Namespaced" if kind.namespaced else "Cluster",
                     "singularResource": kind.singular, "verbs": list(verbs), **_words(kind)}
    if inner := [{"subresource": name, "responseKind": what | {"kind": paths.OWN_KINDS.get(name, kind.kind)},
                  "verbs": _verbs(name)} for name in paths.subresources(kind)]:
        entry["subresources"] = inner
    return entry


def _acting(kind: Kind, known: Sequence[str]) -> Object:
    """A resource that has subresources alone: with an empty kind, by which clients know that it is not there itself."""
    what = {"group": kind.group, "version": kind.version, "kind": kind.kind}
    return {"resource": kind.plural, "responseKind": {"group": "", "version": "", "kind": ""},
            "scope": "Namespaced" if kind.namespaced else "Cluster", "singularResource": "", "verbs": [],
            "subresources": [{"subresource": name, "responseKind": what, "verbs": _verbs(name)} for name in known]}
