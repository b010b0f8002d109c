"""Checks the host names that the service answers to, and the web pages that may call it (Host, Origin and CORS).

A page that a browser shows can call whatever the browser's machine can reach. Without this, a foreign site could read a
service on localhost: by making its own name point there (DNS rebinding), or where a format opens itself to all sites.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Mapping
from typing import Final
from urllib.parse import urlsplit

from flask import Flask, Response, request

from ocrsvc.errors import CallerError
from ocrsvc.settings.settings import Settings

ANY: Final = "*"
# The headers in which proxies name their caller; with any of these the peer is not the caller.
_FORWARDED: Final = ("HTTP_FORWARDED", "HTTP_X_FORWARDED_FOR", "HTTP_X_REAL_IP", "HTTP_VIA")
_METHODS: Final = "GET, HEAD, POST, PUT, DELETE, OPTIONS"
_PREFLIGHT_S: Final = "600"


class HostNotAllowed(CallerError):
    """The request is for a name that this service does not answer to, or comes from a foreign web page."""

    status = 403
    code = "host_not_allowed"
    title = "Not for this host"


def install_origins(app: Flask, settings: Settings) -> None:
    """Check the Host of every request, and set the headers by which browsers let other pages read the responses.

    Args:
        app: The application.
        settings: Used are hosts and cors.
    """
    hosts, origins = frozenset(settings.hosts), frozenset(settings.cors)

    @app.before_request
    def check_host() -> None:
        if not is_host_allowed(request.host, hosts, request.environ.get("SERVER_NAME", "")):
            raise HostNotAllowed(
                f"This service does not answer to the name {host_name(request.host)[:100]!r}.",
                "Ask it by its address, or have the operator list the name in OCRSVC_HOSTS.",
            )

    if origins:

        @app.after_request
        def open_to_pages(response: Response) -> Response:
            origin = request.headers.get("Origin", "")
            if origin and (ANY in origins or origin in origins):
                _allow(response, ANY if ANY in origins else origin)
            return response


def check_origin() -> None:
    """Raises HostNotAllowed when a web page of another host asks; for operators' routes."""
    origin = request.headers.get("Origin")
    if origin is not None and urlsplit(origin).netloc != request.host:
        raise HostNotAllowed(
            "Pages of other sites may not ask for this.", "Ask without a browser, or from a page of this service."
        )


def is_host_allowed(host: str, allowed: Collection[str], listens_at: str) -> bool:
    """Whether a request for this host is answered.

    Args:
        host: The header, with or without a port.
        allowed: Names and addresses, or "*"; if empty, a service bound to a loopback address answers to loopback names
            only, and any other to all.
        listens_at: The address that the connection came in at; empty for a Unix socket.
    """
    name = host_name(host)
    if allowed:
        return ANY in allowed or name in allowed
    return not is_loopback(listens_at) or is_loopback(name)


def host_name(host: str) -> str:
    """The name or address in a Host header, in lower case, without its port and brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].rstrip(".").lower()


def is_loopback(name: str) -> bool:
    """Whether a name or an address means the machine itself."""
    return name == "localhost" or name.endswith(".localhost") or is_loopback_address(name)


def is_loopback_address(name: str) -> bool:
    """Whether this is an address, and one of the machine itself."""
    try:
        address = ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return False
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def is_local(environ: Mapping[str, object]) -> bool:
    """Whether the peer is on this machine (loopback, or a Unix socket) and is the caller itself, not a proxy."""
    if any(name in environ for name in _FORWARDED):
        return False
    peer = str(environ.get("REMOTE_ADDR") or "")
    return not peer or is_loopback_address(peer)


def _allow(response: Response, origin: str) -> None:
    response.headers["Access-Control-Allow-Origin"] = origin
    if origin != ANY:
        response.headers.add("Vary", "Origin")
    if request.method == "OPTIONS":
        response.headers["Access-Control-Allow-Methods"] = _METHODS
        asked = request.headers.get("Access-Control-Request-Headers", "")
        if asked:
            response.headers["Access-Control-Allow-Headers"] = asked
        response.headers["Access-Control-Max-Age"] = _PREFLIGHT_S
