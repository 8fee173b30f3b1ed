"""Label and field selectors, as people type them."""

from __future__ import annotations

import pytest

from outfitter import errors
from outfitter.api import selectors
from outfitter.api.kinds import CONFIG_MAP, EVENT, NODE, POD, Kind, Object

WEB = {"app": "web", "tier": "front", "example.org/zone": "a.1", "empty": ""}
LABELS: dict[str, bool] = {
    "": True,
    " ": True,
    "app=web": True,
    "app==web": True,
    " app = web ": True,
    "app=mail": False,
    "app!=mail": True,
    "app!=web": False,
    "missing!=web": True,
    "missing=": False,
    "empty=": True,
    "app": True,
    "missing": False,
    "!missing": True,
    "! missing": True,
    "!app": False,
    "app in (web)": True,
    "app in (mail,web)": True,
    "app in ( mail , web )": True,
    "app in(web)": True,
    "app in (mail)": False,
    "missing in (web)": False,
    "app notin (mail, db)": True,
    "app notin (web)": False,
    "missing notin (web)": True,
    "empty in ()": True,
    "example.org/zone=a.1": True,
    "app=web,tier=front": True,
    "app=web,tier=back": False,
    "app in (web,mail),tier notin (back),!missing,app": True,
    "app=web,app in (mail)": False,
    "tier=front,app in (a,b)": False,
}


@pytest.mark.parametrize("text", LABELS)
def test_labels(text: str) -> None:
    assert selectors.labels(text)(WEB) is LABELS[text]


@pytest.mark.parametrize("text", [
    "app=(web", "app in web", "app in (web", "app in web)", "a=b=c", "a==b==c", "=web", "!", "app web", "!app=web",
    "!app in (web)", "app!web", "app in (a b=c)", "a>1", "app=wéb", "in (a)", "-a=b",
])
def test_labels_that_cannot_be_read(text: str) -> None:
    with pytest.raises(errors.BadRequest, match=r"labelSelector .* write key=value"):
        selectors.labels(text)


def test_no_labels_select_everything() -> None:
    assert selectors.labels("") is selectors.everything
    assert selectors.fields("", POD) is selectors.everything


PODLY: Object = {"metadata": {"name": "a", "namespace": "n"}, "spec": {"nodeName": "n1"}, "status": {"phase": "Running"}}
FIELDS: dict[str, bool] = {
    "metadata.name=a": True,
    "metadata.name==a": True,
    "metadata.name!=a": False,
    "metadata.namespace=n": True,
    "spec.nodeName=n1": True,
    "spec.nodeName=": False,
    "status.podIP=": True,
    "status.podIP!=": False,
    "status.phase=Running,spec.nodeName!=n2": True,
    "status.phase=Running,spec.nodeName=n2": False,
    "status.phase!=Succeeded,status.phase!=Failed": True,
}


@pytest.mark.parametrize("text", FIELDS)
def test_fields(text: str) -> None:
    assert selectors.fields(text, POD)(selectors.field_values(POD, PODLY)) is FIELDS[text]


BAD_FIELDS: dict[str, tuple[Kind, str]] = {
    "spec.image=x": (POD, "field label not supported: spec.image .*metadata.name, metadata.namespace, spec.nodeName"),
    "spec.nodeName=n1": (CONFIG_MAP, "a ConfigMap can be selected by metadata.name, metadata.namespace"),
    "metadata.name": (POD, "write field=value or field!=value"),
    "metadata.name in (a)": (POD, "write field=value"),
    "=a": (POD, "write field=value"),
}


@pytest.mark.parametrize("text", BAD_FIELDS)
def test_fields_that_cannot_be_read(text: str) -> None:
    kind, words = BAD_FIELDS[text]
    with pytest.raises(errors.BadRequest, match=words):
        selectors.fields(text, kind)


VALUES: dict[str, tuple[Kind, Object, str, str]] = {
    "a truth": (NODE, {"spec": {"unschedulable": True}}, "spec.unschedulable", "true"),
    "a truth that is not said": (NODE, {"spec": {}}, "spec.unschedulable", "false"),
    "a path that ends early": (POD, {"spec": None}, "spec.nodeName", ""),
    "a path into a word": (POD, {"spec": "x"}, "spec.nodeName", ""),
    "who an event is about": (EVENT, {"involvedObject": {"kind": "Pod"}}, "involvedObject.kind", "Pod"),
    "who reported an event": (EVENT, {"source": {"component": "kubelet", "host": "n1"}}, "source", "kubelet"),
    "no reporter": (EVENT, {"source": {}}, "source", ""),
    "no metadata": (POD, {}, "metadata.name", ""),
}


@pytest.mark.parametrize("case", VALUES)
def test_field_values(case: str) -> None:
    kind, obj, field, wanted = VALUES[case]
    assert selectors.field_values(kind, obj)[field] == wanted
