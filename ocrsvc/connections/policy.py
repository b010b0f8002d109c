"""Which addresses that callers name may be connected to: an allow-list of hosts, and networks."""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

from ocrsvc.connections.url import PORTS, IpAddress, Url, parse_url
from ocrsvc.errors import UrlRefused
from ocrsvc.settings.settings import Settings

REDIRECTS: Final = 3

Network = IPv4Network | IPv6Network
LookUp = Callable[[str], "list[IpAddress]"]

# By IANA's registries of special-purpose addresses; older Pythons' own tables lack some. The last one is public by the
# registry; Azure's virtual machines get their secrets from it.
_NOT_PUBLIC_V4: Final = """
    0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24 192.0.2.0/24
    192.88.99.0/24 192.168.0.0/16 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 224.0.0.0/3 168.63.129.16/32
"""
# With Teredo and 6to4, which lead to IPv4 addresses; both are gone (RFC 7526).
_NOT_PUBLIC_V6: Final = "2001::/23 2001:db8::/32 2002::/16 3fff::/20"
_NOT_PUBLIC: Final = tuple(map(ip_network, f"{_NOT_PUBLIC_V4} {_NOT_PUBLIC_V6}".split()))
_GLOBAL_UNICAST: Final = IPv6Network("2000::/3")
# The last 32 bits are an IPv4 address, that a router connects to (RFC 6052).
_NAT64: Final = IPv6Network("64:ff9b::/96")
_V4_BITS: Final = (1 << 32) - 1
_DISCARD_PORT: Final = 9
# As in `example.org`, `*.example.org:8080`, `*`, `[::1]:*`.
_HOST_PATTERN: Final = re.compile(r"(\*\.)?(\[.+\]|[^:]+)(?::(\d+|\*))?")


def look_up(host: str) -> list[IpAddress]:
    """Every address of a name, by the system's resolver; may take long. Raises OSError."""
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    addresses = [ip_address(str(sockaddr[0]).partition("%")[0]) for _, _, _, _, sockaddr in found]
    return list(dict.fromkeys(addresses))


@cache
def public_authorities() -> ssl.SSLContext:
    """Trusts the system's authorities, or those that SSL_CERT_FILE names."""
    return ssl.create_default_context()


@dataclass(frozen=True, slots=True)
class OutgoingPolicy:
    """Patterns of hosts, and networks that are not public, to which it may connect; bounds of an answer and its time.

    `max_bytes` holds for it received and decompressed. `look_up` is called once for each host, and raises OSError.
    """

    hosts: tuple[str, ...]
    private: tuple[Network, ...] = ()
    max_bytes: int = 64 << 20
    max_s: float = 20.0
    look_up: LookUp = field(default=look_up)
    tls: Callable[[], ssl.SSLContext] = field(default=public_authorities)

    @property
    def is_on(self) -> bool:
        """Whether there is any such host."""
        return bool(self.hosts)

    def check_url(self, text: str) -> Url:
        """The parts of a URL, if its host may be asked; connects to nothing. Raises UrlRefused."""
        url = parse_url(text)
        self.check_host(url)
        return url

    def check_host(self, url: Url) -> None:
        """Raises UrlRefused for a host or a port that is not on the list."""
        if not any(_matches(pattern, url) for pattern in self.hosts):
            raise UrlRefused(
                "The URL leads to a host or a port that this service does not ask.",
                "Send the file itself, or ask the operator to allow the host.",
            )

    def allows(self, address: IpAddress) -> bool:
        """Whether it may be connected to: it is public and not this machine's, or in a private network."""
        ways = (address, *_embedded(address))
        if any(way in network for way in ways for network in self.private):
            return True
        return is_public(address) and not any(map(_is_own, ways))


def is_public(address: IpAddress) -> bool:
    """Whether it is on the Internet; an embedded IPv4 address decides. It may still be this machine's own."""
    embedded = next(_embedded(address), None)
    if embedded is not None:
        return is_public(embedded)
    if not address.is_global or address.is_multicast or address.is_reserved:
        return False
    is_unicast = isinstance(address, IPv4Address) or address in _GLOBAL_UNICAST
    return is_unicast and not any(address in network for network in _NOT_PUBLIC)


def _embedded(address: IpAddress) -> Iterator[IPv4Address]:
    """The IPv4 address that a mapped or NAT64 address leads to; none for any other."""
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            yield address.ipv4_mapped
        elif address in _NAT64:
            yield IPv4Address(int(address) & _V4_BITS)


def _is_own(address: IpAddress) -> bool:
    """Whether this machine has the address: then it is also the one that the kernel would send from. Sends nothing."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((str(address), _DISCARD_PORT))
            own: str = probe.getsockname()[0]
    except OSError:
        # No way leads there.
        return False
    return own.partition("%")[0] == str(address)


def _matches(pattern: str, url: Url) -> bool:
    """Whether a pattern, which the settings have checked, has the URL's host and port."""
    subdomains, host, port = _HOST_PATTERN.fullmatch(pattern).groups()  # type: ignore[union-attr]
    if port != "*" and url.port != int(port or PORTS[url.scheme]):
        return False
    if subdomains:
        return url.address is None and url.host.endswith("." + host)
    return host.strip("[]") in {"*", url.host}


def policy_of_files(settings: Settings) -> OutgoingPolicy:
    """For files that callers name by URL."""
    return _policy(settings.url_hosts, settings.url_private, settings.url_bytes, settings.url_s)


def policy_of_callbacks(settings: Settings) -> OutgoingPolicy:
    """For callbacks of jobs; only the status of an answer is read."""
    return _policy(settings.callback_hosts, settings.callback_private, 0, settings.callback_s)


def _policy(hosts: Iterable[str], private: Iterable[str], max_bytes: int, max_s: float) -> OutgoingPolicy:
    return OutgoingPolicy(tuple(hosts), tuple(map(ip_network, private)), max_bytes, max_s)
