"""The address of one service among several, and the parsing of those that a caller writes."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeGuard
from urllib.parse import SplitResult, urlsplit

from ocrsvc.client.request import address_of, without_user
from ocrsvc.errors import BadOption

DNS_PREFIX: Final = "dns+"
_PORTS: Final = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Address:
    """Where one service is.

    Attributes:
        scheme: http or https.
        name: As the caller wrote it: in the header Host, and in the certificate.
        host: What is connected to: the name, or one IP address of it.
        port: TCP.
        path: In front of every path of the service; empty, or begun by a slash and not ended by one.
    """

    scheme: str
    name: str
    host: str
    port: int
    path: str = ""

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
        return replace(self, host=host)


@dataclass(frozen=True, slots=True)
class Services:
    """The services that a caller named: those with an address of their own, and names that are looked up."""

    fixed: tuple[Address, ...]
    names: tuple[Address, ...]


def is_one(url: str | Sequence[str]) -> TypeGuard[str]:
    """Whether it names one service, rather than a list, or all the addresses of a name."""
    return isinstance(url, str) and not url.startswith(DNS_PREFIX)


def services_of(urls: str | Sequence[str]) -> Services:
    """The services of http://host:port and dns+http://name:port, each named once. Raises BadOption."""
    listed = [urls] if isinstance(urls, str) else list(urls)
    if not listed:
        raise BadOption("No service is named.", "Write each as http://host:port.")
    fixed = [_parsed(url) for url in listed if not url.startswith(DNS_PREFIX)]
    names = [_parsed(url.removeprefix(DNS_PREFIX)) for url in listed if url.startswith(DNS_PREFIX)]
    return Services(tuple(dict.fromkeys(fixed)), tuple(dict.fromkeys(names)))


def is_ip(host: str) -> bool:
    """Whether nothing need be looked up to connect there."""
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


def _parsed(url: str) -> Address:
    """Raises BadOption."""
    try:
        parts = urlsplit(address_of(url))
        return _address(url, parts, parts.port or _PORTS[parts.scheme])
    except ValueError as error:
        raise BadOption(
            f"{without_user(url)!r} is not the address of a service: {without_user(str(error))}.",
            "Write it as http://host:port.",
        ) from error


def _address(url: str, parts: SplitResult, port: int) -> Address:
    if not parts.hostname or parts.username is not None or parts.query or parts.fragment:
        raise BadOption(
            f"{without_user(url)!r} holds more than the address of a service.",
            "Write it as http://host:port, with a path if need be.",
        )
    return Address(parts.scheme, parts.hostname, parts.hostname, port, parts.path.rstrip("/"))


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
