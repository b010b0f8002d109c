"""Which addresses that callers name may be connected to: hosts by an allow-list, and networks."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Final

from ocrsvc.connections.public_addresses import embedded_addresses, is_own, is_public
from ocrsvc.connections.url import PORTS, IpAddress, Url, parse_url
from ocrsvc.errors import UrlRefused
from ocrsvc.settings.settings import Settings

REDIRECTS: Final = 3

Network = IPv4Network | IPv6Network
LookUp = Callable[[str], "list[IpAddress]"]


def look_up(host: str) -> list[IpAddress]:
    """Every address of a name, by the system's resolver; may take long. Raises OSError."""
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    addresses = [ip_address(str(sockaddr[0]).partition("%")[0]) for _, _, _, _, sockaddr in found]
    return list(dict.fromkeys(addresses))


@cache
def public_authorities() -> ssl.SSLContext:
    """Certificates are checked with the system's authorities, or with those that SSL_CERT_FILE names."""
    return ssl.create_default_context()


@dataclass(frozen=True, slots=True)
class HostPattern:
    """Hosts of an allow-list.

    Attributes:
        host: A name or an address; `*` is every host.
        with_subdomains: Whether the names below it are meant, instead of itself.
        port: The only port; 0 is any, None that of the scheme.
    """

    host: str
    with_subdomains: bool = False
    port: int | None = None

    def matches(self, url: Url) -> bool:
        """Whether it is one of these hosts, at a port of them."""
        port = PORTS[url.scheme] if self.port is None else self.port or url.port
        if port != url.port:
            return False
        if self.with_subdomains:
            return url.address is None and url.host.endswith("." + self.host)
        return self.host in {"*", url.host}


@dataclass(frozen=True, slots=True)
class OutgoingPolicy:
    """Which URLs of callers are asked, and what of them is taken.

    Attributes:
        hosts: That may be asked; none asks nobody.
        private: Networks that may be connected to although they are not public.
        most_bytes: Of an answer, received and decompressed.
        most_s: For all of it, in seconds.
        look_up: Gives the addresses of a name; called once for each host that is asked. Raises OSError.
        tls: Makes what certificates are checked with.
    """

    hosts: tuple[HostPattern, ...]
    private: tuple[Network, ...] = ()
    most_bytes: int = 64 << 20
    most_s: float = 20.0
    look_up: LookUp = field(default=look_up)
    tls: Callable[[], ssl.SSLContext] = field(default=public_authorities)

    @property
    def is_on(self) -> bool:
        """Whether there is any host that may be asked."""
        return bool(self.hosts)

    def check_url(self, text: str) -> Url:
        """The parts of a URL, if its host may be asked; connects to nothing. Raises UrlRefused."""
        url = parse_url(text)
        self.check_host(url)
        return url

    def check_host(self, url: Url) -> None:
        """Raises UrlRefused for a host or a port that is not on the list."""
        if not any(pattern.matches(url) for pattern in self.hosts):
            raise UrlRefused(
                "The URL leads to a host or a port that this service does not ask.",
                "Send the file itself, or ask the operator to allow the host.",
            )

    def allows(self, address: IpAddress) -> bool:
        """Whether it may be connected to: it is public and not this machine's, or in a private network."""
        ways = (address, *embedded_addresses(address))
        if any(way in network for way in ways for network in self.private):
            return True
        return is_public(address) and not any(is_own(way) for way in ways)


def parse_pattern(text: str) -> HostPattern:
    """Of a setting, which has checked it: `example.org`, `*.example.org`, `*`, `[::1]`, each with a port or `:*`."""
    host, _, port = text.rpartition(":") if not text.endswith("]") else (text, "", "")
    host, port = (host, port) if host else (text, "")
    wanted_port = None if not port else 0 if port == "*" else int(port)
    if host.startswith("*."):
        return HostPattern(host[2:], with_subdomains=True, port=wanted_port)
    return HostPattern(host.strip("[]"), port=wanted_port)


def policy_of_files(settings: Settings) -> OutgoingPolicy:
    """For files that callers name by URL."""
    return OutgoingPolicy(
        tuple(map(parse_pattern, settings.url_hosts)),
        tuple(map(ip_network, settings.url_private)),
        settings.url_bytes,
        settings.url_s,
    )


def policy_of_callbacks(settings: Settings) -> OutgoingPolicy:
    """For callbacks of jobs, of whose answers the status alone is read."""
    return OutgoingPolicy(
        tuple(map(parse_pattern, settings.callback_hosts)),
        tuple(map(ip_network, settings.callback_private)),
        most_bytes=0,
        most_s=settings.callback_s,
    )
