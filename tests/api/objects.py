"""Objects as people hand them in, in few words."""

from __future__ import annotations

from typing import Any

from outfitter.api.kinds import Object

NOW = "2026-01-01T00:00:00Z"


def meta(name: str = "x", **more: Any) -> Object:
    return {"name": name, "namespace": "here", **more}


def vmi(**spec: Any) -> Object:
    return {"metadata": meta(), "spec": {"domain": {"memory": {"guest": "1Gi"}}, **spec}}


def with_devices(*entries: Object, claims: Any = ({"name": "net", "resourceClaimName": "c"},), **lists: Any) -> Object:
    return vmi(resourceClaims=list(claims), domain={"devices": {"hostDevices": list(entries), **lists}})


def nic(name: str = "nic0", **more: Any) -> Object:
    return {"name": name, "claimName": "net", "requestName": "nic", **more}


def claim(*requests: Any, **devices: Any) -> Object:
    return {"metadata": meta(), "spec": {"devices": {"requests": list(requests), **devices}}}


def ask(name: Any = "nic", **exactly: Any) -> Object:
    return {"name": name, "exactly": {"deviceClassName": "vf", **exactly}}


def pod(**spec: Any) -> Object:
    return {"metadata": meta(), "spec": {"containers": [{"name": "main"}], **spec}}


def device_class(*expressions: Any) -> Object:
    return {"metadata": {"name": "x"}, "spec": {"selectors": [{"cel": {"expression": each}} for each in expressions]}}


def published(**spec: Any) -> Object:
    """A ResourceSlice."""
    return {"metadata": {"name": "x"}, "spec": {
        "driver": "d", "nodeName": "a", "pool": {"name": "a", "generation": 1, "resourceSliceCount": 1}, **spec}}
