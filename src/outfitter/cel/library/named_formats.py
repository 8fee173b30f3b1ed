"""Named formats a text can be checked against: `format.dns1123Label().validate(text)`."""

from __future__ import annotations

import base64
import binascii
import datetime
import re
from collections.abc import Callable
from dataclasses import dataclass

from outfitter.cel.library import network

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN = re.compile(rf"{_LABEL.pattern}(\.{_LABEL.pattern})*")
_LABEL_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_NAME = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_UUID = re.compile(r"[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}", re.IGNORECASE)
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_DATE_TIME = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})t([0-9]{2}):([0-9]{2}):([0-9]{2})(\.[0-9]+)?(z|[+-][0-9]{2}:[0-9]{2})", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class NamedFormat:
    name: str
    problems: Callable[[str], list[str]]  # what is wrong with a text; empty: nothing
    pattern: int  # how long a pattern Kubernetes counts for checking it


def _matching(pattern: re.Pattern[str], longest: int, says: str, *, prefix: bool = False) -> Callable[[str], list[str]]:
    def problems(text: str) -> list[str]:
        # A prefix may end in a dash; Kubernetes then looks away from the character before it, too.
        whole = f"{text[:-2]}a" if prefix and len(text) > 1 and text.endswith("-") else text
        found = [] if len(text) <= longest else [f"must be no more than {longest} characters"]
        return found if pattern.fullmatch(whole) else [*found, says]

    return problems


def _qualified_name(text: str) -> list[str]:
    prefix, slash, name = text.rpartition("/")
    if "/" in prefix:
        return ["must be a name, or a domain, one '/' and a name"]
    found = _subdomain(prefix) if slash else []
    found += [] if name else ["name part must be non-empty"]
    found += ["name part must be no more than 63 characters"] if len(name) > 63 else []
    return found if _NAME.fullmatch(name) else [*found, "name part must be of letters, digits, '-', '_' and '.'"]


def _label_value(text: str) -> list[str]:
    found = ["must be no more than 63 characters"] if len(text) > 63 else []
    good = not text or _NAME.fullmatch(text)
    return found if good else [*found, "must be empty, or of letters, digits, '-', '_' and '.'"]


def _uri(text: str) -> list[str]:
    return [] if network.is_url(text) else ["is not an absolute URL or path"]


def _uuid(text: str) -> list[str]:
    return [] if _UUID.fullmatch(text) else ["does not match the UUID format"]


def _byte(text: str) -> list[str]:
    try:
        base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return ["invalid base64"]
    return [] if text else ["invalid base64"]


def _date(text: str) -> list[str]:
    try:
        if _DATE.fullmatch(text):
            datetime.date.fromisoformat(text)
            return []
    except ValueError:
        pass
    return ["invalid date"]


def _date_time(text: str) -> list[str]:
    match = _DATE_TIME.fullmatch(text)
    good = match and not _date(match[1]) and int(match[2]) < 24 and int(match[3]) < 60 and int(match[4]) < 60
    return [] if good else ["invalid datetime"]


_LABEL_RULE = "must be of lower-case letters, digits and '-', and begin and end with a letter or digit"
_SUBDOMAIN_RULE = "must be labels of lower-case letters, digits and '-', joined with '.'"
_LABEL_1035_RULE = "must be of lower-case letters, digits and '-', begin with a letter and end with a letter or digit"
_subdomain = _matching(_SUBDOMAIN, 253, _SUBDOMAIN_RULE)

FORMATS: dict[str, NamedFormat] = {
    one.name: one
    for one in (
        NamedFormat("dns1123Label", _matching(_LABEL, 63, _LABEL_RULE), 30),
        NamedFormat("dns1123Subdomain", _subdomain, 60),
        NamedFormat("dns1035Label", _matching(_LABEL_1035, 63, _LABEL_1035_RULE), 30),
        NamedFormat("qualifiedName", _qualified_name, 60),
        NamedFormat("dns1123LabelPrefix", _matching(_LABEL, 63, _LABEL_RULE, prefix=True), 30),
        NamedFormat("dns1123SubdomainPrefix", _matching(_SUBDOMAIN, 253, _SUBDOMAIN_RULE, prefix=True), 60),
        NamedFormat("dns1035LabelPrefix", _matching(_LABEL_1035, 63, _LABEL_1035_RULE, prefix=True), 30),
        NamedFormat("labelValue", _label_value, 40),
        NamedFormat("uri", _uri, 1103),
        NamedFormat("uuid", _uuid, 70),
        NamedFormat("byte", _byte, 84),
        NamedFormat("date", _date, 71),
        NamedFormat("datetime", _date_time, 71),
    )
}
