"""Addresses of services, and their parsing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeGuard
from urllib.parse import urlsplit

from ocrsvc.errors import BadOption

DNS_PREFIX: Final = "dns+"
_PORTS: Final = {"http": 80, "https": 443}
_REMEDY: Final = "Write it as http://host:port."
_USER: Final = re.compile(r"(?<=//)[^\s]*@|\A[^/\s]*@")


@dataclass(frozen=True, slots=True)
class Address:
    """The address of one service, or with `is_looked_up` of a service at each IP address of a name.

    Attributes:
        name: The host as the caller wrote it; used for the header Host and to check the certificate.
        host: The host to connect to: the name, or one of its IP addresses.
        is_looked_up: Whether to look up the name's IP addresses, each of which is a service.
        path: Prefix of the service's URL paths: empty, or with a leading slash and no trailing one.
    """

    scheme: str
    name: str
    host: str
    port: int
    path: str = ""
    is_looked_up: bool = False

    @property
    def url(self) -> str:
        """The URL, such as http://10.0.0.1:8000."""
        return f"{self.scheme}://{_bracketed(self.host)}:{self.port}{self.path}"

    @property
    def authority(self) -> str:
        """The value of the header Host."""
        name = _bracketed(self.name)
        return name if self.port == _PORTS[self.scheme] else f"{name}:{self.port}"

    def at(self, host: str) -> Address:
        """A copy of this address that connects to `host`, one of the IP addresses of the name."""
        return replace(self, host=host, is_looked_up=False)


def is_single(url: str | Sequence[str]) -> TypeGuard[str]:
    """Whether the argument is the URL of one service, not a list or a dns+ URL."""
    return isinstance(url, str) and not url.startswith(DNS_PREFIX)


def services_of(urls: str | Sequence[str]) -> list[Address]:
    """Parse URLs such as http://host:port and dns+http://name:port; omit duplicates. Raises BadOption."""
    listed = [urls] if isinstance(urls, str) else list(urls)
    if not listed:
        raise BadOption("No service is named.", _REMEDY)
    return list(dict.fromkeys(map(_parsed, listed)))


def without_user(text: str) -> str:
    """Remove users, passwords and queries of URLs, which errors and logs must not show."""
    return _USER.sub("***@", text.partition("?")[0])


def _parsed(text: str) -> Address:
    """Parse one URL. Raises BadOption."""
    url = text.removeprefix(DNS_PREFIX)
    shown = repr(without_user(url))
    if not re.match(r"https?://[^/\s]", url):
        raise BadOption(f"{shown} is not the address of a service.", _REMEDY)
    try:
        parts = urlsplit(url)
        port = parts.port or _PORTS[parts.scheme]
    except ValueError as error:
        raise BadOption(f"{shown} is not the address of a service: {without_user(str(error))}.", _REMEDY) from error
    if not parts.hostname or parts.username is not None or parts.query or parts.fragment:
        raise BadOption(f"{shown} is more than the address of a service.", f"{_REMEDY} A path may follow.")
    if route := re.search(r"/v1/(?:\w+|chat/completions)/?$", parts.path):
        remedy = f"Give the service's address without {route[0].rstrip('/')}."
        raise BadOption(f"{shown} is more than the address of a service.", remedy)
    return Address(parts.scheme, parts.hostname, parts.hostname, port, parts.path.rstrip("/"), is_looked_up=url != text)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
