"""Which IP addresses are public: hosts of the Internet, and none of this machine or the networks around it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Final

from ocrsvc.connections.url import IpAddress

# By IANA's registries of special-purpose addresses; older Pythons' own tables lack some.
_NOT_PUBLIC_V4: Final = tuple(
    map(
        IPv4Network,
        (
            "0.0.0.0/8",
            "10.0.0.0/8",
            "100.64.0.0/10",
            "127.0.0.0/8",
            "169.254.0.0/16",
            "172.16.0.0/12",
            "192.0.0.0/24",
            "192.0.2.0/24",
            "192.88.99.0/24",
            "192.168.0.0/16",
            "198.18.0.0/15",
            "198.51.100.0/24",
            "203.0.113.0/24",
            "224.0.0.0/3",
            # Public by the registry; Azure's virtual machines get their secrets from it.
            "168.63.129.16/32",
        ),
    )
)
_GLOBAL_UNICAST: Final = IPv6Network("2000::/3")
# With Teredo and 6to4, which lead to IPv4 addresses; both are gone (RFC 7526).
_NOT_PUBLIC_V6: Final = tuple(map(IPv6Network, ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")))
# The last 32 bits are an IPv4 address, that a router connects to (RFC 6052).
_NAT64: Final = IPv6Network("64:ff9b::/96")
_V4_BITS: Final = (1 << 32) - 1
_DISCARD_PORT: Final = 9


def is_public(address: IpAddress) -> bool:
    """Whether it is of the Internet; what an IPv6 address embeds counts for it. Says nothing of this machine's own."""
    embedded = next(embedded_addresses(address), None)
    if embedded is not None:
        return is_public(embedded)
    if not address.is_global or address.is_multicast or address.is_reserved:
        return False
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _NOT_PUBLIC_V4)
    return address in _GLOBAL_UNICAST and not any(address in network for network in _NOT_PUBLIC_V6)


def embedded_addresses(address: IpAddress) -> Iterator[IPv4Address]:
    """The IPv4 address that a mapped or NAT64 address leads to; none for any other."""
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            yield address.ipv4_mapped
        elif address in _NAT64:
            yield IPv4Address(int(address) & _V4_BITS)


def is_own(address: IpAddress) -> bool:
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
