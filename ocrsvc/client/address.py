"""The address of one service among several, and the parsing of those that a caller writes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeGuard
from urllib.parse import urlsplit

from ocrsvc.errors import BadOption

DNS_PREFIX: Final = "dns+"
_PORTS: Final = {"http": 80, "https": 443}
_AS: Final = "Write it as http://host:port."
_USER: Final = re.compile(r"(?<=//)[^\s]*@|\A[^/\s]*@")


@dataclass(frozen=True, slots=True)
class Address:
    """Where one service is.

    Attributes:
        name: As the caller wrote it: in the header Host, and in the certificate.
        host: What is connected to: the name, or one IP address of it.
        is_looked_up: Whether it stands for a service at each address of its name.
        path: In front of every path of the service; empty, or begun by a slash and not ended by one.
    """

    scheme: str
    name: str
    host: str
    port: int
    path: str = ""
    is_looked_up: bool = False

    @property
    def url(self) -> str:
        """The address as text, such as http://10.0.0.1:8000."""
        return f"{self.scheme}://{_bracketed(self.host)}:{self.port}{self.path}"

    @property
    def authority(self) -> str:
        """The value of the header Host."""
        name = _bracketed(self.name)
        return name if self.port == _PORTS[self.scheme] else f"{name}:{self.port}"

    def at(self, host: str) -> Address:
        """The same service at one of the IP addresses of its name."""
        return replace(self, host=host, is_looked_up=False)


def is_one(url: str | Sequence[str]) -> TypeGuard[str]:
    """Whether it names one service, rather than a list, or all the addresses of a name."""
    return isinstance(url, str) and not url.startswith(DNS_PREFIX)


def services_of(urls: str | Sequence[str]) -> list[Address]:
    """Those of http://host:port and dns+http://name:port, each once. Raises BadOption."""
    listed = [urls] if isinstance(urls, str) else list(urls)
    if not listed:
        raise BadOption("No service is named.", _AS)
    return list(dict.fromkeys(map(_parsed, listed)))


def without_user(text: str) -> str:
    """A text without the users, passwords and queries of its addresses, which errors and logs must not show."""
    return _USER.sub("***@", text.partition("?")[0])


def _parsed(text: str) -> Address:
    """Raises BadOption."""
    url = text.removeprefix(DNS_PREFIX)
    shown = repr(without_user(url))
    if not re.match(r"https?://[^/\s]", url):
        raise BadOption(f"{shown} is not the address of a service.", _AS)
    try:
        parts = urlsplit(url)
        port = parts.port or _PORTS[parts.scheme]
    except ValueError as error:
        raise BadOption(f"{shown} is not the address of a service: {without_user(str(error))}.", _AS) from error
    if not parts.hostname or parts.username is not None or parts.query or parts.fragment:
        raise BadOption(f"{shown} holds more than the address of a service.", f"{_AS} A path may follow.")
    return Address(parts.scheme, parts.hostname, parts.hostname, port, parts.path.rstrip("/"), is_looked_up=url != text)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
