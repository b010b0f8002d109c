"""Whether a caller is on this machine, for operators' routes, which by default serve only such callers."""

import ipaddress
from typing import Final

PROXY_HEADERS: Final = frozenset({"forwarded", "x-forwarded-for", "x-real-ip", "via"})
"""Headers that proxies add: with any of them, the TCP peer is a proxy and not the caller."""


def is_local_peer(peer: str, *, is_forwarded: bool) -> bool:
    """Whether a caller is on this machine (loopback or a Unix socket, whose peer is empty), and not behind a proxy."""
    return not is_forwarded and (not peer or is_loopback_address(peer))


def is_loopback(name: str) -> bool:
    """Whether a host name or address is a loopback name or address."""
    return name == "localhost" or name.endswith(".localhost") or is_loopback_address(name)


def is_loopback_address(name: str) -> bool:
    """Whether the text is a loopback address; False for host names."""
    try:
        address = ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return False
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback
