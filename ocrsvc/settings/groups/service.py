"""Settings of the service as a whole: its addresses, hosts and sites, its metrics and its pidfile."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, BeforeValidator

from ocrsvc.settings.group import SettingsGroup, setting
from ocrsvc.settings.types import Names, split_list

_BIND: Final = re.compile(r"unix:\S+|(?:\[[0-9a-fA-F:.]+\]|[^\s:\[\]]+):(\d{1,5})")
_HOST: Final = re.compile(r"\*|[a-z0-9._-]{1,253}|[0-9a-f:.]{2,45}")
_ORIGIN: Final = re.compile(r"\*|https?://(?:[a-z0-9._-]{1,253}|\[[0-9a-f:.]{2,45}\])(?::\d{1,5})?")


def _check_bind(value: str) -> str:
    """The address itself, if gunicorn can listen on it; raises ValueError."""
    match = _BIND.fullmatch(value)
    if match is None or int(match[1] or 0) > 65535:
        raise ValueError("not an address")
    return value


def _check_hosts(names: tuple[str, ...]) -> tuple[str, ...]:
    """The names in lower case, if each can be one of a host, or `*`; raises ValueError."""
    names = tuple(name.lower().strip("[]") for name in names)
    if not all(_HOST.fullmatch(name) for name in names):
        raise ValueError("no names of hosts")
    return names


def _check_origins(names: tuple[str, ...]) -> tuple[str, ...]:
    """The origins, if each is a scheme, a host and perhaps a port, or `*`; raises ValueError."""
    if not all(_ORIGIN.fullmatch(name) for name in names):
        raise ValueError("no origins")
    return names


Address = Annotated[str, AfterValidator(_check_bind)]
Addresses = Annotated[tuple[Address, ...], BeforeValidator(split_list)]
Hosts = Annotated[Names, AfterValidator(_check_hosts)]
Origins = Annotated[Names, AfterValidator(_check_origins)]


class ServiceSettings(SettingsGroup):
    """Addresses, hosts, sites, metrics and the file of the process id."""

    title = "Service"

    bind: Address = setting(
        "127.0.0.1:8000",
        "Address to listen on; gunicorn's -b wins.",
        accepted="host:port, [IPv6]:port or unix:path",
    )
    grpc_bind: Addresses = setting(
        (),
        "Addresses to listen on for gRPC: KServe v2, TensorFlow Serving, Paddle Serving and TurboOCR at each of them.",
        accepted="addresses separated by commas (in the file a list), each host:port, [IPv6]:port or unix:path",
    )
    hosts: Hosts = setting(
        (),
        "Names and addresses, without ports, that requests may be for (header Host), or * for any; by default the "
        "loopback ones where the service listens on a loopback address, and any elsewhere. Behind a proxy on the same "
        "machine list the names that its clients use.",
        accepted="names and addresses separated by commas (in the file a list), or *",
    )
    cors: Origins = setting(
        (),
        "Web sites whose pages may read answers, such as https://app.example.com, or * for all; by default none.",
        accepted="origins separated by commas (in the file a list), each scheme://host or scheme://host:port, or *",
    )
    ops: Literal["open", "local", "off"] = setting(
        "local",
        "Who may ask for /metrics and /ops/…: everybody, callers on the same machine that do not come through a proxy, "
        "or nobody.",
    )
    drain_s: float = setting(
        0.0,
        "How long the service answers on after SIGTERM, and says that it is not ready, so that load balancers turn to "
        "other hosts before it stops accepting; a second SIGTERM ends the wait.",
        "s",
        ge=0,
        le=3600,
    )
    pidfile: Path | None = setting(
        None, "File that holds the arbiter's process id while the service runs; gunicorn's -p wins."
    )
