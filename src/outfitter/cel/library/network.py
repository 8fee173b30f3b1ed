"""IP addresses, ranges of them (CIDR) and URLs, as strict as Kubernetes reads them."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from urllib import parse as urls

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_BAD_HOST = re.compile(r"[^A-Za-z0-9\-_.~!$&'()*+,;=:\[\]<>\"%\x80-\U0010ffff]")
_PLAIN_PATH = re.compile(r"(?:[A-Za-z0-9\-_.~!$&'()*+,;=:@/\[\]]|%[0-9A-Fa-f]{2})*")
_PATH_SAFE = "$&+,/:;=@-_.~"
_PORT = re.compile(r":[0-9]*")


@dataclass(frozen=True, slots=True)
class Ip:
    address: _Address

    def __str__(self) -> str:
        return str(self.address)

    @property
    def size(self) -> int:
        """In bytes."""
        return 4 if self.address.version == 4 else 16

    @property
    def link_local_multicast(self) -> bool:
        if self.address.version == 4:
            return self.address in ipaddress.IPv4Network("224.0.0.0/24")
        return int(self.address) >> 112 & 0xFF0F == 0xFF02

    @property
    def global_unicast(self) -> bool:
        one = self.address
        special = one.is_unspecified or one.is_loopback or one.is_multicast or one.is_link_local
        return not special and one != ipaddress.IPv4Address("255.255.255.255")


@dataclass(frozen=True, slots=True)
class Cidr:
    address: _Address
    bits: int

    def __str__(self) -> str:
        return f"{self.address}/{self.bits}"

    @property
    def size(self) -> int:
        """Of the part that is fixed, in bytes."""
        return (self.bits + 7) // 8

    def masked(self) -> Cidr:
        drop = self.address.max_prefixlen - self.bits
        return Cidr(type(self.address)(int(self.address) >> drop << drop), self.bits)

    def contains(self, address: _Address) -> bool:
        drop = self.address.max_prefixlen - self.bits
        return address.version == self.address.version and int(address) >> drop == int(self.address) >> drop

    def covers(self, other: Cidr) -> bool:
        return self.bits <= other.bits and self.contains(other.address)


@dataclass(frozen=True, slots=True)
class Url:
    scheme: str
    host: str  # with the port
    path: str  # as written
    query: str
    text: str

    @property
    def hostname(self) -> str:
        name = self.host.removesuffix(f":{self.port}") if self.port or self.host.endswith(":") else self.host
        return name[1:-1] if name.startswith("[") and name.endswith("]") else name

    @property
    def port(self) -> str:
        after = self.host.rpartition("]")[2]
        _, colon, port = after.rpartition(":")
        return port if colon and port.isdecimal() else ""

    @property
    def escaped_path(self) -> str:
        if _PLAIN_PATH.fullmatch(self.path):
            return self.path
        return urls.quote(urls.unquote(self.path), safe=_PATH_SAFE)

    @property
    def parameters(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for one in self.query.split("&"):
            if one and ";" not in one and not _BAD_ESCAPE.search(one):
                key, _, value = one.partition("=")
                found.setdefault(urls.unquote_plus(key), []).append(urls.unquote_plus(value))
        return found


def parse_ip(text: str) -> Ip:
    try:
        if "%" in text or "/" in text:
            raise ValueError
        address = ipaddress.ip_address(text)
    except ValueError as error:
        raise ValueError(f"{text[:60]!r} is not an IP address: write 10.0.0.1 or fd00::1, without a zone") from error
    if address.version == 6 and address.ipv4_mapped is not None:
        raise ValueError(f"IPv4-mapped IPv6 address {text[:60]!r} is not allowed: write {address.ipv4_mapped}")
    return Ip(address)


def parse_cidr(text: str) -> Cidr:
    address, slash, bits = text.rpartition("/")
    right = slash and bits.isascii() and bits.isdigit() and (bits == "0" or not bits.startswith("0")) and len(bits) < 4
    try:
        one = parse_ip(address).address
        if not right or int(bits) > one.max_prefixlen:
            raise ValueError
    except ValueError as error:
        raise ValueError(f"{text[:60]!r} is not a CIDR range: write 10.0.0.0/8 or fd00::/64") from error
    return Cidr(one, int(bits))


def parse_url(text: str) -> Url:
    """Read an absolute URL, or an absolute path; ValueError says what is wrong."""
    reason = _url_problem(text)
    if reason:
        raise ValueError(f"{text[:60]!r} is not a URL: {reason}")
    match = _SCHEME.match(text)
    rest, _, fragment = (text[match.end() :] if match else text).partition("#")
    if _BAD_ESCAPE.search(fragment):
        raise ValueError(f"{text[:60]!r} is not a URL: a % in it begins no escape")
    rest, _, query = rest.partition("?")
    host = ""
    if rest.startswith("//") and (match or not rest.startswith("///")):
        authority, slash, path = rest[2:].partition("/")
        host, rest = urls.unquote(authority.rpartition("@")[2]), slash + path
    elif match and not rest.startswith("/"):
        rest = ""  # as in mailto:ann
    return Url(match[1].lower() if match else "", host, rest, query, text)


def is_url(text: str) -> bool:
    return not _url_problem(text)


def _url_problem(text: str) -> str:
    if not text:
        return "it is empty"
    if text == "*":
        return ""
    if any(ord(character) < 0x20 or character == "\x7f" for character in text):
        return "it has a control character"
    match = _SCHEME.match(text)
    rest = (text[match.end() :] if match else text).partition("?")[0]
    if not match and not rest.startswith("/"):
        return "write a scheme, as in https://..., or an absolute path"
    if not match or not rest.startswith("//"):
        return "a % in it begins no escape" if rest.startswith("/") and _BAD_ESCAPE.search(rest) else ""
    authority, _, path = rest[2:].partition("/")
    host = authority.rpartition("@")[2]
    after = host.rpartition("]")[2] if host.startswith("[") else host[max(host.rfind(":"), 0) :] if ":" in host else ""
    if _BAD_ESCAPE.search(path) or _BAD_ESCAPE.search(authority):
        return "a % in it begins no escape"
    if _BAD_HOST.search(host) or (host.startswith("[") and "]" not in host):
        return "the host is not one"
    return "the port is not a number" if after and not _PORT.fullmatch(after) else ""
