"""The policy for outgoing connections to callers' URLs: allowed hosts, and networks that are not public."""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

from ocrsvc.connections.url import PORTS, IpAddress, Url, parse_url
from ocrsvc.errors import UrlRefused
from ocrsvc.settings.settings import Settings

REDIRECTS: Final = 3

Network = IPv4Network | IPv6Network
LookUp = Callable[[str], "list[IpAddress]"]

# IANA's registries of special-purpose addresses, as older Pythons' tables lack some. The last address is public in the
# registry, but Azure's virtual machines get their secrets from it.
_NOT_PUBLIC_V4: Final = """
    0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24 192.0.2.0/24
    192.88.99.0/24 192.168.0.0/16 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 224.0.0.0/3 168.63.129.16/32
"""
# Including Teredo and 6to4, which embed IPv4 addresses and are obsolete (RFC 7526).
_NOT_PUBLIC_V6: Final = "2001::/23 2001:db8::/32 2002::/16 3fff::/20"
_NOT_PUBLIC: Final = tuple(map(ip_network, f"{_NOT_PUBLIC_V4} {_NOT_PUBLIC_V6}".split()))
_GLOBAL_UNICAST: Final = IPv6Network("2000::/3")
# The last 32 bits are an IPv4 address that a router translates to (RFC 6052).
_NAT64: Final = IPv6Network("64:ff9b::/96")
_V4_BITS: Final = (1 << 32) - 1
_DISCARD_PORT: Final = 9
# Such as `example.org`, `*.example.org:8080`, `*`, `[::1]:*`.
_HOST_PATTERN: Final = re.compile(r"(\*\.)?(\[.+\]|[^:]+)(?::(\d+|\*))?")


def look_up(host: str) -> list[IpAddress]:
    """Every address of a host name, from the system's resolver, which may take long. Raises OSError."""
    rows = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(ip_address(str(sockaddr[0]).partition("%")[0]) for *_, sockaddr in rows))


# A client context that trusts the system's authorities, or those in SSL_CERT_FILE.
_public_authorities: Final = cache(ssl.create_default_context)


@dataclass(frozen=True, slots=True)
class OutgoingPolicy:
    """Allowed host patterns, allowed networks that are not public, and limits on a response's size and time.

    `max_bytes` limits the response before and after decompression. `look_up` resolves a host, and raises OSError.
    """

    hosts: tuple[str, ...]
    private: tuple[Network, ...] = ()
    max_bytes: int = 64 << 20
    max_s: float = 20.0
    look_up: LookUp = look_up
    tls: Callable[[], ssl.SSLContext] = _public_authorities

    @property
    def is_on(self) -> bool:
        """Whether any host is allowed."""
        return bool(self.hosts)

    def check_url(self, text: str) -> Url:
        """Parse a URL and check its host, without connecting. Raises UrlRefused."""
        url = parse_url(text)
        self.check_host(url)
        return url

    def check_host(self, url: Url) -> None:
        """Raises UrlRefused for a host or port that is not allowed."""
        if not any(_matches(pattern, url) for pattern in self.hosts):
            raise UrlRefused(
                "This service may not connect to the host or port of the URL.",
                "Send the file itself, or ask the operator to allow the host.",
            )

    def allows(self, address: IpAddress) -> bool:
        """Whether an address is in `private`, or is public and not this machine's own."""
        forms = (address, *_embedded(address))
        if any(form in network for form in forms for network in self.private):
            return True
        return is_public(address) and not any(map(_is_own, forms))


def is_public(address: IpAddress) -> bool:
    """Whether an address is on the Internet, by its embedded IPv4 address if it has one."""
    embedded = next(_embedded(address), None)
    if embedded is not None:
        return is_public(embedded)
    if not address.is_global or address.is_multicast or address.is_reserved:
        return False
    is_unicast = isinstance(address, IPv4Address) or address in _GLOBAL_UNICAST
    return is_unicast and not any(address in network for network in _NOT_PUBLIC)


def _embedded(address: IpAddress) -> Iterator[IPv4Address]:
    """The IPv4 address in a mapped or NAT64 address, if any."""
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            yield address.ipv4_mapped
        elif address in _NAT64:
            yield IPv4Address(int(address) & _V4_BITS)


def _is_own(address: IpAddress) -> bool:
    """Whether this machine has the address: then the kernel would use it as source address, too. Sends nothing."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((str(address), _DISCARD_PORT))
            own: str = probe.getsockname()[0]
    except OSError:
        # No route.
        return False
    return own.partition("%")[0] == str(address)


def _matches(pattern: str, url: Url) -> bool:
    """Whether a pattern, whose syntax the settings have checked, matches the URL's host and port."""
    subdomains, host, port = _HOST_PATTERN.fullmatch(pattern).groups()  # type: ignore[union-attr]
    if port != "*" and url.port != int(port or PORTS[url.scheme]):
        return False
    if subdomains:
        return url.address is None and url.host.endswith("." + host)
    return host.strip("[]") in {"*", url.host}


def policy_of_files(settings: Settings) -> OutgoingPolicy:
    """The policy for files that callers name by URL."""
    return _policy(settings.url_hosts, settings.url_private, settings.url_bytes, settings.url_s)


def policy_of_callbacks(settings: Settings) -> OutgoingPolicy:
    """The policy for callbacks of jobs; only the response's status is read."""
    return _policy(settings.callback_hosts, settings.callback_private, 0, settings.callback_s)


def _policy(hosts: Iterable[str], private: Iterable[str], max_bytes: int, max_s: float) -> OutgoingPolicy:
    return OutgoingPolicy(tuple(hosts), tuple(map(ip_network, private)), max_bytes, max_s)
