"""Callers' URLs, parsed strictly, so that the checked host is the one that is connected to."""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final
from urllib.parse import quote

from ocrsvc.errors import UrlRefused

IpAddress = IPv4Address | IPv6Address

MAX_URL_CHARS: Final = 8192
PORTS: Final = {"http": 80, "https": 443}

_MAX_HOST_CHARS: Final = 253
_URL: Final = re.compile(r"(https?)://([^/?#]*)([^#]*)", re.ASCII | re.IGNORECASE)
_AUTHORITY: Final = re.compile(r"(\[[0-9a-f:.]{2,45}\]|[a-z0-9._-]{1,254})(?::(\d{1,5}))?", re.ASCII | re.IGNORECASE)
_LABEL: Final = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?", re.ASCII)
# Some resolvers accept 0177.1, 0x7f.1 and 2130706433 as addresses.
_NUMBER: Final = re.compile(r"\d+|0x[0-9a-f]*", re.ASCII)
# Lone surrogates cannot be encoded.
_FORBIDDEN: Final = re.compile(r"[\x00-\x20\x7f\\\ud800-\udfff]")
# Characters that stay unchanged in paths and queries; all others become percent-encoded UTF-8.
_SAFE: Final = "/?:@!$&'()*+,;=-._~%[]|^`{}\"<>"


@dataclass(frozen=True, slots=True)
class Url:
    """A parsed URL: host in lower case, IPv6 addresses without brackets; `target` is path and query as sent."""

    scheme: str
    host: str
    port: int
    target: str

    @property
    def address(self) -> IpAddress | None:
        """The host's address; None for a name."""
        try:
            return ip_address(self.host)
        except ValueError:
            return None

    @property
    def authority(self) -> str:
        """The value of the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def file_name(self) -> str:
        """The last part of the path, not decoded; may be empty."""
        return self.target.partition("?")[0].rpartition("/")[2]

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}{self.target}"


def parse_url(text: str) -> Url:
    """Parse a URL. Raises UrlRefused unless it is http or https and unambiguous."""
    if len(text) > MAX_URL_CHARS:
        raise UrlRefused(f"The URL has {len(text)} characters.", f"Send at most {MAX_URL_CHARS}.")
    if _FORBIDDEN.search(text):
        raise UrlRefused("The URL has a space, a control character or a backslash.", "Percent-encode it.")
    match = _URL.fullmatch(text.partition("#")[0])
    if match is None:
        raise UrlRefused("The URL does not begin with http:// or https://.", "Send a complete URL.")
    scheme = match[1].lower()
    host, port = _parse_authority(match[2], PORTS[scheme])
    target = quote(match[3], safe=_SAFE)
    return Url(scheme, host, port, target if target.startswith("/") else "/" + target)


def _parse_authority(text: str, implied_port: int) -> tuple[str, int]:
    """Host and port. Raises UrlRefused."""
    if "@" in text:
        raise UrlRefused("The URL has a user name or password before its host.", "Send it without them.")
    match = _AUTHORITY.fullmatch(text)
    port = int(match[2] or implied_port) if match else 0
    if match is None or not 0 < port < 1 << 16:
        raise UrlRefused("The URL has no host, or a malformed one.", "Write the host name in ASCII.")
    return _parse_host(match[1].lower()), port


def _parse_host(host: str) -> str:
    """A host name, or an address in standard notation. Raises UrlRefused."""
    if host.startswith("["):
        return _parse_address(host[1:-1], IPv6Address)
    name = host.removesuffix(".")
    labels = name.split(".")
    if _NUMBER.fullmatch(labels[-1]):
        return _parse_address(host, IPv4Address)
    if len(name) > _MAX_HOST_CHARS or not all(_LABEL.fullmatch(label) for label in labels):
        raise UrlRefused("The URL's host is not a valid host name.", "Check the URL.")
    return name


def _parse_address(text: str, kind: type[IPv4Address | IPv6Address]) -> str:
    try:
        return str(kind(text))
    except ValueError as error:
        detail = "The URL's host is an address that is not in standard notation."
        raise UrlRefused(detail, "Write it as 192.0.2.1 or [2001:db8::1].") from error
