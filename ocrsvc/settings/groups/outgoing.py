"""Settings of outgoing requests: which addresses that callers name are asked, for files and for callbacks."""

from __future__ import annotations

import re
from ipaddress import ip_network
from typing import Annotated, Final

from pydantic import AfterValidator

from ocrsvc.settings.group import SettingsGroup, setting
from ocrsvc.settings.types import ByteCount, Names

_LABEL: Final = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_HOST: Final = re.compile(
    rf"(?:\*|(?:\*\.)?{_LABEL}(?:\.{_LABEL})*|\[[0-9a-f:.]{{2,45}}\])(?::(?:[1-9]\d{{0,4}}|\*))?", re.ASCII
)


def _check_hosts(names: tuple[str, ...]) -> tuple[str, ...]:
    """The names in lower case, if each is one of hosts, with or without a port; raises ValueError."""
    names = tuple(name.lower() for name in names)
    if not all(_HOST.fullmatch(name) for name in names):
        raise ValueError("no names of hosts")
    return names


def _check_networks(names: tuple[str, ...]) -> tuple[str, ...]:
    """The networks themselves; raises ValueError for what is none."""
    return tuple(str(ip_network(name)) for name in names)


HostPatterns = Annotated[Names, AfterValidator(_check_hosts)]
Networks = Annotated[Names, AfterValidator(_check_networks)]

_HOSTS_ACCEPTED: Final = (
    "hosts separated by commas (in the file a list), each a name, an address or *.example.org (not example.org "
    "itself), at the ports 80 and 443, or with :port or :* for others; * is every host"
)
_NETWORKS_ACCEPTED: Final = "networks separated by commas (in the file a list), such as 10.1.0.0/16 or 192.0.2.7/32"


class OutgoingSettings(SettingsGroup):
    """Addresses that callers name: files that are fetched, and callbacks."""

    title = "Outgoing requests"

    url_hosts: HostPatterns = setting(
        (),
        "Hosts from which files are fetched when a caller sends a URL in place of a file; empty fetches none.",
        accepted=_HOSTS_ACCEPTED,
    )
    url_private: Networks = setting(
        (),
        "Networks from which files are fetched although they are not public: without this no address that is private, "
        "loopback, link-local, reserved or of this machine itself is connected to, whatever a name leads to.",
        accepted=_NETWORKS_ACCEPTED,
    )
    url_bytes: ByteCount = setting(
        64 * 2**20, "Largest file that is fetched; a larger one is answered 413.", "bytes", ge=1024, le=4 * 2**30
    )
    url_s: float = setting(
        20.0,
        "Longest time for fetching a file, its redirects included; it never outlasts the request.",
        "s",
        gt=0,
        le=3600,
    )
    url_fetches: int = setting(
        8,
        "Most files that each worker fetches at once, of its threads that hold requests, half of them for one "
        "caller; more are answered 503, or 429.",
        "requests",
        ge=1,
        le=4096,
    )
    callback_hosts: HostPatterns = setting(
        (),
        "Hosts that are told when a job is over, where its caller asks for that; empty tells none.",
        accepted=_HOSTS_ACCEPTED,
    )
    callback_private: Networks = setting((), "As url_private, for the hosts of callbacks.", accepted=_NETWORKS_ACCEPTED)
    callback_s: float = setting(10.0, "Longest time for one try of a callback.", "s", gt=0, le=600)
