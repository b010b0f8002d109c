"""Checks callers' URLs against the allowed hosts; parses them so strictly that no other host can be connected to."""

import re
import socket
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final
from urllib.parse import quote

from ocrsvc.errors import UrlRefused
from ocrsvc.settings.settings import Settings

IpAddress = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network
LookUp = Callable[[str], list[IpAddress]]

MAX_URL_CHARS: Final = 8192
PORTS: Final = {"http": 80, "https": 443}
REDIRECTS: Final = 3

_MAX_HOST_CHARS: Final = 253
_URL: Final = re.compile(r"(https?)://([^/?#]*)([^#]*)", re.ASCII | re.IGNORECASE)
_AUTHORITY: Final = re.compile(r"(\[[0-9a-f:.]{2,45}\]|[a-z0-9._-]{1,254})(?::(\d{1,5}))?", re.ASCII | re.IGNORECASE)
_LABEL: Final = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?", re.ASCII)
# Matches parts of numeric host names: some resolvers accept 0177.1, 0x7f.1 and 2130706433 as addresses.
_NUMBER: Final = re.compile(r"\d+|0x[0-9a-f]*", re.ASCII)
# Control characters, space, backslash, and lone surrogates, which UTF-8 cannot encode.
_FORBIDDEN: Final = re.compile(r"[\x00-\x20\x7f\\\ud800-\udfff]")
# Characters kept unchanged in paths and queries; all others become percent-encoded UTF-8.
_SAFE: Final = "/?:@!$&'()*+,;=-._~%[]|^`{}\"<>"
# From IANA's registry of special-purpose addresses, because older Python versions lack some. The last address counts
# as public there, but it is the server from which Azure's virtual machines get their secrets.
_NOT_PUBLIC_V4: Final = """
    0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24 192.0.2.0/24
    192.88.99.0/24 192.168.0.0/16 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 224.0.0.0/3 168.63.129.16/32
"""
# Includes Teredo and 6to4, which are obsolete (RFC 7526) and embed IPv4 addresses.
_NOT_PUBLIC_V6: Final = "2001::/23 2001:db8::/32 2002::/16 3fff::/20"
_NOT_PUBLIC: Final = tuple(map(ip_network, f"{_NOT_PUBLIC_V4} {_NOT_PUBLIC_V6}".split()))
_GLOBAL_UNICAST: Final = IPv6Network("2000::/3")
# Addresses that a router translates to the IPv4 address in their last 32 bits (RFC 6052).
_NAT64: Final = IPv6Network("64:ff9b::/96")
_V4_BITS: Final = (1 << 32) - 1
_DISCARD_PORT: Final = 9
# Matches patterns such as `example.org`, `*.example.org:8080`, `*`, `[::1]:*`.
_HOST_PATTERN: Final = re.compile(r"(\*\.)?(\[.+\]|[^:]+)(?::(\d+|\*))?")


@dataclass(frozen=True, slots=True)
class Url:
    """A parsed URL. The host is in lower case, IPv6 without brackets; `target` is the path and query to send."""

    scheme: str
    host: str
    port: int
    target: str

    @property
    def address(self) -> IpAddress | None:
        """The host as an IP address; None if it is a name."""
        try:
            return ip_address(self.host)
        except ValueError:
            return None

    @property
    def authority(self) -> str:
        """The host, with the port unless it is the scheme's default, as in the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def file_name(self) -> str:
        """The last part of the path, still percent-encoded; may be empty."""
        return self.target.partition("?")[0].rpartition("/")[2]

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}{self.target}"


def parse_url(text: str) -> Url:
    """Parse an http or https URL. Raises UrlRefused for other schemes, and for URLs that clients read differently."""
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
    """Split the authority into host and port. Raises UrlRefused."""
    if "@" in text:
        raise UrlRefused("The URL has a user name or password before its host.", "Send it without them.")
    match = _AUTHORITY.fullmatch(text)
    port = int(match[2] or implied_port) if match else 0
    if match is None or not 0 < port < 1 << 16:
        raise UrlRefused("The URL has no host, or a malformed one.", "Write the host name in ASCII.")
    return _parse_host(match[1].lower()), port


def _parse_host(host: str) -> str:
    """Check a host name, or convert an address to standard notation. Raises UrlRefused."""
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


def look_up(host: str) -> list[IpAddress]:
    """All addresses of a host name from the system's resolver, which may be slow. Raises OSError."""
    rows = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(ip_address(str(sockaddr[0]).partition("%")[0]) for *_, sockaddr in rows))


# Creates the client context that trusts the system's CA certificates, or those in SSL_CERT_FILE.
_public_authorities: Final = cache(ssl.create_default_context)


@dataclass(frozen=True, slots=True)
class OutgoingPolicy:
    """Allowed host patterns, allowed private networks, and limits on a response's size and time.

    `max_bytes` limits the response before and after decompression. `look_up` resolves a host name, and raises OSError.
    """

    hosts: tuple[str, ...]
    private: tuple[Network, ...] = ()
    max_bytes: int = 64 << 20
    max_s: float = 20.0
    look_up: LookUp = look_up
    tls: Callable[[], ssl.SSLContext] = _public_authorities

    @property
    def is_on(self) -> bool:
        """Whether at least one host is allowed."""
        return bool(self.hosts)

    def check_url(self, text: str) -> Url:
        """Parse a URL and check its host, without connecting. Raises UrlRefused."""
        url = parse_url(text)
        self.check_host(url)
        return url

    def is_allowed(self, url: Url) -> bool:
        """Whether a URL's host and port are allowed."""
        return any(_matches(pattern, url) for pattern in self.hosts)

    def check_host(self, url: Url) -> None:
        """Raises UrlRefused if the URL's host or port is not allowed."""
        if not self.is_allowed(url):
            remedy = "Send the file itself, or ask the operator to add the host to OCRSVC_URL_HOSTS."
            raise UrlRefused("The URL's host is not allowed.", remedy)

    def allows(self, address: IpAddress) -> bool:
        """Whether an address is in a `private` network, or is public and not this machine's own."""
        forms = (address, *_embedded(address))
        if any(form in network for form in forms for network in self.private):
            return True
        return is_public(address) and not any(map(_is_own, forms))


def is_public(address: IpAddress) -> bool:
    """Whether an address, or the IPv4 address embedded in it if there is one, is on the public Internet."""
    embedded = next(_embedded(address), None)
    if embedded is not None:
        return is_public(embedded)
    if not address.is_global or address.is_multicast or address.is_reserved:
        return False
    is_unicast = isinstance(address, IPv4Address) or address in _GLOBAL_UNICAST
    return is_unicast and not any(address in network for network in _NOT_PUBLIC)


def _embedded(address: IpAddress) -> Iterator[IPv4Address]:
    """Yield the IPv4 address that is embedded in an IPv4-mapped or NAT64 address."""
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            yield address.ipv4_mapped
        elif address in _NAT64:
            yield IPv4Address(int(address) & _V4_BITS)


def _is_own(address: IpAddress) -> bool:
    """Whether an address is this machine's own: the kernel then makes it the source of a connection to itself, too."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((str(address), _DISCARD_PORT))
            source: str = probe.getsockname()[0]
    except OSError:
        # An address without a route is not this machine's own.
        return False
    return source.partition("%")[0] == str(address)


def _matches(pattern: str, url: Url) -> bool:
    """Whether a pattern, with syntax checked by the settings, matches the URL's host and port."""
    subdomains, host, port = _HOST_PATTERN.fullmatch(pattern).groups()  # type: ignore[union-attr]
    if port != "*" and url.port != int(port or PORTS[url.scheme]):
        return False
    if subdomains:
        return url.address is None and url.host.endswith("." + host)
    return host.strip("[]") in {"*", url.host}


def policy_of_files(settings: Settings) -> OutgoingPolicy:
    """The policy for files that callers name by URL."""
    private = tuple(map(ip_network, settings.url_private))
    return OutgoingPolicy(tuple(settings.url_hosts), private, settings.url_bytes, settings.url_s)


def policy_of_callbacks(settings: Settings) -> OutgoingPolicy:
    """The policy for callbacks of jobs, whose responses are read only for their status."""
    private = tuple(map(ip_network, settings.callback_private))
    return OutgoingPolicy(tuple(settings.callback_hosts), private, 0, settings.callback_s)
