"""Area domainxml: an instance goes through the launcher's entry, and the domain is asked by XPath."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lxml import etree

from outfitter.api import kinds
from outfitter.api.kinds import Object
from outfitter.errors import OutfitterError
from outfitter.launcher import domain, metadata
from outfitter.launcher.domain_options import DomainOptions
from tests.cases.case import Case
from tests.cases.case_product import contains

UID = "5d307ca9-b3ef-428c-8861-06e72d69f223"  # for instances of cases that do not say theirs


async def run(case: Case) -> list[str]:
    given = list(case.data["given"])
    instance = next(obj for obj in given if obj["kind"] == kinds.VMI.kind)
    env = {key: value for obj in given if obj["kind"] == "LauncherEnv" for key, value in (obj.get("env") or {}).items()}
    files = {key: value for obj in given if obj["kind"] == "LauncherFiles" for key, value in (obj.get("files") or {}).items()}
    options = DomainOptions(arriving=case.config.get("renderFor") == "migration-target")
    refused: str | None = None
    xml = ""
    try:
        xml = _launch(*_there(instance, files, case.config.get("deviceSource")), env, options)
    except OutfitterError as error:
        refused = error.message
    return compare(case.expect, xml, refused)


def _there(instance: Object, files: Mapping[str, str], source: str | None) -> tuple[Object, Mapping[str, str]]:
    """A case that says where claimed devices are read from is of a cluster where nothing else sets it."""
    if source == "metadata":
        status = {key: value for key, value in (instance.get("status") or {}).items() if key != "deviceStatus"}
        return {**instance, "status": status}, files
    if source == "status":
        return instance, {path: text for path, text in files.items() if not path.startswith(metadata.BASES)}
    return instance, files


def _launch(instance: Object, files: Mapping[str, str], env: Mapping[str, str], options: DomainOptions) -> str:
    meta = {"uid": UID, "namespace": "default", **instance["metadata"]}
    return domain.build({**instance, "metadata": meta}, env, files, options).xml


def compare(expect: Mapping[str, Any], xml: str, refused: str | None) -> list[str]:
    if "error" in expect:
        wanted = (expect["error"] or {}).get("messageContains", "")
        if refused is None:
            return [f"an error with {wanted!r} was expected, but there is a domain:\n{xml}"]
        return [] if contains(refused, wanted) else [f"the error does not mention {wanted!r}: {refused}"]
    if refused is not None:
        return [] if expect.get("orError") else [f"no domain: {refused}"]
    root, wrong = etree.fromstring(xml.encode()), []
    for each in expect.get("xpathAssertions") or ():
        path = each["xpath"]
        if "count" in each and (have := int(root.xpath(f"count({path})"))) != each["count"]:
            wrong.append(f"count({path}) is {have}, not {each['count']}")
        wanted = each.get("equals")
        if "equals" in each and (text := root.xpath(f"string({path})")) != (  # as XPath writes what is true
                str(wanted).lower() if isinstance(wanted, bool) else str(wanted)):
            wrong.append(f"{path} is {text!r}, not {wanted!r}")
    return wrong
